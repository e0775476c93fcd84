"""Exact inference, batch by batch with true halo rows, equals the full-batch forward in eval mode."""

import copy

import pytest
import torch
import zoo
from torch_geometric.data import Data

from graphs import communities, corner_sets, corners, one_node_sets
from topoff import predict
from topoff.batching.node_sets import NodeSets
from topoff.forward.call import evaluating
from topoff.forward.exact import exact
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph


def truth_of(model: torch.nn.Module, data: Data) -> torch.Tensor:
    plain = copy.deepcopy(model)
    with evaluating(plain):
        return zoo.full_batch(plain, data)


def weighted(seed: int) -> Data:
    return communities(48, directed=bool(seed % 2), weighted=True, edge_features=2, seed=seed)


@pytest.mark.parametrize(("sampler", "seed"), [("kaminpar", 0), ("metis", 1), ("random", 2)])
@pytest.mark.parametrize("name", zoo.ALL)
def test_predict_equals_the_full_batch_forward(name, sampler, seed):
    data = weighted(seed)
    model = zoo.make(name, data, seed=seed)
    truth = truth_of(model, data)
    zoo.assert_near(predict(model, data, ratio=0.25, batches=sampler, seed=seed), truth, tolerance=1e-10)


@pytest.mark.parametrize("name", zoo.ALL)
def test_every_corner_is_predicted_exactly(name):
    data = corners()
    model, graph = zoo.make(name, data), Graph(data)
    for sets in (corner_sets(), one_node_sets(data.num_nodes), [torch.randperm(data.num_nodes)]):
        out = exact(model, graph, [graph.induced(nodes) for nodes in sets], plan=make_plan(model, graph))
        zoo.assert_near(out, truth_of(model, data), tolerance=1e-10)


@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "tag", "gat_features", "mixed", "pyg_sage"])
def test_collecting_what_convs_read_does_not_change_the_output(name):
    data = weighted(1)
    model, graph = zoo.make(name, data), Graph(data)
    batches = [graph.induced(nodes) for nodes in NodeSets(method="metis", ratio=0.25).fit(data).cover()]
    seen = []
    out = exact(model, graph, batches, plan=make_plan(model, graph), remember=lambda _, rows: seen.append(rows))
    assert seen
    assert all(len(rows) == data.num_nodes for rows in seen)
    zoo.assert_near(out, truth_of(model, data), tolerance=1e-10)


@pytest.mark.parametrize("name", ["gcn_weighted", "gat_features", "mixed"])
def test_the_way_the_nodes_are_cut_does_not_matter(name):
    data = weighted(0)
    model = zoo.make(name, data).train()
    outs = [predict(model, data, ratio=ratio, batches="random") for ratio in (1.0, 0.5, 1 / 48)]
    for out in outs[1:]:
        zoo.assert_near(out, outs[0], tolerance=1e-12)
    assert model.training
