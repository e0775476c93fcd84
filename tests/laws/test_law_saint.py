"""GraphSAINT: corrected losses and messages are right on average, the whole graph is the full batch, seeds repeat.

Tolerances of the averages: with K fresh subgraphs and N counted ones, an average of X has the standard error
std(X) sqrt(1/K + 1/N) (the counts enter to first order as N more draws of X), and to second order the mean of
1 / C_v is too large by the share (1 - p) / (N p). Five standard errors and that bias are allowed; the tests demand that
what is allowed is small.
"""

import copy
import itertools

import numpy as np
import pytest
import torch
import zoo
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from graphs import communities, corners
from topoff.batching.samplers import node_probabilities
from topoff.graph.operators import Operator
from topoff.methods.saint import Saint, SaintEdge, SaintNode, SaintWalk

KINDS = {"node": SaintNode, "edge": SaintEdge, "walk": SaintWalk}
OPERATORS = {
    "gcn": Operator(norm="gcn", self_loops=True),
    "sage_mean": Operator(aggr="mean"),
    "gcn_backwards": Operator(norm="gcn", self_loops=True, flow="target_to_source", weight="edge_weight"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def graph() -> Data:
    return communities(40, directed=True, weighted=True, edge_features=2)


def made(kind: str, data: Data | None = None, model: str = "gcn", **settings: object) -> Saint:
    data = graph() if data is None else data
    method = KINDS[kind](zoo.make(model, data), data, **({"ratio": 0.25, "seed": 3} | settings))
    method.prepare()
    return method


def fresh(method: Saint, draws: int) -> np.ndarray:
    """Return which nodes were in subgraphs that were not counted; (draws, n)."""
    held = np.zeros((draws, method.graph.num_nodes))
    for row in range(draws):
        held[row, method.sampler.draw(method.drawn, np.random.default_rng([77, row]))] = 1
    return held


def counted(method: Saint) -> list[Tensor]:
    return [torch.from_numpy(nodes) for nodes in method.beforehand()]


def mean_loss(out: Tensor, data: Data) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask] % zoo.OUT)


def weighted_loss(out: Tensor, batch: Data) -> Tensor:
    loss = F.cross_entropy(out, batch.y % zoo.OUT, reduction="none") * batch.loss_weight
    return loss[batch.train_mask].sum()


# losses


@every_kind
def test_over_the_counted_subgraphs_the_loss_is_exactly_the_mean_loss(kind) -> None:
    method, data = made(kind, coverage=20), graph()
    loss = torch.rand(40, dtype=torch.float64)
    assert method.counts.nodes.min() > 0
    found = []
    for nodes in counted(method):
        batch = method.cut(nodes)
        found.append((loss[nodes] * batch.loss_weight)[batch.train_mask].sum())
    assert float(torch.stack(found).mean()) == pytest.approx(float(loss[data.train_mask].mean()), abs=1e-12)


@every_kind
def test_over_fresh_subgraphs_the_loss_is_the_mean_loss_on_average(kind) -> None:
    method, data, draws = made(kind, coverage=500), graph(), 2000
    loss = torch.rand(40, dtype=torch.float64)
    each = fresh(method, draws) @ (loss * method.loss_weight * data.train_mask).numpy()
    chance = method.counts.nodes / method.counts.samples
    bias = float((loss * data.train_mask).numpy() @ ((1 - chance) / method.counts.nodes)) / int(data.train_mask.sum())
    tolerance = 5 * each.std() * np.sqrt(1 / draws + 1 / method.counts.samples) + bias
    assert tolerance < 0.05
    assert abs(each.mean() - float(loss[data.train_mask].mean())) < tolerance


# messages


@every_kind
@pytest.mark.parametrize("model", OPERATORS)
def test_over_the_counted_subgraphs_the_messages_are_exactly_those_of_the_whole_graph(kind, model) -> None:
    method, operator = made(kind, model=model, ratio=0.5), OPERATORS[model]
    assert method.plan.operators == (operator,)
    h = torch.randn(40, 3, dtype=torch.float64)
    total, held = torch.zeros_like(h), torch.zeros(40, 1, dtype=torch.float64)
    for nodes in counted(method):
        total[nodes] += method.cut(nodes).supplement.structure.spots[operator].within @ h[nodes]
        held[nodes] += 1
    assert method.counts.pairs.min() > 0
    assert held.min() > 0
    zoo.assert_near(total / held, method.graph.aggregation(operator).all() @ h, tolerance=1e-12)


