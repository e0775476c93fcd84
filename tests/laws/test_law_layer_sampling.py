"""FastGCN and LADIES: probabilities as in the papers, right on average, exact where nothing is left out."""

import numpy as np
import pytest
import torch
import zoo
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities, corners
from topoff.forward.neighbours import Block, Neighbors
from topoff.graph.operators import Operator
from topoff.methods.fastgcn import FastGcn, squared_weights, times_drawn
from topoff.methods.ladies import Ladies, drawn_once
from topoff.methods.sampled_layers import SampledLayers

METHODS = {
    "fastgcn": (FastGcn, {"among": "graph"}),
    "fastgcn near": (FastGcn, {"among": "neighbours"}),
    "ladies": (Ladies, {"normalize": False}),
    "authors": (Ladies, {"normalize": True}),
}
UNBIASED = ["fastgcn", "fastgcn near", "ladies"]
LINEAR = ["gcn_weighted", "sage_mean", "graph_mean", "gcn_backwards"]
RECEIVERS = np.array([12, 2, 8, 0, 4, 7, 13])  # self-loops, a duplicate, an isolated node, one that hears nobody


def made(name: str, data: Data, conv: str, *, draws: int | None = None, **settings: object) -> SampledLayers:
    """Return a prepared method, which draws `draws` nodes per step."""
    kind, options = METHODS[name]
    method = kind(zoo.make(conv, data), data, **{"ratio": 0.25, **options, **settings})
    method.prepare()
    if draws is not None:
        method.nodes_per_step = draws
    return method


def dense(method: SampledLayers, data: Data) -> Tensor:
    """Return the operator of a method's model as a matrix; (n, n)."""
    (operator,) = method.plan.operators
    return torch.from_numpy(method.graph.aggregation(operator).matrix.toarray())


def without_diagonal(matrix: Tensor) -> Tensor:
    return matrix - matrix.diag().diag()


def sampled(method: SampledLayers, seed: int) -> Tensor:
    """Return the rows of `RECEIVERS` of the sampled operator, without own entries; (r, n)."""
    chosen = method.choose(RECEIVERS, 0, np.random.default_rng(seed))
    (weights,) = method.neighbors.weights.values()
    rows = torch.zeros(len(RECEIVERS), method.graph.num_nodes, dtype=torch.float64)
    rows[chosen.rows, method.neighbors.ids[chosen.positions]] = torch.from_numpy(
        weights[chosen.positions] * chosen.scale
    )
    return rows


def formula(name: str, matrix: Tensor) -> Tensor:
    """Return the papers' probabilities: squared columns, of the whole graph or of the receivers; (n,)."""
    squares = without_diagonal(matrix) ** 2
    near = squares[torch.from_numpy(RECEIVERS)].sum(0)
    sums = near if name == "ladies" else squares.sum(0) * ((near > 0) | (name == "fastgcn"))
    return sums / sums.sum()


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize("conv", LINEAR)
def test_one_aggregation_is_right_on_average(name: str, conv: str) -> None:
    data, rounds = corners(), 600
    method = made(name, data, conv, draws=3)
    seen = torch.stack([sampled(method, seed) for seed in range(rounds)])
    truth = without_diagonal(dense(method, data))[torch.from_numpy(RECEIVERS)]
    for values, exact in ((seen, truth), (seen @ data.x, truth @ data.x)):
        error = values.std(0) / rounds**0.5
        assert ((values.mean(0) - exact).abs() <= 4.5 * error + 1e-12).all()
        assert float(error.max()) > 0.001


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("conv", LINEAR)
def test_own_rows_are_exact(name: str, conv: str) -> None:
    data = corners()
    method = made(name, data, conv, draws=3)
    sources, block = method.neighbors.block(RECEIVERS, method.choose(RECEIVERS, 0, np.random.default_rng(7)))
    (matrix,) = block.matrices.values()
    own = dense(method, data).diag()[torch.from_numpy(RECEIVERS)].view(-1, 1) * data.x[torch.from_numpy(RECEIVERS)]
    zoo.assert_near(matrix @ data.x[torch.from_numpy(sources)], sampled(method, 7) @ data.x + own, tolerance=1e-12)


