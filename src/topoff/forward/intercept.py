"""Stand in for the message passing of an unmodified model, and leave no trace behind."""

from __future__ import annotations

import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.convs import EDGE_VALUES, Conv
from topoff.forward.foreign import check_unchanged, is_same, raise_foreign, raise_in_place
from topoff.forward.norms import apply_to_own
from topoff.forward.recompute import check_again
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
    general: bool = False  # the conv's own `propagate` runs
    propagations: int = 0  # of a general conv, so far
    extended: Any = None  # of a general conv: what gives it the rows of the halo (`Extended`)

    @property
    def place(self) -> str:
        """The next propagation's place in the forward, "conv/call/hop"."""
        return f"{self.conv.name}/{self.number}/{self.hop}"

    @property
    def given(self) -> dict[str, Any]:
        """The arguments by name."""
        return dict(zip(self.conv.parameters, self.args, strict=False)) | self.kwargs

    def has_own_edges(self, batch: Any) -> bool:
        """Whether edges and weights are the batch's own objects."""
        own = [batch.edge_index, *(batch[name] for name in EDGE_VALUES if name in batch)]
        found = [self.given.get(name) for name in ("edge_index", "edge_weight")]
        return all(item is None or any(item is tensor for tensor in own) for item in found)

    def has_equal_edges(self, batch: Any) -> bool:
        """Whether edges and weights equal the batch's own, so that its operators apply."""
        edges, weight = self.given.get("edge_index"), self.given.get("edge_weight")
        if weight is not None and (weight.requires_grad or not _names_of(batch, weight)):
            return False
        return isinstance(edges, Tensor) and is_same(edges, batch.edge_index)

    def linear(self, batch: Any, *, among: Container[Operator] | None = None) -> dict[str, Any]:
        """Note the operator of a linear conv; return its arguments by name, without edges.

        Raises:
            ValueError: for edges or weights other than the batch's own, or for an operator that is not `among` those
                that the batch was cut for.
        """
        given: dict[str, Any] = dict(zip(self.conv.parameters, self.args, strict=False)) | self.kwargs
        edges, weight, name = given.get("edge_index"), given.get("edge_weight"), None
        if edges is not batch.edge_index and not (isinstance(edges, Tensor) and is_same(edges, batch.edge_index)):
            raise_foreign(self.conv, "edge_index")
        if weight is not None:
            if weight.requires_grad or not (names := _names_of(batch, weight)):
                raise_foreign(self.conv, "edge_weight")
            name, given["edge_weight"] = names[0], weight[:0]
        given["edge_index"] = batch.edge_index[:, :0]
        self.operator = self.conv.operators[name]
        if among is not None and self.operator not in among:
            raise ValueError(
                f"Expected {self.conv} to weigh its edges in training as in eval mode (got other edge weights, or "
                f"none): give it the same edge_weight in both, such as batch.edge_weight."
            )
        return given

    def run(self, given: dict[str, Any]) -> Any:
        """Run a linear conv without edges, and without its normalisation of them: that of the whole graph is known."""
        settings = vars(self.conv.module)
        if not self.conv.normalizes:
            return self.forward(**given)
        before, settings["normalize"] = settings["normalize"], False
        try:
            return self.forward(**given)
        finally:
            settings["normalize"] = before


