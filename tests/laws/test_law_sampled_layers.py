"""Messages sampled layer by layer: exact with all neighbours, right on average with few, repeatable.

Neighbour sampling, LABOR-0, LABOR-* and VR-GCN over the zoo, in float64.
"""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv, SimpleConv

from graphs import communities, corners
from topoff.batching.samplers import subsets
from topoff.methods.labor import Labor, LaborStar, matched, smallest
from topoff.methods.neighbour_sampling import NeighborSampling
from topoff.methods.sampled_layers import SampledLayers
from topoff.methods.vrgcn import VarianceReduced

SAMPLERS = {"ns": NeighborSampling, "labor": Labor, "labor-star": partial(LaborStar, normalize=False)}
KINDS = {**SAMPLERS, "hajek": LaborStar, "vrgcn": VarianceReduced}
ALL_OF_THEM = 10**6  # a fan-out beyond every degree
SHORT = ["gcn", "sage_mean", "gin", "gcn2", "appnp", "sg", "pyg_sage", "residual", "gat", "nested"]
TRIMMED = ["gcn", "sage_mean", "gin", "gat", "gcn2", "appnp", "sg", "simple", "sage_pair"]
GENERAL = ["gat", "nested"]  # models that control variates refuse


def pairs(models: list[str]) -> list[tuple[str, str]]:
    """Return every method with every model that it takes."""
    return [(kind, name) for kind in KINDS for name in models if kind != "vrgcn" or name not in GENERAL]