def test_normalized_rows_are_biased_and_less_spread() -> None:
    data, rounds = corners(), 600
    spread = {}
    for name in ("ladies", "authors"):
        method = made(name, data, "graph_mean", draws=3)
        seen = torch.stack([sampled(method, seed) for seed in range(rounds)])
        spread[name] = float(seen.var(0).mean())
    truth = without_diagonal(dense(method, data))[torch.from_numpy(RECEIVERS)]
    assert ((seen.mean(0) - truth).abs() > 6 * seen.std(0) / rounds**0.5).any()
    assert spread["authors"] < spread["ladies"]


@pytest.mark.parametrize("name", UNBIASED)
@pytest.mark.parametrize("conv", LINEAR)
def test_probabilities_are_those_of_the_papers(name: str, conv: str) -> None:
    data, rounds = corners(), 300
    method = made(name, data, conv, draws=1)
    truth = formula(name, dense(method, data)).numpy()
    count = np.zeros(data.num_nodes)
    for seed in range(rounds):
        chosen = method.choose(RECEIVERS, 0, np.random.default_rng(seed))
        drawn = np.unique(method.neighbors.ids[chosen.positions])
        assert len(drawn) <= 1
        count[drawn] += 1
        np.testing.assert_allclose(chosen.scale, 1 / truth[drawn].repeat(len(chosen.scale)), rtol=1e-12)
    heard = without_diagonal(dense(method, data))[torch.from_numpy(RECEIVERS)].ne(0).any(0).numpy()
    share = truth * heard  # nodes that no receiver hears leave no trace
    assert (np.abs(count / rounds - share) <= 4.5 * np.sqrt(share * (1 - share) / rounds)).all()


def test_several_operators_add_their_squares() -> None:
    data = corners()
    model = zoo.make("mixed_operators", data)
    method = FastGcn(model, data, ratio=0.25)
    method.prepare()
    assert len(method.plan.operators) > 1
    squares = sum(
        without_diagonal(torch.from_numpy(method.graph.aggregation(operator).matrix.toarray())) ** 2
        for operator in method.plan.operators
    )
    np.testing.assert_allclose(method.chances, (squares.sum(0) / squares.sum()).numpy(), rtol=1e-12)


def test_without_linear_convs_the_mean_stands_in() -> None:
    data = corners()
    method = made("fastgcn", data, "gat")
    mean = Neighbors(method.graph, operators=(Operator(aggr="mean"),))
    weights = np.zeros((14, 14))
    receiver = np.repeat(np.arange(14), mean.degree)
    weights[receiver, mean.ids] = 1 / mean.degree[receiver]
    np.testing.assert_allclose(method.chances, (weights**2).sum(0) / (weights**2).sum(), rtol=1e-12)
    np.testing.assert_allclose(squared_weights(method.neighbors), weights[receiver, mean.ids] ** 2, rtol=1e-12)


def test_ladies_draws_among_the_neighbors_only() -> None:
    data = communities(200, degree=3.0, weighted=True)
    for name in ("ladies", "authors"):
        method = made(name, data, "gcn_weighted", ratio=0.05)
        matrix = without_diagonal(dense(method, data))
        receivers = np.arange(0, 40, 2)
        for seed in range(20):
            chosen = method.choose(receivers, 0, np.random.default_rng(seed))
            drawn = method.neighbors.ids[chosen.positions]
            assert matrix[receivers[chosen.rows], drawn].ne(0).all()
            count = len(np.unique(drawn))
            assert count == 10 if name == "authors" else 1 < count <= 10


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("conv", ["gcn_weighted", "sage_mean", "gat"])
def test_a_step_adds_no_more_nodes_than_it_draws(name: str, conv: str) -> None:
    data = communities(200, degree=6.0, weighted=True)
    method = made(name, data, conv, ratio=0.06)
    assert method.nodes_per_step == 12
    for number in range(len(method)):
        batch = method.batch(0, number)
        steps: tuple[Block, ...] = batch.blocks.steps
        assert steps[-1].targets == batch.batch_size
        assert all(step.targets <= step.sources <= step.targets + 12 for step in steps)
        assert steps[0].sources > batch.batch_size or name == "fastgcn"


