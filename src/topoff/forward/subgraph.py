"""Run an unmodified model on a part of a graph, with the weights of the whole: Z_B = A[B,B] H_B, the halo left out.

`Subgraph` has two hooks, `aggregate` for linear convs and `virtual` for all others, where a way to know the halo comes
in: compensation (`compensation/compensated`), or histories (`methods/gas`).

>>> import torch
>>> from torch_geometric.nn import GCN
>>> from topoff.forward.plan import make_plan
>>> ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
>>> model, graph = GCN(4, 8, num_layers=2, out_channels=2).eval(), Graph(ring)
>>> plan = make_plan(model, graph)
>>> batch = whole_graph(graph, plan)
>>> with Subgraph(plan.convs).on(batch):
...     out = model(batch.x, batch.edge_index)
>>> torch.allclose(out, model(ring.x, ring.edge_index), atol=1e-6)
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.forward.intercept import Collect, ConvCall, Handler, extended
from topoff.forward.plan import Plan
from topoff.forward.structure import Structure, inner_structure, structure_of
from topoff.graph.graph import Graph
from topoff.graph.operators import Movable, Operator


@dataclass(frozen=True, repr=False)
class Supplement(Movable):
    """Hold what a batch carries besides its own rows and edges: the part of the graph around it."""

    plan: Plan
    structure: Structure


def cut_batch(graph: Graph, plan: Plan, nodes: Tensor) -> Data:
    """Cut a batch out of the graph, with the way in from outside."""
    batch = graph.induced(nodes)
    batch.supplement = Supplement(plan, structure_of(graph, plan, nodes, x=batch.x))
    return batch


def cut_inside(graph: Graph, plan: Plan, nodes: Tensor, **operators: Any) -> Data:
    """Cut a batch out of the graph that sees nothing outside (see `inner_structure`)."""
    batch = graph.induced(nodes)
    batch.supplement = Supplement(plan, inner_structure(graph, plan, nodes, **operators))
    return batch


def whole_graph(graph: Graph, plan: Plan) -> Data:
    """Return the whole graph as one batch: nothing lies outside, on the fast operator."""
    return cut_batch(graph, plan, torch.arange(graph.num_nodes))


def closed(subgraph: Data, plan: Plan) -> Data:
    """Return a subgraph as a batch that is a graph of its own: nothing outside is seen, degrees are those inside."""
    batch = whole_graph(Graph(subgraph), plan)
    batch.n_id, batch.batch_size = subgraph.n_id, subgraph.batch_size
    return batch


class Subgraph(Handler):
    """Stand in for a model's message passing with the part of the operators inside a batch.

    What the halo adds to propagations of the raw features is a constant, and known. A subclass that knows the rest of
    the halo overrides `aggregate` and `virtual`, which are told the place of the propagation in the forward:
    "conv/call/hop".
    """

    carries: ClassVar[str] = "supplement"
    recomputable: ClassVar[bool] = True
    before_weights = False  # `aggregate` takes what a conv reads, before its weight matrix: (A H) W = A (H W)
    collect: Collect | None = None  # told the (b, d) rows that each conv reads

    def convolve(self, call: ConvCall) -> Any:
        """Run a conv on the batch as it would run on the whole graph."""
        conv, structure = call.conv, self.batch.supplement.structure
        hops = self.batch.supplement.plan.known_hops.get(conv.name) or (0,)
        call.known = hops[call.number % len(hops)]
        if self.collect and conv.transforms_first and not call.known and call.x is not self.batch.x:
            self.collect(conv, 0, call.x)
        if conv.path == "general":
            return self._general(call)
        given = call.linear(self.batch, among=structure.spots)
        if conv.transforms_first and call.known:
            chain, raw = (call.operator,), call.x is self.batch.x
            given["x"] = structure.constants[chain] if raw else torch.cat([call.x, structure.halo_constant(chain)])
        elif conv.transforms_first and self.before_weights:
            given["x"], call.aggregated = self.aggregate(self._place(call), call.operator, call.x), True
        return call.forward(**given)

    def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
        """Return the aggregated operand, or the known product where the operand is the features."""
        if call.aggregated:
            return operand
        structure: Structure = self.batch.supplement.structure
        conv, hop = call.conv, call.hop
        if hop >= call.known:
            if self.collect and not conv.transforms_first and operand is not self.batch.x:
                self.collect(conv, hop, operand)
            place, call.hop = f"{conv.name}/{call.number}/{hop}", hop + 1
            return self.aggregate(place, call.operator, operand)
        call.hop, chain, within = hop + 1, (call.operator,) * (hop + 1), structure.spots[call.operator].within
        if call.x is self.batch.x:  # a copy: some convs (GCN2Conv) write into what they are given
            return operand if conv.transforms_first else structure.constants[chain].clone()
        if conv.transforms_first:
            rows = len(structure.nodes)
            return within @ operand[:rows] + operand[rows:]
        return within @ operand + structure.halo_constant(chain)

    def _general(self, call: ConvCall) -> Tensor:
        """Append virtual rows for the halo (9), (10); they live inside this conv only."""
        supplement, flow = self.batch.supplement, call.conv.module.flow

        def halo_rows(h: Tensor) -> Tensor:
            """Return the rows (c, d) that stand in for the halo of an embedding h (b, d)."""
            if self.collect and h is not self.batch.x:  # exact inference exchanges the same tensors
                self.collect(call.conv, call.hop, h)
            place, call.hop = self._place(call), call.hop + 1
            return self.virtual(place, flow, h)

        around, exact = supplement.structure.around[flow], supplement.plan.exact_features
        return extended(call, self.batch, around, halo_rows, exact).run()

    @staticmethod
    def _place(call: ConvCall) -> str:
        """Name the next propagation of a conv."""
        return f"{call.conv.name}/{call.number}/{call.hop}"

    # ---- the hooks

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        """Return A[B,B] h; (b, d)."""
        out: Tensor = self.batch.supplement.structure.spots[operator].within @ h
        return out

    def virtual(self, place: str, flow: str, h: Tensor) -> Tensor:
        """Return what stands in for the halo's rows of an embedding h (b, d): zeros; (c, d)."""
        return h.new_zeros((self.batch.supplement.structure.around[flow].halo.numel(), *h.shape[1:]))
