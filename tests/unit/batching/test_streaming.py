"""Parts in little memory."""

import numpy as np
import pytest

from graphs import cliques
from topoff.batching import streaming
from topoff.batching.pairs import Pairs
from topoff.batching.partition import _undirected, partition
from topoff.batching.streaming import SLACK, stream


def ring(n: int) -> Pairs:
    ids = np.stack([(np.arange(n) - 1) % n, (np.arange(n) + 1) % n], axis=1)
    return Pairs(2 * np.arange(n + 1), np.sort(ids, axis=1).reshape(-1))


@pytest.mark.parametrize("parts", [2, 9, 50])
def test_no_part_exceeds_its_share_by_more_than_the_slack(parts: int):
    part = stream(ring(500), parts=parts)
    assert np.bincount(part, minlength=parts).max() <= np.ceil((1 + SLACK) * 500 / parts)
    assert part.min() >= 0
    assert part.max() < parts


def test_fewer_edges_are_cut_than_by_chance():
    edges = cliques(40, 10)
    part = partition(edges, 400, parts=20, method="ldg")
    assert float((part[edges[0]] != part[edges[1]]).float().mean()) < 0.3  # by chance 0.95


def test_later_passes_cut_less():
    pairs = ring(2000)
    receivers = np.repeat(np.arange(2000), 2)
    cuts = [(part[pairs.ids] != part[receivers]).mean() for part in (stream(pairs, parts=20, passes=p) for p in (1, 4))]
    assert cuts[1] < cuts[0]


def test_blocks_of_a_mapped_graph_hold_every_node_once(monkeypatch):
    monkeypatch.setattr(streaming, "CACHED", 0)
    monkeypatch.setattr(streaming, "PAGE", 10)
    chunks = list(streaming._chunks(ring(500), rng=np.random.default_rng(0)))
    assert len(chunks) > 50
    assert np.array_equal(np.sort(np.concatenate(chunks)), np.arange(500))
    assert (np.diff(chunks[0][:5]) == 1).all()
    assert len(stream(ring(500), parts=5)) == 500


def test_weights_count():
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    pairs = _undirected(edges, 4, weight=np.array([9.0, 1.0, 9.0, 1.0]))
    part = stream(pairs, parts=2)
    assert part[0] == part[1] != part[2] == part[3]


def test_nodes_without_neighbours_are_spread():
    part = stream(Pairs(np.zeros(101, dtype=np.int64), np.zeros(0, dtype=np.int32)), parts=10)
    assert np.bincount(part).max() <= 11