class Residual(nn.Module):
    """Add a layer's input to its output without a thought for fewer rows."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GCNConv(features, features) for _ in range(3))
        self.last = nn.Linear(features, zoo.OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = x + conv(x, edge_index).tanh()
        return self.last(x)


def model_of(name: str, data: Data) -> nn.Module:
    """Return a model of the zoo, or the plain residual."""
    if name != "residual":
        return zoo.make(name, data)
    torch.manual_seed(0)
    return Residual(data.num_features).double()


def made(kind: str, model: nn.Module, data: Data, **settings: object) -> SampledLayers:
    method = KINDS[kind](model, data, **{"ratio": 0.4, "seed": 0, **settings})
    method.prepare()
    return method


def one_step(kind: str, conv: nn.Module, data: Data, **settings: object) -> SampledLayers:
    """Return a method for a model of one propagation."""

    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv.double()

        def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
            weighs = edge_weight is not None and not isinstance(conv, SAGEConv)
            return self.conv(x, edge_index, edge_weight) if weighs else self.conv(x, edge_index)

    return made(kind, Single(), data, **settings)


# ---- all neighbours


@pytest.mark.parametrize("name", [*zoo.ALL, "residual"])
def test_all_neighbors_are_the_whole_graph(name: str) -> None:
    data = corners()
    model = model_of(name, data).eval()
    outputs = made("ns", model, data, fanout=ALL_OF_THEM).outputs()
    zoo.assert_near(outputs, zoo.full_batch(model, data), tolerance=1e-12)


@pytest.mark.parametrize(("kind", "name"), pairs(SHORT))
def test_all_neighbors_are_the_whole_graph_for_every_method(kind: str, name: str) -> None:
    data = communities(directed=True, weighted=True)
    model = model_of(name, data).eval()
    outputs = made(kind, model, data, fanout=ALL_OF_THEM).outputs()
    zoo.assert_near(outputs, zoo.full_batch(model, data), tolerance=1e-12)


@pytest.mark.parametrize(("kind", "name"), pairs(SHORT))
def test_all_neighbors_have_the_gradients_of_the_whole_graph(kind: str, name: str) -> None:
    data = communities(groups=3, directed=True, weighted=True)
    model = model_of(name, data)
    method = made(kind, model, data, fanout=ALL_OF_THEM, ratio=1.0)
    (batch,) = method.batches()
    found = zoo.gradients(model, F.cross_entropy(method.forward(batch), batch.y))
    whole = zoo.full_batch(model, data)[data.train_mask]
    zoo.assert_near(found, zoo.gradients(model, F.cross_entropy(whole, data.y[data.train_mask])), tolerance=1e-12)
    assert any(gradient.abs().max() > 1e-3 for gradient in found)


@pytest.mark.parametrize(("kind", "name"), pairs(TRIMMED))
def test_dropping_rows_changes_nothing(kind: str, name: str) -> None:
    data = communities(weighted=True)
    method = made(kind, model_of(name, data), data, fanout=2)
    assert method.handler.trims
    trimmed = method.outputs()
    method.handler.trims = False
    zoo.assert_near(trimmed, method.outputs(), tolerance=1e-12)


@pytest.mark.parametrize("name", ["residual", "pyg_gcn", "mixed_operators"])
def test_models_that_join_layers_keep_their_rows(name: str) -> None:
    data = communities(weighted=True)
    assert not made("ns", model_of(name, data), data).handler.trims


# ---- few neighbours: right on average


OPERATORS = {
    "gcn": lambda f: GCNConv(f, 2),
    "gcn_without_loops": lambda f: GCNConv(f, 2, add_self_loops=False),
    "mean": lambda f: SAGEConv(f, 2),
    "weighted_sum": lambda f: SimpleConv("sum"),
}


@pytest.mark.parametrize("conv", OPERATORS)
@pytest.mark.parametrize("kind", SAMPLERS)
def test_sampled_sums_are_right_on_average(kind: str, conv: str) -> None:
    data, draws = corners(), 150
    method = one_step(kind, OPERATORS[conv](data.num_features), data, fanout=2)
    (operator,) = method.plan.operators
    nodes, rng = np.array([12, *range(12), 13]), np.random.default_rng(0)
    sums = torch.empty(draws, len(nodes), data.num_features, dtype=torch.float64)
    for draw in range(draws):
        sources, block = method.neighbors.block(nodes, method.choose(nodes, 0, rng))
        sums[draw] = block.matrices[operator] @ data.x[torch.from_numpy(sources)]
    truth = method.graph.propagated((operator,))[torch.from_numpy(nodes)]
    error = sums.std(0) / draws**0.5
    assert error.max() > 1e-2  # something is drawn
    assert ((sums.mean(0) - truth).abs() <= 4 * error + 1 / draws).all()  # what is rarely missing may never be missing


@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_message_has_its_weight_on_average(kind: str) -> None:
    data, draws = communities(n=40, degree=9, directed=True), 600
    method = one_step(kind, GCNConv(5, 2), data, fanout=3)
    nodes, rng = np.arange(0, 40, 2), np.random.default_rng(0)
    total, scale = np.zeros((2, len(method.neighbors.ids)))
    for _ in range(draws):
        chosen = method.choose(nodes, 0, rng)
        total[chosen.positions] += chosen.scale
        scale[chosen.positions] = chosen.scale  # one over its probability
    heard = method.neighbors.all_of(nodes).positions
    error = np.sqrt(np.maximum(scale[heard] - 1, 0) / draws)
    assert (np.abs(total[heard] / draws - 1) <= 4.5 * error + 1 / draws).all()
    assert 0.05 < error.max() < 0.2
    assert total.sum() == pytest.approx(total[heard].sum())


def test_a_sampled_mean_is_the_mean_of_the_sample() -> None:
    data = communities(degree=9)
    method = one_step("ns", SAGEConv(5, 2), data, fanout=3)
    (operator,) = method.plan.operators
    nodes = np.flatnonzero(method.neighbors.degree > 3)
    chosen = method.choose(nodes, 0, np.random.default_rng(0))
    _, block = method.neighbors.block(nodes, chosen)
    assert torch.allclose(block.matrices[operator].values, torch.full((3 * len(nodes),), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("fanout", [1, 3, 6])
def test_neighbor_sampling_draws_as_many_as_it_says(fanout: int) -> None:
    method = one_step("ns", GCNConv(5, 2), communities(degree=8), fanout=fanout)
    nodes = np.array([7, 3, *range(20, 60)])
    chosen = method.choose(nodes, 0, np.random.default_rng(1))
    degree = method.neighbors.degree[nodes]
    assert (np.bincount(chosen.rows, minlength=len(nodes)) == np.minimum(fanout, degree)).all()
    assert len(np.unique(chosen.positions)) == len(chosen.positions)
    owner = np.searchsorted(method.neighbors.offsets, chosen.positions, side="right") - 1
    assert (owner == nodes[chosen.rows]).all()
    assert (degree > fanout).any()
    assert (degree <= fanout).any() or fanout == 1


@pytest.mark.parametrize(("size", "count"), [(5, 2), (5, 4), (4, 4), (6, 1)])
def test_every_subset_is_equally_likely(size: int, count: int) -> None:
    draws = 20_000
    drawn = np.sort(subsets(np.full(draws, size), count, np.random.default_rng(0)), axis=1)
    found, counts = np.unique(drawn, axis=0, return_counts=True)
    assert found.tolist() == [list(subset) for subset in itertools.combinations(range(size), count)]
    expected = draws / len(found)
    assert (np.abs(counts - expected) <= 4.5 * np.sqrt(expected)).all()


def test_labor_lets_every_receiver_hear_the_smallest_of_numbers_that_all_share() -> None:
    method = one_step("labor", GCNConv(5, 2), communities(degree=9), fanout=4)
    nodes, neighbors = np.array([7, 3, *range(20, 60)]), method.neighbors
    for seed in range(20):
        chosen = method.choose(nodes, 0, np.random.default_rng(seed))
        numbers = np.random.default_rng(seed).random(60)
        for row, node in enumerate(nodes):
            senders = neighbors.ids[neighbors.offsets[node] : neighbors.offsets[node + 1]]
            heard = neighbors.ids[chosen.positions[chosen.rows == row]]
            assert sorted(heard) == sorted(senders[np.argsort(numbers[senders])][:4])


@pytest.mark.parametrize("count", [1, 3, 10])
def test_the_smallest_numbers_are_found_whatever_is_sorted(count: int) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(0, 80, size=300)
    rows = np.repeat(np.arange(300), sizes)
    numbers = rng.random(len(rows)) ** rng.integers(0, 2, size=300)[rows]  # in half of the rows, all are 1
    found = smallest(numbers, rows, sizes, count=count)
    assert (np.bincount(rows[found], minlength=300) == np.minimum(sizes, count)).all()
    kept = np.isin(np.arange(len(rows)), found)
    for row in range(300):
        own = rows == row
        assert numbers[own & kept].max(initial=-1) <= numbers[own & ~kept].min(initial=2)


def test_self_normalized_weights_add_up_and_spread_less() -> None:
    data, draws = communities(n=40, degree=12), 300
    nodes, spread = np.arange(40), {}
    for kind in ("labor-star", "hajek"):
        method, rng = one_step(kind, SAGEConv(5, 2), data, fanout=5), np.random.default_rng(0)
        (operator,) = method.plan.operators
        sums = []
        for _ in range(draws):
            chosen = method.choose(nodes, 0, rng)
            found = np.bincount(chosen.rows, weights=chosen.scale, minlength=40)
            heard = np.bincount(chosen.rows, minlength=40) > 0
            assert np.allclose(found[heard], method.neighbors.degree[heard]) is (kind == "hajek")
            sources, block = method.neighbors.block(nodes, chosen)
            sums.append(block.matrices[operator] @ (3 + data.x[torch.from_numpy(sources)]))
        spread[kind] = float(torch.stack(sums).var(0).mean())
    assert spread["hajek"] < 0.5 * spread["labor-star"]


def test_labor_star_keeps_the_variance_of_neighbor_sampling() -> None:
    data = communities(n=120, degree=12)
    method = one_step("labor-star", GCNConv(5, 2), data, fanout=8)
    nodes = np.arange(0, 120, 2)
    everything, degree = method.neighbors.all_of(nodes), method.neighbors.degree[nodes]
    probability = method.chances(everything.rows, method.neighbors.ids[everything.positions], degree)
    assert probability.max() <= 1.0
    assert len(np.unique(probability.round(6))) > 10  # not those of LABOR-0
    found = np.bincount(everything.rows, 1 / probability, minlength=len(nodes))
    assert np.allclose(found, degree**2 / np.clip(degree, 1, 8), rtol=1e-9)


@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
def test_probabilities_are_matched_where_some_are_certain(spread: float) -> None:
    rng = np.random.default_rng(0)
    degree, fanout = rng.integers(0, 30, size=200), 6
    rows, kept = np.repeat(np.arange(200), degree), np.clip(degree, 1, fanout)
    importance = np.exp(spread * rng.standard_normal(len(rows)))
    probability = np.minimum(1.0, matched(importance, rows, wanted=degree**2 / kept)[rows] * importance)
    assert np.allclose(np.bincount(rows, 1 / probability, minlength=200), degree**2 / kept, rtol=1e-9)
    assert (probability[degree[rows] > fanout] == 1.0).any() == (spread > 0)


def test_shared_numbers_need_fewer_senders() -> None:
    data = communities(n=200, groups=2, degree=24)
    nodes, count = np.arange(60), {}
    for kind in SAMPLERS:
        method = one_step(kind, SAGEConv(5, 2), data, fanout=5)
        senders = [
            method.neighbors.ids[method.choose(nodes, 0, np.random.default_rng(seed)).positions] for seed in range(40)
        ]
        count[kind] = float(np.mean([len(np.unique(found)) for found in senders]))
    assert count["labor"] < 0.9 * count["ns"]
    assert count["labor-star"] < 0.95 * count["labor"]


# ---- the exact first hop


FIRST = {"gcn": 1, "sage_mean": 1, "gin": 1, "sg": 3, "gcn2": 0, "gat": 0}  # known propagations


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize("kind", SAMPLERS)
def test_what_reads_the_features_is_not_sampled(kind: str, name: str) -> None:
    data = communities(degree=8, weighted=True, edge_features=2)
    exact, sampled = (made(kind, model_of(name, data), data, fanout=1, exact_first=first) for first in (True, False))
    known = FIRST[name]
    for number in range(len(exact)):
        steps, others = exact.batch(0, number).blocks.steps, sampled.batch(0, number).blocks.steps
        assert [step.sources > step.targets for step in others] == [True] * len(others)
        assert [step.sources > step.targets for step in steps] == [False] * known + [True] * (len(steps) - known)


@pytest.mark.parametrize("conv", [GCNConv(5, 3), SAGEConv(5, 3)], ids=["gcn", "sage"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_propagation_of_the_features_is_exact_whatever_is_drawn(kind: str, conv: nn.Module) -> None:
    data = communities(degree=8)
    method = one_step(kind, conv, data, fanout=1)
    zoo.assert_near(method.outputs(), method.model(data.x, data.edge_index), tolerance=1e-12)


# ---- control variates


LINEAR_MODELS = ["gcn", "sage_mean", "gin", "gcn2", "appnp", "sg", "residual", "mixed_operators", "pyg_gcn", "gated"]


def remembering(name: str, data: Data) -> VarianceReduced:
    """Return VR-GCN whose histories are exact: every node was computed with all its neighbours."""
    model = model_of(name, data)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):  # else the histories would be those of each batch's statistics
            module.eval()
            module.train = lambda mode=True, module=module: module
    method = made("vrgcn", model.train(), data, fanout=ALL_OF_THEM)
    assert isinstance(method, VarianceReduced)
    with torch.no_grad():
        for batch in method.cover():
            method.forward(batch)
    method.fanout = 1
    return method


@pytest.mark.parametrize("name", LINEAR_MODELS)
def test_fresh_histories_are_exact_whatever_is_drawn(name: str) -> None:
    data = communities(directed=True, weighted=True)
    method = remembering(name, data)
    drawn = sum(batch.num_nodes for batch in method.cover())
    method.fanout = ALL_OF_THEM
    assert drawn < sum(batch.num_nodes for batch in method.cover())
    method.fanout = 1
    zoo.assert_near(method.outputs(), zoo.full_batch(method.model.eval(), data), tolerance=1e-12)


@pytest.mark.parametrize("name", ["gcn", "sage_mean", "gin", "appnp"])
def test_near_histories_have_less_variance(name: str) -> None:
    data = communities(degree=8, weighted=True)
    method = remembering(name, data)
    with torch.no_grad():
        for parameter in method.model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    plain = made("ns", method.model, data, fanout=1)
    truth = zoo.full_batch(method.model.eval(), data)
    errors = {"vrgcn": 0.0, "ns": 0.0}
    for epoch in range(5):
        for kind, one in (("vrgcn", method), ("ns", plain)):
            one.position.epoch = epoch
            errors[kind] += float((one.outputs() - truth).detach().square().sum())
    assert errors["vrgcn"] < 0.1 * errors["ns"]


def test_histories_are_written_in_training_only_and_have_no_gradient() -> None:
    data = communities()
    model = model_of("gcn", data).train()
    method = made("vrgcn", model, data)
    method.outputs()
    assert list(method.weights()) == ["1"]  # the first propagation needs none
    assert not method.weights()["1"].any()
    batch = next(method.batches())
    method.forward(batch)
    table, block = method.weights()["1"], batch.blocks.steps[1]
    assert not table.requires_grad
    written = torch.zeros(60, dtype=torch.bool)
    written[batch.n_id[: block.sources]] = True
    assert (table.abs().sum(1) > 0).equal(written)


def test_known_features_need_no_neighbors() -> None:
    data = communities(weighted=True)
    method = made("vrgcn", model_of("sg", data), data)  # two convs of three hops; the first one reads the features
    steps = next(method.batches()).blocks.steps
    assert [step.sources == step.targets for step in steps] == [True, True, True, False, False, False]


class Dropping(nn.Module):
    """Drop out what the second conv reads."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.first, self.second, self.p = GCNConv(5, 6), GCNConv(6, 3), p

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(F.dropout(self.first(x, edge_index).relu(), self.p, training=self.training), edge_index)


