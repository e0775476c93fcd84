"""Dropout on the CPU with the statistics of torch's own, several times faster; elsewhere it is torch's own.

torch draws a double for every element. Here one 64-bit word decides over four elements, sixteen bits each, or over
eight where eight bits suffice; the words come from numpy's fastest generator, seeded by one draw of torch's.
Probabilities are rounded to 65536ths, and the output is scaled by the probability that was really used, so that its
expectation is the input.

>>> import torch
>>> out = dropout(torch.ones(1000, 8), 0.5)
>>> sorted(set(out.flatten().tolist()))
[0.0, 2.0]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function_unary
from torch.utils.weak import WeakTensorKeyDictionary

STEPS = 1 << 16  # what probabilities are rounded to a multiple of


def dropout(
    x: Tensor, p: float = 0.5, *, training: bool = True, inplace: bool = False, generator: torch.Generator | None = None
) -> Tensor:
    """Zero elements with probability p and scale the others so that the expectation is x, of any shape.

    Masks come from `generator`, by default torch's own, so that `torch.manual_seed` repeats them. With p = 0 or outside
    of training, x itself is returned; with `inplace`, x is written to and returned.

    Raises:
        ValueError: for p outside [0, 1], or a generator for a tensor that is not on the CPU.

    >>> x = torch.ones(2, 3)
    >>> dropout(x, training=False) is x
    True
    """
    if not 0 <= p <= 1:
        raise ValueError(f"Expected p to be between 0 and 1 (got {p}); it is the fraction of elements to drop.")
    if not training or p == 0:
        return x
    if x.device.type != "cpu" or not x.is_floating_point():
        if generator is not None:
            raise ValueError(
                f"Expected generator to be None for a {x.dtype} tensor on '{x.device.type}' (got one); only "
                f"floating-point tensors on the CPU can use it, seed others with torch.manual_seed."
            )
        return F.dropout(x, p, inplace=inplace)
    return _drop(x, p, inplace=inplace, generator=generator)  # type: ignore[no-any-return]


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _drop(x: Tensor, p: float, *, inplace: bool, generator: torch.Generator | None) -> Tensor:
    """Drop elements for p > 0; outside of compiled graphs, so that the draws are those of the plain model."""
    if has_torch_function_unary(x):  # somebody listens, such as `DropoutNotes`
        return handle_torch_function(_drop, (x,), x, p, inplace=inplace, generator=generator)  # type: ignore[no-any-return]
    kept = min(max(round((1 - p) * STEPS), 1), STEPS - 1)  # of STEPS
    if p == 1:
        out: Tensor = x * 0
    else:
        out = _Masked.apply(x, draw_mask(x.shape, kept, generator=generator), STEPS / kept)  # type: ignore[no-untyped-call]
    return x.copy_(out) if inplace else out


def draw_mask(shape: torch.Size, kept: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Return a mask that is 1 with probability kept / STEPS and else 0, independently for each element; int8.

    >>> draw_mask(torch.Size([2, 3]), STEPS // 2).shape
    torch.Size([2, 3])
    """
    small = kept % 256 == 0  # the lower byte decides nothing: half as many words
    lanes, half = (8, 1 << 7) if small else (4, 1 << 15)
    count = shape.numel()
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    words = np.random.SFC64(seed).random_raw(-(-count // lanes))  # twice as fast as torch's own
    numbers = torch.from_numpy(words.view(np.int8 if small else np.int16))[:count]
    # compared in place: a bool result would take five times as long, here and in every product
    return numbers.lt_(kept * 2 * half // STEPS - half).to(torch.int8).view(shape)


class _Masked(torch.autograd.Function):
    """Multiply with a mask and a scale; only the mask is kept for the backward pass, a byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        """Return x * mask * scale, and keep the mask (a `setup_context` of its own would take longer than the rest)."""
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return mask.to(x.dtype).mul_(x).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return grad * mask * scale."""
        return _Masked.apply(grad, ctx.saved_tensors[0], ctx.scale), None, None  # type: ignore[no-untyped-call]


class Dropout(nn.Dropout):
    """Stand in for `nn.Dropout`, with the same arguments.

    >>> Dropout(0.2)
    Dropout(p=0.2, inplace=False)
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with elements dropped, in training."""
        return dropout(input, self.p, training=self.training, inplace=self.inplace)


@contextmanager
def fast_dropout(model: nn.Module) -> Iterator[None]:
    """Let every plain `nn.Dropout` inside a model be a `Dropout` inside `with`; afterwards the model is as it was.

    Only the class of these modules changes, which `torch.compile` notices; subclasses with a forward of their own, and
    calls of `F.dropout`, are left alone.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    >>> with fast_dropout(model):
    ...     isinstance(model[1], Dropout)
    True
    >>> type(model[1]) is nn.Dropout
    True
    """
    plain = [module for module in model.modules() if type(module) is nn.Dropout]
    for module in plain:
        module.__class__ = Dropout
    try:
        yield
    finally:
        for module in plain:
            module.__class__ = nn.Dropout


@dataclass(frozen=True)
class Dropped:
    """Say where an output of dropout comes from."""

    source: Tensor  # what was dropped out
    again: Callable[[Tensor], Tensor]  # the same dropout with a new mask


class DropoutNotes(TorchFunctionMode):
    """Note inside `with`, for every output of `F.dropout` or `dropout`, what it was before.

    A note lives as long as the output does. Dropout that does nothing (p = 0, outside of training) is not noted, nor
    are dropouts inside of compiled graphs.

    >>> x = torch.ones(2, 3)
    >>> with DropoutNotes() as notes:
    ...     out = nn.Dropout(0.5)(x)
    >>> notes.of(out).source is x
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self._notes = WeakTensorKeyDictionary()

    def of(self, out: Tensor) -> Dropped | None:
        """Return the note of a tensor, None where it is not the output of a dropout."""
        note: Dropped | None = self._notes.get(out)  # type: ignore[no-untyped-call]
        return note

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call any function of torch as it is, and note what dropout returns."""
        kwargs = kwargs or {}
        if func is not F.dropout and func is not _drop:
            return func(*args, **kwargs)
        x, *rest = args
        before = x.detach().clone() if kwargs.get("inplace") and kwargs.get("training", True) else x
        out = func(x, *rest, **kwargs)
        if out is not x or before is not x:
            again = {**kwargs, "inplace": False}
            self._notes[out] = Dropped(before, lambda rows: func(rows, *rest, **again))
        return out


class WithoutDropout(TorchFunctionMode):
    """Let every `F.dropout` or `dropout` inside `with` return what it is given; `met` says whether there was one.

    >>> with WithoutDropout() as silent:
    ...     nn.Dropout(0.5)(torch.ones(2))
    tensor([1., 1.])
    >>> silent.met
    True
    """

    met = False

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call any function of torch but dropout as it is."""
        if func is not F.dropout and func is not _drop:
            return func(*args, **(kwargs or {}))
        self.met |= func is _drop or bool(kwargs["training"] and kwargs["p"])
        return args[0]
