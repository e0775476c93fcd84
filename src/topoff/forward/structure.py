"""The part of a batch that depends on the graph and the model's plan alone: its operators, and the way in from outside.

>>> import torch
>>> from torch_geometric.data import Data
>>> from torch_geometric.nn import GCN
>>> from topoff.forward.trial import make_plan
>>> graph = Graph(Data(x=torch.rand(4, 3), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])))
>>> structure = structure_of(graph, make_plan(GCN(3, 8, num_layers=2), graph), torch.tensor([0, 1]))
>>> [spot.boundary.tolist() for spot in structure.spots.values()]
[[0]]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from topoff.forward.plan import Plan
from topoff.graph.aggregation import Aggregation
from topoff.graph.graph import Chain, Graph, Neighborhood
from topoff.graph.operators import Movable, Operator, Sparse, multiply


@dataclass(frozen=True, repr=False)
class Spot(Movable):
    """Hold what one operator needs in a batch: the product inside it and the way in from outside."""

    within: Sparse  # A[B, B]
    boundary: Tensor  # (r,) positions in the batch of the rows with neighbours outside; all where most have some
    halo: Sparse  # A[boundary, C], columns numbered globally

    @property
    def outer(self) -> int:
        """The rows with neighbours outside."""
        return int((self.halo.offsets.diff() > 0).sum())

    def product(self, own: Tensor, rows: Tensor) -> Tensor:
        """Return A[B, :] H from the batch's own rows (b, d) and those of all nodes (n, d); no gradient; (b, d)."""
        within, halo = self.within, self.halo
        out = multiply(within.ids, within.offsets, within.values, own)
        if len(self.boundary):
            extra = multiply(halo.ids, halo.offsets, halo.values, rows)
            out = out.add_(extra) if len(self.boundary) == len(out) else out.index_add_(0, self.boundary, extra)
        return out.to(torch.promote_types(within.weighs or own.dtype, own.dtype))


@dataclass(frozen=True, repr=False)
class Structure(Movable):
    """Hold the part of a batch that depends on the graph alone."""

    nodes: Tensor  # (b,) global ids
    spots: dict[Operator, Spot]
    around: dict[str, Neighborhood]  # by flow, or all `AROUND`, for the general path
    constants: dict[Chain, Tensor]  # (b, f) rows of A ... A X, which may be `SparseRows`, and of X for the empty chain
    lasting: bool = True  # whether what is computed when it is first needed is kept: not of a batch on disk
    _halo_constants: dict[Chain, Tensor] = field(default_factory=dict)

    def halo_constant(self, chain: Chain) -> Tensor:
        """Return A[B,C] (A ... A X)_C: what the halo adds where a model drops out its input features; (b, f)."""
        if chain in self._halo_constants:
            return self._halo_constants[chain]
        found = self.constants[chain] - self.spots[chain[-1]].within @ self.constants[chain[:-1]]
        if self.lasting:
            self._halo_constants[chain] = found
        return found


def structure_of(graph: Graph, plan: Plan, nodes: Tensor, *, x: Tensor | None = None) -> Structure:
    """Cut a batch's structure out of the graph; `x` are the batch's features, where they are at hand."""
    spots = {}
    for operator in plan.operators:
        spots[operator] = Spot(*graph.aggregation(operator).cut(nodes))
    around = {flow: graph.neighborhood(nodes, flow=flow) for flow in plan.flows}
    return Structure(nodes, spots, around, _constants(graph, plan, nodes, x=x))


def inner_structure(
    graph: Graph, plan: Plan, nodes: Tensor, *, operators: Mapping[Operator, Aggregation] | None = None
) -> Structure:
    """Cut the structure of some nodes without the way in from outside: what comes from there is known, or lost.

    `operators` are used instead of the graph's own where they are given.
    """
    nobody, spots = nodes[:0], {}
    for operator in plan.operators:
        whole = graph.aggregation(operator) if operators is None else operators[operator]
        spots[operator] = Spot(whole.within(nodes), nobody, whole.rows(nobody))
    around = {}
    if plan.flows:
        alone, everybody = Graph(graph.induced(nodes)), torch.arange(len(nodes))
        around = {flow: alone.neighborhood(everybody, flow=flow) for flow in plan.flows}  # its halo is empty
    return Structure(nodes, spots, around, _constants(graph, plan, nodes))


def closed_structure(graph: Graph, plan: Plan) -> Structure:
    """Return the structure of a whole graph as one batch, without cutting anything: nothing lies outside."""
    nodes, spots = torch.arange(graph.num_nodes), {}
    for operator in plan.operators:
        whole = graph.aggregation(operator)
        spots[operator] = Spot(whole.all(), nodes[:0], whole.rows(nodes[:0]))
    around = {flow: graph.neighborhood(nodes, flow=flow) for flow in plan.flows}
    constants = {chain: graph.propagated(chain) for chain in plan.chains}
    return Structure(nodes, spots, around, constants | {(): graph.data.x} if constants else {})


def _constants(graph: Graph, plan: Plan, nodes: Tensor, *, x: Tensor | None = None) -> dict[Chain, Tensor]:
    """Return the rows of the propagated features that a plan needs, those of the features among them."""
    constants = {chain: graph.propagated_rows(chain, nodes) for chain in plan.chains}
    return constants | {(): graph.data.x.index_select(0, nodes) if x is None else x} if constants else {}