def dropping(p: float, *, degree: float = 8, **settings: object) -> VarianceReduced:
    """Return VR-GCN of a model with dropout, whose histories are exact means."""
    torch.manual_seed(0)
    data = communities(degree=degree)
    method = made("vrgcn", Dropping(p).double().train(), data, fanout=ALL_OF_THEM, ratio=1.0, **settings)
    with torch.no_grad():
        for batch in method.cover():
            method.forward(batch)
    method.fanout = 1
    return method


def test_histories_hold_no_dropout() -> None:
    method = dropping(0.5)
    data, model = method.data, method.model
    with torch.no_grad():
        zoo.assert_near(method.weights()["1"], model.first(data.x, data.edge_index).relu(), tolerance=1e-12)
    assert (dropping(0.5, dropout_free=False).weights()["1"] == 0).double().mean() > 0.4


def test_a_model_without_dropout_is_run_once() -> None:
    assert dropping(0.5).dropout_free
    assert not dropping(0.0).dropout_free


@pytest.mark.parametrize("p", [0.3, 0.6])
def test_the_noise_of_dropout_is_that_of_all_neighbors(p: float) -> None:
    method, draws = dropping(p), 400
    data, model = method.data, method.model
    with torch.no_grad():
        batch = next(method.cover())
        drawn = []
        for method.position.epoch in range(draws):
            batch = next(method.cover())
            drawn.append(method.forward(batch)[batch.n_id[: batch.batch_size].argsort()])
        found, whole = torch.stack(drawn), torch.stack([model(data.x, data.edge_index) for _ in range(draws)])
        mean = model.eval()(data.x, data.edge_index)
    error = found.std(0) / draws**0.5
    assert ((found.mean(0) - mean).abs() <= 5 * error + 1e-9).all()
    ratio = float(found.var(0).sum() / whole.var(0).sum())
    assert 0.85 < ratio < 1.15


