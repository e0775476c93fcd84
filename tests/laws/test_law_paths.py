"""The linear path and the general path are the same function wherever both apply; virtual rows stay inside a conv."""

import copy
import itertools

import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities, corner_sets, corners, node_sets
from topoff import TOP, Compensator, Loader, NodeSets, compensating
from topoff.forward.convs import describe
from topoff.forward.plan import Plan
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph


class GeneralSAGE(gnn.SAGEConv):
    """The same messages, written again: a conv that changes them is not known to be linear."""

    def message(self, x_j: Tensor) -> Tensor:
        return x_j


class GeneralGraph(gnn.GraphConv):
    """As above."""

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return edge_weight.view(-1, 1) * x_j


class GeneralGIN(gnn.GINConv):
    """As above."""

    def message(self, x_j: Tensor) -> Tensor:
        return x_j


class DropsInput(zoo.Stack):
    """Drop out the input features, so that the first conv reads a copy of them in training."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(F.dropout(x, 0.5, self.training), edge_index)


def _gin(kind: type[gnn.GINConv], a: int, b: int) -> nn.Module:
    return kind(nn.Sequential(nn.Linear(a, b), nn.Tanh(), nn.Linear(b, b)), train_eps=True)


def _mean_down(kind: type[gnn.SAGEConv], a: int, b: int) -> nn.Module:
    return kind(a, b, flow="target_to_source")


# (how the stack calls the convs, the linear conv, the general one, one layer of either)
PAIRS = {
    "sage_mean": (zoo.Stack, gnn.SAGEConv, GeneralSAGE, lambda kind, a, b: kind(a, b)),
    "sage_sum": (zoo.Stack, gnn.SAGEConv, GeneralSAGE, lambda kind, a, b: kind(a, b, aggr="sum")),
    "sage_backwards": (zoo.Stack, gnn.SAGEConv, GeneralSAGE, _mean_down),
    "sage_dropped_input": (DropsInput, gnn.SAGEConv, GeneralSAGE, lambda kind, a, b: kind(a, b)),
    "graph_add": (zoo.Weighted, gnn.GraphConv, GeneralGraph, lambda kind, a, b: kind(a, b)),
    "graph_mean": (zoo.Weighted, gnn.GraphConv, GeneralGraph, lambda kind, a, b: kind(a, b, aggr="mean")),
    "gin": (zoo.Stack, gnn.GINConv, GeneralGIN, _gin),
}


def both_paths(name: str, data: Data, *, seed: int) -> tuple[nn.Module, nn.Module]:
    """Return two models with the same weights, one on each path."""
    stack, linear, general, layer = PAIRS[name]
    widths = [data.num_features, zoo.HIDDEN, zoo.HIDDEN, zoo.OUT]
    torch.manual_seed(seed)
    one, other = (
        stack([layer(kind, a, b) for a, b in itertools.pairwise(widths)]).double() for kind in (linear, general)
    )
    other.load_state_dict(one.state_dict())
    assert {conv.path for conv in describe(one)} == {"linear"}
    assert {conv.path for conv in describe(other)} == {"general"}
    return one, other


def joint_loader(one: nn.Module, other: nn.Module, data: Data, *, sets: NodeSets, compensator: Compensator) -> Loader:
    """Return batches whose one compensation serves both models."""
    graph = Graph(data)
    linear, general = make_plan(one, graph), make_plan(other, graph)
    assert linear.known_hops == general.known_hops
    plan = Plan([], linear.operators, general.flows, linear.known_hops, linear.chains)
    embeddings = torch.randn(data.num_nodes, 8, dtype=torch.float64)
    return Loader(graph, plan, sets=sets, compensator=compensator.fit(graph, plan, blocks=[embeddings]))


def run(model: nn.Module, batch: Data) -> tuple[Tensor, list[Tensor]]:
    """Return the output and the gradients of the first batch's rows of a random projection, dropout repeated."""
    torch.manual_seed(7)
    with compensating(model, batch):
        out = zoo.full_batch(model, batch)
    pull = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return out, zoo.gradients(model, (out * pull).sum())


def assert_same_function(one: nn.Module, other: nn.Module, batches: list[Data]) -> None:
    for batch in batches:
        (out, grads), (truth, true_grads) = run(one, batch), run(other, batch)
        zoo.assert_near(out, truth, tolerance=1e-12)
        zoo.assert_near(grads, true_grads, tolerance=1e-10)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sampler", ["kaminpar", "metis", "random"])
@pytest.mark.parametrize("name", PAIRS)
def test_linear_path_equals_general_path(name, sampler, seed):
    data = communities(48, directed=bool(seed), weighted=True, seed=seed)
    one, other = both_paths(name, data, seed=seed)
    sets = NodeSets(method=sampler, ratio=0.25, seed=seed).fit(data)
    loader = joint_loader(one, other, data, sets=sets, compensator=Compensator(5))
    assert_same_function(one, other, loader.batches())


@pytest.mark.parametrize("estimator", ["ridge", "paper", "released"])
@pytest.mark.parametrize("name", ["sage_mean", "graph_add", "gin"])
def test_linear_path_equals_general_path_for_every_estimator(name, estimator):
    data = communities(48, directed=True, weighted=True, seed=2)
    one, other = both_paths(name, data, seed=2)
    sets = NodeSets(method="metis", ratio=0.25).fit(data)
    loader = joint_loader(one, other, data, sets=sets, compensator=Compensator(4, estimator=estimator, anchors=7))
    assert_same_function(one, other, loader.batches())


@pytest.mark.parametrize("name", PAIRS)
def test_linear_path_equals_general_path_in_every_corner(name):
    data = corners()
    one, other = both_paths(name, data, seed=0)
    loader = joint_loader(one, other, data, sets=node_sets(corner_sets()), compensator=Compensator(1))
    assert_same_function(one, other, loader.batches())


@pytest.mark.parametrize("name", ["sage_mean", "graph_mean", "gin"])
def test_linear_path_equals_general_path_without_compensation(name):
    data = communities(48, directed=True, weighted=True, seed=2)
    one, other = both_paths(name, data, seed=0)
    sets = NodeSets(method="random", ratio=0.25).fit(data)
    loader = joint_loader(one, other, data, sets=sets, compensator=Compensator(0))
    assert_same_function(one, other, loader.batches())


@pytest.mark.parametrize("name", ["mixed", "pyg_gin", "pyg_gcn"])
def test_norms_never_see_virtual_rows(name):
    data = communities(48, directed=True, weighted=True, edge_features=2)
    model = zoo.make(name, data)
    top, seen = TOP(model, data, ratio=0.25, rank=4, batches="random"), []
    top.prepare()
    for module in copy.copy(list(model.modules())):
        if isinstance(module, nn.BatchNorm1d):
            module.register_forward_hook(lambda _, given, out: seen.append((len(given[0]), len(out))))
    for batch in top:
        seen.clear()
        assert len(top(batch)) == batch.num_nodes
        assert seen
        assert set(seen) == {(batch.num_nodes, batch.num_nodes)}
