"""Layer-neighbour sampling, LABOR (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023)."""

from __future__ import annotations

import numpy as np

from topoff.batching.samplers import spans
from topoff.forward.neighbours import Chosen, Floats, Ints
from topoff.methods.neighbour_sampling import NeighborSampling

NEAR = 1e-4  # relative change of the expected number of senders at which the iteration stops, as the authors' code
ROUNDS = 100  # at most; the sum is right on average wherever the iteration stops


class Labor(NeighborSampling):
    """Let receivers draw from the same dice, so that they hear the same neighbours: LABOR-0 (Section 3.2).

    Every sender u has one number r_u, uniform in [0, 1), for all receivers of a step; receiver v hears u where
    r_u < min(1, c_v pi_u), with pi = 1 and c_v = min(fanout, d_v) / d_v, that is min(fanout, d_v) of its neighbours on
    average. Weights are divided by that chance (Horvitz-Thompson), so that the sum is right on average. A node's own
    row is never left out, and general convs are treated as in `NeighborSampling`.

    Difference from the authors' code: it divides by the sum of the factors (Hajek), which has less variance but is
    biased; a receiver that draws nobody hears nobody in either.
    """

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the neighbours whose number is below their chance."""
        positions, rows = spans(self.neighbors.offsets, nodes)
        senders = self.neighbors.ids[positions]
        chance = self.chances(rows, senders, self.neighbors.degree[nodes])
        heard = rng.random(self.neighbors.num_nodes)[senders] < chance
        return Chosen(positions[heard], rows[heard], 1.0 / chance[heard])

    def chances(self, rows: Ints, senders: Ints, degree: Ints) -> Floats:
        """Return min(1, c_v pi_u) of every edge; (e,)."""
        return np.minimum(1.0, self.fanout / np.maximum(degree, 1))[rows]


class LaborStar(Labor):
    """Choose the chances so that as few distinct senders as possible are heard: LABOR-* (Section 3.3).

    As `Labor`, with pi from the fixed point of pi_u <- pi_u max_v c_v over the receivers v of u, where c_v keeps the
    variance of neighbour sampling: sum_u 1 / min(1, c_v pi_u) = d_v^2 / min(fanout, d_v) (Eq. 14). Each round makes
    the expected number of distinct senders, sum_u min(1, pi_u max_v c_v), smaller; a receiver hears `fanout` senders
    on average or, as the price of equal variance, some more.

    The paper's edge weights A_ts are 1 here, as in its experiments: one choice serves all operators of a model,
    whose weights enter the sum only.
    """

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
