"""shaDow-GNN and IBMB: whole scopes give the whole graph's outputs, and batches hold what their papers say."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities, corners
from topoff.batching.pagerank import personalized_pagerank, senders
from topoff.batching.scopes import k_hop
from topoff.methods import shadow
from topoff.methods.base import MiniBatches
from topoff.methods.ibmb import Ibmb, IbmbBatch, InfluenceBatches, label_distances, schedule
from topoff.methods.shadow import Shadow, ShadowPpr

Kind = type[MiniBatches]
KINDS: list[Kind] = [Shadow, ShadowPpr, Ibmb, IbmbBatch]
MODELS = ["gcn", "sage_mean", "gat", "gin", "gcn2", "gcn_weighted", "mixed"]
EXACT = 1e-10


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))


def prepared(kind: Kind, model: nn.Module, data: Data, **settings: object) -> MiniBatches:
    method = kind(model, data, **settings)  # type: ignore[arg-type]
    method.prepare()
    return method


@pytest.mark.parametrize("kind", [Shadow, ShadowPpr])
def test_scores_come_from_the_whole_graph_or_from_the_scopes(kind: Kind) -> None:
    inside, outside = made(kind, fanout=2, scored="scopes"), made(kind, fanout=2)
    assert torch.equal(inside.exact()[0], inside.outputs())
    truth = zoo.full_batch(outside.model, outside.data).detach()
    zoo.assert_near(outside.exact()[0], truth, tolerance=EXACT)
    assert float((inside.exact()[0] - truth).norm()) > 0.01 * float(truth.norm())
    with pytest.raises(ValueError, match=r"Expected 'scored' to be one of graph, scopes \(got 'both'\)"):
        made(kind, scored="both")


def made(kind: Kind, name: str = "gcn", data: Data | None = None, **settings: object) -> MiniBatches:
    data = communities(weighted=True) if data is None else data
    return prepared(kind, zoo.make(name, data).eval(), data, **({"ratio": 0.25} | settings))


def nodes_of(batches: list[Data]) -> list[list[int]]:
    return [batch.n_id.tolist() for batch in batches]


def loss_of(out: Tensor, batch: Data) -> Tensor:
    mask = batch.train_mask[: len(out)]
    return F.cross_entropy(out[mask], batch.y[: len(out)][mask] % out.size(1))


# the whole neighbourhood


def directed() -> Data:
    return communities(30, directed=True, weighted=True, edge_features=2, degree=2.0)


GRAPHS: dict[str, Callable[[], Data]] = {
    "undirected": lambda: communities(30, weighted=True, edge_features=2, degree=2.0),
    "directed": directed,
    "corners": corners,
}


def error_of(method: MiniBatches, data: Data) -> float:
    """Return how far the outputs of training are from those of the whole graph, over all nodes."""
    with torch.no_grad():
        return float((method.outputs() - zoo.full_batch(method.model, data)).abs().max())


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ["sage_mean", "gin", "gat", "pna", "sage_max_backwards"])
def test_scopes_as_wide_as_the_model_is_deep_are_enough_where_receivers_weigh(name: str, graph: str) -> None:
    data = GRAPHS[graph]()
    assert error_of(made(Shadow, name, data, hops=2, fanout=1000), data) < EXACT
    assert error_of(made(Shadow, name, data, hops=1, fanout=1000), data) > 1e-3


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ["gcn", "gcn_weighted", "gcn2", "gcn_backwards"])
def test_scopes_must_be_wider_by_one_where_senders_weigh_too(name: str, graph: str) -> None:
    data = GRAPHS[graph]()
    depth = 3 if name == "gcn2" else 2
    method = made(Shadow, name, data, hops=depth + 1, fanout=1000)
    assert method.plan.depth == depth
    assert error_of(method, data) < EXACT
    assert error_of(made(Shadow, name, data, hops=depth, fanout=1000), data) > 1e-4


@pytest.mark.parametrize("graph", ["directed", "corners"])
@pytest.mark.parametrize("name", ["gcn_weighted", "gin", "gat"])
def test_scopes_of_all_nodes_by_influence_are_the_whole_graph(name: str, graph: str) -> None:
    data = GRAPHS[graph]()
    assert error_of(made(ShadowPpr, name, data, fanout=100_000), data) < EXACT


@pytest.mark.parametrize("graph", ["directed", "corners"])
@pytest.mark.parametrize("name", [*MODELS, "gat_features"])
@pytest.mark.parametrize("kind", [Ibmb, IbmbBatch])
def test_one_batch_that_holds_everything_is_the_full_batch(kind: Kind, name: str, graph: str) -> None:
    data = GRAPHS[graph]()
    settings = {"ratio": 1.0} | ({"fanout": 100_000} if kind is Ibmb else {})
    method = made(kind, name, data, **settings)
    (batch,) = method.batches()
    truth = zoo.full_batch(method.model, data)
    out = method.forward(batch)
    nodes = batch.n_id[: batch.batch_size]
    assert sorted(nodes.tolist()) == data.train_mask.nonzero().view(-1).tolist()
    zoo.assert_near(out, truth[nodes], tolerance=EXACT)
    loss = F.cross_entropy(truth[data.train_mask], data.y[data.train_mask] % zoo.OUT)
    found = zoo.gradients(method.model, loss_of(out, batch))
    zoo.assert_near(found, zoo.gradients(method.model, loss), tolerance=EXACT)


# the batches


@pytest.mark.parametrize("kind", KINDS)
def test_every_training_node_is_a_target_once_per_epoch(kind: Kind) -> None:
    method = made(kind)
    training = method.data.train_mask.nonzero().view(-1).tolist()
    for _ in range(2):
        batches = list(method.batches())
        assert len(batches) == len(method) == 4
        targets = torch.cat([batch.n_id[: batch.batch_size] for batch in batches])
        assert sorted(targets.tolist()) == training
        for batch in batches:
            assert method.forward(batch).shape == (batch.batch_size, zoo.OUT)
            assert torch.equal(batch.x, method.data.x[batch.n_id])
            assert torch.equal(batch.y, method.data.y[batch.n_id])
            assert bool(batch.train_mask[: batch.batch_size].all())


@pytest.mark.parametrize("kind", KINDS)
def test_batches_depend_on_seed_epoch_and_number_only(kind: Kind) -> None:
    one, two, other = (made(kind, seed=seed) for seed in (5, 5, 6))
    first = [nodes_of(list(one.batches())) for _ in range(3)]
    two.batch(7, 0)  # asked for out of turn
    assert [nodes_of(list(two.batches())) for _ in range(3)] == first
    assert nodes_of(list(other.batches())) != first[0]
    assert first[0] != first[1]
    if kind in (Ibmb, IbmbBatch):
        assert sorted(first[0]) == sorted(first[1])  # fixed batches in another order
    else:
        assert sorted(first[0]) != sorted(first[1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_method_goes_on_with_the_same_batches(kind: Kind) -> None:
    method = made(kind)
    list(method.batches())
    epoch = method.batches()
    next(epoch)
    state, weights = method.state(), method.weights()
    other = kind(method.model, method.data, ratio=0.25)
    other.restore(state, weights)
    assert nodes_of(list(other.batches())) == nodes_of(list(epoch))
    assert nodes_of(list(other.batches())) == nodes_of(list(method.batches()))


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_that_was_left_early_is_over(kind: Kind) -> None:
    method, other = made(kind), made(kind)
    next(method.batches())
    list(other.batches())
    assert nodes_of(list(method.batches())) == nodes_of(list(other.batches()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_node_is_covered_once(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "AT_ONCE", 7)
    method = made(kind)
    for _ in range(2):
        batches = list(method.cover())
        assert len(batches) > len(method)
        targets = [batch.n_id[: batch.batch_size] for batch in batches]
        assert sorted(torch.cat(targets).tolist()) == list(range(60))
    most = 15 if kind is Ibmb else 8  # 30 training nodes in 4 batches; pieces of 7; groups are not split
    assert max(len(nodes) for nodes in targets[4:]) <= most
    assert bool(method.outputs().isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gcn", "sage_mean", "gat", "gin", "gcn2"])
def test_all_models_learn(name: str, kind: Kind) -> None:
    data = corners()
    method = made(kind, name, data, ratio=0.5)
    method.model.train()
    optimizer = torch.optim.Adam(method.parameters(), lr=0.02)
    losses = []
    for _ in range(10):
        total = 0.0
        for batch in method.batches():
            optimizer.zero_grad()
            total += float(method.learn(batch, loss_of))
            optimizer.step()
        losses.append(total)
    assert losses[-1] < 0.9 * losses[0]


# shaDow


@pytest.mark.parametrize("kind", [Shadow, ShadowPpr])
def test_a_batch_is_the_disjoint_union_of_its_targets_subgraphs(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "CANDIDATES", 5)  # edges are looked up in several goes
    data = corners()
    fanout = 1 if kind is Shadow else 3  # one of several neighbours is drawn
    method = made(kind, "gat_features", data, ratio=0.5, fanout=fanout)
    csr = senders(data.edge_index, 14)
    order = np.random.default_rng([0, 1, 2]).permutation(data.train_mask.nonzero().view(-1).numpy())
    targets = np.array_split(order, 2)[1]
    if kind is Shadow:
        scopes = k_hop(*csr, targets, hops=2, fanout=fanout, rng=np.random.default_rng([0, 1, 1, 3])).lists()
    else:
        scopes = personalized_pagerank(*csr, targets, alpha=0.15, keep=fanout).lists()
    batch = method.batch(1, 1)
    assert batch.n_id[: batch.batch_size].tolist() == targets.tolist()
    assert batch.num_nodes == sum(len(nodes) for nodes in scopes)
    wanted, owner = [], {}
    rows = iter(range(len(targets), batch.num_nodes))
    for number, nodes in enumerate(scopes):
        owner |= {number: number} | {next(rows): number for _ in nodes[1:]}
        for (source, target), value in zip(data.edge_index.T.tolist(), data.edge_attr.tolist(), strict=True):
            if source in nodes and target in nodes:
                wanted.append((number, source, target, *value))
    found = []
    for (source, target), value in zip(batch.edge_index.T.tolist(), batch.edge_attr.tolist(), strict=True):
        assert owner[source] == owner[target]
        found.append((owner[source], int(batch.n_id[source]), int(batch.n_id[target]), *value))
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("kind", [Shadow, ShadowPpr])
@pytest.mark.parametrize("name", ["gcn_weighted", "mixed", "gat"])
def test_a_batch_is_what_the_plain_model_returns_on_each_subgraph(name: str, kind: Kind) -> None:
    method = made(kind, name, fanout=3)
    batch = method.batch(0, 2)
    out = method.forward(batch)
    bare = Data(x=batch.x, edge_index=batch.edge_index, edge_weight=batch.edge_weight)
    zoo.assert_near(out, zoo.full_batch(method.model, bare)[: batch.batch_size], tolerance=EXACT)


@pytest.mark.parametrize("kind", [Shadow, ShadowPpr])
def test_an_isolated_target_sees_itself(kind: Kind) -> None:
    data = corners()
    method = made(kind, "gcn", data, ratio=0.5)
    alone = Data(x=data.x[[8]], edge_index=torch.empty((2, 0), dtype=torch.int64))
    with torch.no_grad():
        zoo.assert_near(method.outputs()[8], zoo.full_batch(method.model, alone)[0], tolerance=EXACT)


def test_subgraphs_are_as_small_as_asked() -> None:
    batch = made(ShadowPpr, fanout=5).batch(0, 0)
    assert batch.num_nodes <= 5 * batch.batch_size
    batch = made(Shadow, fanout=2, hops=2).batch(0, 0)
    assert batch.num_nodes <= 7 * batch.batch_size
    one = made(Shadow, fanout=2, hops=1).batch(0, 0)
    assert one.num_nodes <= 3 * one.batch_size


# IBMB


def test_node_wise_auxiliary_nodes_are_each_outputs_best() -> None:
    method = made(Ibmb, fanout=4)
    csr = senders(method.data.edge_index, 60)
    for number in range(4):
        batch = method.batch(0, number)
        outputs = batch.n_id[: batch.batch_size].numpy()
        assert set(batch.n_id.tolist()) == set(personalized_pagerank(*csr, outputs, alpha=0.25, keep=4).ids.tolist())
        assert len(batch.n_id.unique()) == len(batch.n_id) <= 4 * batch.batch_size


def test_batch_wise_batches_have_their_share_of_the_nodes() -> None:
    method = made(IbmbBatch)
    for batch in method.cover():
        assert len(batch.n_id.unique()) == len(batch.n_id) == 15  # a quarter of 60
        assert batch.batch_size <= 12


@pytest.mark.parametrize("kind", [Ibmb, IbmbBatch])
def test_messages_in_a_batch_have_the_weights_of_the_whole_graph(kind: Kind) -> None:
    data = communities(weighted=True)
    method = made(kind, "gcn_weighted", data)
    for batch in method.batches():
        for operator, spot in batch.supplement.structure.spots.items():
            whole = method.graph.aggregation(operator).matrix.toarray()
            assert np.allclose((spot.within @ torch.eye(len(batch.n_id)).double()).numpy(),
                               whole[np.ix_(batch.n_id, batch.n_id)])  # fmt: skip


def test_general_convs_see_the_induced_subgraph_alone() -> None:
    method = made(Ibmb, "gat", fanout=3)
    batch = method.batch(0, 1)
    bare = Data(x=batch.x, edge_index=batch.edge_index)
    truth = zoo.full_batch(method.model, bare)[: batch.batch_size]
    zoo.assert_near(method.forward(batch), truth, tolerance=EXACT)


def test_auxiliary_training_nodes_have_no_loss() -> None:
    method = made(Ibmb)
    assert isinstance(method, InfluenceBatches)
    batch = method.batch(0, 0)
    assert bool(batch.train_mask[batch.batch_size :].any())
    seen: list[int] = []

    def noting(out: Tensor, batch: Data) -> Tensor:
        seen.append(len(out))
        return loss_of(out, batch)

    method.learn(batch, noting)
    assert seen == [batch.batch_size]


def test_batches_with_other_labels_follow_each_other() -> None:
    labels = [torch.full((30,), kind) for kind in (0, 0, 0, 1, 1, 1)]
    distances = label_distances(labels)
    assert np.allclose(distances, distances.T)
    share = np.array([[31, 1], [1, 31]]) / 32
    assert np.isclose(distances[0, 3], 2 * (share[0] * np.log(share[0] / share[1])).sum())
    assert np.allclose(distances[0, :3], 0)
    for seed in range(20):
        order = schedule(distances, rng=np.random.default_rng(seed))
        assert sorted(order.tolist()) == list(range(6))
        assert (np.diff(order // 3) != 0).all()
    assert len({tuple(schedule(distances, rng=np.random.default_rng(seed)).tolist()) for seed in range(20)}) > 10


def test_unlabeled_nodes_several_labels_and_numbers_have_distances_too() -> None:
    assert label_distances([torch.tensor([0, -1]), torch.tensor([0, 0])]).shape == (2, 2)
    several = label_distances([torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])])
    assert several[0, 1] > 0.1 > several[0, 2] + 1e-9
    assert (label_distances([torch.rand(3), torch.rand(2)]) == 1).all()
    assert schedule(label_distances([torch.tensor([0])]), rng=np.random.default_rng(0)).tolist() == [0]


# bad input


@pytest.mark.parametrize("kind", KINDS)
def test_bad_settings_are_refused(kind: Kind) -> None:
    data = communities()
    model = zoo.make("gcn", data)
    for ratio in (0.0, 1.5):
        with pytest.raises(ValueError, match=r"Expected 'ratio' to be in \(0, 1\]"):
            kind(model, data, ratio=ratio)
    assert len(kind(model, data, ratio=0.01)) == 30  # not more batches than training nodes
    if "fanout" in kind.settings:
        with pytest.raises(ValueError, match=r"Expected 'fanout' to be at least 1 \(got 0\)"):
            kind(model, data, fanout=0)  # type: ignore[call-arg]
    if "hops" in kind.settings:
        with pytest.raises(ValueError, match=r"Expected 'hops' to be at least 1 \(got 0\)"):
            kind(model, data, hops=0)  # type: ignore[call-arg]


def test_progress_is_told() -> None:
    for kind in (ShadowPpr, Ibmb):
        told: list[tuple[str, int, int]] = []

        def note(what: str, done: int, count: int, told: list[tuple[str, int, int]] = told) -> None:
            told.append((what, done, count))

        made(kind, progress=note)
        assert told == [("ranking neighbours", 0, 1), ("ranking neighbours", 1, 1)]
