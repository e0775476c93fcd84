"""What all methods share that sample messages layer by layer: targets, blocks, and the outputs of every node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from topoff.layered import Chosen, Ints, Layered, allows_trimming, neighbours_of
from topoff.methods.minibatch import MiniBatches


class SampledLayers(MiniBatches):
    """Draw the messages of every layer for a batch of training nodes; a method says which.

    An epoch visits every training node once, in `round(1 / ratio)` batches.
    """

    @abstractmethod
    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages that arrive at some nodes in a step (0 is the first propagation)."""

    def begin(self) -> None:
        """Sort the neighbours, and see whether rows can be dropped on the way."""
        self.neighbours = neighbours_of(self.graph, self.plan)
        self.layered = self.layers()
        self.layered.trims = allows_trimming(self.model, self.neighbours, self.plan)
        self._ordered_for = -1  # epoch of the targets at hand
        self._training = self.data.train_mask.nonzero().view(-1).numpy()

    def layers(self) -> Layered:
        """Return what stands in for the model's message passing."""
        return Layered(self.plan.convs)

    def batch(self, epoch: int, number: int) -> Data:
        """Return the blocks of some training nodes."""
        if self._ordered_for != epoch:
            order = self.rng(epoch, 2).permutation(self._training)
            self._ordered_for, self._targets = epoch, np.array_split(order, len(self))
        return self._sampled(self._targets[number], self.rng(epoch, number, 3))

    def cover(self) -> Iterator[Data]:
        """Yield the blocks of all nodes."""
        pieces = np.array_split(np.arange(self.graph.num_nodes), len(self))
        return (self._sampled(piece, self.rng(self.epoch, number, 4)) for number, piece in enumerate(pieces))

    def _sampled(self, targets: Ints, rng: np.random.Generator) -> Data:
        def choose(nodes: Ints, step: int) -> Chosen:
            """Choose with this batch's generator."""
            return self.choose(nodes, step, rng)

        return self.neighbours.batch(targets, depth=self.plan.depth, choose=choose)

    def forward(self, batch: Data) -> Tensor:
        """Return the outputs of a batch's targets; (batch_size, out)."""
        with self.layered.on(batch), self._dropout():
            out: Any = self._run(self.model, batch)
        return out[: batch.batch_size]  # type: ignore[no-any-return]