@every_kind
@pytest.mark.parametrize("model", OPERATORS)
def test_over_fresh_subgraphs_with_a_node_its_messages_are_right_on_average(kind, model) -> None:
    method, operator, draws = made(kind, model=model, coverage=500, ratio=0.5), OPERATORS[model], 3000
    h, eye = np.random.default_rng(0).random(40), torch.eye(40, dtype=torch.float64)
    held = fresh(method, draws)
    whole = (method.graph.aggregation(operator).all() @ eye).numpy()
    divided = (method.cut(torch.arange(40)).supplement.structure.spots[operator].within @ eye).numpy()
    nodes = torch.from_numpy(held[0].nonzero()[0])
    inside = method.cut(nodes).supplement.structure.spots[operator].within @ eye[nodes]
    assert np.array_equal(inside.numpy(), divided[nodes] * held[0])  # a batch has its piece of the divided operator
    values, seen, truth = (held * h) @ divided.T, held.sum(0), whole @ h
    mean = (values * held).sum(0) / seen
    spread = np.sqrt(((values - mean) ** 2 * held).sum(0) / seen)
    more = np.where(whole > 0, divided / np.where(whole > 0, whole, 1), 1)  # 1 / alpha
    bias = (whole * (more - 1)) @ h / method.counts.nodes
    tolerance = 5 * spread * np.sqrt(1 / seen + 1 / method.counts.nodes) + bias + 1e-12
    assert (tolerance < 0.3 * truth + 0.01).all()
    assert (np.abs(mean - truth) <= tolerance).all()


# the whole graph

MODELS = ["gcn", "gcn_weighted", "gcn_backwards", "sage_mean", "gin", "cluster", "tag", "gcn2", "appnp", "mixed",
          "gat", "gat_features", "pna", "sage_max_backwards", "nested", "shared", "own"]  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("data", [graph(), corners()], ids=["directed", "corners"])
def test_a_subgraph_that_is_the_whole_graph_is_the_full_batch(model, data) -> None:
    kind = "walk" if model in ("gcn", "mixed", "gat") else "node"
    method = made(kind, data, model, budget=3000, coverage=3)
    plain = copy.deepcopy(method.model)
    batch = method.batch(0, 0)
    assert batch.n_id.tolist() == list(range(data.num_nodes))
    out, truth = method.forward(batch), zoo.full_batch(plain, data)
    zoo.assert_near(out, truth, tolerance=1e-12)
    found = zoo.gradients(method.model, weighted_loss(out, batch))
    zoo.assert_near(found, zoo.gradients(plain, mean_loss(truth, data)), tolerance=1e-10)


def test_all_edges_are_the_whole_graph_too() -> None:
    method, data = made("edge", model="gcn_weighted", budget=3000, coverage=3), graph()
    batch = method.batch(0, 0)
    zoo.assert_near(method.forward(batch), zoo.full_batch(method.model, data), tolerance=1e-12)
    assert batch.loss_weight == pytest.approx(torch.full((40,), 1 / 20))


def test_general_convs_see_the_bare_subgraph() -> None:
    method = made("walk", model="gat_features")
    batch = method.batch(0, 0)
    bare = method.graph.induced(batch.n_id)
    assert 1 < batch.num_nodes < 40
    zoo.assert_near(method.forward(batch), zoo.full_batch(copy.deepcopy(method.model), bare), tolerance=1e-12)
    assert len(method.counts.pairs) == 0  # nothing needs them
    assert method.counts.nodes.min() > 0


def test_linear_convs_do_not_see_the_bare_subgraph() -> None:
    method = made("walk", model="gcn")
    batch = method.batch(0, 0)
    bare = zoo.full_batch(copy.deepcopy(method.model), method.graph.induced(batch.n_id))
    assert not torch.allclose(method.forward(batch), bare, atol=1e-3)


# probabilities


def test_nodes_are_drawn_by_their_column_norms() -> None:
    method, data = made("node", model="gat"), graph()
    adjacency = torch.zeros(40, 40, dtype=torch.float64)
    adjacency.index_put_((data.edge_index[1], data.edge_index[0]), torch.ones(data.num_edges).double(), accumulate=True)
    adjacency += torch.eye(40)
    norms = (adjacency / adjacency.sum(1, keepdim=True)).square().sum(0)
    probabilities = (norms / norms.sum()).numpy()
    built = method.graph.aggregation(Operator(aggr="mean", self_loops=True)).matrix
    assert node_probabilities(built.indices, built.data, num_nodes=40) == pytest.approx(probabilities)
    seen = sum(
        np.bincount(method.sampler.draw(1, np.random.default_rng([5, draw])), minlength=40) for draw in range(8000)
    )
    statistic = ((seen - 8000 * probabilities) ** 2 / (8000 * probabilities)).sum()
    assert statistic < 39 + 4 * np.sqrt(2 * 39)  # chi-square: mean 39, variance 78


def directed(edges: list[list[int]], n: int) -> Data:
    nobody = torch.zeros(n, dtype=torch.bool)
    return Data(
        x=torch.rand(n, 5).double(), edge_index=torch.tensor(edges), y=torch.arange(n),
        edge_weight=torch.ones(len(edges[0])).double(), train_mask=~nobody, val_mask=nobody, test_mask=nobody,
    )  # fmt: skip


