"""Personalised PageRank against its closed form; who sends messages to whom."""

from pathlib import Path

import numpy as np
import pytest
import torch

from csr_graphs import GRAPHS, Csr, Floats, closed_form, star
from topoff.batching import pagerank
from topoff.batching.pagerank import Ints, cached_pagerank, personalized_pagerank, senders, set_pagerank
from topoff.batching.scopes import Scopes


def scores_of(csr: Csr, roots: Ints, **settings: float) -> Floats:
    """Return personalised PageRank as a dense matrix."""
    ranked = personalized_pagerank(*csr, roots, **settings)  # type: ignore[arg-type]
    found = np.zeros((len(roots), len(csr[0]) - 1))
    found[ranked.owners(), ranked.ids] = ranked.scores
    return found


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


def test_equal_scores_are_ordered_by_id_and_a_hub_has_neighbors() -> None:
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


def test_scopes_of_some_rows() -> None:
    scopes = Scopes(np.array([0, 2, 3, 6]), np.array([5, 1, 4, 9, 8, 7]))
    some = scopes.of(np.array([2, 0]))
    assert [nodes.tolist() for nodes in some.lists()] == [[9, 8, 7], [5, 1]]
    assert some.owners().tolist() == [0, 0, 0, 1, 1]
    assert len(some) == 2


# bad input


def test_bad_numbers_are_refused() -> None:
    csr, roots = star(3), np.array([0])
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
