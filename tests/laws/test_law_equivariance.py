"""The names of the nodes and the order of the edges mean nothing: relabelled graphs give relabelled outputs."""

import copy

import pytest
import torch
import zoo
from torch import Tensor
from torch_geometric.data import Data

from graphs import communities, node_sets
from topoff import TOP, NodeSets, predict

NAMES = [
    *("gcn_weighted", "gcn_backwards", "sage_mean", "gin", "tag", "gcn2"),
    *("sage_max", "gat_features", "pna", "mixed", "shared"),
]


def relabeled(data: Data, *, seed: int) -> tuple[Data, Tensor]:
    """Return the same graph with its nodes renamed and its edges shuffled, and the new name of every node."""
    generator = torch.Generator().manual_seed(seed)
    name = torch.randperm(data.num_nodes, generator=generator)
    order = torch.randperm(data.num_edges, generator=generator)
    out = Data(edge_index=name[data.edge_index][:, order])
    for key in ("edge_weight", "edge_attr"):
        out[key] = data[key][order]
    for key in ("x", "y", "train_mask", "val_mask", "test_mask"):
        out[key] = torch.empty_like(data[key])
        out[key][name] = data[key]
    return out, name


@pytest.mark.parametrize(("sampler", "seed"), [("kaminpar", 0), ("metis", 1), ("random", 2)])
@pytest.mark.parametrize("name", NAMES)
def test_corresponding_batches_have_corresponding_outputs(name, sampler, seed):
    data = communities(48, directed=bool(seed % 2), weighted=True, edge_features=2, seed=seed)
    other, rename = relabeled(data, seed=seed)
    model = zoo.make(name, data, seed=seed).eval()
    sets = NodeSets(method=sampler, ratio=0.25, seed=seed).fit(data).of(0)
    outputs = []
    for graph, parts in ((data, sets), (other, [rename[nodes] for nodes in sets])):
        top = TOP(copy.deepcopy(model), graph, batches=node_sets(parts), rank=4, inits=2)
        outputs.append(top.outputs())
    zoo.assert_near(outputs[1][rename], outputs[0], tolerance=1e-7)


@pytest.mark.parametrize("name", ["gcn_weighted", "tag", "gat_features", "mixed"])
def test_exact_inference_is_equivariant(name):
    data = communities(48, directed=True, weighted=True, edge_features=2)
    other, rename = relabeled(data, seed=3)
    model = zoo.make(name, data)
    zoo.assert_near(predict(model, other, ratio=0.25)[rename], predict(model, data, ratio=0.25), tolerance=1e-12)


@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "gat_features"])
def test_the_released_estimator_is_equivariant(name):
    """It has one global basis and reads all nodes of a batch."""
    data = communities(48, directed=True, weighted=True, edge_features=2)
    other, rename = relabeled(data, seed=3)
    model = zoo.make(name, data).eval()
    sets = NodeSets(method="metis", ratio=0.25).fit(data).of(0)
    outputs = []
    for graph, parts in ((data, sets), (other, [rename[nodes] for nodes in sets])):
        top = TOP(model, graph, batches=node_sets(parts), rank=4, estimator="released")
        outputs.append(top.outputs())
    zoo.assert_near(outputs[1][rename], outputs[0], tolerance=1e-7)
