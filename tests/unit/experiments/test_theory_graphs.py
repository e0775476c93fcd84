"""The graphs of the theory have the classes that they claim."""

import pytest
import torch
from torch_geometric.utils import degree, is_undirected, to_dense_adj

from topoff.experiments.theory_graphs import (
    embedder,
    hubs,
    lift,
    network,
    operator_of,
    path,
    ring,
    sets_of,
    six_nodes,
    sparse_graph,
    star,
)

GRAPHS = {
    "six": six_nodes(),
    "ring": ring(9, seed=3),
    "lift": lift(ring(5, seed=1), copies=7, seed=2),
    "star": star(8),
    "hubs": hubs(5, leaves=3),
    "path": path(torch.ones(5, 2, dtype=torch.float64)),
    "sparse": sparse_graph(30, degree=2.5, kinds=2, seed=4),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_edges_go_both_ways_once(name):
    data = GRAPHS[name]
    assert is_undirected(data.edge_index, num_nodes=data.num_nodes)
    assert data.edge_index.unique(dim=1).size(1) == data.num_edges
    assert not data.has_self_loops()
    assert data.x.dtype == torch.float64


def test_a_lift_is_an_equitable_partition_of_classes_of_one_size():
    base = ring(5, seed=1)
    data = lift(base, copies=7, seed=2)
    kinds = torch.eye(5)[data.kind]  # (n, 5)
    assert kinds.sum(0).tolist() == [7.0] * 5
    seen = to_dense_adj(data.edge_index, max_num_nodes=35)[0] @ kinds  # neighbours of each kind
    assert seen.equal(to_dense_adj(base.edge_index, max_num_nodes=5)[0][data.kind])
    assert data.x.equal(base.x[data.kind])


def test_hubs_and_leaves_have_the_degrees_that_they_should():
    data = hubs(5, leaves=3)
    assert degree(data.edge_index[1]).tolist() == [5.0] * 5 + [1.0] * 15
    assert data.kind.tolist() == [0] * 5 + [1] * 15


def test_lifts_of_other_seeds_are_other_graphs():
    one, same, other = (lift(ring(5), copies=7, seed=seed) for seed in (0, 0, 1))
    assert one.edge_index.equal(same.edge_index)
    assert not one.edge_index.equal(other.edge_index)


def test_the_operator_is_that_of_the_first_equation():
    data = GRAPHS["lift"]
    loops = to_dense_adj(data.edge_index)[0].double() + torch.eye(35)
    scale = (degree(data.edge_index[1]) + 1).double().rsqrt()
    assert torch.allclose(operator_of(data) @ torch.eye(35, dtype=torch.float64), scale[:, None] * loops * scale)


@pytest.mark.parametrize("act", ["tanh", "leaky_relu", "relu"])
def test_embeddings_are_those_of_the_layers_themselves(act):
    data = GRAPHS["sparse"]
    model = network(data, layers=4, width=2, act=act, seed=3)
    rows, found = data.x, embedder(network(data, layers=4), data)(model)  # another width and activation than planned
    assert len(found) == 3
    with torch.no_grad():
        for conv, each in zip(list(model.convs)[:3], found, strict=True):
            rows = model.act(conv(rows, data.edge_index))
            assert torch.allclose(rows, each, rtol=1e-12, atol=1e-15)


def test_sets_of_ones_own_are_batches():
    sets = [torch.tensor([3, 4]), torch.tensor([0, 1, 2]), torch.tensor([5])]
    assert sorted(nodes.tolist() for nodes in sets_of(sets).of(0)) == [[0, 1, 2], [3, 4], [5]]
