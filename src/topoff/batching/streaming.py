"""Parts of a graph that does not fit into memory: linear deterministic greedy (LDG, Stanton & Kliot 2012), repeated.

Nodes come in small blocks in random order; each goes to the part that holds most of its neighbours, less the fuller the
part is. Later passes take every node out again and place it anew (restreaming, Nishimura & Ugander 2013). A few numbers
per node are held; the edges are read where they lie.

>>> part = stream(Pairs(np.array([0, 1, 2, 3, 4]), np.array([1, 0, 3, 2])), parts=2)
>>> bool(part[0] == part[1]), bool(part[2] == part[3])
(True, True)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from topoff.batching.pairs import Pairs
from topoff.batching.pattern import Ints

Array = np.ndarray[Any, Any]

PASSES = 4  # over all edges; twice as many lower the cut of WordNet by two points
SLACK = 0.1  # by which a part may exceed its share
CHUNKS, EDGES = 64, 2**20  # nodes come in so many chunks or more, of so many edges at most: they do not see each other
CACHED = 2**31  # bytes of ids up to which nodes are read one by one, since the system keeps them in memory
PAGE = 1024  # ids that are read in one go beyond that


def stream(pairs: Pairs, *, parts: int, seed: int = 0, passes: int = PASSES) -> Ints:
    """Give every node a part in 0..parts-1; (n,) int64.

    Args:
        pairs: the neighbours of every node.
        parts: number of parts, 1 to n.
        seed: of the order of the nodes.
        passes: over all nodes.
    """
    n = len(pairs.offsets) - 1
    most = int(np.ceil((1 + SLACK) * n / parts))
    part, size = np.full(n, -1, dtype=np.int32), np.zeros(parts, dtype=np.int64)
    for number in range(passes):
        for nodes in _chunks(pairs, rng=np.random.default_rng([seed, number])):
            before = part[nodes]
            size -= np.bincount(before[before >= 0], minlength=parts)
            part[nodes] = _placed(nodes, pairs, part=part, size=size, most=most)
            size += np.bincount(part[nodes], minlength=parts)
    return part.astype(np.int64)


def _chunks(pairs: Pairs, *, rng: np.random.Generator) -> Iterator[Array]:
    """Yield all nodes, some at a time, in blocks of neighbouring numbers that come in random order."""
    n, count = len(pairs.offsets) - 1, int(pairs.offsets[-1])
    block = 1 if pairs.ids.dtype.itemsize * count <= CACHED else max(1, PAGE * n // max(1, count))
    size = max(block, min(n // CHUNKS, EDGES * n // max(1, count)))
    order = rng.permutation(-(-n // block))
    step = max(1, size // block)
    for start in range(0, len(order), step):
        nodes = (order[start : start + step, None] * block + np.arange(block)).reshape(-1)
        yield nodes[nodes < n]


def _placed(nodes: Array, pairs: Pairs, *, part: Array, size: Array, most: int) -> Array:
    """Return the part of some nodes: where most of their neighbours are, by room; the others where room is."""
    parts = len(size)
    start, counts = pairs.offsets[nodes], pairs.offsets[nodes + 1] - pairs.offsets[nodes]
    row = np.repeat(np.arange(len(nodes)), counts)
    position = np.repeat(start - (np.cumsum(counts) - counts), counts) + np.arange(len(row))
    near = part[pairs.ids[position]]
    known = near >= 0
    keys = row[known] * np.int64(parts) + near[known]
    if pairs.weight is None:
        keys, votes = np.unique(keys, return_counts=True)
    else:
        keys, inverse = np.unique(keys, return_inverse=True)
        votes = np.bincount(inverse, weights=pairs.weight[position[known]], minlength=len(keys))
    row, wanted = keys // parts, keys % parts
    score = votes * (1 - size[wanted] / most)
    best = _best(row, score)
    best = best[score[best] > 0]
    best = best[_fit(wanted[best], score[best], room=most - size)]
    placed = np.full(len(nodes), -1, dtype=np.int32)
    placed[row[best]] = wanted[best]
    rest = np.flatnonzero(placed < 0)
    placed[rest] = _spread(len(rest), most - size - np.bincount(wanted[best], minlength=parts))
    return placed


def _best(row: Array, score: Array) -> Array:
    """Return where each row, ascending, has its best score, the first of equal ones.

    >>> _best(np.array([0, 0, 0, 1]), np.array([1.0, 3.0, 3.0, 2.0]))
    array([1, 3])
    """
    if not len(row):
        return np.zeros(0, dtype=np.int64)
    first = np.flatnonzero(np.append(True, np.diff(row) > 0))
    top = np.repeat(np.maximum.reduceat(score, first), np.diff(np.append(first, len(row))))
    best = np.flatnonzero(score == top)
    return np.asarray(best[np.append(True, np.diff(row[best]) > 0)])


def _fit(wanted: Array, score: Array, *, room: Array) -> Array:
    """Return which of some nodes get the part that they want: those with the best score, as long as there is room."""
    order = np.lexsort((-score, wanted))
    first = np.searchsorted(wanted[order], np.arange(len(room)))
    rank = np.arange(len(order)) - first[wanted[order]]
    return np.asarray(order[rank < room[wanted[order]]])


def _spread(count: int, room: Array) -> Array:
    """Return parts for nodes that want none: the emptiest ones, evenly."""
    order = np.argsort(-room, kind="stable")
    even = -(-count // max(1, int((room > 0).sum())))
    first = np.clip(room[order], 0, even)
    slots = np.repeat(order, first)
    return slots[:count] if len(slots) >= count else np.append(slots, np.repeat(order, room[order] - first))[:count]
