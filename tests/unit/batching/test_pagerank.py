"""Personalised PageRank against its closed form, k-hop sets against breadth-first search, and groups of nodes."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from graphs import cliques, communities, corners
from topoff.batching import pagerank
from topoff.batching import scopes as scopes_room
from topoff.batching.pagerank import Ints, cached_pagerank, personalized_pagerank, senders, set_pagerank
from topoff.batching.samplers import spans
from topoff.batching.scopes import OutputSet, Scopes, ibmb_sets, k_hop, merged, most_influential, shadow_sets, united

Floats = npt.NDArray[np.float64]
Csr = tuple[Ints, Ints]


def of_edges(pairs: list[tuple[int, int]], n: int) -> Csr:
    """Return a CSR of (row, neighbour) pairs as they are: duplicates and self-loops stay."""
    row, column = np.array(sorted(pairs)).T
    return np.append(0, np.cumsum(np.bincount(row, minlength=n))), column


def dense(csr: Csr) -> Floats:
    """Return D^-1 A."""
    offsets, ids = csr
    matrix = np.zeros((len(offsets) - 1, len(offsets) - 1))
    for row in range(len(matrix)):
        for column in ids[offsets[row] : offsets[row + 1]]:
            matrix[row, column] += 1 / (offsets[row + 1] - offsets[row])
    return matrix


def closed_form(csr: Csr, alpha: float) -> Floats:
    walk = dense(csr)
    return alpha * np.linalg.inv(np.eye(len(walk)) - (1 - alpha) * walk)


def scores_of(csr: Csr, roots: Ints, **settings: float) -> Floats:
    """Return personalised PageRank as a dense matrix."""
    ranked = personalized_pagerank(*csr, roots, **settings)  # type: ignore[arg-type]
    found = np.zeros((len(roots), len(csr[0]) - 1))
    found[ranked.owners(), ranked.ids] = ranked.scores
    return found


def undirected() -> Csr:
    return senders(communities(40, degree=3).edge_index, 40)


def star(leaves: int) -> Csr:
    return of_edges(
        [(0, leaf) for leaf in range(1, leaves + 1)] + [(leaf, 0) for leaf in range(1, leaves + 1)], leaves + 1
    )


GRAPHS = {
    "undirected": undirected(),
    "directed": senders(communities(40, directed=True).edge_index, 40),
    "corners": senders(corners().edge_index, 14),
    "backwards": senders(corners().edge_index, 14, flows=("target_to_source",)),
    "loops and duplicates": of_edges([(0, 0), (0, 1), (0, 1), (1, 2), (2, 2), (2, 0), (4, 4), (5, 0), (5, 3)], 6),
    "no edges": (np.zeros(4, dtype=np.int64), np.zeros(0, dtype=np.int64)),
}


# neighbours


def test_senders_are_those_whose_messages_arrive() -> None:
    edges = torch.tensor([[0, 0, 3, 2, 1], [1, 1, 1, 2, 3]])  # a duplicate and a self-loop
    assert [nodes.tolist() for nodes in np.split(*reversed_(senders(edges, 4)))] == [[], [0, 3], [], [1]]
    backwards = senders(edges, 4, flows=("target_to_source",))
    assert [nodes.tolist() for nodes in np.split(*reversed_(backwards))] == [[1], [3], [], [1]]
    both = senders(edges, 4, flows=("source_to_target", "target_to_source"))
    assert [nodes.tolist() for nodes in np.split(*reversed_(both))] == [[1], [0, 3], [], [1]]


def reversed_(csr: Csr) -> tuple[Ints, Ints]:
    return csr[1], csr[0][1:-1]


def test_spans_are_the_entries_of_rows() -> None:
    positions, owner = spans(np.array([0, 2, 2, 5]), np.array([2, 1, 0, 2]))
    assert positions.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert owner.tolist() == [0, 0, 0, 2, 2, 3, 3, 3]


# PageRank


@pytest.mark.parametrize("alpha", [0.15, 0.6])
@pytest.mark.parametrize("name", GRAPHS)
def test_pagerank_is_the_closed_form(name: str, alpha: float) -> None:
    csr = GRAPHS[name]
    roots = np.arange(len(csr[0]) - 1)
    found = scores_of(csr, roots, alpha=alpha, tolerance=1e-13)
    assert np.allclose(found, closed_form(csr, alpha), atol=1e-11, rtol=0)


@pytest.mark.parametrize("name", ["undirected", "loops and duplicates"])
def test_a_coarse_pagerank_is_too_low_by_at_most_the_bound(name: str) -> None:
    csr = GRAPHS[name]
    degree = np.diff(csr[0])
    exact = closed_form(csr, 0.15)
    missing = exact - scores_of(csr, np.arange(len(degree)), alpha=0.15, tolerance=0.01)
    bound = 0.01 * exact_bound(csr, exact)
    assert missing.min() > -1e-12
    assert (missing <= bound + 1e-12).all()
    assert missing.max() > 1e-4  # it is coarse
    if name == "undirected":
        assert (bound <= 0.01 * np.maximum(degree, 1) + 1e-12).all()


def exact_bound(csr: Csr, exact: Floats) -> Floats:
    """Return sum_u deg(u) ppr(u, v); (n,)."""
    result: Floats = np.maximum(np.diff(csr[0]), 1) @ exact
    return result


def test_walks_go_where_messages_come_from() -> None:
    csr = senders(torch.tensor([[0], [1]]), 2)  # 0 sends to 1
    assert personalized_pagerank(*csr, np.array([1]), alpha=0.2).ids.tolist() == [1, 0]
    assert personalized_pagerank(*csr, np.array([0]), alpha=0.2).ids.tolist() == [0]


def test_rows_do_not_depend_on_what_is_pushed_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    csr, roots = GRAPHS["undirected"], np.array([7, 3, 3, 39, 0])
    whole = personalized_pagerank(*csr, roots, keep=6)
    monkeypatch.setattr(pagerank, "ROOTS", 2)
    pieces = personalized_pagerank(*csr, roots, keep=6)
    assert np.array_equal(whole.offsets, pieces.offsets)
    assert np.array_equal(whole.ids, pieces.ids)
    assert np.allclose(whole.scores, pieces.scores, atol=1e-14, rtol=0)
    assert whole.lists()[1].tolist() == whole.lists()[2].tolist()


def test_the_best_nodes_are_kept_the_root_first() -> None:
    csr = GRAPHS["undirected"]
    exact = closed_form(csr, 0.15)
    ranked = personalized_pagerank(*csr, np.arange(40), alpha=0.15, tolerance=1e-9, keep=5)
    assert np.diff(ranked.offsets).max() == 5
    for root, (nodes, scores) in enumerate(
        zip(ranked.lists(), np.split(ranked.scores, ranked.offsets[1:-1]), strict=True)
    ):
        others = np.delete(np.arange(40), root)
        reachable = others[exact[root, others] > 1e-12]
        best = np.sort(exact[root, reachable])[::-1][:4]
        assert nodes[0] == root
        assert np.allclose(scores[1:], best, atol=1e-6)
        assert np.allclose(exact[root, nodes], scores, atol=1e-6)


def test_equal_scores_are_ordered_by_id_and_a_hub_has_neighbours() -> None:
    ranked = personalized_pagerank(*star(50), np.array([0, 9]), tolerance=0.5, keep=4)  # no neighbour reaches 0.5
    assert ranked.lists()[0].tolist() == [0, 1, 2, 3]
    assert ranked.lists()[1].tolist()[:2] == [9, 0]
    assert personalized_pagerank(*star(50), np.array([0]), keep=1).ids.tolist() == [0]


def test_no_roots_have_no_scores() -> None:
    assert len(personalized_pagerank(*star(3), np.zeros(0, dtype=np.int64))) == 0


def test_stored_scores_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))
    offsets, ids = GRAPHS["undirected"]
    roots = np.arange(10)
    plain = personalized_pagerank(offsets, ids, roots, alpha=0.2, keep=3)
    for _ in range(2):
        stored = cached_pagerank(offsets, ids, roots, alpha=0.2, keep=3)
        assert np.array_equal(stored.ids, plain.ids)
        assert np.array_equal(stored.offsets, plain.offsets)
        assert np.array_equal(stored.scores, plain.scores)
    assert len(list(tmp_path.glob("pagerank-*.npz"))) == 1
    for changed in ({"alpha": 0.3, "keep": 3}, {"alpha": 0.2, "keep": 4}):
        cached_pagerank(offsets, ids, roots, **changed)  # type: ignore[arg-type]
    cached_pagerank(offsets, ids, roots[:9], alpha=0.2, keep=3)
    assert len(list(tmp_path.glob("pagerank-*.npz"))) == 4


@pytest.mark.parametrize("name", ["undirected", "directed", "loops and duplicates"])
def test_the_pagerank_of_a_set_is_the_mean_of_its_nodes(name: str) -> None:
    csr = GRAPHS[name]
    sets = [np.array([0]), np.array([1, 2, 5]), np.arange(len(csr[0]) - 1)]
    exact = closed_form(csr, 0.3)
    found = set_pagerank(*csr, sets, alpha=0.3, iterations=80)
    assert np.allclose(found, np.stack([exact[nodes].mean(axis=0) for nodes in sets], axis=1), atol=1e-11)


# k-hop sets


def within(csr: Csr, root: int, hops: int) -> set[int]:
    """Return the nodes within some hops, by the definition."""
    reached = {root}
    for _ in range(hops):
        reached |= {int(v) for u in reached for v in csr[1][csr[0][u] : csr[0][u + 1]]}
    return reached


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_whole_neighbourhoods_are_k_hop_sets(name: str, hops: int) -> None:
    csr = GRAPHS[name]
    roots = np.append(np.arange(len(csr[0]) - 1), 0)  # a root may be there twice
    scopes = k_hop(*csr, roots, hops=hops, fanout=100, rng=np.random.default_rng(0))
    for root, nodes in zip(roots, scopes.lists(), strict=True):
        assert nodes[0] == root
        assert (np.diff(nodes[1:]) > 0).all()
        assert set(nodes.tolist()) == within(csr, int(root), hops)


def test_at_most_fanout_neighbours_are_drawn_without_replacement() -> None:
    csr = GRAPHS["undirected"]
    degree = np.diff(csr[0])
    scopes = k_hop(*csr, np.arange(40), hops=1, fanout=2, rng=np.random.default_rng(0))
    assert np.array_equal(np.diff(scopes.offsets), 1 + np.minimum(degree, 2))
    for root, nodes in enumerate(scopes.lists()):
        assert set(nodes.tolist()) <= within(csr, root, 1)
    two = k_hop(*csr, np.arange(40), hops=2, fanout=2, rng=np.random.default_rng(0))
    assert np.diff(two.offsets).max() <= 7
    assert all(set(nodes.tolist()) <= within(csr, root, 2) for root, nodes in enumerate(two.lists()))


def test_a_second_hop_goes_on_from_the_first() -> None:
    path = of_edges([(node, node + 1) for node in range(5)], 6)
    scopes = k_hop(*path, np.array([0, 2]), hops=3, fanout=1, rng=np.random.default_rng(0))
    assert [nodes.tolist() for nodes in scopes.lists()] == [[0, 1, 2, 3], [2, 3, 4, 5]]


@pytest.mark.parametrize("fanout", [1, 2, 5])
def test_every_neighbour_is_drawn_equally_often(fanout: int) -> None:
    scopes = k_hop(*star(6), np.zeros(6000, dtype=np.int64), hops=1, fanout=fanout, rng=np.random.default_rng(1))
    assert (np.diff(scopes.offsets) == 1 + fanout).all()
    share = np.bincount(scopes.ids, minlength=7)[1:] / 6000
    assert np.abs(share - fanout / 6).max() < 0.025  # four standard deviations


def test_the_same_generator_draws_the_same_sets() -> None:
    csr = GRAPHS["undirected"]
    one, two, other = (
        k_hop(*csr, np.arange(40), hops=2, fanout=2, rng=np.random.default_rng(seed)).ids.tolist() for seed in (3, 3, 4)
    )
    assert one == two != other


def test_scopes_of_some_rows() -> None:
    scopes = Scopes(np.array([0, 2, 3, 6]), np.array([5, 1, 4, 9, 8, 7]))
    some = scopes.of(np.array([2, 0]))
    assert [nodes.tolist() for nodes in some.lists()] == [[9, 8, 7], [5, 1]]
    assert some.owners().tolist() == [0, 0, 0, 1, 1]
    assert len(some) == 2


# groups


def test_nodes_that_influence_each_other_are_grouped() -> None:
    edges = cliques(4, 5)
    csr = senders(torch.cat([edges, edges.flip(0)], dim=1), 20)
    order = np.random.default_rng(0).permutation(20)
    ranked = personalized_pagerank(*csr, order, alpha=0.25, keep=8)
    groups = [sorted(order[rows].tolist()) for rows in merged(ranked, order, batches=4)]
    assert sorted(groups) == [list(range(at, at + 5)) for at in (0, 5, 10, 15)]


@pytest.mark.parametrize("batches", [1, 3, 7, 20])
def test_groups_hold_every_output_once_and_are_balanced(batches: int) -> None:
    outputs = np.arange(0, 40, 2)
    ranked = personalized_pagerank(*GRAPHS["undirected"], outputs, keep=6)
    groups = merged(ranked, outputs, batches=batches)
    assert len(groups) == batches
    assert sorted(np.concatenate(groups).tolist()) == list(range(20))
    sizes = [len(rows) for rows in groups]
    assert max(sizes) - min(sizes) <= 1


def test_groups_of_nodes_without_influence_are_balanced_too() -> None:
    outputs = np.arange(3)
    ranked = personalized_pagerank(*GRAPHS["no edges"], outputs, keep=4)
    assert [rows.tolist() for rows in merged(ranked, outputs, batches=2)] == [[0, 2], [1]]


def test_strong_pairs_are_merged_before_weak_ones() -> None:
    outputs = np.array([0, 1, 2, 3])
    scores = {(0, 1): 0.1, (0, 3): 0.3, (3, 0): 0.1, (2, 3): 0.35, (1, 2): 0.05}  # 0-3 is 0.4 in all
    csr = np.cumsum([0, 3, 2, 2, 2])
    ids = np.array([0, 3, 1, 1, 2, 2, 3, 3, 0])
    values = np.array([0.5, scores[0, 3], scores[0, 1], 0.5, scores[1, 2], 0.5, scores[2, 3], 0.5, scores[3, 0]])
    groups = merged(pagerank.Ranked(csr, ids, values), outputs, batches=2)
    assert sorted(rows.tolist() for rows in groups) == [[0, 3], [1, 2]]


def test_a_union_has_its_roots_first() -> None:
    scopes = Scopes(np.array([0, 3, 5, 7]), np.array([4, 1, 2, 0, 4, 2, 7]))
    found = united(scopes, np.array([2, 0]))
    assert found.nodes.tolist() == [2, 4, 1, 7]
    assert found.outputs == 2


@pytest.mark.parametrize("budget", [3, 12, 100])
def test_auxiliary_nodes_are_the_most_influential_within_the_budget(budget: int) -> None:
    csr = GRAPHS["undirected"]
    groups = [np.array([3, 1, 20, 8, 5]), np.array([30, 33])]
    exact = closed_form(csr, 0.25)
    for outputs, found in zip(groups, most_influential(*csr, groups, budget=budget), strict=True):
        score = exact[outputs].mean(axis=0)
        score[outputs] = 0
        assert found.nodes[: found.outputs].tolist() == outputs.tolist()
        assert found.outputs == len(outputs)
        room = min(max(0, budget - len(outputs)), int((score > 1e-9).sum()))
        auxiliary = found.nodes[len(outputs) :]
        assert len(auxiliary) == room
        assert np.allclose(np.sort(score[auxiliary])[::-1], np.sort(score)[::-1][:room], atol=1e-6)


def test_many_groups_are_ranked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    csr = GRAPHS["undirected"]
    groups = list(np.arange(40).reshape(10, 4))
    whole = most_influential(*csr, groups, budget=9)
    monkeypatch.setattr(scopes_room, "SETS_AT_ONCE", 3)
    pieces = most_influential(*csr, groups, budget=9)
    assert [found.nodes.tolist() for found in whole] == [found.nodes.tolist() for found in pieces]
    assert all(isinstance(found, OutputSet) for found in pieces)


def test_sets_of_nodes_for_other_methods() -> None:
    csr = GRAPHS["undirected"]
    groups = [np.array([5, 2]), np.array([7])]
    sets = shadow_sets(*csr, groups, fanout=100, hops=2, rng=np.random.default_rng(0))
    assert [nodes[: len(group)].tolist() for nodes, group in zip(sets, groups, strict=True)] == [[5, 2], [7]]
    assert set(sets[0].tolist()) == within(csr, 5, 2) | within(csr, 2, 2)
    assert len(set(sets[0].tolist())) == len(sets[0])
    outputs = np.arange(0, 40, 2)
    found = ibmb_sets(*csr, outputs, batches=4, fanout=6)
    assert sorted(np.concatenate([nodes[:5] for nodes in found]).tolist()) == outputs.tolist()
    ranked = personalized_pagerank(*csr, found[1][:5], alpha=0.25, keep=6)
    assert set(found[1].tolist()) == set(ranked.ids.tolist())


# bad input


def test_bad_numbers_are_refused() -> None:
    csr, roots, rng = star(3), np.array([0]), np.random.default_rng(0)
    for alpha in (0.0, 1.0):
        with pytest.raises(ValueError, match="Expected 'alpha' to be between 0 and 1"):
            personalized_pagerank(*csr, roots, alpha=alpha)
        with pytest.raises(ValueError, match="Expected 'alpha' to be between 0 and 1"):
            set_pagerank(*csr, [roots], alpha=alpha)
    with pytest.raises(ValueError, match=r"Expected 'tolerance' to be positive \(got 0\)"):
        personalized_pagerank(*csr, roots, tolerance=0)
    with pytest.raises(ValueError, match="Expected 'keep' to be at least 1"):
        personalized_pagerank(*csr, roots, keep=-1)
    with pytest.raises(ValueError, match="Expected 'iterations' to be at least 1"):
        set_pagerank(*csr, [roots], iterations=0)
    with pytest.raises(ValueError, match="Expected 'hops' to be at least 0"):
        k_hop(*csr, roots, hops=-1, fanout=2, rng=rng)
    with pytest.raises(ValueError, match="Expected 'fanout' to be at least 1"):
        k_hop(*csr, roots, hops=1, fanout=0, rng=rng)
    ranked = personalized_pagerank(*csr, roots)
    for batches in (0, 2):
        with pytest.raises(ValueError, match="Expected at most 1 batches, one per output node"):
            merged(ranked, roots, batches=batches)
