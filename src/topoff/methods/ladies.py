"""LADIES (Zou et al., NeurIPS 2019): every propagation hears a few nodes, drawn from the neighbours of its receivers.

Algorithm 1 goes from the last layer back: given the receivers S of a propagation, it draws s nodes with the
probabilities of Eq. 5, q(u) proportional to the sum of A[v, u]^2 over v in S, zero for all but neighbours of S. A
message A[v, u] h[u] is multiplied with m(u) / (s q(u)), where m(u) says how often u was drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn
from torch_geometric.data import Data

from topoff.forward.neighbours import Chosen, Floats, Ints
from topoff.methods.fastgcn import messages_of, shares, squared_weights, times_drawn, weights_of
from topoff.methods.sampled_layers import SampledLayers


class Ladies(SampledLayers):
    """Draw ratio * n nodes per propagation among the neighbours of its receivers.

    General convs, several operators and a node's own row are treated as in `FastGcn`. Where the receivers have no more
    than s neighbours, all are taken and nothing is estimated.

    Args (and those of `SampledLayers`):
        normalize: as the authors' code, draw without replacement, and scale the messages of every receiver so that
            their weights add up to those of all its neighbours (the authors divide by row sums, whose operator's are
            one). Biased; without it, one propagation is right on average. It trained better where few nodes are drawn:
            after five epochs on WordNet (ratio 0.02, two layers, one seed), GCN came to 63.2 against 59.5 % of the
            validation nodes and SAGE to 69.5 against 63.3 %; on small graphs of communities at ratio 0.1 the two were
            within a point, either way.
    """

    def __init__(self, model: nn.Module, data: Data, *, normalize: bool = True, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        self.normalize = normalize

    def begin(self) -> None:
        """Compute what the probabilities of all batches are made of."""
        super().begin()
        self._squares = squared_weights(self.neighbors)  # (m,)
        weights = list(self.neighbors.weights.values()) or [np.ones(len(self.neighbors.ids))]
        self._sizes: Floats = np.sum(np.abs(weights), axis=0)  # (m,) |A[v, u]|, added over the operators

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages of nodes drawn among the receivers' neighbours, or all where they are few."""
        messages = self.neighbors.all_of(nodes)
        if len(np.unique(self.neighbors.ids[messages.positions])) <= self.nodes_per_step:
            return messages
        chances = shares(self.neighbors, messages, self._squares)  # q of Eq. 5
        draw = drawn_once if self.normalize else times_drawn
        drawn = draw(chances, self.nodes_per_step, rng)
        chosen = messages_of(self.neighbors, messages, weights_of(drawn, chances))
        return normalized(chosen, messages, self._sizes) if self.normalize else chosen


def drawn_once(chances: Floats, draws: int, rng: np.random.Generator) -> Ints:
    """Draw without replacement, one after the other; return 1 for the items that came, else 0; same shape.

    The items with the smallest exponential times at rates `chances` come first: successive draws in one pass.

    >>> drawn_once(np.array([0.0, 2.0, 0.5]), 5, np.random.default_rng(0))
    array([0, 1, 1])
    """
    possible = np.flatnonzero(chances)
    times = rng.exponential(size=len(possible)) / chances[possible]
    first = np.argpartition(times, draws - 1)[:draws] if draws < len(possible) else np.arange(len(possible))
    drawn = np.zeros(len(chances), dtype=np.int64)
    drawn[possible[first]] = 1
    return drawn


def normalized(chosen: Chosen, messages: Chosen, sizes: Floats) -> Chosen:
    """Scale the chosen messages of every receiver so that their sizes, (m,), add up to those of all its messages."""
    receivers = int(messages.rows.max(initial=-1)) + 1
    wanted = np.bincount(messages.rows, weights=sizes[messages.positions], minlength=receivers)
    found = np.bincount(chosen.rows, weights=sizes[chosen.positions] * chosen.scale, minlength=receivers)
    factor = np.divide(wanted, found, out=np.ones(receivers), where=found > 0)
    return Chosen(chosen.positions, chosen.rows, chosen.scale * factor[chosen.rows])
