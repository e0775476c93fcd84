"""The pairs of nodes that a partitioner cuts, as CSR arrays: a graph's edges themselves, where they are that already.

>>> both = np.array([[1, 0, 2, 1], [0, 1, 1, 2]])
>>> sorted_pairs(both, 3).offsets
array([0, 1, 3, 4])
>>> sorted_pairs(both[:, :3], 3) is None
True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from topoff.batching.pattern import Ints, pointers

Array = np.ndarray[Any, Any]

CHUNK = 2**22  # edges that are looked at together


@dataclass(frozen=True)
class Pairs:
    """Hold which pairs of nodes are joined, in both directions, neighbours ascending; no node with itself."""

    offsets: Array  # (n + 1,)
    ids: Array  # (m,) of 32 bits or more; may be mapped from a file
    weight: Ints | None = None  # (m,) positive; None: all equal


def sorted_pairs(edges: Array, num_nodes: int, *, directed: bool = False) -> Pairs | None:
    """Return the edges (2, E) themselves, without a copy, where they are sorted by target, then source, and symmetric.

    None where they are not: where one is there twice, has no reverse, or joins a node with itself. With `directed`
    only the order counts.
    """
    source, target = edges
    there = back = 0
    counts = np.zeros(num_nodes, dtype=np.int64)
    for start in range(0, len(source), CHUNK):
        one, other = (side[start : start + CHUNK + 1] for side in (source, target))
        steps = np.diff(other)
        if not bool(((steps > 0) | ((steps == 0) & ((np.diff(one) > 0) | directed))).all()):
            return None
        one, other = one[:CHUNK], other[:CHUNK]
        counts += np.bincount(other, minlength=num_nodes)
        if not directed:
            if bool((one == other).any()):
                return None
            there, back = there + _hashes(one, other), back + _hashes(other, one)
    return Pairs(pointers(counts), source) if (there - back) % 2**64 == 0 else None


def _hashes(one: Array, other: Array) -> int:
    """Return the sum of 64-bit hashes (splitmix64): sums of different pairs are equal once in 2^64 graphs."""
    with np.errstate(over="ignore"):
        word = one.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + other.astype(np.uint64)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return int((word ^ (word >> np.uint64(31))).sum(dtype=np.uint64))
