"""Run an unmodified model on a part of a graph, with the weights of the whole: Z_B = A[B,B] H_B, the halo left out.

`Subgraph` has two hooks, `aggregate` for linear convs and `virtual` for all others, where a way to know the halo comes
in: compensation (`compensation/compensated`), or histories (`methods/gas`).

>>> import torch
>>> from torch_geometric.nn import GCN
>>> from topoff.forward.trial import make_plan
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

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.forward.convs import Conv
from topoff.forward.extended import Extended, is_dropped_out
from topoff.forward.foreign import raise_narrow
from topoff.forward.intercept import Collect, ConvCall, Handler
from topoff.forward.norms import apply_to_own, check_one_graph, is_over_all, normalized, sums_of
from topoff.forward.plan import Plan
from topoff.forward.structure import Structure, closed_structure, inner_structure, structure_of
from topoff.graph.graph import Graph
from topoff.graph.operators import Movable, Operator
from topoff.graph.sparse_rows import for_linear


@dataclass(frozen=True, repr=False)
class Supplement(Movable):
    """Hold what a batch carries besides its own rows and edges: the part of the graph around it."""

    plan: Plan
    structure: Structure
    wide: Data | None = None  # what a model is called with that reads edges itself
    own: dict[str, Tensor] = field(default_factory=dict)  # the batch's features, edges and edge values as they were cut


def cut_batch(graph: Graph, plan: Plan, nodes: Tensor) -> Data:
    """Cut a batch out of the graph, with the way in from outside."""
    batch = graph.induced(nodes)
    return _supplied(batch, graph, plan, structure_of(graph, plan, nodes, x=batch.x))


def cut_inside(graph: Graph, plan: Plan, nodes: Tensor, **operators: Any) -> Data:
    """Cut a batch out of the graph that sees nothing outside (see `inner_structure`)."""
    return _supplied(graph.induced(nodes), graph, plan, inner_structure(graph, plan, nodes, **operators))


def _supplied(batch: Data, graph: Graph, plan: Plan, structure: Structure) -> Data:
    """Give a batch what its model needs besides."""
    wide = graph.widened(batch, structure.around[plan.around], nodes=structure.nodes) if plan.wide else None
    own = {key: batch[key] for key in ("x", "edge_index", *graph.edge_level)}
    batch.supplement = Supplement(plan, structure, wide, own)
    return batch


def for_many_steps(batch: Data) -> Data:
    """Prepare a batch that is kept: convs that multiply before they add up read constants by their entries, if few."""
    supplement: Supplement = batch.supplement
    if any(conv.transforms_first for conv in supplement.plan.convs):
        constants = supplement.structure.constants
        read = {chain: for_linear(rows) if chain else rows for chain, rows in constants.items()}
        batch.supplement = replace(supplement, structure=replace(supplement.structure, constants=read))
    return batch


def whole_graph(graph: Graph, plan: Plan) -> Data:
    """Return the whole graph as one batch: nothing lies outside, on the fast operator."""
    return cut_batch(graph, plan, torch.arange(graph.num_nodes))


def closed(subgraph: Data, plan: Plan) -> Data:
    """Return a subgraph as a batch that is a graph of its own: nothing outside is seen, degrees are those inside."""
    graph, plan = Graph(subgraph), replace(plan, num_nodes=subgraph.num_nodes)
    return _supplied(subgraph, graph, plan, closed_structure(graph, plan))


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
        conv, structure, plan = call.conv, self.batch.supplement.structure, self.batch.supplement.plan
        if conv.path == "norm" or conv.path == "batch":
            return self._normalize(call)
        hops = plan.known_hops.get(conv.name) or (0,)
        if call.number < len(hops) or not plan.wide or torch._C._current_graph_task_id() != -1:
            call.known = hops[call.number % len(hops)]
        raw = call.x is self.seen.x and (self.version < 0 or call.x._version == self.version)
        if call.known and not raw and not plan.wide and not is_dropped_out(call.x, self.seen.x):
            call.known = 0  # the features were changed
        if plan.wide and isinstance(call.x, Tensor) and self.seen.num_nodes not in call.x.shape:
            raise_narrow(conv)
        if conv.path == "general" or (plan.wide and (call.known or self._is_rewired(call))):
            return self._general(call).run()
        if self.collect and conv.transforms_first and not call.known and not raw:
            self.collect(conv, 0, call.x[: len(structure.nodes)])
        given, place = call.linear(self.seen, among=structure.spots), f"{conv.name}/{call.number}/0"
        if plan.wide:
            wide = self._general(call)
            given = wide.narrow(given)
            if conv.transforms_first and self.before_weights and given["x"].dim() == 2:
                given["x"], call.aggregated = self.aggregate(place, call.operator, given["x"]), True
            return wide.widen(call.run(given))
        if conv.transforms_first and call.known:
            chain, raw = (call.operator,), raw and not call.x.requires_grad
            given["x"] = structure.constants[chain] if raw else torch.cat([call.x, structure.halo_constant(chain)])
            call.aggregated = raw
        elif conv.transforms_first and self.before_weights and call.x.dim() == 2:
            given["x"], call.aggregated = self.aggregate(place, call.operator, call.x), True
        return call.run(given)

    def _is_rewired(self, call: ConvCall) -> bool:
        """Whether a linear conv of a wide model is given other edges than the graph's own."""
        return call.conv.name in self.batch.supplement.plan.rewired or not call.has_equal_edges(self.seen)

    def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
        """Return the aggregated operand, or the known product where the operand is the features."""
        structure: Structure = self.batch.supplement.structure
        if call.aggregated:  # in the type of the messages that would have been added up here
            weighs = structure.spots[call.operator].within.weighs
            return operand if weighs is None else operand.to(torch.promote_types(weighs, operand.dtype))
        conv, hop = call.conv, call.hop
        if hop >= call.known:
            if self.collect and not conv.transforms_first and operand is not self.batch.x:
                self.collect(conv, hop, operand)
            place, call.hop = f"{conv.name}/{call.number}/{hop}", hop + 1
            return self.aggregate(place, call.operator, operand)
        call.hop, chain, within = hop + 1, (call.operator,) * (hop + 1), structure.spots[call.operator].within
        if conv.transforms_first:
            rows = len(structure.nodes)
            return within @ operand[:rows] + operand[rows:]
        if call.x is self.seen.x and not call.x.requires_grad:  # a copy: some (GCN2Conv) write into what they are given
            return structure.constants[chain].clone()
        return within @ operand + structure.halo_constant(chain)

    def deep_steps(self, conv: Conv) -> frozenset[int]:
        """Return the propagations of a conv that read another's result: they get virtual rows of that."""
        found: frozenset[int] = self.batch.supplement.plan.deep.get(conv.name, frozenset())
        return found

    def _general(self, call: ConvCall) -> Extended:
        """Return what appends virtual rows for the halo (9), (10); they live inside this conv only."""
        plan, structure = self.batch.supplement.plan, self.batch.supplement.structure
        flow = plan.flow_of(call.conv)
        near = structure.around[flow]

        def halo_rows(h: Tensor) -> Tensor:
            """Return the rows (c, d) that stand in for the halo of an embedding h (b, d)."""
            if self.collect and not any(h is self.seen[name] for name in near.features):  # as in exact inference
                self.collect(call.conv, call.hop, h)
            place, call.hop = call.place, call.hop + 1
            return self.virtual(place, flow, h)

        size = len(structure.nodes)
        return Extended(call, self.seen, size, near, halo_rows, wide=plan.wide, exact_features=plan.exact_features)

    def _normalize(self, call: ConvCall) -> Any:
        """Run a norm: over the batch's rows, and over all nodes with the sums that the others last had."""
        nodes, plan, norm = self.batch.supplement.structure.nodes, self.batch.supplement.plan, call.conv.module
        if call.conv.path == "batch" and len(call.x) != self.seen.num_nodes:  # of edges, or of messages
            return call.forward(*call.args, **call.kwargs)
        if call.conv.path == "batch" or not is_over_all(norm):
            return apply_to_own(norm, lambda x: call.forward(x, *call.args[1:], **call.kwargs), call.x, len(nodes))
        check_one_graph(call, self.seen.num_nodes)
        sums, last = sums_of(call.x[: len(nodes)]), plan.moments.get(call.place)
        means = sums / len(nodes) if last is None else last.updated(sums, nodes, plan.num_nodes)
        return normalized(norm, call.x, means, plan.num_nodes)

    # ---- the hooks

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        """Return A[B,B] h; (b, d)."""
        out: Tensor = self.batch.supplement.structure.spots[operator].within @ h
        return out

    def virtual(self, place: str, flow: str, h: Tensor) -> Tensor:
        """Return what stands in for the halo's rows of an embedding h (b, d): zeros; (c, d)."""
        return h.new_zeros((self.batch.supplement.structure.around[flow].halo.numel(), *h.shape[1:]))
