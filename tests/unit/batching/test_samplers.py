"""Random node sets: their probabilities, that walks follow edges, budgets and counts."""

import itertools

import numpy as np
import pytest

from graphs import SQUARE, communities, corners
from topoff.batching.pattern import Pattern, pattern_of, undirected
from topoff.batching.samplers import (
    Sampler,
    count,
    edge_probabilities,
    edge_sampler,
    node_probabilities,
    node_sampler,
    pick,
    some_of,
    spans,
    walk_sampler,
    walks,
)

DRAWS = 40_000


def heard(data=None) -> Pattern:
    """Return who hears from whom: rows are receivers."""
    data = corners() if data is None else data
    source, target = data.edge_index.numpy()
    return pattern_of(target, source, num_nodes=data.num_nodes)


def joined(data=None) -> Pattern:
    data = corners() if data is None else data
    source, target = data.edge_index.numpy()
    return undirected(source, target, num_nodes=data.num_nodes)


def assert_drawn_by(probabilities: np.ndarray, seen: np.ndarray) -> None:
    """Demand that counts fit probabilities: Pearson's statistic has mean k - 1 and variance near 2 (k - 1)."""
    possible = probabilities > 0
    assert not seen[~possible].any()
    expected = probabilities[possible] * seen.sum()
    assert expected.min() > 5  # else the variance is larger
    free = possible.sum() - 1
    assert ((seen[possible] - expected) ** 2 / expected).sum() < free + 4 * np.sqrt(2 * free)


# probabilities


def test_node_probabilities_are_squared_column_norms() -> None:
    rng = np.random.default_rng(1)
    dense = rng.random((6, 6)) * (rng.random((6, 6)) < 0.5)
    row, column = dense.nonzero()
    wanted = (dense**2).sum(axis=0) / (dense**2).sum()
    assert node_probabilities(column, dense[row, column], num_nodes=6) == pytest.approx(wanted)


def test_edge_probabilities_are_inverse_degrees() -> None:
    # 0 - 1, 0 - 2, 2 - 3: degrees 2, 1, 2, 1
    pairs = undirected(np.array([1, 0, 3]), np.array([0, 2, 2]), num_nodes=4)
    wanted = np.array([1 / 2 + 1, 1 / 2 + 1 / 2, 1 / 2 + 1])
    assert edge_probabilities(pairs) == pytest.approx(wanted / wanted.sum())


def test_a_graph_without_edges_has_no_edge_probabilities() -> None:
    loops = undirected(np.array([1]), np.array([1]), num_nodes=3)
    with pytest.raises(ValueError, match=r"edge between two different nodes for the edge sampler \(got none\)"):
        edge_probabilities(loops)


def test_places_are_picked_by_their_probabilities() -> None:
    probabilities = np.array([0.0, 0.5, 0.0, 0.2, 0.3, 0.0])
    for scale in (1.0, 7.0):  # cumulative sums need not end at 1
        drawn = pick(np.cumsum(probabilities) * scale, count=DRAWS, rng=np.random.default_rng(2))
        assert drawn.shape == (DRAWS,)
        assert_drawn_by(probabilities, np.bincount(drawn, minlength=6))


@pytest.mark.parametrize("count", [0, -1])
def test_a_budget_is_at_least_one(count) -> None:
    with pytest.raises(ValueError, match=rf"budget of a sampler to be at least 1 \(got {count}\)"):
        pick(np.ones(1), count=count, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match=rf"at least 1 root and 1 step of a random walk \(got {count} and 2\)"):
        walk_sampler(heard(), length=2).draw(count, np.random.default_rng(0))


def test_a_walk_has_a_step() -> None:
    with pytest.raises(ValueError, match=r"\(got 3 and 0\)"):
        walk_sampler(heard(), length=0).draw(3, np.random.default_rng(0))


# samplers


def samplers(data) -> dict[str, Sampler]:
    """Return the three samplers of a graph; nodes are drawn uniformly."""
    n = data.num_nodes
    return {
        "node": node_sampler(np.arange(n), np.ones(n), num_nodes=n),
        "edge": edge_sampler(joined(data)),
        "walk": walk_sampler(heard(data), length=2),
    }


@pytest.mark.parametrize("name", ["node", "edge", "walk"])
@pytest.mark.parametrize("budget", [1, 2, 9, 500])
def test_sets_are_sorted_distinct_and_a_function_of_the_seed(name, budget) -> None:
    draw = samplers(corners())[name].draw
    found = draw(budget, np.random.default_rng(4))
    assert (np.diff(found) > 0).all()
    assert found.dtype == np.int64
    assert found[0] >= 0
    assert found[-1] < 14
    assert len(found) <= budget * {"node": 1, "edge": 2, "walk": 3}[name]
    assert found.tolist() == draw(budget, np.random.default_rng(4)).tolist()
    others = [draw(budget, np.random.default_rng(seed)).tolist() for seed in range(5, 15)]
    assert budget == 500 or any(found.tolist() != other for other in others)


def test_large_budgets_reach_all_nodes_but_isolated_ones_by_edges() -> None:
    everybody = list(range(14))
    for name, sampler in samplers(corners()).items():
        expected = [n for n in everybody if name != "edge" or n != 8]
        assert sampler.draw(2000, np.random.default_rng(0)).tolist() == expected
        assert sampler.reached == len(expected)
        assert sampler.num_nodes == 14


