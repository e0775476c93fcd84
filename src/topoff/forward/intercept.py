"""Stand in for the message passing of an unmodified model, and leave no trace behind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from topoff.forward.convs import EDGE_VALUES, Conv
from topoff.graph.graph import Neighbourhood


class Handler(Protocol):
    """Stand in for the message passing of every conv while an `Interception` is active."""

    def convolve(self, conv: Conv, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Take a call of the conv; `forward` is the conv's own, whose `propagate` comes back to this handler."""

    def propagate(self, conv: Conv, operand: Tensor) -> Tensor:
        """Take a propagation step of a linear conv: operand (b, d) -> (b, d)."""


class Interception:
    """Let a handler stand in for the message passing of a model while `with` is active.

    The closures are made once, so that `torch.compile` sees the same functions for every batch. Convs that cache their
    normalisation neither use nor fill their cache in between.
    """

    def __init__(self, convs: list[Conv], handler: Handler) -> None:
        self._bound = [(conv.module, self._closures(conv, handler)) for conv in convs]

    @staticmethod
    def _closures(conv: Conv, handler: Handler) -> dict[str, Callable[..., Any]]:
        """Make the functions that replace a conv's `forward` and `propagate`."""
        forward = conv.module.forward
        own = conv.module.propagate

        def convolve(*args: Any, **kwargs: Any) -> Any:
            """Hand a call of the conv over."""
            return handler.convolve(conv, forward, args, kwargs)

        def propagate(edge_index: Any, size: Any = None, **kwargs: Any) -> Any:
            """Hand a linear conv's operand over; a general conv propagates by itself."""
            if conv.path == "general":
                return own(edge_index, size=size, **kwargs)
            operand = kwargs["x"]
            return handler.propagate(conv, operand[0] if isinstance(operand, tuple) else operand)

        return {"forward": _uncompiled(convolve), "propagate": propagate}

    def __enter__(self) -> None:
        """Put the closures in, and caches and earlier replacements aside."""
        self._caches = [_take_cache(module) for module, _ in self._bound]
        self._before = [
            {name: vars(module)[name] for name in methods if name in vars(module)} for module, methods in self._bound
        ]
        for module, methods in self._bound:
            module.__dict__.update(methods)

    def __exit__(self, *_: object) -> None:
        """Take the closures out again, and leave every module as it was."""
        for (module, methods), cache, before in zip(self._bound, self._caches, self._before, strict=True):
            for method in methods:
                del module.__dict__[method]
            module.__dict__.update(cache | before)


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep message passing out of compiled graphs, where every batch would compile it anew; the rest is compiled."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled yet, and the import takes seconds
        return function
    return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call]


@contextmanager
def uncached(convs: list[Conv]) -> Iterator[None]:
    """Let convs neither use nor fill their caches."""
    caches = [_take_cache(conv.module) for conv in convs]
    try:
        yield
    finally:
        for conv, cache in zip(convs, caches, strict=True):
            conv.module.__dict__.update(cache)


def _take_cache(module: MessagePassing) -> dict[str, Any]:
    """Take a conv's cache out and switch caching off; return what restores it."""
    names = [name for name in vars(module) if name == "cached" or name.startswith("_cached_")]
    saved = {name: vars(module)[name] for name in names}
    module.__dict__.update({name: False if name == "cached" else None for name in names})
    return saved


def edge_values_of(conv: Conv, graph: Any, args: Any, kwargs: Any) -> str | None:
    """Check that a linear conv was given the batch's own edges; return the name of the edge values that weigh them.

    Raises:
        ValueError: for edges or weights other than the batch's own (DropEdge, a home-made normalisation).
    """
    given = dict(zip(conv.parameters, args, strict=False)) | kwargs
    edges = given.get("edge_index")
    if not isinstance(edges, Tensor) or not _same(edges, graph.edge_index):
        raise_foreign(conv, "edge_index")
    weight = given.get("edge_weight")
    if weight is None:
        return None
    own = [name for name in EDGE_VALUES if weight is getattr(graph, name, None)]  # two may be equal, such as empty ones
    own = own or [name for name in EDGE_VALUES if _same(weight, getattr(graph, name, None))]
    if not own:
        raise_foreign(conv, "edge_weight")
    return own[0]


