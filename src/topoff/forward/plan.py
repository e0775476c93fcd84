"""What a model's forward does with its convs, found by one run on a small piece of the graph, and checked there.

>>> from torch_geometric.nn import GCN
>>> import torch
>>> from torch_geometric.data import Data
>>> data = Data(x=torch.rand(4, 3), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
>>> plan = make_plan(GCN(3, 8, num_layers=2, out_channels=2), Graph(data))
>>> [operator.norm for operator in plan.operators], plan.constant_hops
(['gcn'], {'convs.0': 1})
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import Call, caller, evaluating, plain
from topoff.forward.convs import Conv, describe
from topoff.forward.exact import exact
from topoff.forward.intercept import Interception, edge_values_of, first_input, uncached, without_edges
from topoff.graph.graph import Chain, Graph, Neighbourhood
from topoff.graph.operators import Operator, Sparse

PIECE = 128  # nodes of the graph on which a model is tried


@dataclass(frozen=True)
class Plan:
    """Say what batches of a graph must carry for one model."""

    convs: list[Conv]
    operators: tuple[Operator, ...]  # of the linear path
    flows: tuple[str, ...]  # of the general path; empty where no conv needs it
    constant_hops: dict[str, int]  # by conv: how many propagations of all its calls see only the raw features
    chains: tuple[Chain, ...]  # the operators applied to the raw features there
    exact_features: bool = True  # the halo's raw features are used; False: the batch sees nothing outside itself
    constant_calls: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the same by call, for shared convs
    depth: int = 0  # propagations of one forward

    def constant_of(self, conv: Conv, call: int) -> int:
        """Return how many leading propagations of one call of a conv in the forward see only the raw features."""
        calls = self.constant_calls.get(conv.name)
        if calls is None:
            return self.constant_hops.get(conv.name, 0)
        return calls[call % len(calls)] if calls else 0

    def in_batch_only(self) -> Plan:
        """Return the plan under which nothing outside the batch is seen: rank 0."""
        return replace(self, constant_hops={}, constant_calls={}, chains=(), exact_features=False)

    def is_constant(self, conv: Conv, hop: int) -> bool:
        """Return whether a propagation of a conv sees only the raw features, so that its halo term is known."""
        return hop < self.constant_hops.get(conv.name, 0)


@dataclass(frozen=True)
class Spot:
    """Hold what one operator needs in a batch: the product inside it and the way in from outside."""

    within: Sparse  # A[B, B]
    boundary: Tensor  # (r,) positions in the batch of the rows with neighbours outside
    halo: Sparse  # A[boundary, C], columns numbered globally

    def to(self, device: torch.device | str) -> Spot:
        """Move to a device."""
        return Spot(self.within.to(device), self.boundary.to(device), self.halo.to(device))


@dataclass(frozen=True)
class Structure:
    """Hold the part of a batch that depends on the graph alone."""

    nodes: Tensor  # (b,) global ids
    spots: dict[Operator, Spot]
    around: dict[str, Neighbourhood]  # by flow, for the general path
    constants: dict[Chain, Tensor]  # (b, f) rows of A ... A X, and of X itself for the empty chain
    _halo_constants: dict[Chain, Tensor] = field(default_factory=dict)

    def halo_constant(self, chain: Chain) -> Tensor:
        """Return A[B,C] (A ... A X)_C: what the halo adds where a model drops out its input features; (b, f)."""
        if chain not in self._halo_constants:
            inside = self.spots[chain[-1]].within @ self.constants[chain[:-1]]
            self._halo_constants[chain] = self.constants[chain] - inside
        return self._halo_constants[chain]

    def to(self, device: torch.device | str) -> Structure:
        """Move to a device."""
        spots = {key: spot.to(device) for key, spot in self.spots.items()}
        around = {key: near.to(device) for key, near in self.around.items()}
        constants = {key: rows.to(device) for key, rows in self.constants.items()}
        return Structure(self.nodes.to(device), spots, around, constants)


def structure_of(graph: Graph, plan: Plan, nodes: Tensor, *, x: Tensor | None = None) -> Structure:
    """Cut a batch's structure out of the graph; `x` are the batch's features, where they are at hand."""
    spots = {}
    for operator in plan.operators:
        spots[operator] = Spot(*graph.aggregation(operator).cut(nodes))
    around = {flow: graph.neighbourhood(nodes, flow=flow) for flow in plan.flows}
    constants = {chain: graph.propagated(chain)[nodes] for chain in plan.chains}
    if constants:
        constants[()] = graph.data.x[nodes] if x is None else x
    return Structure(nodes, spots, around, constants)


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
    tracer = _Tracer(Graph(piece), moved)
    run = caller(model, call)
    with evaluating(model):
        with uncached(convs):
            plain_output = run(model, moved)
        with Interception(convs, tracer):
            run(model, moved)
    _self_check(model, piece, plain_output, call=call)
    return tracer.plan(convs)


def _check_dtype(model: nn.Module, x: Tensor) -> None:
    """Refuse a model in another floating type than the features."""
    for name, parameter in model.named_parameters():
        if torch.is_floating_point(parameter) and parameter.dtype != x.dtype:
            raise ValueError(
                f"Expected the model in the type of the features, {x.dtype} (got {parameter.dtype} for '{name}'): "
                f"convert one of them, for example model.to({x.dtype})."
            )


def _piece(graph: Graph) -> Tensor:
    """Return up to `PIECE` nodes that lie close together, by breadth-first search from the receiver of an edge."""
    edges = graph.data.edge_index
    nodes = edges[1, :1] if edges.numel() else torch.zeros(1, dtype=torch.int64)
    while nodes.numel() < PIECE:
        grown = torch.unique(torch.cat([nodes, edges[0, graph.edges_into(nodes)]]))
        if grown.numel() == nodes.numel():
            break
        nodes = grown
    first: Tensor = torch.unique(torch.cat([nodes[:PIECE], torch.arange(min(2, graph.num_nodes))]))
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


@dataclass
class _Tracer:
    """Note what each conv reads and how often it propagates; a `Handler` that computes the plain forward."""

    graph: Graph
    batch: Data
    operators: list[Operator] = field(default_factory=list)
    flows: list[str] = field(default_factory=list)
    hops: dict[str, list[int]] = field(default_factory=dict)  # by conv, per call: leading propagations of raw features
    _operator: Operator | None = None
    depth: int = 0  # propagations so far
    _constant: Tensor | None = None  # what an unbroken chain of propagations of the features has come to
    _count: int = 0

    def convolve(self, conv: Conv, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the conv's own forward and note its input."""
        calls = self.hops.setdefault(conv.name, [])
        reads_features = first_input(conv, args, kwargs) is self.batch.x
        if conv.path == "linear":
            self._operator = conv.operators[edge_values_of(conv, self.batch, args, kwargs)]
            self._constant = self.batch.x if reads_features else None
            calls.append(int(reads_features and conv.transforms_first))
            _note(self.operators, self._operator)
            return forward(**without_edges(conv, args, kwargs))
        calls.append(int(reads_features))
        self.depth += 1
        _note(self.flows, conv.module.flow)
        return self._propagating_once(conv, forward, args, kwargs)

    def propagate(self, conv: Conv, operand: Tensor) -> Tensor:
        """Multiply, and follow the chain of propagations that start from the features."""
        assert self._operator is not None
        self.depth += 1
        out = self.graph.aggregation(self._operator).all().to(operand.device) @ operand
        if self._constant is not None and operand is self._constant:
            self.hops[conv.name][-1] += 1
            self._constant = out
        else:
            self._constant = None
        return out

    def _propagating_once(self, conv: Conv, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a general conv, and refuse it where it propagates more or less than once."""
        self._count = 0
        hook = conv.module.register_propagate_forward_pre_hook(self._count_up)
        try:
            out = forward(*args, **kwargs)
        finally:
            hook.remove()
        if self._count != 1:
            raise ValueError(
                f"Expected {conv} to propagate once (got {self._count} times): virtual neighbours live for one "
                f"propagation only, so an unknown multi-hop conv cannot be batched; split it into one conv per hop."
            )
        return out

    def _count_up(self, *_: Any) -> None:
        self._count += 1

    def plan(self, convs: list[Conv]) -> Plan:
        """Return what was noted. A conv that is called on features and on embeddings counts as reading embeddings."""
        hops = {name: min(calls) for name, calls in self.hops.items() if calls and min(calls) > 0}
        by_name = {conv.name: conv for conv in convs}
        chains: list[Chain] = []
        for name, count in {name: max(calls) for name, calls in self.hops.items() if calls}.items():
            for operator in by_name[name].operators.values():
                if operator in self.operators:
                    for length in range(1, count + 1):
                        _note(chains, (operator,) * length)
        by_call = {name: tuple(calls) for name, calls in self.hops.items()}
        found = tuple(self.operators), tuple(self.flows), hops, tuple(chains)
        return Plan(convs, *found, constant_calls=by_call, depth=self.depth)


def _note(seen: list[Any], item: Any) -> None:
    if item not in seen:
        seen.append(item)
