"""Add up the gradients of several processes, with other tensors beside them, in one sum.

>>> weight = torch.nn.Parameter(torch.ones(2))
>>> weight.grad = torch.tensor([1.0, 2.0])
>>> count = torch.tensor([3.0])
>>> sum_gradients([weight], [count], ranks=Ranks())
>>> weight.grad, count
(tensor([1., 2.]), tensor([3.]))
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from topoff.machine.ranks import Ranks


def sum_gradients(parameters: Sequence[nn.Parameter], others: Sequence[Tensor], *, ranks: Ranks) -> None:
    """Add up gradients and other tensors over all processes, in place, as one flat tensor: one message per step.

    A parameter that no process has a gradient of stays without one: optimisers then leave it alone.
    """
    if ranks.size == 1:
        return
    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    flags = torch.tensor([float(each.grad is not None) for each in parameters])
    parts = [_numbers(each) for each in (*grads, *others)]
    kind = torch.promote_types(torch.float32, _common(parts))
    flat = ranks.sum(torch.cat([each.to(parts[0].device, kind) for each in (*parts, flags)]))
    *found, some = torch.split(flat, [*(len(part) for part in parts), len(flags)])
    for parameter, part, known in zip(parameters, found, (some > 0).tolist(), strict=False):
        parameter.grad = torch.empty_like(parameter) if known else None
        if parameter.grad is not None:
            _put(part, parameter.grad)
    for other, part in zip(others, found[len(parameters) :], strict=True):
        _put(part, other)


def _numbers(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor in one row; of complex ones, both parts."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def _put(numbers: Tensor, tensor: Tensor) -> None:
    """Undo `_numbers`, into a tensor."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    tensor.copy_(numbers.view(tensor.shape))


def _common(parts: Sequence[Tensor]) -> torch.dtype:
    """Return the type that holds all of them."""
    kind = parts[0].dtype
    for part in parts:
        kind = torch.promote_types(kind, part.dtype)
    return kind