def raise_foreign(conv: Conv, name: str) -> NoReturn:
    """Raise for edges or edge values that are not the batch's own."""
    raise ValueError(
        f"Expected {conv} to receive the batch's own '{name}' (got another tensor): edges changed inside the model "
        f"(DropEdge, self-loops, a home-made normalisation) cannot be compensated; change the graph before wrapping it."
    )


def _same(tensor: Tensor, own: Tensor | None) -> bool:
    """Say whether a tensor is, or equals, the batch's own."""
    if own is None or tensor is own:
        return own is not None
    return tensor.shape == own.shape and tensor.dtype == own.dtype and bool(torch.equal(tensor, own))


def without_edges(conv: Conv, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return a linear conv's arguments with no edges: its own normalisation then costs nothing, and is not used."""
    given: dict[str, Any] = dict(zip(conv.parameters, args, strict=False)) | kwargs
    if given.get("edge_weight") is not None:
        given["edge_weight"] = given["edge_weight"][:0]
    given["edge_index"] = given["edge_index"][:, :0]
    return given


def first_input(conv: Conv, args: Any, kwargs: Any) -> Any:
    """Return the conv's node input: its first argument, the source side where it is a pair."""
    x = args[0] if args else kwargs[conv.parameters[0]]
    return x[0] if isinstance(x, (tuple, list)) else x


@dataclass(frozen=True)
class extended:  # noqa: N801 - reads as a verb where it is used
    """Run a general conv on the batch and its halo: every argument gets the rows and edges of N(B) -> B (9, 10)."""

    conv: Conv
    batch: Any  # the Data that the model was called with
    around: Neighbourhood
    halo_rows: Callable[[Tensor], Tensor]  # (b, d) -> (c, d): what stands in for the halo of an embedding
    raw: Tensor | None = None  # the argument that is the features, perhaps after dropout: its halo is then known
    exact_features: bool = True  # whether the halo's own attributes may be used

    def run(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Tensor:
        """Call the conv's own forward and keep the batch's rows of its output."""
        out = forward(*self._extend(tuple(args)), **self._extend(kwargs))
        if not isinstance(out, Tensor):
            raise ValueError(
                f"Expected {self.conv} to return one tensor (got {type(out).__name__}): call it without "
                f"return_attention_weights while training in batches."
            )
        return out[: self.batch.num_nodes]

    def _extend(self, value: Any) -> Any:
        """Extend every tensor inside an argument."""
        if isinstance(value, Tensor):
            return self._extend_tensor(value)
        if isinstance(value, (tuple, list)):
            return type(value)(self._extend(item) for item in value)
        if isinstance(value, dict):
            return {key: self._extend(item) for key, item in value.items()}
        return value

    def _extend_tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor for the batch and its halo; by what it is: edges, edge values, features or an embedding."""
        for name, values in self.around.values.items():
            if tensor is self.batch[name]:
                return values
        if not torch.is_floating_point(tensor):
            if tensor.dim() == 2 and tensor.size(0) == 2:
                if not _same(tensor, self.batch.edge_index):
                    raise_foreign(self.conv, "edge_index")
                return self.around.edge_index
            return tensor
        for name, rows in self.around.features.items():
            if tensor is self.batch[name] and self.exact_features:
                return torch.cat([tensor, rows])
        if tensor.dim() == 0 or tensor.size(0) != self.batch.num_nodes:
            if tensor.dim() and tensor.size(0) == self.batch.num_edges:
                raise_foreign(self.conv, "edge_attr")
            return tensor
        rows = self.around.features["x"] if tensor is self.raw else self.halo_rows(tensor)
        return torch.cat([tensor, rows])
