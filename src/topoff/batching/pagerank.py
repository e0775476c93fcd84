"""Which nodes matter to which: personalised PageRank.

A walk goes from a node to those that send messages to it, so that its stops are the nodes whose features reach the
node's output: the share of walks that end at u measures the influence of u (Gasteiger et al., LoG 2022, Section 3).

>>> import torch
>>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
>>> offsets, ids = senders(path, 3)
>>> ranked = personalized_pagerank(offsets, ids, np.array([0]), alpha=0.5, tolerance=1e-9)
>>> ranked.ids, ranked.scores.round(3)
(array([0, 1, 2]), array([0.583, 0.333, 0.083]))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from torch import Tensor

from topoff.batching.pattern import pattern_of, pointers
from topoff.batching.samplers import spans
from topoff.machine.cache import cached, content_hash

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

ROOTS = 1024  # that are pushed at once: their residuals are in memory together
SETS_AT_ONCE = 16  # teleport sets that are iterated together: dense vectors of n
ENOUGH = 0.02  # tolerance = ENOUGH / keep pushes about three times as many nodes as are kept, on sparse graphs
REVISION = "1"  # of `personalized_pagerank`: raise it with a change that gives other scores


@dataclass(frozen=True)
class Scopes:
    """Hold one node set per root, the root first."""

    offsets: Ints  # (r + 1,) where the set of each root starts in `ids`
    ids: Ints  # (m,) nodes

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, rows: Ints) -> Scopes:
        """Return the sets of some rows, in their order."""
        positions, _ = spans(self.offsets, rows)
        return Scopes(pointers(np.diff(self.offsets)[rows]), self.ids[positions])

    def lists(self) -> list[Ints]:
        """Return each set as an array."""
        return np.split(self.ids, self.offsets[1:-1])

    def owners(self) -> Ints:
        """Return which row each entry of `ids` belongs to; (m,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


@dataclass(frozen=True)
class Ranked(Scopes):
    """Hold the nodes of largest influence per root: the root, then the others by descending score, ties by id."""

    scores: Floats  # (m,) personalised PageRank


def senders(edge_index: Tensor, num_nodes: int, *, flows: Sequence[str] = ("source_to_target",)) -> tuple[Ints, Ints]:
    """Return who sends messages to whom as CSR: each node's distinct neighbours besides itself, ascending.

    With both flows among `flows` (a model that mixes them), an edge counts either way.
    """
    source, target = edge_index.cpu().numpy()
    pairs = [(target, source) if flow == "source_to_target" else (source, target) for flow in flows]
    receiver, sender = (np.concatenate(side) for side in zip(*pairs, strict=True))
    pattern = pattern_of(receiver, sender, num_nodes=num_nodes)
    return pattern.offsets, pattern.ids


def personalized_pagerank(
    offsets: Ints,
    ids: Ints,
    seeds: Ints,
    *,
    alpha: float = 0.15,
    tolerance: float | None = None,
    keep: int | None = None,
) -> Ranked:
    """Approximate the rows of alpha (I - (1 - alpha) D^-1 A)^-1 at some roots, by pushes of all roots in parallel.

    The push of Andersen, Chung and Lang (FOCS 2006): what a node holds back, r(u), is pushed on as long as it is more
    than tolerance * deg(u); in the end alpha of it counts. Scores are too low, never too high, by less than
    sum_u r(u) ppr(u, v) <= tolerance * sum_u deg(u) ppr(u, v), which is at most tolerance * deg(v) where the graph is
    undirected. A node without neighbours keeps alpha of what arrives there, and the rest is lost, as in the formula
    (its row of D^-1 A is zero).

    Args:
        offsets: (n + 1,) of the CSR; see `senders`. Repeated entries count as often as they are there.
        ids: (m,) neighbours that a walk goes on to, all alike.
        seeds: (r,) roots.
        alpha: probability that a walk ends at each stop.
        tolerance: see above; by default 0.02 / keep, and 1e-4 where all are kept.
        keep: nodes per root, the root among them; None keeps all that were found.
    """
    if keep is not None:
        at_least(1, keep=keep)
    tolerance = tolerance if tolerance is not None else (ENOUGH / keep if keep else 1e-4)
    if not tolerance > 0:
        raise ValueError(f"Expected 'tolerance' to be positive (got {tolerance}); 1e-4 is precise, 1e-3 is fast.")
    walk = _walk(offsets, ids, alpha)
    enough = tolerance * np.maximum(np.diff(offsets), 1)
    pieces = [_best(_pushed(walk, seeds[at : at + ROOTS], alpha, enough), seeds[at : at + ROOTS], keep)
              for at in range(0, len(seeds), ROOTS)]  # fmt: skip
    counts, nodes, scores = (np.concatenate([np.zeros(0, kind), *(piece[field] for piece in pieces)])
                             for field, kind in enumerate((np.int64, np.int64, np.float64)))  # fmt: skip
    return Ranked(pointers(counts), nodes, scores)


def _pushed(walk: sp.csr_array, roots: Ints, alpha: float, enough: Floats) -> sp.csr_array:
    """Push until no node holds back more than `enough`; return the scores, (roots, n)."""
    shape = (len(roots), walk.shape[0])
    held = sp.csr_array((np.ones(len(roots)), roots, np.arange(len(roots) + 1)), shape=shape)
    rows, columns, values = [], [], []
    much = np.ones(len(roots), dtype=bool)  # a root is pushed in any case, however many neighbours it has
    while much.any():
        starts = np.append(0, np.cumsum(much))[held.indptr]
        on = sp.csr_array((held.data[much], held.indices[much], starts), shape=shape)
        rest = sp.csr_array((held.data[~much], held.indices[~much], held.indptr - starts), shape=shape)
        rows.append(np.repeat(np.arange(len(roots)), np.diff(starts)))
        columns.append(on.indices)
        values.append(alpha * on.data)
        held = rest + on @ walk
        much = held.data > enough[held.indices]
    rows.append(np.repeat(np.arange(len(roots)), np.diff(held.indptr)))  # walks that end where they are held back
    entries = (np.concatenate(rows), np.concatenate([*columns, held.indices]))
    data = np.concatenate([*values, alpha * held.data])
    return sp.coo_array((data, entries), shape=shape).tocsr()  # repeated entries are added


def _best(scores: sp.csr_array, roots: Ints, keep: int | None) -> tuple[Ints, Ints, Floats]:
    """Return counts, nodes and scores of the best nodes per row, the root first."""
    row = np.repeat(np.arange(len(roots)), np.diff(scores.indptr))
    column = scores.indices.astype(np.int64)
    rounded = -scores.data.round(12)  # scores that only the order of additions tells apart are equal
    order = np.lexsort((column, rounded, column != roots[row], row))
    if keep is not None:
        order = order[np.arange(len(order)) - scores.indptr[row] < keep]  # rows stay in place: the sort is by row first
    return np.bincount(row[order], minlength=len(roots)), column[order], scores.data[order]


def cached_pagerank(offsets: Ints, ids: Ints, seeds: Ints, *, alpha: float, keep: int) -> Ranked:
    """Return what `personalized_pagerank` returns, kept between runs under a hash of all that it depends on."""
    key = f"pagerank-{content_hash(REVISION, f'{alpha} {keep} {ENOUGH}', offsets, ids, seeds)}"
    return Ranked(**cached(key, lambda: vars(personalized_pagerank(offsets, ids, seeds, alpha=alpha, keep=keep))))


def set_pagerank(
    offsets: Ints, ids: Ints, sets: Sequence[Ints], *, alpha: float = 0.25, iterations: int = 50
) -> Floats:
    """Return the PageRank that teleports to a set of nodes, for a few sets: the mean over their roots; (n, sets).

    Power iteration x <- alpha s + (1 - alpha) (D^-1 A)^T x, s = 1 / |set| on the set; what is missing of the total
    after k iterations is (1 - alpha)^k.
    """
    at_least(1, iterations=iterations)
    walk = _walk(offsets, ids, alpha).T.tocsr()
    start = np.zeros((len(offsets) - 1, len(sets)))
    for column, nodes in enumerate(sets):
        start[nodes, column] = alpha / len(nodes)
    scores = start.copy()
    for _ in range(iterations):
        scores = start + walk @ scores
    return scores


def at_least(least: int, **values: int) -> None:
    """Refuse settings below a bound."""
    for name, value in values.items():
        if value < least:
            raise ValueError(f"Expected '{name}' to be at least {least} (got {value}); choose a larger one.")


def _walk(offsets: Ints, ids: Ints, alpha: float) -> sp.csr_array:
    """Return (1 - alpha) D^-1 A: where a walk that goes on goes to; (n, n)."""
    if not 0 < alpha < 1:
        raise ValueError(f"Expected 'alpha' to be between 0 and 1 (got {alpha}); 0.15 to 0.25 is usual.")
    n, degree = len(offsets) - 1, np.diff(offsets)
    return sp.csr_array(((1 - alpha) / np.repeat(degree, degree), ids, offsets), shape=(n, n))
