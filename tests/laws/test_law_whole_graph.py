"""One batch that is the whole graph equals the full-batch forward: outputs and gradients."""

import copy

import pytest
import torch
import zoo
from torch_geometric.data import Data

from graphs import communities, corners
from topoff import TOP

GRAPHS = {
    "corners": corners,
    "directed": lambda: communities(40, directed=True, weighted=True, edge_features=2),
    "undirected": lambda: communities(40, weighted=True, edge_features=2, seed=1),
}


def one_batch(top: TOP) -> Data:
    (batch,) = top
    return batch


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", zoo.ALL)
def test_one_batch_equals_the_full_batch_forward(name, graph):
    data = GRAPHS[graph]()
    model = zoo.make(name, data, seed=len(graph))
    plain = copy.deepcopy(model)
    top = TOP(model, data, ratio=1.0, rank=4)
    batch = one_batch(top)
    out, truth = top(batch), zoo.full_batch(plain, data)[batch.n_id]
    zoo.assert_near(out, truth, tolerance=1e-12)
    pull = torch.randn_like(truth)
    zoo.assert_near(
        zoo.gradients(model, (out * pull).sum()), zoo.gradients(plain, (truth * pull).sum()), tolerance=1e-10
    )


@pytest.mark.parametrize("sampler", ["kaminpar", "metis", "random"])
@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "gat", "mixed"])
def test_every_sampler_makes_that_one_batch(name, sampler):
    data = GRAPHS["directed"]()
    model = zoo.make(name, data)
    batch = one_batch(top := TOP(model, data, ratio=1.0, rank=4, batches=sampler))
    zoo.assert_near(top(batch), zoo.full_batch(copy.deepcopy(model), data)[batch.n_id], tolerance=1e-12)


@pytest.mark.parametrize("name", ["mixed", "pyg_gcn", "pyg_gin"])
def test_batch_norm_learns_the_statistics_of_the_full_batch(name):
    data = GRAPHS["directed"]()
    model = zoo.make(name, data)
    plain = copy.deepcopy(model)
    top = TOP(model, data, ratio=1.0, rank=4)
    top(one_batch(top))
    zoo.full_batch(plain, data)
    assert model.state_dict().keys() == plain.state_dict().keys()
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=0, atol=1e-12)