def test_nodes_drawn_among_the_neighbors_are_all_heard() -> None:
    data = communities(200, degree=4.0)
    heard = {}
    for name in ("fastgcn", "fastgcn near"):
        method = made(name, data, "gcn", draws=10)
        chosen = [method.choose(np.arange(20), 1, np.random.default_rng(seed)) for seed in range(20)]
        heard[name] = np.mean([len(np.unique(method.neighbors.ids[one.positions])) for one in chosen])
    assert heard["fastgcn near"] > 2 * heard["fastgcn"]
    method.nodes_per_step = 200
    assert (method.choose(np.arange(20), 1, np.random.default_rng(0)).scale == 1).all()  # all of them


def test_where_to_draw_from_is_one_of_two() -> None:
    with pytest.raises(ValueError, match=r"Expected 'among' to be one of graph, neighbours \(got 'all'\)"):
        made("fastgcn", corners(), "gcn", among="all")


@pytest.mark.parametrize("name", METHODS)
def test_one_propagation_of_the_features_is_exact(name: str) -> None:
    data = communities(60, degree=6.0)
    kind, options = METHODS[name]
    method = kind(zoo.make("gcn", data, layers=1).eval(), data, ratio=0.05, **options)
    method.prepare()
    zoo.assert_near(method.outputs(), zoo.full_batch(method.model, data), tolerance=1e-12)
    assert all(step.sources == step.targets for step in method.batch(0, 0).blocks.steps)


@pytest.mark.parametrize("name", ["ladies", "authors"])
@pytest.mark.parametrize("conv", ["gcn_weighted", "sage_mean", "gin", "gcn2", "appnp", "gat", "mixed_operators"])
def test_with_all_neighbors_ladies_is_exact(name: str, conv: str) -> None:
    data = corners()
    method = made(name, data, conv, ratio=1.0)
    method.model.eval()
    zoo.assert_near(method.outputs(), zoo.full_batch(method.model, data), tolerance=1e-12)


def test_all_are_taken_from_as_many_draws_as_candidates_on() -> None:
    data = corners()
    method = made("ladies", data, "gcn_weighted")
    everything = method.neighbors.all_of(RECEIVERS)
    candidates = len(np.unique(method.neighbors.ids[everything.positions]))
    for draws, exact in ((candidates, True), (candidates - 1, False)):
        method.nodes_per_step = draws
        chosen = method.choose(RECEIVERS, 0, np.random.default_rng(0))
        assert (len(chosen.positions) == len(everything.positions) and bool((chosen.scale == 1).all())) == exact


def test_normalized_weights_add_up_to_those_of_all_neighbors() -> None:
    data = communities(80, degree=6.0, weighted=True)
    method = made("authors", data, "gcn_weighted", draws=15)
    receivers = np.arange(30)
    chosen = method.choose(receivers, 0, np.random.default_rng(3))
    (weights,) = method.neighbors.weights.values()
    sums = np.bincount(chosen.rows, weights=weights[chosen.positions] * chosen.scale, minlength=30)
    everything = without_diagonal(dense(method, data))[:30].sum(1).numpy()
    heard = np.bincount(chosen.rows, minlength=30) > 0
    assert heard.any()
    assert not heard.all()
    np.testing.assert_allclose(sums, np.where(heard, everything, 0.0), rtol=1e-12)
    one = chosen.rows == np.flatnonzero(np.bincount(chosen.rows) > 1)[0]  # inside a row, 1/q decides
    senders = method.neighbors.ids[chosen.positions[one]]
    squares = (without_diagonal(dense(method, data))[:30] ** 2).sum(0).numpy()
    product = chosen.scale[one] * squares[senders]
    np.testing.assert_allclose(product, product[0], rtol=1e-12)


