"""What a model's forward does with its convs, found by one run on a small piece of the graph, and checked there.

>>> from torch_geometric.nn import GCN
>>> import torch
>>> from torch_geometric.data import Data
>>> data = Data(x=torch.rand(4, 3), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
>>> plan = make_plan(GCN(3, 8, num_layers=2, out_channels=2), Graph(data))
>>> [operator.norm for operator in plan.operators], plan.known_hops
(['gcn'], {'convs.0': (1,), 'convs.1': (0,)})
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import Call, caller, evaluating, plain
from topoff.forward.convs import Conv, describe
from topoff.forward.exact import exact
from topoff.forward.intercept import ConvCall, Handler, uncached
from topoff.graph.graph import Chain, Graph
from topoff.graph.operators import Operator

TRIED = 128  # nodes of the graph on which a model is tried


@dataclass(frozen=True)
class Plan:
    """Say what batches of a graph must carry for one model."""

    convs: list[Conv]
    operators: tuple[Operator, ...]  # of the linear path
    flows: tuple[str, ...]  # of the general path; empty where no conv needs it
    known_hops: dict[str, tuple[int, ...]]  # by conv, per call: leading propagations that see only the raw features
    chains: tuple[Chain, ...]  # the operators applied to the raw features there
    exact_features: bool = True  # the halo's raw features are used; False: the batch sees nothing outside itself
    depth: int = 0  # propagations of one forward

    def in_batch_only(self) -> Plan:
        """Return the plan under which nothing outside the batch is seen: rank 0."""
        return replace(self, known_hops={}, chains=(), exact_features=False)

    def is_constant(self, conv: Conv, hop: int) -> bool:
        """Return whether a propagation sees only the raw features in all calls of its conv, so that its halo is known.

        A conv that is called on features and on embeddings counts as reading embeddings.
        """
        return hop < min(self.known_hops.get(conv.name) or (0,))


def make_plan(model: nn.Module, graph: Graph, *, call: Call | None = None) -> Plan:
    """Trace the model on a small piece of the graph and check there that it can be batched.

    Raises:
        ValueError: for a model that cannot be batched, with the reason: a norm or pooling over all nodes, an unknown
            conv that propagates several times, edges other than the batch's own.
    """
    model = plain(model)
    convs = describe(model)
    piece = graph.induced(_piece(graph))
    piece.n_id = torch.arange(piece.num_nodes)
    _check_dtype(model, piece.x)
    moved = copy.copy(piece).to(next(model.parameters(), piece.x).device)
    tracer, run = _Tracer(convs, Graph(piece)), caller(model, call)
    with evaluating(model):
        with uncached(convs):
            plain_output = run(model, moved)
        with tracer.on(moved):
            run(model, moved)
    _self_check(model, piece, plain_output, call=call)
    return tracer.plan()


def _check_dtype(model: nn.Module, x: Tensor) -> None:
    """Refuse a model in another floating type than the features."""
    for name, parameter in model.named_parameters():
        if torch.is_floating_point(parameter) and parameter.dtype != x.dtype:
            raise ValueError(
                f"Expected the model in the type of the features, {x.dtype} (got {parameter.dtype} for '{name}'): "
                f"convert one of them, for example model.to({x.dtype})."
            )


def _piece(graph: Graph) -> Tensor:
    """Return up to `TRIED` nodes that lie close together, by breadth-first search from the receiver of an edge."""
    edges = graph.data.edge_index
    nodes = edges[1, :1] if edges.numel() else torch.zeros(1, dtype=torch.int64)
    while nodes.numel() < TRIED:
        grown = torch.unique(torch.cat([nodes, edges[0, graph.edges_into(nodes)]]))
        if grown.numel() == nodes.numel():
            break
        nodes = grown
    first: Tensor = torch.unique(torch.cat([nodes[:TRIED], torch.arange(min(2, graph.num_nodes))]))
    return first


def _self_check(model: nn.Module, piece: Data, expected: Any, *, call: Call | None) -> None:
    """Compare exact batched output with the plain forward on the piece, and raise where they differ."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(int(piece.num_nodes or 0), generator=generator)
    graph = Graph(piece)
    batches = [graph.induced(part) for part in order.tensor_split(3) if part.numel()]
    out = exact(model, graph, batches, call=call)
    if not isinstance(expected, Tensor) or expected.shape != out.shape:
        got = tuple(expected.shape) if isinstance(expected, Tensor) else type(expected).__name__
        raise ValueError(f"Expected the model to return one row per node (got {got} for {len(out)} nodes).")
    scale = expected.abs().max().clamp(min=1e-3)
    error = float((out - expected).abs().max() / scale)
    if not error < 100 * torch.finfo(out.dtype).eps ** 0.75:
        raise ValueError(
            f"Expected the model's output at a node to depend only on that node and its neighbours (got a relative "
            f"difference of {error:.1e} between exact batches and the plain forward on a small subgraph): look for a "
            f"norm, pooling or attention over all nodes, or a conv that normalises with its neighbours' degrees."
        )


class _Tracer(Handler):
    """Note what each conv reads and how often it propagates, while computing the plain forward."""

    def __init__(self, convs: list[Conv], graph: Graph) -> None:
        super().__init__(convs)
        self.convs, self.graph = convs, graph
        self.operators: list[Operator] = []
        self.flows: list[str] = []
        self.hops: dict[str, list[int]] = {}  # by conv, per call: leading propagations of raw features
        self.depth = 0  # propagations so far
        self._constant: Tensor | None = None  # what an unbroken chain of propagations of the features has come to

    def convolve(self, call: ConvCall) -> Any:
        """Run the conv's own forward and note its input."""
        calls = self.hops.setdefault(call.conv.name, [])
        reads_features = call.x is self.batch.x
        if call.conv.path == "linear":
            given = call.linear(self.batch)
            self._constant = self.batch.x if reads_features else None
            calls.append(int(reads_features and call.conv.transforms_first))
            _note(self.operators, call.operator)
            return call.forward(**given)
        calls.append(int(reads_features))
        self.depth += 1
        _note(self.flows, call.conv.module.flow)
        return _propagating_once(call)

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

    def plan(self) -> Plan:
        """Return what was noted."""
        by_name = {conv.name: conv for conv in self.convs}
        chains: list[Chain] = []
        for name, calls in self.hops.items():
            for operator in by_name[name].operators.values():
                if operator in self.operators:
                    for length in range(1, max(calls) + 1):
                        _note(chains, (operator,) * length)
        known = {name: tuple(calls) for name, calls in self.hops.items()}
        return Plan(self.convs, tuple(self.operators), tuple(self.flows), known, tuple(chains), depth=self.depth)


def _propagating_once(call: ConvCall) -> Any:
    """Run a general conv, and refuse it where it propagates more or less than once."""
    propagations: list[None] = []
    hook = call.conv.module.register_propagate_forward_pre_hook(lambda *_: propagations.append(None))
    try:
        out = call.forward(*call.args, **call.kwargs)
    finally:
        hook.remove()
    if len(propagations) != 1:
        raise ValueError(
            f"Expected {call.conv} to propagate once (got {len(propagations)} times): virtual neighbours live for one "
            f"propagation only, so an unknown multi-hop conv cannot be batched; split it into one conv per hop."
        )
    return out


def _note(seen: list[Any], item: Any) -> None:
    if item not in seen:
        seen.append(item)
