"""Stand in for the message passing of an unmodified model, and leave no trace behind."""

from __future__ import annotations

import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from topoff.forward.convs import EDGE_VALUES, Conv
from topoff.forward.recompute import check_again
from topoff.graph.graph import Neighborhood
from topoff.graph.operators import Operator

SAVING = torch._C._autograd._top_saved_tensors_default_hooks  # what is done with tensors kept for backward, or None
Collect = Callable[[Conv, int, Tensor], None]  # told the rows that a conv reads, and the number of the propagation


@dataclass
class ConvCall:
    """Hold one call of a conv while it runs: what it was given, and how far it has come."""

    conv: Conv
    forward: Callable[..., Any]  # the conv's own, whose `propagate` comes back to the handler
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    x: Any  # its node input; of a pair, the side of the sources
    number: int  # calls of the same conv before this one, in this forward
    operator: Operator = field(default_factory=Operator)  # of a linear conv
    hop: int = 0  # propagations so far
    known: int = 0  # leading propagations that see only the raw features
    aggregated: bool = False  # the conv was given its aggregated input: `propagate` has nothing left to do
    pads: bool = False  # the conv wants as many rows back from `propagate` as it gave

    def linear(self, batch: Any, *, among: Container[Operator] | None = None) -> dict[str, Any]:
        """Note the operator of a linear conv; return its arguments by name, without edges.

        Without edges the conv's own normalisation costs nothing, and is not used.

        Raises:
            ValueError: for edges or weights other than the batch's own (DropEdge, a home-made normalisation), or for an
                operator that is not `among` those that the batch was cut for.
        """
        given: dict[str, Any] = dict(zip(self.conv.parameters, self.args, strict=False)) | self.kwargs
        edges, weight, name = given.get("edge_index"), given.get("edge_weight"), None
        if edges is not batch.edge_index and not (isinstance(edges, Tensor) and _same(edges, batch.edge_index)):
            raise_foreign(self.conv, "edge_index")
        if weight is not None:
            name = _edge_values(self.conv, batch, weight)
            given["edge_weight"] = weight[:0]
        given["edge_index"] = batch.edge_index[:, :0]
        self.operator = self.conv.operators[name]
        if among is not None and self.operator not in among:
            raise ValueError(
                f"Expected {self.conv} to weigh its edges in training as in eval mode (got other edge weights, or "
                f"none): give it the same edge_weight in both, such as batch.edge_weight."
            )
        return given


class Handler(ABC):
    """Stand in for the message passing of a model's convs on one batch at a time, and leave no trace behind.

    The functions that take a conv's place are made once, so that `torch.compile` sees the same ones for every batch.
    Convs that cache their normalisation neither use nor fill their cache meanwhile.
    """

    carries: ClassVar[str] = "edge_index"  # what a batch must carry besides its rows
    recomputable: ClassVar[bool] = False  # a conv may be run again on its batch, and computes the same
    recomputes = False  # parts of this forward are to be run again by the backward pass (see `recompute`)

    def __init__(self, convs: list[Conv]) -> None:
        """Prepare what stands in for the convs; batches come later, with `on`."""
        self.batch: Data = Data()
        self.now: ConvCall | None = None  # the running conv
        self.calls: dict[str, int] = {}  # of every conv in this forward
        self._bound = [(conv.module, self._stand_ins(conv)) for conv in convs]

    @contextmanager
    def on(self, batch: Data) -> Iterator[None]:
        """Bind the model to a batch inside `with`."""
        if self.carries not in batch:
            raise ValueError(
                f"Expected a batch of a TOP or Loader (got a Data without its {self.carries}): use `for batch in top`."
            )
        self.batch, self.calls = batch, {}
        self.recomputes, self._kept = False, (torch.is_grad_enabled(), SAVING(True))
        before = []
        for module, own in self._bound:
            filled = getattr(module, "cached", True) or vars(module).get("_cached_edge_index") is not None
            before.append(take_cache(module) if filled else {})
            for name in own.keys() & vars(module).keys():  # another handler stands in already
                before[-1][name] = vars(module)[name]
            module.__dict__.update(own)
        try:
            yield
        finally:
            for (module, own), was in zip(self._bound, before, strict=True):
                for name in own:
                    del module.__dict__[name]
                module.__dict__.update(was)

    bind = on  # alone, without what a subclass does around it

    def _stand_ins(self, conv: Conv) -> dict[str, Callable[..., Any]]:
        """Make the functions that replace a conv's `forward` and, where it is linear, its `propagate`."""
        forward = conv.module.forward
        handler = weakref.proxy(self)  # no circle: all that a handler holds is freed with it, not at some collection

        def convolve(*args: Any, **kwargs: Any) -> Any:
            """Hand a call of the conv over."""
            x = args[0] if args else kwargs[conv.parameters[0]]
            if torch._C._current_graph_task_id() != -1:  # a backward pass is running
                check_again(handler, conv)
            elif (torch.is_grad_enabled(), SAVING(True)) != handler._kept:
                handler.recomputes = True
            number = handler.calls[conv.name] = handler.calls.get(conv.name, -1) + 1
            call = ConvCall(conv, forward, args, kwargs, x[0] if isinstance(x, (tuple, list)) else x, number)
            around, handler.now = handler.now, call
            try:
                return handler.convolve(call)
            finally:
                handler.now = around

        def propagate(edge_index: Any, size: Any = None, *, x: Any, **_: Any) -> Any:
            """Hand a linear conv's operand over."""
            assert handler.now is not None
            return handler.propagate(handler.now, x[0] if isinstance(x, tuple) else x)

        found = {"forward": _uncompiled(convolve)}
        return found | {"propagate": propagate} if conv.path == "linear" else found

    @abstractmethod
    def convolve(self, call: ConvCall) -> Any:
        """Take a call of a conv and return its output."""

    @abstractmethod
    def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
        """Take a propagation step of a linear conv: operand (b, d) -> (b, d)."""


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Keep message passing out of compiled graphs, where every batch would compile it anew; the rest is compiled."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled yet, and the import takes seconds
        return function
    return torch.compiler.disable(function)  # type: ignore[no-any-return, no-untyped-call]