@pytest.mark.parametrize(("model", "alone"), [("gcn", {(1,), (2,), (3,)}), ("gcn_backwards", {(0,)})])
def test_walks_go_where_messages_come_from(model, alone) -> None:
    star = directed([[1, 2, 3], [0, 0, 0]], 4)  # 0 hears from all others
    method = made("walk", star, model, budget=1, walk_length=1)
    found = {tuple(method.batch(0, number).n_id.tolist()) for number in range(60)}
    assert found == {(0, 1), (0, 2), (0, 3)} | alone  # those that hear nobody stay


def test_longer_walks_see_more() -> None:
    short, long = (fresh(made("walk", budget=2, walk_length=steps, coverage=1), 200).sum(1) for steps in (1, 6))
    assert short.max() == 4
    assert long.mean() > short.mean() + 2
    assert long.max() <= 14


# budgets


@every_kind
@pytest.mark.parametrize("ratio", [0.1, 0.25, 0.6])
def test_subgraphs_have_the_share_of_the_nodes_that_was_asked_for(kind, ratio) -> None:
    method = made(kind, communities(200), ratio=ratio)
    assert len(method) == len(list(method.batches())) == max(1, round(1 / ratio))
    sizes = fresh(method, 200).sum(1)
    # 10 trials: standard error std / sqrt(10), and one more edge or walk adds up to 3 nodes
    assert abs(sizes.mean() - 200 * ratio) < 3 * sizes.std() * np.sqrt(1 / 10 + 1 / 200) + 3
    assert method.counts.nodes.sum() >= 50 * 200
    assert method.counts.nodes.sum() < 51 * 200


@every_kind
def test_a_budget_of_one_works(kind) -> None:
    method = made(kind, corners(), model="gcn_weighted", budget=1)
    batches = list(method.batches())
    assert 0 < len(batches) <= 4  # those without training nodes are left out
    for batch in batches:
        assert batch.num_nodes <= {"node": 1, "edge": 2, "walk": 3}[kind]
        assert method.forward(batch).isfinite().all()


def test_a_sampler_cannot_exceed_what_it_reaches() -> None:
    method = made("edge", corners(), model="gcn_weighted", ratio=1.0)
    assert method.sampler.reached == 13  # not the isolated node
    assert method.batch(0, 0).num_nodes >= 11
    assert method.drawn < 64 * 14
    assert made("node", corners(), model="gcn_weighted").sampler.reached == 14


@every_kind
@pytest.mark.parametrize("model", ["gcn_weighted", "sage_mean", "gat_features", "cluster", "mixed_operators"])
def test_corners_survive(kind, model) -> None:
    method = made(kind, corners(), model=model, ratio=0.5)
    for batch in itertools.chain(method.batches(), method.batches()):
        loss = method.learn(batch, weighted_loss)
        assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters())
    isolated = [8 in method.sampler.draw(method.drawn, np.random.default_rng(seed)) for seed in range(60)]
    assert any(isolated) == (kind != "edge")


@pytest.mark.parametrize("kind", ["node", "walk"])
def test_a_graph_without_edges_is_nodes_alone(kind) -> None:
    data = communities(12)
    data.edge_index = data.edge_index[:, :0]
    method = made(kind, data, ratio=0.5)
    (batch, *_) = method.batches()
    zoo.assert_near(
        method.forward(batch), zoo.full_batch(copy.deepcopy(method.model), data)[batch.n_id], tolerance=1e-12
    )


def test_the_edge_sampler_refuses_a_graph_without_edges() -> None:
    data = communities(12)
    data.edge_index = torch.tensor([[3, 4], [3, 4]])
    with pytest.raises(ValueError, match="use saint-node or saint-walk, or add edges"):
        made("edge", data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 0.0}, r"'ratio' to be in \(0, 1\] \(got 0.0\)"),
        ({"ratio": 1.5}, r"'ratio' to be in \(0, 1\] \(got 1.5\)"),
        ({"coverage": 0}, r"'coverage' to be at least 1 \(got 0\)"),
        ({"unseen": "zero"}, r"'unseen' to be one of clip, once \(got 'zero'\)"),
        ({"budget": 0}, r"budget of a sampler to be at least 1 \(got 0\)"),
    ],
)
def test_bad_settings_are_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        made("node", **settings)


def test_a_walk_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="1 step of a random walk"):
        made("walk", walk_length=0)


# what was not drawn beforehand


