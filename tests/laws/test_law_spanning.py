"""The batches are exact, not close, where the theory says so (ridge 0): spanning bases, symmetry, linear networks."""

import copy
import itertools

import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities, corner_sets, corners, node_sets, six_node_sets, six_nodes
from topoff import TOP, Compensator, Loader, NodeSets, compensating
from topoff.compensation.embeddings import embed, reinitialized
from topoff.compensation.factors import Compensation
from topoff.forward.call import evaluating
from topoff.forward.plan import Plan
from topoff.forward.structure import Structure, structure_of
from topoff.forward.subgraph import Supplement
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph

SAMPLERS = ["kaminpar", "metis", "random"]
SPANNED = [name for name in zoo.ALL if name != "sage_projected"]  # a relu may leave no node of a batch alight
BATCH = 24  # smallest batch: more than the columns that the embeddings span


def graph_of(seed: int) -> Data:
    return communities(80, directed=bool(seed % 2), weighted=True, edge_features=2, features=3, seed=seed)


def conv_inputs(model: nn.Module, graph: Graph, plan: Plan) -> list[Tensor]:
    """Return the true (n, d) rows that each conv reads, raw features apart."""
    found: list[Tensor] = []
    whole = [graph.induced(torch.arange(graph.num_nodes))]
    embed(model, graph, whole, plan=plan, collect=lambda place, rows: found.append(rows))
    return found


def truth_of(model: nn.Module, data: Data) -> Tensor:
    """Return the full-batch forward in eval mode."""
    plain = copy.deepcopy(model)
    with evaluating(plain):
        return zoo.full_batch(plain, data)


def assert_exact(model: nn.Module, batches: list[Data], truth: Tensor, *, tolerance: float = 1e-8) -> None:
    """Demand that the batches' outputs are those of the full-batch forward, in eval mode."""
    with evaluating(model):
        for batch in batches:
            with compensating(model, batch):
                out = zoo.full_batch(model, batch)
            zoo.assert_near(out, truth[batch.n_id], tolerance=tolerance)


def assert_exact_gradients(model: nn.Module, batches: list[Data], data: Data) -> None:
    """Demand that the gradients of the batches' outputs are those of the full-batch forward."""
    plain = copy.deepcopy(model)
    for batch in batches:
        with compensating(model, batch):
            out = zoo.full_batch(model, batch)
        truth = zoo.full_batch(plain, data)[batch.n_id]
        pull = torch.randn_like(truth)
        ours, theirs = zoo.gradients(model, (out * pull).sum()), zoo.gradients(plain, (truth * pull).sum())
        zoo.assert_near(ours, theirs, tolerance=1e-7)


# ---- a basis that spans the embeddings


@pytest.mark.parametrize(("sampler", "seed"), [("kaminpar", 0), ("metis", 1), ("random", 2)])
@pytest.mark.parametrize("name", SPANNED)
def test_a_basis_that_spans_the_embeddings_is_exact(name, sampler, seed):
    data = graph_of(seed)
    model, graph = zoo.make(name, data, seed=seed), Graph(data)
    truth, plan = truth_of(model, data), make_plan(model, graph)
    compensator = Compensator(BATCH, ridge=0.0).fit(graph, plan, blocks=conv_inputs(model, graph, plan))
    sets = NodeSets(method=sampler, ratio=1 / 3, parts=3, seed=seed).fit(data)
    assert_exact(model, Loader(graph, plan, sets=sets, compensator=compensator).batches(), truth)


@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "gat", "mixed_operators"])
def test_the_released_estimator_is_exact_on_a_basis_that_spans(name):
    data = graph_of(1)
    model, graph = zoo.make(name, data), Graph(data)
    truth, plan = truth_of(model, data), make_plan(model, graph)
    blocks = conv_inputs(model, graph, plan)[:: 2 if name == "mixed_operators" else 1]  # each of its inputs comes twice
    compensator = Compensator(6 * len(blocks), estimator="released").fit(graph, plan, blocks=blocks)
    sets = NodeSets(method="random", ratio=1 / 3).fit(data)
    assert_exact(model, Loader(graph, plan, sets=sets, compensator=compensator).batches(), truth)


@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "tag", "gat", "pna"])
def test_a_basis_that_misses_the_embeddings_is_not_exact(name):
    """The law above can fail: one direction alone does not explain the halo."""
    data = graph_of(0)
    model, graph = zoo.make(name, data), Graph(data)
    truth, plan = truth_of(model, data), make_plan(model, graph)
    compensator = Compensator(1, ridge=0.0).fit(graph, plan, blocks=[torch.randn(80, 1, dtype=torch.float64)])
    sets = NodeSets(method="random", ratio=1 / 3).fit(data)
    with pytest.raises(AssertionError, match="off by"):
        assert_exact(model, Loader(graph, plan, sets=sets, compensator=compensator).batches(), truth)


# ---- any R that reproduces the halo