@contextmanager
def uncached(convs: list[Conv]) -> Iterator[None]:
    """Let convs neither use nor fill their caches."""
    caches = [take_cache(conv.module) for conv in convs]
    try:
        yield
    finally:
        for conv, cache in zip(convs, caches, strict=True):
            conv.module.__dict__.update(cache)


def take_cache(module: MessagePassing) -> dict[str, Any]:
    """Take a conv's cache out and switch caching off; return what restores it."""
    names = [name for name in vars(module) if name == "cached" or name.startswith("_cached_")]
    saved = {name: vars(module)[name] for name in names}
    module.__dict__.update({name: False if name == "cached" else None for name in names})
    return saved


def _edge_values(conv: Conv, batch: Any, weight: Tensor) -> str:
    """Return the name of the edge values of a batch that a tensor is, or equals."""
    own = [name for name in EDGE_VALUES if weight is getattr(batch, name, None)]  # two may be equal, such as empty ones
    own = own or [name for name in EDGE_VALUES if _same(weight, getattr(batch, name, None))]
    if not own:
        raise_foreign(conv, "edge_weight")
    return own[0]


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Change every tensor inside the arguments of a conv: in tuples, lists and dicts.

    >>> map_tensors(([torch.tensor(1), "mean"], {"size": torch.tensor(2)}), int)
    ([1, 'mean'], {'size': 2})
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(item, change) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value


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


@dataclass(frozen=True)
class extended:  # noqa: N801 - reads as a verb where it is used
    """Run a general conv on the batch and its halo: every argument gets the rows and edges of N(B) -> B (9, 10)."""

    call: ConvCall
    batch: Any  # the Data that the model was called with
    around: Neighborhood
    halo_rows: Callable[[Tensor], Tensor]  # (b, d) -> (c, d): what stands in for the halo of an embedding
    exact_features: bool = True  # whether the halo's own attributes may be used

    def run(self) -> Tensor:
        """Call the conv's own forward and keep the batch's rows of its output."""
        args, kwargs = map_tensors((self.call.args, self.call.kwargs), self._extend)
        out = self.call.forward(*args, **kwargs)
        if not isinstance(out, Tensor):
            raise ValueError(
                f"Expected {self.call.conv} to return one tensor (got {type(out).__name__}): call it without "
                f"return_attention_weights while training in batches."
            )
        return out[: self.batch.num_nodes]

    def _extend(self, tensor: Tensor) -> Tensor:
        """Return a tensor for the batch and its halo; by what it is: edges, edge values, features or an embedding."""
        for name, values in self.around.values.items():
            if tensor is self.batch[name]:
                return values
        if not torch.is_floating_point(tensor):
            if tensor.dim() == 2 and tensor.size(0) == 2:
                if not _same(tensor, self.batch.edge_index):
                    raise_foreign(self.call.conv, "edge_index")
                return self.around.edge_index
            return tensor
        for name, rows in self.around.features.items():
            if tensor is self.batch[name] and self.exact_features:
                return torch.cat([tensor, rows])
        if tensor.dim() == 0 or tensor.size(0) != self.batch.num_nodes:
            if tensor.dim() and tensor.size(0) == self.batch.num_edges:
                raise_foreign(self.call.conv, "edge_attr")
            return tensor
        features = self.call.known and tensor is self.call.x  # perhaps after dropout: their halo is known
        rows = self.around.features["x"] if features else self.halo_rows(tensor)
        return torch.cat([tensor, rows])
