"""What a batch takes from outside: two routes to the halo's messages, and nothing at rank 0."""

import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import degree

from graphs import communities, corner_sets, corners, one_node_sets
from topoff import TOP, Compensator, NodeSets
from topoff.forward.plan import Plan
from topoff.forward.structure import Structure, structure_of
from topoff.forward.trial import make_plan
from topoff.graph.aggregation import MOSTLY
from topoff.graph.graph import Graph

SAMPLERS = ["kaminpar", "metis", "random"]


def structures(data: Data, graph: Graph, plan: Plan, *, sampler: str, seed: int) -> list[Structure]:
    sets = NodeSets(method=sampler, ratio=0.25, seed=seed).fit(data).of(0)
    return [structure_of(graph, plan, nodes) for nodes in sets]


def dense(graph: Graph, operator: object) -> Tensor:
    """Return A (n, n) by way of the products with the unit vectors."""
    return graph.aggregation(operator).all() @ torch.eye(graph.num_nodes, dtype=torch.float64)


def assert_two_routes(graph: Graph, found: list[Structure]) -> None:
    """Demand A[B,C] Phi_C = (A Phi)[B] - A[B,B] Phi_B, the boundary rows being those that are not zero, or all."""
    basis = torch.randn(graph.num_nodes, 4, dtype=torch.float64)
    for structure in found:
        for operator, spot in structure.spots.items():
            A, nodes = dense(graph, operator), structure.nodes
            outside = torch.ones(graph.num_nodes, dtype=torch.bool).index_fill_(0, nodes, value=False)
            explicit = A[nodes][:, outside] @ basis[outside]
            subtracted = (A @ basis)[nodes] - spot.within @ basis[nodes]
            stored = torch.zeros_like(explicit).index_add_(0, spot.boundary, spot.halo @ basis)
            zoo.assert_near(subtracted, explicit, tolerance=1e-13)
            zoo.assert_near(stored, explicit, tolerance=1e-13)
            reached = (A[nodes][:, outside] != 0).any(1).nonzero().view(-1)
            assert torch.equal(reached, explicit.abs().sum(1).nonzero().view(-1))
            assert spot.outer == len(reached)
            mostly = len(reached) > MOSTLY * len(nodes)
            assert torch.equal(spot.boundary, torch.arange(len(nodes)) if mostly else reached)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", ["gcn_weighted", "gcn_backwards", "sage_mean", "graph_add", "tag", "mixed_operators"])
def test_spread_by_subtraction_equals_spread_by_the_halo(name, sampler, seed):
    data = communities(48, directed=bool(seed), weighted=True, seed=seed)
    graph = Graph(data)
    plan = make_plan(zoo.make(name, data), graph)
    assert_two_routes(graph, structures(data, graph, plan, sampler=sampler, seed=seed))


@pytest.mark.parametrize("name", ["gcn_weighted", "gcn_backwards", "sage_mean", "graph_add", "cluster"])
def test_spread_by_subtraction_equals_spread_by_the_halo_in_every_corner(name):
    data = corners()
    graph = Graph(data)
    plan = make_plan(zoo.make(name, data), graph)
    for sets in (corner_sets(), one_node_sets(data.num_nodes)):
        assert_two_routes(graph, [structure_of(graph, plan, nodes) for nodes in sets])


@pytest.mark.parametrize("ridge", [0.0, 1e-5, 1e-2])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_factors_multiply_to_the_regression(ridge, sampler):
    """At full rank spread @ read is A[B,C] Phi_C (F'WF + lambda I)^-1 F'W, the messages taken by subtraction."""
    data = communities(48, directed=True, weighted=True)
    graph = Graph(data)
    plan = make_plan(zoo.make("mixed_operators", data), graph)
    basis = torch.randn(48, 5, dtype=torch.float64)
    compensator = Compensator(12, ridge=ridge).fit(graph, plan, blocks=[basis])
    basis = compensator.basis_
    weight = (degree(data.edge_index[1], 48) + 1).double().sqrt()
    for structure in structures(data, graph, plan, sampler=sampler, seed=0):
        nodes, compensation = structure.nodes, compensator.of(structure)
        F, W = basis[nodes], torch.diag(weight[nodes] / weight[nodes].mean())
        G = F.T @ W @ F
        inverse = torch.linalg.inv(G + ridge * G.diagonal().mean() * torch.eye(len(G), dtype=G.dtype))
        assert len(structure.spots) == 2
        for operator, spot in structure.spots.items():
            messages = (dense(graph, operator) @ basis)[nodes] - spot.within @ F
            found = torch.zeros(len(nodes), len(nodes), dtype=G.dtype)
            found[spot.boundary] = compensation.spread[operator] @ compensation.read
            zoo.assert_near(found, messages @ inverse @ F.T @ W, tolerance=1e-9)


