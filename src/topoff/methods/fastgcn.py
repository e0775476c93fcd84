"""FastGCN (Chen, Ma, Xiao, ICLR 2018): every propagation hears a few nodes, drawn from the whole graph.

Algorithm 2: each layer draws s nodes with replacement, independently of the others, with the probabilities of Eq. 10,
q(u) = ||A[:, u]||^2 / sum_w ||A[:, w]||^2. A message A[v, u] h[u] is multiplied with m(u) / (s q(u)), where m(u) says
how often u was drawn, so that one propagation is right on average: E[m(u)] = s q(u).
"""

from __future__ import annotations

import numpy as np

from topoff.forward.neighbours import Chosen, Floats, Ints, Neighbours
from topoff.methods.sampled_layers import PrecomputedFirst


class FastGcn(PrecomputedFirst):
    """Draw ratio * n nodes per propagation by the norms of the operator's columns.

    It holds for models of linear convs, with the operator of each; where a model has several, the squares of their
    columns are added. Convs of the general path (GAT, max) get the edges from the drawn nodes without weights, which is
    biased: attention and means adapt to the neighbours that are there, a sum is too small. A model of those alone is
    sampled as if its operator were the mean.

    Differences from the authors' code: a node's own row is always there and is never sampled (the blocks are nested, so
    that root weights and residuals work), hence A is taken without its diagonal in q and in the sampled messages, and
    with its diagonal in what is exact; all nodes of the graph can be drawn, not only those of training. As in theirs,
    the first propagation is precomputed, where a linear conv reads the raw features. Drawn nodes that are neighbours of
    no receiver send nothing and are left out of the batch.
    """

    def begin(self) -> None:
        """Compute the probabilities once: they depend on the graph and the operators only."""
        super().begin()
        self.nodes_per_step = nodes_per_step(self.ratio, self.graph.num_nodes)
        squares, n = squared_weights(self.neighbours), self.graph.num_nodes
        importance = np.bincount(self.neighbours.ids, weights=squares, minlength=n)
        self.chances = importance / max(importance.sum(), np.finfo(np.float64).tiny)  # (n,) q, zero without edges

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages of the nodes that this step draws."""
        drawn = times_drawn(self.chances, self.nodes_per_step, rng)
        return messages_of(self.neighbours, self.neighbours.all_of(nodes), weights_of(drawn, self.chances))


def nodes_per_step(ratio: float, num_nodes: int) -> int:
    """Return how many nodes a step draws: as many as the batches of other methods hold, at least one.

    >>> nodes_per_step(0.1, 57), nodes_per_step(0.01, 3)
    (6, 1)
    """
    return max(1, round(ratio * num_nodes))


def squared_weights(neighbours: Neighbours) -> Floats:
    """Return A[v, u]^2 beside `neighbours.ids`, added over the operators; of the mean where there are none; (m,)."""
    if not neighbours.weights:
        receiver = np.repeat(np.arange(neighbours.num_nodes), neighbours.degree)
        return 1.0 / neighbours.degree[receiver].astype(np.float64) ** 2
    squares: Floats = np.sum([weights**2 for weights in neighbours.weights.values()], axis=0)
    return squares


def times_drawn(chances: Floats, draws: int, rng: np.random.Generator) -> Ints:
    """Draw with replacement; return how often each item came, for chances up to a common factor; same shape.

    >>> times_drawn(np.array([0.0, 2.0, 0.0]), 5, np.random.default_rng(0))
    array([0, 5, 0])
    """
    cumulative = np.cumsum(chances)
    if len(chances) == 0 or cumulative[-1] == 0:
        return np.zeros(len(chances), dtype=np.int64)
    picked = np.searchsorted(cumulative, rng.random(draws) * cumulative[-1], side="right")  # never one with chance 0
    return np.bincount(picked, minlength=len(chances))


def weights_of(drawn: Ints, chances: Floats) -> Floats:
    """Return m(u) / (s q(u)) of every node, 0 where it was not drawn: 1 on average; (n,).

    >>> weights_of(np.array([0, 1, 3]), np.array([0.25, 0.25, 0.5]))
    array([0. , 1. , 1.5])
    """
    weights: Floats = np.divide(drawn, drawn.sum() * chances, out=np.zeros(len(drawn)), where=drawn > 0)
    return weights


def messages_of(neighbours: Neighbours, messages: Chosen, weights: Floats) -> Chosen:
    """Keep the messages of the nodes with a weight, (n,), and multiply them with it."""
    scale = weights[neighbours.ids[messages.positions]]
    kept = scale > 0
    return Chosen(messages.positions[kept], messages.rows[kept], scale[kept])