def test_gradients_through_dropout_are_right_on_average() -> None:
    method, draws = dropping(0.5, degree=5), 500
    data, model = method.data, method.model
    pull = torch.randn(60, 3, dtype=torch.float64)
    found, whole = [], []
    for method.position.epoch in range(draws):
        batch = next(method.cover())
        targets = batch.n_id[: batch.batch_size]
        found.append(zoo.gradients(model, (method.forward(batch) * pull[targets]).sum())[0])
        whole.append(zoo.gradients(model, (model(data.x, data.edge_index) * pull).sum())[0])
    one, other = torch.stack(found), torch.stack(whole)
    error = (one.var(0) / draws + other.var(0) / draws).sqrt()
    assert ((one.mean(0) - other.mean(0)).abs() <= 4.5 * error).all()


def test_dropped_out_features_are_right_on_average() -> None:
    class DropsFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(5, 2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(F.dropout(x, 0.5, training=self.training), edge_index)

    data, draws = communities(), 400
    method = made("vrgcn", DropsFirst().double().train(), data, ratio=1.0)
    (batch,) = method.batches()
    with torch.no_grad():
        outputs = torch.stack([method.forward(batch) for _ in range(draws)])
        truth = method.model.eval()(data.x, data.edge_index)[batch.n_id[: batch.batch_size]]
    error = outputs.std(0) / draws**0.5
    assert error.min() > 0
    assert ((outputs.mean(0) - truth).abs() <= 4.5 * error).all()


def test_histories_are_part_of_the_state() -> None:
    data = communities()
    first = made("vrgcn", model_of("gcn", data).train(), data)
    batches = first.batches()
    first.forward(next(batches))
    state, weights = first.state(), {name: table.clone() for name, table in first.weights().items()}
    expected = first.forward(next(batches))
    second = KINDS["vrgcn"](model_of("gcn", data).train(), data, ratio=0.4, seed=0)
    second.restore(state, weights)
    assert torch.equal(second.forward(next(second.batches())), expected)
    assert not torch.equal(second.weights()["1"], weights["1"])  # a copy


@pytest.mark.parametrize("name", ["gat", "sage_max", "nested"])
def test_control_variates_refuse_general_convs(name: str) -> None:
    data = communities()
    with pytest.raises(ValueError, match=r"linear convs for VR-GCN.*\(got .*Conv.*use the method ns or labor"):
        made("vrgcn", model_of(name, data), data)


# ---- batches


def described(batch: Data) -> list[Tensor]:
    """Return all that a batch of linear convs holds."""
    matrices = [matrix for step in batch.blocks.steps for matrix in step.matrices.values()]
    return [batch.n_id, batch.x, batch.y, *(tensor for matrix in matrices for tensor in matrix.tensors)]


def same(one: Data, other: Data) -> bool:
    pairs = list(zip(described(one), described(other), strict=True))
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_depends_on_seed_epoch_and_number_only(kind: str) -> None:
    data = communities()
    one, other = (made(kind, model_of("gcn", data), data, fanout=2) for _ in range(2))
    list(one.batches())
    one.outputs()
    batch = one.batch(3, 1)
    assert same(batch, other.batch(3, 1))
    assert not same(batch, other.batch(3, 0))
    assert not same(batch, other.batch(4, 1))
    assert not same(batch, made(kind, model_of("gcn", data), data, fanout=2, seed=1).batch(3, 1))
    handed_out = {tuple(batch.n_id.tolist()) for batch in other.batches()}
    assert handed_out == {tuple(other.batch(0, number).n_id.tolist()) for number in range(len(other))}


@pytest.mark.parametrize("kind", KINDS)
def test_the_neighbors_of_the_same_target_change(kind: str) -> None:
    data = communities(degree=12)
    data.train_mask = torch.arange(60) == 31
    method = made(kind, model_of("gcn", data), data, fanout=2, ratio=1.0)
    drawn = [method.batch(epoch, 0).n_id.tolist() for epoch in range(5)]
    assert all(nodes[0] == 31 for nodes in drawn)
    assert len({tuple(nodes) for nodes in drawn}) > 1


def test_targets_are_shuffled_in_every_epoch() -> None:
    data = communities()
    method = made("ns", model_of("gcn", data), data)
    first, second = (method.batch(epoch, 0) for epoch in range(2))
    assert set(first.n_id[: first.batch_size].tolist()) != set(second.n_id[: second.batch_size].tolist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ratio", "sizes"), [(0.25, [7, 7, 8, 8]), (0.3, [10, 10, 10]), (1.0, [30])])
def test_every_training_node_is_a_target_once(kind: str, ratio: float, sizes: list[int]) -> None:
    data = communities()
    method = made(kind, model_of("gcn", data), data, ratio=ratio)
    for _ in range(2):
        batches = list(method.batches())
        targets = torch.cat([batch.n_id[: batch.batch_size] for batch in batches])
        assert sorted(targets.tolist()) == data.train_mask.nonzero().view(-1).tolist()
        assert sorted(batch.batch_size for batch in batches) == sizes
        for batch in batches:
            assert batch.y.equal(data.y[batch.n_id[: batch.batch_size]])
            assert batch.train_mask.all()
            assert batch.x.equal(data.x[batch.n_id])


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_goes_on_where_it_stopped(kind: str) -> None:
    data = communities()
    whole = made(kind, model_of("gcn", data), data, fanout=2)
    all_of_them = [*whole.batches(), *whole.batches()]
    first = made(kind, model_of("gcn", data), data, fanout=2)
    iterator = first.batches()
    seen = [next(iterator)]
    second = KINDS[kind](model_of("gcn", data), data, fanout=2, ratio=0.4, seed=0)
    second.restore(first.state(), first.weights())
    rest = [*seen, *second.batches(), *second.batches()]
    assert len(rest) == len(all_of_them)
    assert all(same(a, b) for a, b in zip(rest, all_of_them, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_more_batches_than_nodes_are_no_trouble(kind: str) -> None:
    data = corners()
    model = model_of("gcn", data).eval()
    method = made(kind, model, data, ratio=0.02, fanout=ALL_OF_THEM)
    assert [batch.batch_size for batch in method.batches()] == [1] * int(data.train_mask.sum())
    zoo.assert_near(method.outputs(), zoo.full_batch(model, data), tolerance=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fanout_is_at_least_one(kind: str) -> None:
    data = communities()
    with pytest.raises(ValueError, match=r"Expected fanout to be at least 1 \(got 0\)"):
        KINDS[kind](model_of("gcn", data), data, fanout=0)