def reproducing(structure: Structure, rows: Tensor) -> Compensation:
    """Return a compensation with an R = H_C H_B^+ found by least squares, written out: nothing is estimated."""
    inside, n = rows[structure.nodes], rows.size(0)
    whole = rows @ torch.linalg.pinv(inside)  # (n, b): every node from the batch
    assert torch.allclose(whole @ inside, rows)
    spread = {key: spot.halo @ whole for key, spot in structure.spots.items()}
    halo = {flow: whole[near.halo] for flow, near in structure.around.items()}
    read = torch.eye(structure.nodes.numel(), dtype=rows.dtype)
    return Compensation(read, None, spread, halo, n, 1.0)


@pytest.mark.parametrize("name", SPANNED)
def test_any_compensation_that_reproduces_the_halo_is_exact(name):
    data = graph_of(1)
    model, graph = zoo.make(name, data), Graph(data)
    truth, plan = truth_of(model, data), make_plan(model, graph)
    rows = torch.cat(conv_inputs(model, graph, plan) or [data.x], dim=1)
    batches = []
    for nodes in NodeSets(method="random", ratio=1 / 3).fit(data).of(0):
        batch, structure = graph.induced(nodes), structure_of(graph, plan, nodes)
        batch.supplement, batch.compensation = Supplement(plan, structure), reproducing(structure, rows)
        batches.append(batch)
    assert_exact(model, batches, truth)


# ---- refresh: a basis of current embeddings, of full rank


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "tag", "gat_features", "pna", "mixed", "pyg_gcn"])
def test_batches_are_exact_after_a_refresh(name, sampler):
    data = graph_of(1)
    model, other = zoo.make(name, data), zoo.make(name, data, seed=9)
    top = TOP(model, data, ratio=1 / 3, parts=3, rank=BATCH, ridge=0.0, inits=1, batches=sampler, tolerance=9.0)
    top.prepare()
    model.load_state_dict(other.state_dict())
    out = top.refresh()
    zoo.assert_near(out, truth_of(other, data), tolerance=1e-10)
    assert_exact(model, top.prepare().batches(), out)


@pytest.mark.parametrize("name", SPANNED)
def test_fidelity_is_below_1_before_a_refresh_and_1_after_it(name):
    data = graph_of(0)
    model, other = zoo.make(name, data), zoo.make(name, data, seed=9)
    top = TOP(model, data, ratio=1 / 3, rank=BATCH, ridge=0.0, inits=1, batches="random", tolerance=9.0)
    top.prepare()
    model.load_state_dict(other.state_dict())
    assert name in ("simple", "simple_cat", "propagated_features") or top.fidelity().relative_error > 1e-4
    top.refresh()
    fidelity = top.fidelity()
    assert fidelity.relative_error < 1e-8
    assert [name for name, error in fidelity.layers if error > 1e-8] == []
    assert_exact(model, top.prepare().batches(), truth_of(other, data))


# ---- symmetry: Figure 1 of the paper


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["gcn", "sage_mean", "gin", "gat", "sage_max"])
def test_the_symmetric_example_is_exact_for_any_weights(name, seed):
    data = six_nodes(seed=seed)
    model = zoo.make(name, data, layers=3)
    top = TOP(model, data, batches=node_sets(six_node_sets()), rank=2, ridge=0.0)
    top.prepare(networks=[reinitialized(model, number) for number in (100, 101, 102)])
    for other in range(3):
        model.load_state_dict(zoo.make(name, data, seed=seed + other, layers=3).state_dict())
        assert_exact(model, top.prepare().batches(), truth_of(model, data))
        assert_exact_gradients(model, top.prepare().batches(), data)


# ---- linear networks


class Linear(nn.Module):
    """Stack GCNConv without nonlinearity and without bias: H = A ... A X W."""

    def __init__(self, features: int, layers: int) -> None:
        super().__init__()
        widths = [features, *[zoo.HIDDEN] * (layers - 1), zoo.OUT]
        self.convs = nn.ModuleList(gnn.GCNConv(a, b, bias=False) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index, edge_weight)
        return x


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("layers", [2, 3, 4])
def test_a_linear_network_is_exact_for_any_weights(layers, sampler, seed):
    data = graph_of(seed)
    model = Linear(data.num_features, layers).double()
    rank = data.num_features * layers
    top = TOP(model, data, ratio=1 / 3, parts=3, rank=rank, ridge=0.0, batches=sampler, seed=seed)
    top.prepare(networks=[reinitialized(model, number) for number in (100, 101)])
    for other in range(3):
        model.load_state_dict(reinitialized(model, other).state_dict())
        assert_exact(model, top.prepare().batches(), truth_of(model, data))
        assert_exact_gradients(model, top.prepare().batches(), data)


# ---- nothing to compensate


@pytest.mark.parametrize("name", [name for name in SPANNED if name not in zoo.MODELS])
def test_one_layer_on_raw_features_is_exact_in_every_corner(name):
    """Whatever the basis, the halo of the first layer is known, each of its hops included."""
    data = corners()
    model, graph = zoo.make(name, data, layers=1), Graph(data)
    truth, plan = truth_of(model, data), make_plan(model, graph)
    compensator = Compensator(0).fit(graph, plan, blocks=[])
    batches = Loader(graph, plan, sets=node_sets(corner_sets()), compensator=compensator).batches()
    assert_exact(model, batches, truth, tolerance=1e-12)