class Handler(ABC):
    """Stand in for the message passing of a model's convs on one batch at a time, and leave no trace behind.

    The functions that take a conv's place are made once, so that `torch.compile` sees the same ones for every batch.
    Convs that cache their normalisation neither use nor fill their cache meanwhile.
    """

    carries: ClassVar[str] = "edge_index"  # what a batch must carry besides its rows
    recomputable: ClassVar[bool] = False  # a conv may be run again on its batch, and computes the same
    by_place = False  # what it does differs from call to call of one conv
    recomputes = False  # parts of this forward are to be run again by the backward pass (see `recompute`)

    def __init__(self, convs: list[Conv]) -> None:
        """Prepare what stands in for the convs; batches come later, with `on`."""
        self.batch: Data = Data()
        self.convs = convs
        self.seen: Data = self.batch  # what the model is called with: the batch itself, or a wider one
        self.now: ConvCall | None = None  # the running conv
        self.calls: dict[str, int] = {}  # of every conv in this forward
        self._bound = [(conv.module, self._stand_ins(conv)) for conv in convs]

    @contextmanager
    def on(self, batch: Data) -> Iterator[Data]:
        """Bind the model to a batch inside `with`; yields what to call the model with."""
        if self.carries not in batch:
            raise ValueError(
                f"Expected a batch of a TOP or Loader (got a Data without its {self.carries}): use `for batch in top`."
            )
        self.batch, self.calls = batch, {}
        wide, cut = None, {}
        if self.carries == "supplement":
            wide, cut = batch.supplement.wide, batch.supplement.own
        changed = [
            key for key, own in cut.items() if batch.get(key) is not own or (not own.is_inference() and own._version)
        ]
        if changed:
            check_unchanged(batch, cut, changed)
        self.seen = batch if wide is None else wide
        self.version = -1 if self.seen.x.is_inference() else self.seen.x._version
        self.recomputes, self._kept = False, (torch.is_grad_enabled(), SAVING(True))
        before = []
        for module, own in self._bound:
            filled = getattr(module, "cached", True) or vars(module).get("_cached_edge_index") is not None
            before.append(take_cache(module) if filled else {})
            for name in own.keys() & vars(module).keys():  # another handler stands in already
                before[-1][name] = vars(module)[name]
            module.__dict__.update(own)
        try:
            yield self.seen
            if self.version >= 0 and self.seen.x._version != self.version:
                raise_in_place()
        finally:
            for (module, own), was in zip(self._bound, before, strict=True):
                for name in own:
                    del module.__dict__[name]
                module.__dict__.update(was)

    bind = on  # alone, without what a subclass does around it

    def _stand_ins(self, conv: Conv) -> dict[str, Callable[..., Any]]:
        """Make the functions that replace a conv's `forward` and its `propagate`."""
        forward, spread = conv.module.forward, getattr(conv.module, "propagate", None)
        handler = weakref.proxy(self)  # no circle: all that a handler holds is freed with it, not at some collection

        def convolve(*args: Any, **kwargs: Any) -> Any:
            """Hand a call of the conv over; one inside another conv belongs to that."""
            around, x = handler.now, args[0] if args else kwargs[conv.parameters[0]]
            if around is not None and around.general:
                return inner(
                    conv, around, x, lambda rows: forward(rows, *args[1:], **kwargs) if args else forward(**kwargs)
                )
            number = handler.calls[conv.name] = handler.calls.get(conv.name, -1) + 1
            if torch._C._current_graph_task_id() != -1:  # a backward pass is running
                number %= check_again(handler, conv)
            elif (torch.is_grad_enabled(), SAVING(True)) != handler._kept:
                handler.recomputes = True
            handler.now = call = ConvCall(
                conv, forward, args, kwargs, x[0] if isinstance(x, (tuple, list)) else x, number
            )
            try:
                return handler.convolve(call)
            finally:
                handler.now = around

        def propagate(edge_index: Any, size: Any = None, **given: Any) -> Any:
            """Hand a linear conv's operand over, or what a general conv's own `propagate` is given."""
            call = handler.now
            if call is None or call.conv is not conv:  # inside another conv
                return spread(edge_index, size=size, **given)  # type: ignore[misc]
            if call.general:
                return handler.propagate_own(call, lambda new: spread(edge_index, size=size, **new), given)  # type: ignore[misc]
            operand = given["x"][0] if isinstance(given["x"], tuple) else given["x"]
            if operand.dim() == 2:
                return handler.propagate(call, operand)
            rows = operand.movedim(conv.module.node_dim, 0)
            out = handler.propagate(call, rows.flatten(1))
            return out.view(-1, *rows.shape[1:]).movedim(0, conv.module.node_dim)

        found: dict[str, Callable[..., Any]] = {"forward": _uncompiled(convolve)}
        return found if spread is None else found | {"propagate": propagate}

    @abstractmethod
    def convolve(self, call: ConvCall) -> Any:
        """Take a call of a conv and return its output."""

    @abstractmethod
    def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
        """Take a propagation step of a linear conv: operand (b, d) -> (b, d)."""

    def propagate_own(self, call: ConvCall, spread: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        """Run a general conv's own propagation; one that reads another's result, on the right rows of that."""
        step, call.propagations = call.propagations, call.propagations + 1
        return spread(map_tensors(given, call.extended.heal) if step in self.deep_steps(call.conv) else given)

    def deep_steps(self, conv: Conv) -> frozenset[int]:
        """Return the propagations of a general conv that read another's result."""
        return frozenset()


def inner(conv: Conv, around: ConvCall, x: Any, forward: Callable[[Any], Any]) -> Any:
    """Run a layer inside a general conv: a batch norm sees the batch's own rows alone.

    Raises:
        ValueError: for a norm over all nodes there, which would see messages.
    """
    if conv.path == "norm":
        raise ValueError(
            f"Expected {around.conv} to act on each message alone (got {conv} inside it, which normalises over all of "
            f"them): use another norm there, such as torch.nn.LayerNorm or BatchNorm."
        )
    extended = around.extended
    if conv.path == "batch" and conv.module.training and extended is not None and len(x) == extended.rows:
        return apply_to_own(conv.module, forward, x, extended.size)
    return forward(x)


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


def take_cache(module: nn.Module) -> dict[str, Any]:
    """Take a conv's cache out and switch caching off; return what restores it."""
    names = [name for name in vars(module) if name == "cached" or name.startswith("_cached_")]
    saved = {name: vars(module)[name] for name in names}
    module.__dict__.update({name: False if name == "cached" else None for name in names})
    return saved


def _names_of(batch: Any, weight: Tensor) -> list[str]:
    """Return the names of the edge values of a batch that a tensor is, or else equals."""
    own = [name for name in EDGE_VALUES if weight is getattr(batch, name, None)]  # two may be equal, such as empty ones
    return own or [name for name in EDGE_VALUES if is_same(weight, getattr(batch, name, None))]


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Change every tensor inside the arguments or outputs of a module: in tuples, lists and dicts.

    >>> map_tensors(([torch.tensor(1), "mean"], {"size": torch.tensor(2)}), int)
    ([1, 'mean'], {'size': 2})
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        items = [map_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value
