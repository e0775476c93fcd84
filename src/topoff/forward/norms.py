"""PyG's norms over all nodes, from the sums over all nodes: each is a function of a row, the means, and the squares.

Exact inference adds up the sums of all batches. In training, the nodes outside a batch keep the means of the last exact
pass (the basis is refreshed by one), and the batch adds its own; before the first, its own stand for all.

>>> x = torch.rand(5, 3, dtype=torch.float64)
>>> norm = gnn.PairNorm()
>>> torch.allclose(normalized(norm, x, sums_of(x) / 5, 5), norm(x))
True
"""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn

from topoff.forward.intercept import ConvCall


def sums_of(rows: Tensor) -> Tensor:
    """Return the sums of rows (b, d) and of their squares, in float64; (2, d)."""
    wide = rows.double()
    return torch.stack([wide.sum(0), wide.square().sum(0)])


def normalized(norm: nn.Module, rows: Tensor, moments: Tensor, count: int) -> Tensor:
    """Apply a norm to rows (b, d), given the means of all rows and of their squares (2, d), and how many there are."""
    mean, second = moments[0], moments[1]
    variance = (second - mean.square()).clamp(min=0)
    out: Tensor = _apply(norm, rows.double(), mean, variance, count).to(rows.dtype)
    return out


def _apply(norm: Any, x: Tensor, mean: Tensor, variance: Tensor, count: int) -> Any:
    """Apply one of the norms in PyG's own arithmetic."""
    if isinstance(norm, gnn.GraphSizeNorm):
        return x / count**0.5
    if isinstance(norm, gnn.MeanSubtractionNorm):
        return x - mean
    if isinstance(norm, gnn.PairNorm):
        x = x - mean
        size = x.norm(2, -1, keepdim=True) if norm.scale_individually else (norm.eps + variance.sum()).sqrt()
        return norm.scale * x / (norm.eps + size if norm.scale_individually else size)
    if isinstance(norm, gnn.GraphNorm):
        rest = (1 - norm.mean_scale).square() * mean.square()  # what is left of the mean adds to the spread
        return norm.weight * (x - mean * norm.mean_scale) / (variance + rest + norm.eps).sqrt() + norm.bias
    if isinstance(norm, gnn.LayerNorm):
        middle = mean.mean()
        deviation = (variance + mean.square()).mean() - middle.square()
        out = (x - middle) / (deviation.clamp(min=0).sqrt() + norm.eps)
    else:  # InstanceNorm, BatchNorm1d
        out = (x - mean) / (variance + norm.eps).sqrt()
    return out if norm.weight is None else out * norm.weight + norm.bias


def is_over_all(norm: Any) -> bool:
    """Whether a norm reads all nodes now, not the batch's alone.

    Instance norm with running statistics does not: in training it learns from the batch, as batch norm does. A batch
    norm without them does in eval mode.
    """
    if isinstance(norm, nn.modules.batchnorm._BatchNorm):
        return not norm.training
    return not getattr(norm, "track_running_stats", False)


def check_one_graph(call: ConvCall) -> None:
    """Refuse a norm per graph of several.

    Raises:
        ValueError: where the norm was given a batch vector.
    """
    if any(value is not None for value in (*call.args[1:], *call.kwargs.values())):
        raise ValueError(
            f"Expected {call.conv} to normalise over one graph (got a 'batch' vector, too): leave it out, all "
            f"nodes are of one graph."
        )
