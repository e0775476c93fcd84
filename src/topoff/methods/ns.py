"""Neighbour sampling (Hamilton, Ying, Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import nn
from torch_geometric.data import Data

from topoff.layered import Chosen, Ints, spans
from topoff.methods.layerwise_sampling import SampledLayers


class NeighbourSampling(SampledLayers):
    """Let every receiver hear a fixed number of its neighbours, drawn uniformly without replacement (Algorithm 2).

    Of d neighbours, k = min(fanout, d) are drawn and their weights multiplied with d / k: the sum is that of all
    neighbours on average, for any weights, and the mean of all is estimated by the sample's mean. A node's own row is
    never left out.

    Every model trains this way. Convs of the general path (attention, max, PNA) see the drawn neighbours alone,
    without the factor, as in the authors' code. Differences from that code: the same fan-out in all layers instead of
    25 and 10 (outer, inner), no replacement where a node has fewer neighbours than drawn, and any conv instead of the
    paper's aggregators.

    Args:
        model: any PyG model.
        data: the whole graph.
        fanout: neighbours per receiver and propagation.
        ratio: share of the training nodes per batch.
    """

    settings: ClassVar[tuple[str, ...]] = ("ratio", "fanout")

    def __init__(self, model: nn.Module, data: Data, *, fanout: int = 10, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        self.fanout = checked(fanout)

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose up to `fanout` neighbours of every node."""
        offsets, degree = self.neighbours.offsets, self.neighbours.degree[nodes]
        few, many = np.flatnonzero(degree <= self.fanout), np.flatnonzero(degree > self.fanout)
        positions, rows = spans(offsets, nodes[few])
        drawn = offsets[nodes[many]][:, None] + subsets(degree[many], self.fanout, rng)
        return Chosen(
            np.concatenate([positions, drawn.reshape(-1)]),
            np.concatenate([few[rows], np.repeat(many, self.fanout)]),
            np.concatenate([np.ones(len(rows)), np.repeat(degree[many] / self.fanout, self.fanout)]),
        )


def checked(fanout: int) -> int:
    """Return a fan-out that can be drawn.

    Raises:
        ValueError: for less than one neighbour.
    """
    if fanout < 1:
        raise ValueError(f"Expected fanout to be at least 1 (got {fanout}): use the method 'full' for all neighbours.")
    return fanout


def subsets(sizes: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Draw `count` distinct numbers below each size, every subset equally likely (Floyd's algorithm, all rows at once).

    The cost does not depend on the sizes, each of which is at least `count`; (r,) -> (r, count).

    >>> subsets(np.array([3, 10**12]), 3, np.random.default_rng(0)).shape
    (2, 3)
    """
    picked = np.empty((count if len(sizes) else 0, len(sizes)), dtype=np.int64)
    for number, share in enumerate(rng.random(picked.shape)):
        last = sizes - count + number  # the newcomer of this round: it steps in where the draw is taken already
        draw = (share * (last + 1)).astype(np.int64)
        taken = (picked[:number] == draw).any(axis=0)
        picked[number] = np.where(taken, last, draw)
    return picked.T.reshape(len(sizes), count)
