"""Batches as the paper draws them for its tables: so many of the clusters each, the last one with what is left.

The paper cuts a graph into 200 clusters and samples 20, 40, ... 100 of them (Section 5.2). 60 of 200 make three batches
of 60 clusters and one of 20, where `NodeSets` would make three of a third each.

>>> import torch
>>> from torch_geometric.data import Data
>>> ring = Data(edge_index=torch.stack([torch.arange(40), torch.arange(40).roll(-1)]), num_nodes=40)
>>> sets = DrawnSets(method="metis", parts=10, each=3).fit(ring)
>>> len(sets), [round(nodes.numel() / 4) for nodes in sets.of(0)]
(4, [3, 3, 3, 1])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from topoff.batching.node_sets import NodeSets
from topoff.batching.pattern import Ints


@dataclass(kw_only=True, eq=False)
class DrawnSets(NodeSets):
    """Deal shuffled clusters, `each` to a batch; nothing is balanced.

    Attributes:
        each: clusters of a batch.
    """

    each: int = 1

    def __post_init__(self) -> None:
        """Say what share of the graph a batch is.

        Raises:
            ValueError: there are no clusters to draw, or fewer than a batch has.
        """
        if self.parts is None or not 1 <= self.each <= self.parts:
            raise ValueError(f"Expected 'each' to be between 1 and 'parts' (got {self.each} and {self.parts}).")
        self.ratio = self.each / self.parts

    def __len__(self) -> int:
        """Count the batches of an epoch; the last one may be smaller."""
        assert self.parts is not None
        return -(-self.parts // self.each)

    def _grouped(self, parts: Tensor, nodes: Ints, *, epoch: int) -> list[Tensor]:
        part = parts.numpy()[nodes]
        found = np.unique(part)
        order = np.random.default_rng([self.seed, epoch]).permutation(found)
        batch = np.empty(int(found.max()) + 1, dtype=np.int64)
        batch[order] = np.arange(len(order)) // self.each
        where = batch[part]
        sorted_nodes = nodes[np.lexsort((nodes, part, where))]
        stops = np.cumsum(np.bincount(where))[:-1]
        return [torch.from_numpy(piece) for piece in np.split(sorted_nodes, stops)]
