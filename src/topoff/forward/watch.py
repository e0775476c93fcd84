"""Watch an unmodified model while it runs: who reads the edges, and what its convs are given.

>>> edges = torch.tensor([[0], [1]])
>>> with Watch([edges]) as watch:
...     _ = edges + 1
>>> watch.readers
{''}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import MessagePassing

from topoff.forward.convs import Conv
from topoff.forward.extended import check_dense, is_dropped_out
from topoff.forward.intercept import ConvCall, Handler, map_tensors
from topoff.graph.graph import Chain, Graph
from topoff.graph.operators import Operator

HARMLESS = {"dim", "is_floating_point", "is_sparse", "is_complex", "__repr__"}  # say nothing about the graph
FORMS = {"dtype", "device", "layout", "requires_grad", "is_cuda", "is_sparse", "ndim", "is_sparse_csr", "grad_fn"}
ALIASING = {"detach", "contiguous", "requires_grad_"}  # return what they are given
SORTING = {"sort", "argsort", "unique", "unique_consecutive", "_unique2", "unique_dim", "msort", "topk"}
TELLING = {"edge_index", "edge_index_j", "size", "size_j", "adj_t"}  # arguments of `message` that tell more than rows


class Watch(TorchFunctionMode):
    """Note who computes with some tensors: the model itself ("") or one of its convs, by name."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        super().__init__()
        self.watched = [tensor for tensor in tensors if isinstance(tensor, Tensor)]
        self.readers: set[str] = set()
        self.sorts = False  # whether somebody sorts them, as to make them unique
        self.reader: str | None = ""  # who runs now; None where nobody is to be noted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the reader, and go on."""
        if getattr(func, "__name__", "") in ALIASING:
            out = func(*args, **(kwargs or {}))
            if any(args[0] is own for own in self.watched):
                self.watched.append(out)
            return out
        if self.reader is not None and not _is_harmless(func):
            given: list[Tensor] = []
            map_tensors([list(args), kwargs or {}], given.append)
            if any(tensor is own for tensor in given for own in self.watched):
                self.readers.add(self.reader)
                self.sorts |= getattr(func, "__name__", "") in SORTING
                out = func(*args, **(kwargs or {}))
                map_tensors(out, self._follow)
                return out
        return func(*args, **(kwargs or {}))

    def _follow(self, tensor: Tensor) -> None:
        """Watch what was made of ids of nodes."""
        if not torch.is_floating_point(tensor) and tensor.dim():
            self.watched.append(tensor)

    def as_reader(self, name: str | None, run: Callable[[], Any]) -> Any:
        """Run something as a reader of its own."""
        before, self.reader = self.reader, name
        try:
            return run()
        finally:
            self.reader = before


def _is_harmless(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name in HARMLESS or (name == "__get__" and getattr(func, "__self__", None) in _FORMS)


_FORMS = {getattr(Tensor, name) for name in FORMS}


class Tracer(Handler):
    """Note what each conv reads and how often it propagates, while computing the plain forward of a whole graph."""

    def __init__(self, convs: list[Conv], graph: Graph, watch: Watch) -> None:
        super().__init__([conv for conv in convs if conv.path in ("linear", "general")])
        self.graph, self.watch = graph, watch
        self.operators: list[Operator] = []
        self.general: dict[str, Conv] = {}  # convs whose own `propagate` ran
        self.propagations: dict[str, int] = {}  # of general convs, at most in one call
        self.rewired: set[str] = set()  # convs that were given other tensors than the graph's own edges and weights
        self.hops: dict[str, list[int]] = {}  # by conv, per call: leading propagations of raw features
        self.depth = 0  # propagations so far
        self._constant: Tensor | None = None  # what an unbroken chain of propagations of the features has come to

    def convolve(self, call: ConvCall) -> Any:
        """Run the conv's own forward and note its input."""
        return self.watch.as_reader(None, lambda: self._convolve(call))

    def _convolve(self, call: ConvCall) -> Any:
        check_dense(call)
        calls, features = self.hops.setdefault(call.conv.name, []), self.batch.x
        own = call.x is features or (call.conv.module.training and is_dropped_out(call.x, features))
        if not call.has_own_edges(self.batch):
            self.rewired.add(call.conv.name)
        if call.conv.path == "linear" and call.has_equal_edges(self.batch):
            given = call.linear(self.batch)
            self._constant = call.x if own else None
            calls.append(int(own and call.conv.transforms_first))
            _note(self.operators, call.operator)
            return call.run(given)
        calls.append(int(own))
        call.general, self.general[call.conv.name] = True, call.conv
        if call.conv.path == "general" and call.conv.local:
            return call.forward(*call.args, **call.kwargs)
        with self._unwatched_updates(call.conv):
            return self.watch.as_reader(call.conv.name, lambda: call.forward(*call.args, **call.kwargs))

    @contextmanager
    def _unwatched_updates(self, conv: Conv) -> Iterator[None]:
        """Let PyG's own `edge_updater` read the edges."""
        module: Any = conv.module
        own = module.edge_updater
        module.__dict__["edge_updater"] = lambda *args, **given: self.watch.as_reader(None, lambda: own(*args, **given))
        try:
            yield
        finally:
            del module.__dict__["edge_updater"]

    def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
        """Multiply, and follow the chain of propagations that start from the features."""
        self.depth += 1
        out = self.graph.aggregation(call.operator).all().to(operand.device) @ operand
        if self._constant is not None and operand is self._constant:
            self.hops[call.conv.name][-1] += 1
            self._constant = out
        else:
            self._constant = None
        return out

    def propagate_own(self, call: ConvCall, spread: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        """Run it; what PyG itself reads there is known."""
        self.depth += 1
        call.propagations += 1
        self.propagations[call.conv.name] = max(call.propagations, self.propagations.get(call.conv.name, 0))
        return self.watch.as_reader(None, lambda: spread(given))

    def degrees(self) -> frozenset[str]:
        """Return the general convs that read more of the graph than the rows of their neighbours."""
        found = {name for name, conv in self.general.items() if _tells(conv.module)}
        return frozenset(found | (self.watch.readers & self.general.keys()))

    def chains(self) -> tuple[Chain, ...]:
        """Return the operators that are applied to the raw features."""
        found: list[Chain] = []
        for name, calls in self.hops.items():
            for operator in self._operators_of(name):
                for length in range(1, max(calls) + 1):
                    _note(found, (operator,) * length)
        return tuple(found)

    def _operators_of(self, name: str) -> list[Operator]:
        conv = next(conv for conv in self.convs if conv.name == name)
        return [operator for operator in conv.operators.values() if operator in self.operators]


def _tells(module: Any) -> bool:
    """Whether a conv's messages are told more than rows of neighbours, or whether other convs run inside it."""
    names = set()
    for function in ("message", "aggregate", "update", "edge_update"):
        names |= set(inspect.signature(getattr(module, function)).parameters)
    inner = any(isinstance(child, MessagePassing) for child in module.modules() if child is not module)
    return bool(inner or names & TELLING)


def _note(seen: list[Any], item: Any) -> None:
    if item not in seen:
        seen.append(item)
