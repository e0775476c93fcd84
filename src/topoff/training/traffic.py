"""Bytes that pass between processes: what a run has sent, and what other methods would send on the same partition.

Every process computes the batches whose nodes it owns. With GAS it reads, for every batch and every hidden layer, the
histories of the halo nodes that others own; its own rows it writes at home. With neighbour sampling it reads the
features of the sampled nodes that others own, `FANOUT` per node and hop, one hop less than there are layers, for A X is
known to both. All send the same gradients besides.

>>> edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
>>> cut = Cut(edges, [torch.tensor([0, 1]), torch.tensor([2, 3])], owner=torch.tensor([0, 0, 1, 1]), processes=2)
>>> cut.halo_rows()  # node 1 for the second batch, node 3 for the first
2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from topoff.batching.pagerank import senders
from topoff.batching.samplers import some_of

FANOUT = 10  # as our neighbour sampling has it
DRAWN = 8  # batches that are sampled; all others are taken to be like them


@dataclass(frozen=True)
class Cut:
    """Hold how a graph is shared out: batch b is computed by process b modulo their number."""

    edge_index: Tensor  # (2, E)
    sets: Sequence[Tensor]  # the nodes of every batch
    owner: Tensor  # (n,) the process that has a node's rows
    processes: int

    def halo_rows(self) -> int:
        """Count the rows of an epoch that batches read of nodes that another process owns."""
        batch = torch.full_like(self.owner, -1)
        for number, nodes in enumerate(self.sets):
            batch[nodes] = number
        source, target = self.edge_index
        into = batch[target]
        away = ((into >= 0) & (self.owner[source] != into % self.processes)).nonzero().view(-1)
        return len(torch.unique(into[away] * len(self.owner) + source[away]))

    def sampled_rows(self, train_mask: Tensor, *, hops: int, seed: int = 0) -> int:
        """Estimate the rows of an epoch that neighbour sampling reads of nodes that another process owns."""
        offsets, ids = senders(self.edge_index, len(self.owner))
        owner, rows, rng = self.owner.numpy(), 0, np.random.default_rng(seed)
        chosen = range(0, len(self.sets), max(1, len(self.sets) // DRAWN))
        for number in chosen:
            nodes = self.sets[number][train_mask[self.sets[number]]].numpy()
            for _ in range(hops):
                positions, _ = some_of(offsets, nodes, fanout=FANOUT, rng=rng)
                nodes = np.unique(np.concatenate([nodes, ids[positions]]))
            rows += int((owner[nodes] != number % self.processes).sum())
        return round(rows * len(self.sets) / len(chosen))


def rivals_bytes(cut: Cut, *, train_mask: Tensor, layers: int, hidden: int, features: int, size: int) -> dict[str, int]:
    """Estimate what GAS and neighbour sampling send per epoch, besides gradients; numbers have `size` bytes."""
    gas = cut.halo_rows() * hidden * (layers - 1) * size
    return {"gas": gas, "ns": cut.sampled_rows(train_mask, hops=layers - 1) * features * size}
