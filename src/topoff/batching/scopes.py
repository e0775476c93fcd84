"""Which nodes a set of roots needs: k-hop sets, and the node sets that batches are made of."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from topoff.batching.pagerank import SETS_AT_ONCE, Ranked, Scopes, at_least, personalized_pagerank, set_pagerank
from topoff.batching.pattern import Ints, pointers
from topoff.batching.samplers import some_of


@dataclass(frozen=True)
class OutputSet:
    """Hold a batch: the nodes whose outputs are wanted, and those that are there for their influence."""

    nodes: Ints  # (b,) the outputs first
    outputs: int  # how many they are


def k_hop(offsets: Ints, ids: Ints, roots: Ints, *, hops: int, fanout: int, rng: np.random.Generator) -> Scopes:
    """Return each root's sampled k-hop set: at most `fanout` neighbours, without replacement, of every node reached.

    A node is gone on from once, in the hop after it was reached. The sets hold the root first, then ascending ids.
    """
    at_least(0, hops=hops)
    at_least(1, fanout=fanout)
    n = len(offsets) - 1
    seen = front = np.arange(len(roots)) * n + roots  # a pair of a root's row and a node is one number
    for _ in range(hops):
        positions, row = some_of(offsets, front % n, fanout=fanout, rng=rng)
        reached = np.unique((front // n)[row] * n + ids[positions])
        front = np.setdiff1d(reached, seen, assume_unique=True)
        if not len(front):
            break
        seen = np.concatenate([seen, front])
    owner, node = seen // n, seen % n
    order = np.lexsort((node, node != roots[owner], owner))
    return Scopes(pointers(np.bincount(owner, minlength=len(roots))), node[order])


def merged(ranked: Ranked, outputs: Ints, *, batches: int) -> list[Ints]:
    """Group the outputs by influence on each other (IBMB's distance-based merging): rows of `ranked`, per batch.

    Pairs of outputs are taken by descending score, ppr(u, v) + ppr(v, u); the groups of both are merged where the
    result has at most len(outputs) // batches nodes. Then the two smallest groups are merged, again and again, until
    there are as many as batches: no group is split, and none has more than twice the mean size.
    """
    if not 1 <= batches <= len(outputs):
        raise ValueError(
            f"Expected at most {len(outputs)} batches, one per output node, and at least 1 (got {batches}); "
            "choose a larger ratio."
        )
    groups = _greedily(_pairs(ranked, outputs), len(outputs), most=len(outputs) // batches)
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    heap = [(len(rows), int(rows[0]), [rows]) for rows in members]
    heapq.heapify(heap)
    while len(heap) > batches:
        size, first, rows = heapq.heappop(heap)
        heapq.heapreplace(heap, (size + heap[0][0], min(first, heap[0][1]), rows + heap[0][2]))
    return [np.sort(np.concatenate(rows)) for _, _, rows in sorted(heap, key=lambda group: group[1])]


def _pairs(ranked: Ranked, outputs: Ints) -> Ints:
    """Return pairs of rows whose roots influence each other, the strongest first; (p, 2)."""
    m = len(outputs)
    by_id = np.argsort(outputs)
    place = np.minimum(np.searchsorted(outputs, ranked.ids, sorter=by_id), m - 1)
    other, row = by_id[place], ranked.owners()
    inside = (outputs[other] == ranked.ids) & (other != row)
    low, high = np.minimum(row, other)[inside], np.maximum(row, other)[inside]
    pairs = sp.coo_array((ranked.scores[inside], (low, high)), shape=(m, m)).tocsr().tocoo()
    order = np.lexsort((pairs.col, pairs.row, -pairs.data))
    return np.stack([pairs.row[order], pairs.col[order]], axis=1).astype(np.int64)


def _greedily(pairs: Ints, count: int, *, most: int) -> Ints:
    """Merge along the pairs, in their order, while groups have at most `most` members; (count,) a group per row."""
    parent, size = list(range(count)), [1] * count

    def root_of(node: int) -> int:
        """Follow the parents, and halve the way for the next time."""
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for one, other in pairs.tolist():
        first, second = sorted((root_of(one), root_of(other)))
        if first != second and size[first] + size[second] <= most:
            parent[second] = first
            size[first] += size[second]
    return np.array([root_of(node) for node in range(count)], dtype=np.int64)


def united(scopes: Scopes, rows: Ints) -> OutputSet:
    """Return the union of some sets, their roots first, then ascending ids."""
    chosen = scopes.of(rows)
    roots = chosen.ids[chosen.offsets[:-1]]
    return OutputSet(np.concatenate([roots, np.setdiff1d(chosen.ids, roots)]), len(roots))


def most_influential(
    offsets: Ints, ids: Ints, groups: Sequence[Ints], *, budget: int, alpha: float = 0.25
) -> list[OutputSet]:
    """Add to each group of outputs the nodes of largest influence on it as a whole, up to `budget` nodes in all.

    Nodes without any influence are not added, and a group larger than the budget stays as it is.
    """
    found = []
    for at in range(0, len(groups), SETS_AT_ONCE):
        some = groups[at : at + SETS_AT_ONCE]
        for outputs, score in zip(some, set_pagerank(offsets, ids, some, alpha=alpha).T, strict=True):
            score[outputs] = 0.0
            order = np.argsort(-score, kind="stable")[: max(0, budget - len(outputs))]
            found.append(OutputSet(np.concatenate([outputs, np.sort(order[score[order] > 0])]), len(outputs)))
    return found


def shadow_sets(
    offsets: Ints, ids: Ints, groups: Sequence[Ints], *, fanout: int, hops: int, rng: np.random.Generator
) -> list[Ints]:
    """Return, per group of targets, the union of their sampled k-hop sets: the targets first."""
    return [
        united(k_hop(offsets, ids, targets, hops=hops, fanout=fanout, rng=rng), np.arange(len(targets))).nodes
        for targets in groups
    ]


def ibmb_sets(
    offsets: Ints, ids: Ints, outputs: Ints, *, batches: int, fanout: int = 16, alpha: float = 0.25
) -> list[Ints]:
    """Return node-wise IBMB's batches: grouped outputs first, then the union of their best `fanout` nodes.

    >>> sets = ibmb_sets(np.array([0, 1, 2, 3, 4]), np.array([1, 0, 3, 2]), np.arange(4), batches=2)
    >>> sorted(nodes.tolist() for nodes in sets)
    [[0, 1], [2, 3]]
    """
    ranked = personalized_pagerank(offsets, ids, outputs, alpha=alpha, keep=fanout)
    return [united(ranked, rows).nodes for rows in merged(ranked, outputs, batches=batches)]
