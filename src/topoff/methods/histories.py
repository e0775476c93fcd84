"""Histories: the last known embedding of every node, one table per propagation of a model (GAS, Eq. 8).

>>> import torch
>>> histories = Histories(3)
>>> histories.push("conv/0/0", torch.tensor([2]), torch.tensor([[1.0, 2.0]]))
>>> histories.pull("conv/0/0", torch.tensor([0, 2]), like=torch.zeros(1, 2))
tensor([[0., 0.],
        [1., 2.]])
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Histories:
    """Keep a table (n, d) per place in the forward; what was never pushed is zero."""

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self.tables: dict[str, Tensor] = {}

    def table(self, place: str, *, like: Tensor) -> Tensor:
        """Return the whole table of a place, (n, d); zeros at the first call, as wide as the rows `like` (b, d)."""
        if place not in self.tables:
            self.tables[place] = like.new_zeros((self.num_nodes, *like.shape[1:]))
        elif self.tables[place].device != like.device:
            self.tables[place] = self.tables[place].to(like.device)
        return self.tables[place]

    def load(self, tables: Mapping[str, Tensor], *, device: torch.device) -> None:
        """Take over a copy of all tables, such as those of a checkpoint."""
        self.tables = {place: rows.to(device, copy=True) for place, rows in tables.items()}

    def push(self, place: str, nodes: Tensor, rows: Tensor) -> None:
        """Write the rows of some nodes."""
        table = self.table(place, like=rows)
        table.index_copy_(0, nodes, rows.detach().to(table.dtype))

    def pull(self, place: str, nodes: Tensor, *, like: Tensor) -> Tensor:
        """Read a copy of the rows of some nodes; zeros, and still no table, where nothing was pushed yet."""
        if place not in self.tables:
            return like.new_zeros((nodes.numel(), *like.shape[1:]))
        return self.table(place, like=like).index_select(0, nodes)
