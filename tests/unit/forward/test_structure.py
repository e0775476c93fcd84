"""The structure of a batch: its operators, its constants, and what comes in from outside, or does not."""

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn

from graphs import communities
from topoff.forward.structure import inner_structure, structure_of
from topoff.forward.trial import make_plan
from topoff.graph.aggregation import Aggregation
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator

GCN = Operator(norm="gcn", self_loops=True)


class Stacked(nn.Module):
    """Convs one after the other."""

    def __init__(self, *convs: nn.Module, factor: float | None = None) -> None:
        super().__init__()
        self.convs, self.factor = nn.ModuleList(convs), factor

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x if self.factor is None else self.factor * x
        for conv in self.convs:
            x = conv(x, edge_index)
        return x


def test_structure_holds_the_parts_of_every_operator_and_the_constants() -> None:
    graph, model = Graph(communities(24)), Stacked(gnn.SGConv(5, 6, K=2), gnn.GATConv(6, 3)).double()
    plan, nodes = make_plan(model, graph), torch.arange(10)
    structure = structure_of(graph, plan, nodes)
    assert set(structure.spots) == {GCN}
    assert set(structure.around) == {"source_to_target"}
    assert torch.equal(structure.constants[()], graph.data.x[nodes])
    assert torch.equal(structure.constants[(GCN, GCN)], graph.propagated((GCN, GCN))[nodes])


def test_the_halo_constant_is_what_the_halo_sends() -> None:
    graph, nodes = Graph(communities(24)), torch.arange(10)
    structure = structure_of(graph, make_plan(gnn.SGConv(5, 6, K=2).double(), graph), nodes)
    A = torch.from_numpy(graph.aggregation(GCN).matrix.toarray())
    for chain in ((GCN,), (GCN, GCN)):
        expected = A[:10, 10:] @ graph.propagated(chain[:-1])[10:]
        assert torch.allclose(structure.halo_constant(chain), expected, atol=1e-12)
        assert structure.halo_constant(chain) is structure.halo_constant(chain)


def test_a_structure_without_constants_holds_no_features() -> None:
    graph = Graph(communities(24))
    model = Stacked(gnn.GCNConv(5, 3), factor=2.0).double()
    assert structure_of(graph, make_plan(model, graph), torch.arange(4)).constants == {}


def test_a_structure_moves_as_a_whole() -> None:
    graph, model = Graph(communities(24)), Stacked(gnn.GCNConv(5, 6), gnn.GATConv(6, 3)).double()
    moved = structure_of(graph, make_plan(model, graph), torch.arange(4)).to("meta")
    (spot,), (around,) = moved.spots.values(), moved.around.values()
    tensors = [moved.nodes, spot.boundary, *spot.within.tensors, *spot.halo.tensors, around.halo]
    assert {tensor.device.type for tensor in [*tensors, *moved.constants.values()]} == {"meta"}


def test_an_inner_structure_has_the_weights_of_the_whole_graph_and_no_way_in() -> None:
    graph, model = Graph(communities(24)), Stacked(gnn.GCNConv(5, 6), gnn.GATConv(6, 3)).double()
    plan, nodes = make_plan(model, graph), torch.arange(10)
    inner, outer = inner_structure(graph, plan, nodes), structure_of(graph, plan, nodes)
    for operator, spot in inner.spots.items():
        assert torch.equal(spot.within.values, outer.spots[operator].within.values)
        assert spot.boundary.numel() == 0 < outer.spots[operator].boundary.numel()
    assert [near.halo.numel() for near in inner.around.values()] == [0]
    assert inner.constants.keys() == outer.constants.keys()


def test_an_inner_structure_can_take_other_operators() -> None:
    graph, model = Graph(communities(24)), gnn.GCNConv(5, 6).double()
    plan, nodes = make_plan(model, graph), torch.arange(10)
    whole = graph.aggregation(GCN)
    doubled = Aggregation.of(GCN, whole.dtype, 2 * whole.matrix)
    own, other = (inner_structure(graph, plan, nodes, operators=given) for given in (None, {GCN: doubled}))
    assert torch.allclose(2 * own.spots[GCN].within.values, other.spots[GCN].within.values)
