"""FastGCN (Chen, Ma, Xiao, ICLR 2018): every propagation hears a few nodes, drawn by the norms of its columns.

Algorithm 2: each layer draws s nodes with replacement, independently of the others, with the probabilities of Eq. 10,
q(u) = ||A[:, u]||^2 / sum_w ||A[:, w]||^2. A message A[v, u] h[u] is multiplied with m(u) / (s q(u)), where m(u) says
how often u was drawn, so that one propagation is right on average: E[m(u)] = s q(u).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn
from torch_geometric.data import Data

from topoff.forward.neighbours import Chosen, Floats, Ints, Neighbors
from topoff.methods.sampled_layers import SampledLayers

AMONG = ("graph", "neighbours")  # which nodes a step draws from


class FastGcn(SampledLayers):
    """Draw ratio * n nodes per propagation by the norms of the operator's columns.

    It holds for linear convs; where a model has several operators, the squares of their columns are added. General
    convs (GAT, max) get the edges from the drawn nodes without weights, which is biased: attention and means adapt to
    the neighbours that are there, a sum is too small. A model of those alone is sampled as if its operator were the
    mean.

    As in the authors' code, the first propagation is precomputed, where a linear conv reads the raw features. What
    differs: a node's own row is always there (the blocks are nested), hence A is taken without its diagonal in q and in
    the sampled messages; all nodes can be drawn, not only those of training.

    Args (and those of `SampledLayers`):
        among: "graph" draws from all nodes, as in the paper: those that no receiver hears are drawn in vain.
            "neighbours" draws among those of the receivers, as the authors' code does, by q restricted to them, and
            takes all where they are no more than s. The code draws without replacement and divides by the q of the
            whole graph, which is biased; here one propagation is right on average, either way. At equal seconds the
            paper's smaller batches serve the method better: after 6 CPU seconds on Computers (GCN 3 x 128, ratio 0.05,
            two seeds) it came to 84.1 % of the validation nodes in 279 steps, against 82.5 % in 177.
    """

    def __init__(self, model: nn.Module, data: Data, *, among: str = "graph", **shared: Any) -> None:
        super().__init__(model, data, **shared)
        if among not in AMONG:
            raise ValueError(f"Expected 'among' to be one of {', '.join(AMONG)} (got '{among}'); choose one of them.")
        self.among = among

    def begin(self) -> None:
        """Compute the probabilities once: they depend on the graph and the operators only."""
        super().begin()
        everything = self.neighbors.all_of(np.arange(self.graph.num_nodes))
        self.chances = shares(self.neighbors, everything, squared_weights(self.neighbors))  # (n,) q

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages of the nodes that this step draws."""
        messages, chances = self.neighbors.all_of(nodes), self.chances
        if self.among == "neighbours":
            heard = np.zeros(len(chances), dtype=bool)
            heard[self.neighbors.ids[messages.positions]] = True
            if heard.sum() <= self.nodes_per_step:
                return messages
            chances = chances * heard
            chances /= chances.sum()
        return messages_of(
            self.neighbors, messages, weights_of(times_drawn(chances, self.nodes_per_step, rng), chances)
        )


def squared_weights(neighbors: Neighbors) -> Floats:
    """Return A[v, u]^2 beside `neighbors.ids`, added over the operators; of the mean where there are none; (m,)."""
    if not neighbors.weights:
        receiver = np.repeat(np.arange(neighbors.num_nodes), neighbors.degree)
        return 1.0 / neighbors.degree[receiver].astype(np.float64) ** 2
    squares: Floats = np.sum([weights**2 for weights in neighbors.weights.values()], axis=0)
    return squares


def shares(neighbors: Neighbors, messages: Chosen, importance: Floats) -> Floats:
    """Return every sender's share of the importance, (m,), of some messages; (n,), zero where none has any."""
    senders = neighbors.ids[messages.positions]
    sums = np.bincount(senders, weights=importance[messages.positions], minlength=neighbors.num_nodes)
    found: Floats = sums / max(sums.sum(), np.finfo(np.float64).tiny)
    return found


def times_drawn(chances: Floats, draws: int, rng: np.random.Generator) -> Ints:
    """Draw with replacement; return how often each item came, for chances up to a common factor; same shape."""
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


def messages_of(neighbors: Neighbors, messages: Chosen, weights: Floats) -> Chosen:
    """Keep the messages of the nodes with a weight, (n,), and multiply them with it."""
    scale = weights[neighbors.ids[messages.positions]]
    kept = scale > 0
    return Chosen(messages.positions[kept], messages.rows[kept], scale[kept])