# ---- rank 0


class First(nn.Module):
    """Put a linear layer first, so that no conv reads the raw features; one conv per layer, given edges and weights."""

    def __init__(self, features: int, convs: list[nn.Module], *, first: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(features, zoo.HIDDEN) if first else nn.Identity()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        x = self.first(x)
        for conv in self.convs:
            x = (conv(x, edge_index) if isinstance(conv, gnn.SAGEConv) else conv(x, edge_index, edge_weight)).tanh()
        return x


def _gcn(data: Data) -> tuple[type[nn.Module], dict, type[nn.Module], dict, tuple[Tensor, Tensor]]:
    edges = gcn_norm(data.edge_index, data.edge_weight, data.num_nodes)
    return gnn.GCNConv, {}, gnn.GCNConv, {"normalize": False}, edges


def _sage(data: Data) -> tuple[type[nn.Module], dict, type[nn.Module], dict, tuple[Tensor, Tensor]]:
    share = 1 / degree(data.edge_index[1], data.num_nodes).clamp(min=1).double()
    return gnn.SAGEConv, {}, gnn.GraphConv, {}, (data.edge_index, share[data.edge_index[1]])


def _graph(data: Data) -> tuple[type[nn.Module], dict, type[nn.Module], dict, tuple[Tensor, Tensor]]:
    return gnn.GraphConv, {}, gnn.GraphConv, {}, (data.edge_index, data.edge_weight)


SUMS = {"gcn": _gcn, "sage_mean": _sage, "graph_add": _graph}  # the conv, and the same as a sum with global weights


def assert_in_batch_only(name: str, sampler: str, *, first: bool) -> None:
    """Demand that rank 0 is the plain forward on the whole graph without the edges that leave or enter the batch."""
    data = communities(48, directed=True, weighted=True, features=zoo.HIDDEN, seed=1)
    kind, settings, sum_kind, sum_settings, (edges, weights) = SUMS[name](data)
    sizes = (zoo.HIDDEN, zoo.HIDDEN)
    model = First(data.num_features, [kind(*sizes, **settings) for _ in range(3)], first=first).double()
    plain = First(data.num_features, [sum_kind(*sizes, **sum_settings) for _ in range(3)], first=first).double()
    theirs = {
        key.replace("lin_l", "lin_rel").replace("lin_r.", "lin_root."): v for key, v in model.state_dict().items()
    }
    plain.load_state_dict(theirs)
    top = TOP(model, data, ratio=0.25, rank=0, offset=False, batches=sampler)
    for batch in top.prepare().batches():
        inside = torch.isin(edges, batch.n_id).all(0)
        truth = plain(data.x, edges[:, inside], weights[inside])[batch.n_id]
        zoo.assert_near(top(batch), truth, tolerance=1e-12)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", SUMS)
def test_rank_0_is_in_batch_only_with_global_weights(name, sampler):
    assert_in_batch_only(name, sampler, first=True)


@pytest.mark.parametrize("name", SUMS)
def test_rank_0_is_in_batch_only_for_raw_features_too(name):
    assert_in_batch_only(name, "random", first=False)


@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "sage_max", "gat_features", "pna", "mixed", "pyg_gcn"])
def test_rank_0_equals_no_compensation_at_all(name):
    data = communities(48, directed=True, weighted=True, edge_features=2, seed=1)
    model = zoo.make(name, data).eval()
    none, some = (TOP(model, data, ratio=0.25, rank=rank, offset=False, batches="metis") for rank in (0, 4))
    for batch, other in zip(none.prepare().batches(), some.prepare().batches(), strict=True):
        out = none(batch)
        batch.compensation = None
        zoo.assert_near(none(batch), out, tolerance=0.0)
        assert not torch.allclose(some(other), out)


@pytest.mark.parametrize("name", ["gcn_weighted", "sage_max", "mixed"])
def test_rank_0_has_a_fidelity(name):
    data = communities(48, directed=True, weighted=True, edge_features=2, seed=1)
    settings = {"ratio": 0.25, "rank": 0, "offset": False, "batches": "metis", "tolerance": 9.0}
    fidelity = TOP(zoo.make(name, data), data, **settings).fidelity()
    assert fidelity.relative_error > 0.01
