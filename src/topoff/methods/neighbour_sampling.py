"""Neighbour sampling (Hamilton, Ying, Leskovec, Inductive Representation Learning on Large Graphs, NeurIPS 2017)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import nn
from torch_geometric.data import Data

from topoff.batching.samplers import some_of
from topoff.forward.neighbours import Chosen, Ints
from topoff.methods.sampled_layers import SampledLayers


class NeighborSampling(SampledLayers):
    """Let every receiver hear a fixed number of its neighbours, drawn uniformly without replacement (Algorithm 2).

    Of d neighbours, k = min(fanout, d) are drawn and their weights multiplied with d / k: the sum is that of all
    neighbours on average, for any weights, and the mean of all is estimated by the sample's mean. A node's own row is
    never left out.

    Where linear convs read the raw features, nothing is sampled: A X is known (`exact_first`, see `SampledLayers`).

    Every model trains this way. General convs (attention, max, PNA) see the drawn neighbours alone, without the factor,
    as in the authors' code. Differences from that code: the same fan-out in all layers instead of 25 and 10 (outer,
    inner), no replacement where a node has fewer neighbours than drawn, and any conv instead of the paper's
    aggregators.

    Args (and those of `SampledLayers`):
        fanout: neighbours per receiver and propagation.

    >>> import torch
    >>> from torch_geometric.nn import GCN
    >>> from topoff.data.load import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> method = NeighborSampling(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, fanout=1)
    >>> method.prepare()
    >>> [method.forward(batch).shape for batch in method.batches()]  # of 12 training nodes
    [torch.Size([6, 2]), torch.Size([6, 2])]
    """

    settings: ClassVar[tuple[str, ...]] = ("ratio", "fanout")

    def __init__(self, model: nn.Module, data: Data, *, fanout: int = 10, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        if fanout < 1:
            raise ValueError(
                f"Expected fanout to be at least 1 (got {fanout}): use the method 'full' for all neighbours."
            )
        self.fanout = fanout

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose up to `fanout` neighbours of every node."""
        positions, rows = some_of(self.neighbors.offsets, nodes, fanout=self.fanout, rng=rng)
        degree = self.neighbors.degree[nodes]
        return Chosen(positions, rows, (degree / np.minimum(degree, self.fanout).clip(min=1))[rows])
