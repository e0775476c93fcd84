"""Layer-neighbour sampling, LABOR (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn
from torch_geometric.data import Data

from topoff.batching.samplers import spans
from topoff.forward.neighbours import Chosen, Floats, Ints
from topoff.methods.neighbour_sampling import NeighborSampling

NEAR = 1e-4  # relative change of the expected number of senders at which the iteration stops, as the authors' code
ROUNDS = 100  # at most; the sum is right on average wherever the iteration stops


class Labor(NeighborSampling):
    """Let receivers draw from the same dice, so that they hear the same neighbours: LABOR-0 (Section 3.2).

    Every sender u has one number r_u, uniform in [0, 1), for all receivers of a step. Receiver v hears the
    k = min(fanout, d_v) of its neighbours with the smallest numbers, the sequential Poisson sampling of Appendix A.3
    and of the authors' `LayerNeighborSampler`: as many as neighbour sampling, mostly those that others hear, too. For
    one receiver every subset of k is equally likely, hence weights are multiplied with d_v / k: sums are right on
    average, and a mean of all is estimated by the sample's mean; Poisson sampling has to choose between these. A node's
    own row is never left out, and general convs are treated as in `NeighborSampling`.

    The paper's vertex budget, a batch as large as keeps the sampled nodes constant, is `ratio` here: it is set, or
    tuned, like that of every other method.
    """

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose, for every node, the neighbours with the smallest numbers."""
        positions, rows = spans(self.neighbors.offsets, nodes)
        numbers, degree = (
            rng.random(self.neighbors.num_nodes)[self.neighbors.ids[positions]],
            self.neighbors.degree[nodes],
        )
        kept = smallest(numbers, rows, degree, count=self.fanout)
        positions, rows = positions[kept], rows[kept]
        return Chosen(positions, rows, (degree / np.clip(degree, 1, self.fanout))[rows])


def smallest(numbers: Floats, rows: Ints, sizes: Ints, *, count: int) -> Ints:
    """Return where the `count` smallest numbers of every row stand, all of a shorter row; rows are ascending; (k,).

    Only numbers below a bound are sorted, which lets through enough of those uniform in [0, 1) in nearly all rows.

    >>> smallest(np.array([0.3, 0.1, 0.2, 0.5]), np.array([0, 0, 0, 1]), np.array([3, 1]), count=2)
    array([1, 2, 3])
    """
    bound = (count + 4 * np.sqrt(count) + 4) / np.maximum(sizes, 1)
    low = numbers < bound[rows]
    short = np.bincount(rows[low], minlength=len(sizes)) < np.minimum(sizes, count)
    low = np.flatnonzero(low | short[rows])
    order = low[np.lexsort((numbers[low], rows[low]))]
    found = np.bincount(rows[low], minlength=len(sizes))
    place = np.arange(len(order)) - np.repeat(np.cumsum(found) - found, found)
    return order[place < count]


class LaborStar(NeighborSampling):
    """Choose the chances so that as few distinct senders as possible are heard: LABOR-* (Section 3.3).

    Every sender u has one number r_u for all receivers of a step, and receiver v hears it where r_u < min(1, c_v pi_u).
    pi is the fixed point of pi_u <- pi_u max_v c_v over the receivers v of u, where c_v keeps the variance of neighbour
    sampling: sum_u 1 / min(1, c_v pi_u) = d_v^2 / min(fanout, d_v) (Eq. 14). Each round makes the expected number of
    distinct senders, sum_u min(1, pi_u max_v c_v), smaller; a receiver hears `fanout` senders on average or, as the
    price of equal variance, some more.

    The paper's edge weights A_ts are 1 here, as in its experiments: one choice serves all operators of a model,
    whose weights enter the sum only.

    Args (and those of `NeighborSampling`):
        normalize: as the authors' code, divide the weights of a receiver's senders by their sum and multiply them with
            d_v (Hajek): less variance and a little bias. Without it weights are divided by the chances alone
            (Horvitz-Thompson), and sums are right on average. They trained alike (Computers, 6 CPU seconds: 38.7 %).
    """

    def __init__(self, model: nn.Module, data: Data, *, normalize: bool = True, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        self.normalize = normalize

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the neighbours whose number is below their chance."""
        positions, rows = spans(self.neighbors.offsets, nodes)
        senders, degree = self.neighbors.ids[positions], self.neighbors.degree[nodes]
        chance = self.chances(rows, senders, degree)
        heard = rng.random(self.neighbors.num_nodes)[senders] < chance
        rows, scale = rows[heard], 1.0 / chance[heard]
        if self.normalize:
            scale *= (degree / np.maximum(np.bincount(rows, scale, minlength=len(degree)), 1.0))[rows]
        return Chosen(positions[heard], rows, scale)

    def chances(self, rows: Ints, senders: Ints, degree: Ints) -> Floats:
        """Return min(1, c_v pi_u) of every edge at the fixed point; (e,)."""
        kept = np.clip(degree, 1, self.fanout)
        importance = np.ones(self.neighbors.num_nodes)  # (n,) pi
        scale, before = kept / np.maximum(degree, 1), np.inf  # (v,) c
        for _ in range(ROUNDS):
            largest = np.zeros(len(importance))  # max_v c_v; 0 for those that send to none of the receivers
            np.maximum.at(largest, senders, scale[rows])
            importance *= largest
            scale = matched(importance[senders], rows, wanted=degree**2 / kept)
            expected = np.minimum(1.0, importance).sum()
            if expected >= before * (1 - NEAR):
                break
            before = expected
        chance = np.minimum(1.0, scale[rows] * importance[senders])
        chance[degree[rows] <= self.fanout] = 1.0  # exactly
        return chance


def matched(importance: Floats, rows: Ints, *, wanted: Floats) -> Floats:
    """Return c so that the sum of 1 / min(1, c pi) over each row is what is wanted; pi (e,) per edge, c (v,) per row.

    In y = 1 / c the sum is convex and piecewise linear: Newton's steps from above end exactly, after a few.

    >>> matched(np.array([1.0, 1.0, 4.0]), np.zeros(3, dtype=np.int64), wanted=np.array([5.0]))
    array([0.5])
    """
    inverse, count = 1.0 / importance, len(wanted)
    slope = np.bincount(rows, inverse, minlength=count)
    y = np.divide(wanted, slope, out=np.ones(count), where=slope > 0)
    for _ in range(ROUNDS):
        below = inverse * y[rows] > 1.0  # chances below 1
        slope = np.bincount(rows, inverse * below, minlength=count)
        certain = np.bincount(rows, ~below, minlength=count)
        new = np.divide(wanted - certain, slope, out=y.copy(), where=slope > 0)
        if np.abs(new - y).max(initial=0.0) <= 1e-12 * y.max(initial=1.0):
            break
        y = new
    return 1.0 / y