@pytest.mark.parametrize("unseen", ["clip", "once"])
def test_what_was_not_drawn_beforehand_is_clipped_or_counts_once(unseen) -> None:
    method = made("node", budget=3, coverage=1, model="sage_mean", unseen=unseen)
    nodes, pairs, (operator,) = method.counts.nodes, method.counts.pairs, method.plan.operators
    places = method.pairs
    size = {tuple(pair): count for *pair, count in zip(places.rows.tolist(), places.ids.tolist(), pairs, strict=True)}
    divided = method.cut(torch.arange(40)).supplement.structure.spots[operator].within @ torch.eye(40).double()
    whole = method.graph.aggregation(operator).all() @ torch.eye(40).double()
    found = []
    for v, u in whole.nonzero().tolist():
        both = nodes[v] if u == v else size[min(u, v), max(u, v)]
        missing = (1e4 if nodes[v] else 0.1) if unseen == "clip" else max(nodes[v], 1)
        scale = 1.0 if u == v else (nodes[v] / both if both else missing)
        assert float(divided[v, u] / whole[v, u]) == pytest.approx(scale)
        found.append((u == v, nodes[v] > 0, both > 0))
    assert {(True, True, True), (False, False, False), (False, True, False), (False, True, True)} <= set(found)
    drawn = np.where(nodes > 0, nodes, 0.1 if unseen == "clip" else 1)
    assert method.loss_weight.tolist() == pytest.approx((method.counts.samples / drawn / 20).tolist())


# seeds and states


def everything(batch: Data) -> list[Tensor]:
    values = [spot.within.values for spot in batch.supplement.structure.spots.values()]
    return [batch.n_id, batch.edge_index, batch.loss_weight, *values]


def assert_same(one: list[Data], two: list[Data]) -> None:
    assert len(one) == len(two) > 0
    for a, b in zip(one, two, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(everything(a), everything(b), strict=True))


@every_kind
def test_a_seed_repeats_and_another_does_not(kind) -> None:
    one, two, other = made(kind), made(kind), made(kind, seed=4)
    first = list(one.batches())
    assert_same(first, list(two.batches()))
    ids = [batch.n_id.tolist() for batch in first]
    assert ids != [batch.n_id.tolist() for batch in other.batches()]
    assert not torch.equal(one.loss_weight, other.loss_weight)
    assert sorted(ids) != sorted(batch.n_id.tolist() for batch in one.batches())  # the next epoch
    assert len({tuple(nodes) for nodes in ids}) == 4


@every_kind
def test_a_restored_method_goes_on_with_the_same_batches(kind) -> None:
    method = made(kind)
    list(method.batches())
    epoch = method.batches()
    next(epoch)
    other = KINDS[kind](zoo.make("gcn", graph()), graph(), ratio=0.25, seed=3)
    other.restore(method.state(), method.weights())
    assert other.state() == method.state()
    assert_same(list(epoch), list(other.batches()))
    assert_same(list(method.batches()), list(other.batches()))


# training


@every_kind
def test_a_short_training_lowers_the_loss(kind) -> None:
    data = communities()
    torch.manual_seed(0)
    method = KINDS[kind](GCN(5, 16, num_layers=2, out_channels=4).double(), data, ratio=0.25, seed=0)
    method.prepare()
    optimizer = torch.optim.Adam(method.parameters(), lr=0.02)

    def loss_of(out: Tensor, batch: Data) -> Tensor:
        loss = F.cross_entropy(out, batch.y, reduction="none") * batch.loss_weight
        return loss[batch.train_mask].sum()

    def whole() -> float:
        return float(F.cross_entropy(method.exact()[0][data.train_mask], data.y[data.train_mask]))

    before = whole()
    for _ in range(15):
        for batch in method.batches():
            optimizer.zero_grad()
            assert method.learn(batch, loss_of).isfinite()
            optimizer.step()
    assert whole() < 0.6 * before


@every_kind
def test_what_training_sees_is_shown_once_per_node(kind) -> None:
    method = made(kind, communities(60))
    batches = list(method.cover())
    assert 4 <= len(batches) <= 16
    targets = torch.cat([batch.n_id[: batch.batch_size] for batch in batches]).tolist()
    assert len(set(targets)) == len(targets) > 50
    whole = method.outputs()
    assert whole.isnan().any(1).sum() == 60 - len(targets)
    for number in (0, 3, 6):
        nodes, seen = method.sample(number)
        assert torch.equal(nodes, method.batch(0, number % 4).n_id)
        assert seen.shape == (len(nodes), whole.size(1))


def test_subgraphs_without_new_nodes_are_not_shown() -> None:
    data = communities(12)
    data.edge_index = torch.tensor([[3], [4]])
    method = made("edge", data)
    assert [batch.batch_size for batch in method.cover()] == [2]


def test_progress_is_told() -> None:
    told = []
    made("node", progress=lambda *what: told.append(what))
    assert told[-1] == ("sampling subgraphs", 50 * 40, 50 * 40)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
