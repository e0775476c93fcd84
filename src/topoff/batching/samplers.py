"""Node sets drawn at random: by node, by edge or by random walk, and how often each node and pair is drawn.

GraphSAINT (Zeng et al., ICLR 2020), Section 3.4 and Algorithm 2. The functions see a graph as CSR arrays and know
nothing of models or batches: whoever needs random node sets may use them. All return sorted distinct node ids.

>>> from topoff.batching.pattern import pattern_of
>>> path = pattern_of(np.array([0, 1, 1, 2]), np.array([1, 0, 2, 1]), num_nodes=3)
>>> rng = np.random.default_rng(0)
>>> walks(path.offsets, path.ids, roots=np.array([0, 2]), length=1, rng=rng).tolist()
[[0, 2], [1, 1]]
>>> walk_sampler(path, length=1).draw(50, rng)
array([0, 1, 2])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topoff.batching.pattern import Ints, Pattern

Floats = npt.NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], Ints]  # a budget and a generator -> sorted distinct node ids

MOST = 64  # draws per node of the graph, at most, for one set
TRIALS = 10  # sets that are drawn to see how large those of a budget are
PRECISION = 200  # a budget is searched to one part in so many


# ---- probabilities


def node_probabilities(ids: Ints, values: Floats, *, num_nodes: int) -> Floats:
    """Return P(u), proportional to ||A[:, u]||^2, for a normalised adjacency A of (nnz,) columns and values; (n,).

    Algorithm 2, "node sampler".
    """
    norms = np.bincount(ids, weights=values**2, minlength=num_nodes).astype(np.float64, copy=False)
    return np.asarray(norms / norms.sum())


def edge_probabilities(pairs: Pattern) -> Floats:
    """Return p_uv, proportional to 1 / deg(u) + 1 / deg(v), of every pair of `undirected`; (m,).

    Algorithm 2, "edge sampler". The degree counts the nodes that a node is joined with, in either direction.
    """
    rows, ids, num_nodes = pairs.rows, pairs.ids, len(pairs.offsets) - 1
    if not len(ids):
        raise ValueError(
            "Expected the graph to have an edge between two different nodes for the edge sampler (got none); use "
            "saint-node or saint-walk, or add edges."
        )
    degree = np.bincount(rows, minlength=num_nodes) + np.bincount(ids, minlength=num_nodes)
    shares = 1 / degree[rows] + 1 / degree[ids]
    return np.asarray(shares / shares.sum())


def pick(cumulative: Floats, *, count: int, rng: np.random.Generator) -> Ints:
    """Draw places with replacement, by the cumulative sums of their probabilities; (count,)."""
    if count < 1:
        raise ValueError(f"Expected the budget of a sampler to be at least 1 (got {count}).")
    height = rng.random(count) * cumulative[-1]  # below the last sum, also after rounding
    return np.asarray(np.searchsorted(cumulative, height, side="right"))


# ---- samplers


@dataclass(frozen=True)
class Sampler:
    """Draw random node sets of one kind; a budget says how many nodes, edges or roots are drawn for a set."""

    draw: Draw
    num_nodes: int  # of the graph
    reached: int  # nodes that can be drawn

    def budget(self, ratio: float, *, generator: Callable[[int], np.random.Generator]) -> int:
        """Return the least budget, up to about half a percent, whose sets hold `ratio` of the nodes on average.

        Where so many cannot be drawn, it is for as many as can; `generator` gives the generator of a trial, the same
        for every budget that is tried.
        """

        def size(budget: int) -> float:
            """Return how many distinct nodes the sets of a budget have, on average."""
            return float(np.mean([len(self.draw(budget, generator(trial))) for trial in range(TRIALS)]))

        wanted, most = min(ratio * self.num_nodes, self.reached), MOST * self.num_nodes
        low, high = 0, 1
        while high < most and size(high) < wanted:
            low, high = high, min(2 * high, most)
        while high - low > 1 + high // PRECISION:
            middle = (low + high) // 2
            low, high = (middle, high) if size(middle) < wanted else (low, middle)
        return high


def node_sampler(ids: Ints, values: Floats, *, num_nodes: int) -> Sampler:
    """Draw nodes with replacement by `node_probabilities`."""
    cumulative = np.cumsum(node_probabilities(ids, values, num_nodes=num_nodes))
    return Sampler(lambda budget, rng: np.unique(pick(cumulative, count=budget, rng=rng)), num_nodes, num_nodes)


def edge_sampler(pairs: Pattern) -> Sampler:
    """Draw pairs of `undirected` with replacement by `edge_probabilities`, and return their nodes.

    Raises ValueError where there is no pair.
    """
    rows, ids = pairs.rows, pairs.ids
    cumulative = np.cumsum(edge_probabilities(pairs))

    def draw(budget: int, rng: np.random.Generator) -> Ints:
        """Return both ends of the pairs drawn."""
        places = pick(cumulative, count=budget, rng=rng)
        return np.unique(np.concatenate([rows[places], ids[places]]))

    return Sampler(draw, len(pairs.offsets) - 1, len(np.union1d(rows, ids)))


def walk_sampler(heard: Pattern, *, length: int) -> Sampler:
    """Walk `length` steps from roots that are drawn uniformly with replacement, and return all nodes visited.

    The sampler raises ValueError where the budget or the length is less than 1.
    """
    num_nodes = len(heard.offsets) - 1

    def draw(budget: int, rng: np.random.Generator) -> Ints:
        """Return the nodes on `budget` walks."""
        if budget < 1 or length < 1:
            raise ValueError(f"Expected at least 1 root and 1 step of a random walk (got {budget} and {length}).")
        roots = rng.integers(num_nodes, size=budget)
        return np.unique(walks(heard.offsets, heard.ids, roots=roots, length=length, rng=rng))

    return Sampler(draw, num_nodes, num_nodes)


def walks(offsets: Ints, ids: Ints, *, roots: Ints, length: int, rng: np.random.Generator) -> Ints:
    """Walk from each root, at every step to one of the row's ids with equal probability; (length + 1, roots).

    A walk stays where a row is empty.
    """
    path = [roots]
    for _ in range(length):
        now = path[-1].copy()
        degree = offsets[now + 1] - offsets[now]
        moving = np.flatnonzero(degree)
        now[moving] = ids[offsets[now[moving]] + rng.integers(degree[moving])]
        path.append(now)
    return np.stack(path)


# ---- counts


@dataclass(frozen=True)
class Counts:
    """Hold how often nodes and pairs of nodes were in some sets (Section 3.2)."""

    samples: int  # N, the number of sets
    nodes: Ints  # (n,) C_v
    pairs: Ints  # (m,) C_uv: sets that hold both ends of each pair of a pattern


def count(sets: Iterable[Ints], pattern: Pattern) -> Counts:
    """Count in how many sets each node is, and both ends of each pair of a pattern."""
    num_nodes = len(pattern.offsets) - 1
    samples, nodes, pairs = 0, np.zeros(num_nodes, dtype=np.int64), np.zeros(len(pattern.ids), dtype=np.int64)
    inside = np.zeros(num_nodes, dtype=bool)
    for chosen in sets:
        samples += 1
        nodes[chosen] += 1
        inside[chosen] = True
        places = spans(pattern.offsets, chosen)[0]
        pairs[places[inside[pattern.ids[places]]]] += 1
        inside[chosen] = False
    return Counts(samples, nodes, pairs)


# ---- rows of a CSR matrix


def spans(offsets: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Return the positions offsets[r] ... offsets[r + 1] - 1 of every r in rows, one after the other, and whose.

    >>> spans(np.array([0, 2, 2, 5]), np.array([2, 0]))
    (array([2, 3, 4, 0, 1]), array([0, 0, 0, 1, 1]))
    """
    count = offsets[rows + 1] - offsets[rows]
    owner = np.repeat(np.arange(len(rows)), count)
    return np.arange(len(owner)) + np.repeat(offsets[rows] - (np.cumsum(count) - count), count), owner


def some_of(offsets: Ints, nodes: Ints, *, fanout: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Choose up to `fanout` entries of each row without replacement; return their positions, and whose they are."""
    count = offsets[nodes + 1] - offsets[nodes]
    few, many = np.flatnonzero(count <= fanout), np.flatnonzero(count > fanout)
    positions, row = spans(offsets, nodes[few])
    drawn = offsets[nodes[many]][:, None] + subsets(count[many], fanout, rng)
    return np.concatenate([positions, drawn.ravel()]), np.concatenate([few[row], np.repeat(many, fanout)])


def subsets(sizes: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` distinct numbers below each size, every subset equally likely (Floyd's algorithm, all rows at once).

    The cost does not depend on the sizes, each of which is at least `count`; (r,) -> (r, count).
    """
    picked = np.empty((count if len(sizes) else 0, len(sizes)), dtype=np.int64)
    for number, share in enumerate(rng.random(picked.shape)):
        last = sizes - count + number  # the newcomer of this round: it steps in where the draw is taken already
        draw = (share * (last + 1)).astype(np.int64)
        taken = (picked[:number] == draw).any(axis=0)
        picked[number] = np.where(taken, last, draw)
    return picked.T.reshape(len(sizes), count)