def test_ladies_spreads_less_than_fastgcn() -> None:
    data = communities(200, degree=4.0)
    spread = {}
    for name in ("fastgcn", "ladies"):
        method = made(name, data, "gcn", ratio=0.1)
        method.model.eval()
        truth = zoo.full_batch(method.model, data).detach()
        errors = []
        for method.position.epoch in range(4):
            errors.append(float(((method.outputs() - truth) ** 2).mean()))
        spread[name] = float(np.mean(errors))
    assert spread["ladies"] < 0.8 * spread["fastgcn"]


@pytest.mark.parametrize("name", METHODS)
def test_batches_are_functions_of_seed_epoch_and_number(name: str) -> None:
    data = communities(100, degree=8.0)

    def rows(method: SampledLayers, epoch: int, number: int) -> tuple[list[int], list[float]]:
        batch = method.batch(epoch, number)
        return batch.n_id.tolist(), next(iter(batch.blocks.steps[0].matrices.values())).values.tolist()

    one, other = made(name, data, "gcn", ratio=0.1), made(name, data, "gcn", ratio=0.1)
    first = {(epoch, number): rows(one, epoch, number) for epoch in range(2) for number in range(3)}
    for key in reversed(first):
        assert rows(other, *key) == first[key]
    elsewhere = made(name, data, "gcn", ratio=0.1, seed=1)
    seen = [*first.values(), rows(elsewhere, 0, 0)]
    assert len({str(row) for row in seen}) == len(seen)
    targets = np.concatenate([one.batch(0, number).n_id[: one.batch(0, number).batch_size] for number in range(10)])
    assert sorted(targets) == data.train_mask.nonzero().view(-1).tolist()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("conv", ["gcn_weighted", "sage_mean", "gin", "gcn2", "gat"])
def test_training_lowers_the_loss(name: str, conv: str) -> None:
    data = communities(120, groups=3, degree=6.0, weighted=True, edge_features=2)
    method = made(name, data, conv, ratio=0.2)
    optimizer = torch.optim.Adam(method.parameters(), lr=0.01)
    before = F.cross_entropy(method.exact()[0], data.y)
    for _ in range(6):
        for batch in method.batches():
            optimizer.zero_grad()
            assert method.learn(batch, lambda out, batch: F.cross_entropy(out, batch.y)).isfinite()
            optimizer.step()
    assert F.cross_entropy(method.exact()[0], data.y) < 0.9 * before


@pytest.mark.parametrize("name", METHODS)
def test_a_graph_without_edges_has_no_messages(name: str) -> None:
    data = Data(x=torch.randn(6, 4, dtype=torch.float64), edge_index=torch.tensor([[0], [0]]), y=torch.arange(6) % 3)
    data.train_mask, data.val_mask, data.test_mask = (torch.arange(6) % 3 == part for part in range(3))
    method = made(name, data, "sage_mean")
    method.model.eval()
    zoo.assert_near(method.outputs(), zoo.full_batch(method.model, data), tolerance=1e-12)


def test_draws_without_replacement_are_successive() -> None:
    chances, rounds = np.array([0.5, 0.0, 0.3, 0.2]), 2000
    count = np.zeros(4)
    for seed in range(rounds):
        drawn = drawn_once(chances, 2, np.random.default_rng(seed))
        assert drawn.sum() == 2
        count += drawn
    second = [sum(chances[i] * chances[j] / (1 - chances[i]) for i in (0, 2, 3) if i != j) for j in (0, 2, 3)]
    expected = chances.copy()
    expected[[0, 2, 3]] += second
    assert (np.abs(count / rounds - expected) <= 4.5 * np.sqrt(0.25 / rounds) * (chances > 0)).all()


def test_draws_with_replacement_count_repetitions() -> None:
    chances = np.array([0.0, 1.0, 3.0, 0.0])
    drawn = times_drawn(chances, 40_000, np.random.default_rng(0))
    assert drawn.sum() == 40_000
    assert drawn[[0, 3]].tolist() == [0, 0]
    assert abs(drawn[2] / 40_000 - 0.75) < 0.01
    assert times_drawn(np.zeros(3), 5, np.random.default_rng(0)).tolist() == [0, 0, 0]
    assert times_drawn(np.zeros(0), 5, np.random.default_rng(0)).tolist() == []
