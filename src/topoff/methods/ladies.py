"""LADIES (Zou et al., NeurIPS 2019): every propagation hears a few nodes, drawn from the neighbours of its receivers.

Algorithm 1 goes from the last layer back: given the receivers S of a propagation, it draws s nodes with the
probabilities of Eq. 5, q(u) proportional to the sum of A[v, u]^2 over v in S, zero for all but neighbours of S. A
message A[v, u] h[u] is multiplied with m(u) / (s q(u)), where m(u) says how often u was drawn.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import nn
from torch_geometric.data import Data

from topoff.forward.neighbours import Chosen, Floats, Ints, Neighbours
from topoff.methods.fastgcn import messages_of, nodes_per_step, squared_weights, times_drawn, weights_of
from topoff.methods.sampled_layers import SampledLayers


class Ladies(SampledLayers):
    """Draw ratio * n nodes per propagation among the neighbours of its receivers.

    It holds for models of linear convs, with the operator of each; where a model has several, their squares are added.
    Convs of the general path (GAT, max) get the edges from the drawn nodes without weights, which is biased: attention
    and means adapt to the neighbours that are there, a sum is too small. A model of those alone is sampled as if its
    operator were the mean. Where the receivers have no more than s neighbours, all are taken and nothing is estimated.

    Differences from the authors' code: a node's own row is always there and is never sampled (the blocks are nested, so
    that root weights and residuals work), hence A is taken without its diagonal in q and in the sampled messages. The
    authors draw without replacement and divide each row of the sampled matrix by its sum; that is `normalise`.

    Args:
        model: any PyG model; it is called, never changed.
        data: the whole graph.
        normalise: draw without replacement, and scale the messages of every receiver so that their weights add up to
            those of all its neighbours (for the authors' operator, whose rows add up to one, their division). Biased;
            without it, one propagation is right on average. It trained better where few nodes are drawn: after five
            epochs on WordNet (ratio 0.02, two layers, one seed), GCN came to 63.2 against 59.5 % of the validation
            nodes and SAGE to 69.5 against 63.3 %; on small graphs of communities at ratio 0.1 the two were within a
            point, either way.
        shared: see `MiniBatches`.
    """

    settings: ClassVar[tuple[str, ...]] = ("ratio",)

    def __init__(self, model: nn.Module, data: Data, *, normalise: bool = True, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        self.normalise = normalise

    def begin(self) -> None:
        """Compute what the probabilities of all batches are made of."""
        super().begin()
        self.nodes_per_step = nodes_per_step(self.ratio, self.graph.num_nodes)
        self._squares = squared_weights(self.neighbours)  # (m,)
        self._sizes = absolute_weights(self.neighbours)  # (m,)

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages of nodes drawn among the receivers' neighbours, or all where they are few."""
        messages = self.neighbours.all_of(nodes)
        if count_senders(self.neighbours, messages) <= self.nodes_per_step:
            return messages
        chances = shares(self.neighbours, messages, self._squares)  # q of Eq. 5
        if not self.normalise:
            drawn = times_drawn(chances, self.nodes_per_step, rng)
            return messages_of(self.neighbours, messages, weights_of(drawn, chances))
        drawn = drawn_once(chances, self.nodes_per_step, rng)
        chosen = messages_of(self.neighbours, messages, weights_of(drawn, chances))
        return normalised(chosen, messages, self._sizes)


def absolute_weights(neighbours: Neighbours) -> Floats:
    """Return |A[v, u]| beside `neighbours.ids`, added over the operators; one each where there are none; (m,)."""
    if not neighbours.weights:
        return np.ones(len(neighbours.ids))
    sizes: Floats = np.sum([np.abs(weights) for weights in neighbours.weights.values()], axis=0)
    return sizes


def count_senders(neighbours: Neighbours, messages: Chosen) -> int:
    """Count the distinct nodes that send some messages."""
    return len(np.unique(neighbours.ids[messages.positions]))


def shares(neighbours: Neighbours, messages: Chosen, importance: Floats) -> Floats:
    """Return every sender's share of the importance, (m,), of some messages; (n,), zero where none has any."""
    senders = neighbours.ids[messages.positions]
    sums = np.bincount(senders, weights=importance[messages.positions], minlength=neighbours.num_nodes)
    found: Floats = sums / max(sums.sum(), np.finfo(np.float64).tiny)
    return found


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


def normalised(chosen: Chosen, messages: Chosen, sizes: Floats) -> Chosen:
    """Scale the chosen messages of every receiver so that their sizes, (m,), add up to those of all its messages."""
    receivers = int(messages.rows.max(initial=-1)) + 1
    wanted = np.bincount(messages.rows, weights=sizes[messages.positions], minlength=receivers)
    found = np.bincount(chosen.rows, weights=sizes[chosen.positions] * chosen.scale, minlength=receivers)
    factor = np.divide(wanted, found, out=np.ones(receivers), where=found > 0)
    return Chosen(chosen.positions, chosen.rows, chosen.scale * factor[chosen.rows])
