"""Edges that are pairs already are taken as they are."""

import numpy as np
import pytest
import torch

from graphs import cliques
from topoff.batching import pairs as module
from topoff.batching import partition as partitioning
from topoff.batching.pairs import sorted_pairs


def both_ways(edges: torch.Tensor) -> np.ndarray:
    """Return edges in both directions, sorted by target, then source."""
    found = np.unique(torch.cat([edges, edges.flip(0)], dim=1).numpy().T[:, ::-1], axis=0)
    return np.ascontiguousarray(found.T[::-1])


@pytest.fixture(autouse=True)
def _in_small_chunks(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 7)


def test_sorted_symmetric_edges_are_not_copied():
    edges = both_ways(cliques(5, 6))
    found = sorted_pairs(edges, 30)
    assert found is not None
    assert np.shares_memory(found.ids, edges)
    merged = partitioning._undirected(edges, 30, weight=None)
    assert np.array_equal(found.offsets, merged.offsets)
    assert np.array_equal(found.ids, merged.ids)
    assert merged.weight is None


@pytest.mark.parametrize("drop", [0, 6, 7, 8, -1])
def test_a_missing_reverse_is_seen(drop: int):
    edges = both_ways(cliques(5, 6))
    less = np.delete(edges, drop, axis=1)
    assert sorted_pairs(less, 30) is None
    assert sorted_pairs(less, 30, directed=True) is not None


@pytest.mark.parametrize("at", [3, 6, 7, 20])
def test_what_is_there_twice_or_out_of_order_is_seen(at: int):
    edges = both_ways(cliques(5, 6))
    assert sorted_pairs(np.insert(edges, at, edges[:, at], axis=1), 30) is None
    order = np.arange(edges.shape[1])
    order[[at, at + 1]] = order[[at + 1, at]]
    assert sorted_pairs(edges[:, order], 30) is None


def test_a_loop_is_seen():
    loops = np.arange(3)
    assert sorted_pairs(np.stack([loops, loops]), 3) is None
    assert sorted_pairs(np.stack([loops, loops]), 3, directed=True) is not None


def test_no_edges():
    found = sorted_pairs(np.zeros((2, 0), dtype=np.int64), 3)
    assert found is not None
    assert found.offsets.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("method", ["kaminpar", "metis", "ldg"])
def test_the_same_parts_either_way(method: str, monkeypatch):
    edges = torch.from_numpy(both_ways(cliques(20, 6)))
    given = {"parts": 7, "method": method}
    monkeypatch.setattr(partitioning, "CHUNK", 11)  # of what is written
    taken = partitioning.partition(edges.int(), 120, **given)
    shuffled = edges[:, torch.randperm(edges.size(1))]
    assert torch.equal(taken, partitioning.partition(shuffled, 120, **given))
