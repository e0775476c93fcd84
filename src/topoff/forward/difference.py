"""How far the outputs of a model are apart, whatever it returns."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from topoff.forward.intercept import map_tensors


def relative_error(value: Any, truth: Any) -> float:
    """Return the largest difference between outputs, relative to the largest entry; NaN and other shapes are inf.

    >>> import torch
    >>> relative_error(torch.tensor([1.0, 2.0]), (torch.tensor([1.0, 4.0])))
    0.5
    """
    if isinstance(truth, dict):
        return max((relative_error(value[key], truth[key]) for key in truth), default=0.0)
    if isinstance(truth, (tuple, list)):
        return max((relative_error(one, other) for one, other in zip(value, truth, strict=True)), default=0.0)
    if not isinstance(truth, Tensor):
        return 0.0
    if not isinstance(value, Tensor) or value.shape != truth.shape:
        return float("inf")
    one, other = value.detach().double().cpu(), truth.detach().double().cpu()
    same = (one == other) | (one.isnan() & other.isnan())
    if bool(same.all()):
        return 0.0
    scale = other[other.isfinite()].abs().max() if bool(other.isfinite().any()) else other.new_ones(())
    error = float((one - other)[~same].abs().max() / scale.clamp(min=1e-300))
    return error if error == error else float("inf")


def is_finite(out: Any) -> bool:
    """Whether all tensors of an output are finite."""
    found: list[bool] = []
    map_tensors(out, lambda tensor: found.append(bool(tensor.isfinite().all())))
    return all(found)