def test_edges_are_drawn_by_their_probabilities() -> None:
    pairs = joined()
    draw, rng = edge_sampler(pairs).draw, np.random.default_rng(5)
    drawn = [draw(1, rng) for _ in range(5000)]
    assert {len(ends) for ends in drawn} == {2}
    first, second = np.stack(drawn).T
    seen = np.bincount(pairs.positions(first, second), minlength=len(pairs.ids))
    assert (pairs.ids[pairs.positions(first, second)] == second).all()
    assert_drawn_by(edge_probabilities(pairs), seen)


def test_walks_only_follow_edges_towards_those_that_are_heard() -> None:
    pattern = heard()
    roots = np.repeat(np.arange(14), 50)
    path = walks(pattern.offsets, pattern.ids, roots=roots, length=4, rng=np.random.default_rng(6))
    assert path.shape == (5, 700)
    assert (path[0] == roots).all()
    allowed = set(zip(pattern.rows.tolist(), pattern.ids.tolist(), strict=True))
    steps = {step for a, b in itertools.pairwise(path) for step in zip(a.tolist(), b.tolist(), strict=True)}
    assert steps - {(8, 8), (13, 13)} == allowed  # every edge is walked, and the two deaf nodes stay


def test_walks_take_every_neighbor_with_equal_probability() -> None:
    pattern = heard()
    start = int(np.diff(pattern.offsets).argmax())
    near = pattern.ids[pattern.offsets[start] : pattern.offsets[start + 1]]
    roots = np.full(DRAWS, start)
    path = walks(pattern.offsets, pattern.ids, roots=roots, length=1, rng=np.random.default_rng(7))
    probabilities = np.zeros(14)
    probabilities[near] = 1 / len(near)
    assert len(near) > 2
    assert_drawn_by(probabilities, np.bincount(path[1], minlength=14))


def test_roots_are_uniform_and_the_way_is_in_the_set() -> None:
    source, target = SQUARE.numpy()
    ring = pattern_of(target, source, num_nodes=4)  # each node hears from the one before it
    rng = np.random.default_rng(8)
    drawn = [walk_sampler(ring, length=2).draw(1, rng).tolist() for _ in range(2000)]
    kinds = [[0, 2, 3], [0, 1, 3], [0, 1, 2], [1, 2, 3]]  # from 0, 1, 2 and 3
    assert_drawn_by(np.full(4, 0.25), np.bincount([kinds.index(nodes) for nodes in drawn], minlength=4))


def test_walks_of_a_graph_without_edges_stay() -> None:
    none = np.zeros(0, dtype=np.int64)
    alone = pattern_of(none, none, num_nodes=5)
    assert len(walk_sampler(alone, length=3).draw(1, np.random.default_rng(0))) == 1


# budgets


@pytest.mark.parametrize("name", ["node", "edge", "walk"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.7])
def test_a_budget_gives_the_wanted_number_of_nodes(name, share) -> None:
    sampler = samplers(communities(400))[name]
    budget = sampler.budget(share, generator=lambda t: np.random.default_rng([9, t]))
    sizes = [len(sampler.draw(budget, np.random.default_rng([10, t]))) for t in range(200)]
    # sizes of both the trials and these vary by less than 12 nodes; 10 trials: standard error below 4
    assert np.std(sizes) < 12
    assert np.mean(sizes) == pytest.approx(share * 400, abs=9)


def test_a_budget_is_the_least_that_suffices_and_stops_at_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(budget: int, rng: np.random.Generator) -> np.ndarray:
        return np.arange(budget // 2)

    monkeypatch.setattr("topoff.batching.samplers.MOST", 1)
    sampler = Sampler(draw, num_nodes=100, reached=100)
    ratios = (0.002, 0.01, 0.08, 0.5, 0.51)
    assert [sampler.budget(ratio, generator=np.random.default_rng) for ratio in ratios] == [2, 2, 16, 100, 100]
    assert sampler.budget(0, generator=np.random.default_rng) == 1


# counts


def test_nodes_and_pairs_are_counted_as_by_hand() -> None:
    pairs, rng = joined(), np.random.default_rng(11)
    sets = [np.flatnonzero(rng.random(14) < 0.5) for _ in range(30)] + [np.zeros(0, dtype=np.int64)]
    counts = count(iter(sets), pairs)
    held = np.stack([np.isin(np.arange(14), nodes) for nodes in sets]).astype(int)
    assert counts.samples == 31
    assert counts.nodes.tolist() == held.sum(axis=0).tolist()
    assert counts.pairs.tolist() == (held.T @ held)[pairs.rows, pairs.ids].tolist()


def test_spans_are_the_entries_of_rows() -> None:
    positions, owner = spans(np.array([0, 2, 2, 5]), np.array([2, 1, 0, 2]))
    assert positions.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert owner.tolist() == [0, 0, 0, 2, 2, 3, 3, 3]


def test_few_entries_are_all_chosen_and_of_many_some_that_differ() -> None:
    offsets, nodes, rng = np.array([0, 2, 2, 7]), np.array([1, 0, 2]), np.random.default_rng(0)
    positions, whose = some_of(offsets, nodes, fanout=3, rng=rng)
    assert whose.tolist() == [1, 1, 2, 2, 2]
    assert positions[:2].tolist() == [0, 1]
    assert len(set(positions[2:].tolist()) & set(range(2, 7))) == 3
