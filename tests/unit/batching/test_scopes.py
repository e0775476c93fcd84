"""k-hop sets against breadth-first search, groups of outputs, and the node sets made of them."""

import numpy as np
import pytest
import torch

from csr_graphs import GRAPHS, Csr, closed_form, of_edges, star
from graphs import cliques
from topoff.batching import pagerank
from topoff.batching import scopes as scopes_room
from topoff.batching.pagerank import personalized_pagerank, senders
from topoff.batching.scopes import OutputSet, Scopes, ibmb_sets, k_hop, merged, most_influential, shadow_sets, united


def within(csr: Csr, root: int, hops: int) -> set[int]:
    """Return the nodes within some hops, by the definition."""
    reached = {root}
    for _ in range(hops):
        reached |= {int(v) for u in reached for v in csr[1][csr[0][u] : csr[0][u + 1]]}
    return reached


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
@pytest.mark.parametrize("name", GRAPHS)
def test_whole_neighborhoods_are_k_hop_sets(name: str, hops: int) -> None:
    csr = GRAPHS[name]
    roots = np.append(np.arange(len(csr[0]) - 1), 0)  # a root may be there twice
    scopes = k_hop(*csr, roots, hops=hops, fanout=100, rng=np.random.default_rng(0))
    for root, nodes in zip(roots, scopes.lists(), strict=True):
        assert nodes[0] == root
        assert (np.diff(nodes[1:]) > 0).all()
        assert set(nodes.tolist()) == within(csr, int(root), hops)


def test_at_most_fanout_neighbors_are_drawn_without_replacement() -> None:
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
def test_every_neighbor_is_drawn_equally_often(fanout: int) -> None:
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


def test_nodes_that_influence_each_other_are_grouped() -> None:
    edges = cliques(4, 5)
    csr = senders(torch.cat([edges, edges.flip(0)], dim=1), 20)
    order = np.random.default_rng(0).permutation(20)
    ranked = personalized_pagerank(*csr, order, alpha=0.25, keep=8)
    groups = [sorted(order[rows].tolist()) for rows in merged(ranked, order, batches=4)]
    assert sorted(groups) == [list(range(at, at + 5)) for at in (0, 5, 10, 15)]


@pytest.mark.parametrize("batches", [1, 3, 7, 20])
def test_groups_hold_every_output_once_and_none_is_large(batches: int) -> None:
    outputs = np.arange(0, 40, 2)
    ranked = personalized_pagerank(*GRAPHS["undirected"], outputs, keep=6)
    groups = merged(ranked, outputs, batches=batches)
    assert len(groups) == batches
    assert sorted(np.concatenate(groups).tolist()) == list(range(20))
    assert max(len(rows) for rows in groups) <= 2 * 20 / batches


def test_the_smallest_groups_are_merged_first_and_none_is_split() -> None:
    pairs = [(0, 1), (1, 2), (3, 4)]  # groups of 3, 2 and three of 1
    edges = torch.tensor(pairs + [pair[::-1] for pair in pairs]).T
    outputs = np.arange(8)
    ranked = personalized_pagerank(*senders(edges, 8), outputs, keep=4)
    assert [rows.tolist() for rows in merged(ranked, outputs, batches=2)] == [[0, 1, 2, 5, 6], [3, 4, 7]]


def test_groups_of_nodes_without_influence_are_balanced_too() -> None:
    outputs = np.arange(3)
    ranked = personalized_pagerank(*GRAPHS["no edges"], outputs, keep=4)
    assert [rows.tolist() for rows in merged(ranked, outputs, batches=2)] == [[0, 1], [2]]


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


def test_bad_numbers_are_refused() -> None:
    csr, roots, rng = star(3), np.array([0]), np.random.default_rng(0)
    with pytest.raises(ValueError, match="Expected 'hops' to be at least 0"):
        k_hop(*csr, roots, hops=-1, fanout=2, rng=rng)
    with pytest.raises(ValueError, match="Expected 'fanout' to be at least 1"):
        k_hop(*csr, roots, hops=1, fanout=0, rng=rng)
    ranked = personalized_pagerank(*csr, roots)
    for batches in (0, 2):
        with pytest.raises(ValueError, match="Expected at most 1 batches, one per output node"):
            merged(ranked, roots, batches=batches)
