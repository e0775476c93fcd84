"""What batches see of the embeddings of all nodes: their own rows, and the messages that come in from outside.

An estimate needs no more, so where batches hold few of the nodes (`train_only`), this is kept of each n x d matrix, and
the matrix is let go at once.

>>> import torch
>>> from topoff.forward.plan import Plan
>>> from topoff.forward.structure import structure_of
>>> from topoff.graph.graph import Graph
>>> from torch_geometric.data import Data
>>> path = Graph(Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]])))
>>> structure = structure_of(path, Plan([], (Operator(),), ()), torch.tensor([1, 2]))
>>> sight = Sight([structure])
>>> seen = sight.of(torch.tensor([[5.0], [6.0], [7.0], [8.0]]))
>>> sight.own(structure, seen).tolist(), sight.message(structure, Operator(), seen).tolist()
([[6.0], [7.0]], [[5.0]])
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from topoff.compensation.principal import full_precision
from topoff.forward.structure import Structure
from topoff.graph.operators import Operator, full_type

Way = Operator | str  # how messages come in: through an operator, or on the general path through a neighbourhood


class Sight:
    """Say where in one matrix (s, d) the rows and messages of every batch are."""

    def __init__(self, structures: Sequence[Structure]) -> None:
        """Count the rows of some batches."""
        self.structures, self.size = structures, 0
        self._places: dict[int, list[slice]] = {}  # own rows, then the messages of each way
        for structure in structures:
            sizes = [structure.nodes.numel(), *(spot.boundary.numel() for spot in structure.spots.values())]
            sizes += [near.halo.numel() for near in structure.around.values()]
            places = []
            for size in sizes:
                places.append(slice(self.size, self.size + size))
                self.size += size
            self._places[id(structure)] = places

    @full_precision()
    def of(self, rows: Tensor) -> Tensor:
        """Return what the batches see of rows of all nodes; (n, d) -> (s, d)."""
        rows = rows.to(full_type(rows.dtype))
        seen = rows.new_empty(self.size, rows.size(1))
        for structure in self.structures:
            own, *messages = self._places[id(structure)]
            seen[own] = rows[structure.nodes]
            for place, way in zip(messages, ways_into(structure), strict=True):
                seen[place] = incoming(structure, way, rows)
        return seen

    def own(self, structure: Structure, seen: Tensor) -> Tensor:
        """Return the batch's own rows; (b, d)."""
        return seen[self._places[id(structure)][0]]

    def message(self, structure: Structure, way: Way, seen: Tensor) -> Tensor:
        """Return what comes into the batch by one way; (r, d) or (c, d)."""
        return seen[self._places[id(structure)][1 + ways_into(structure).index(way)]]


def ways_into(structure: Structure) -> list[Way]:
    """Return all ways by which messages come into a batch."""
    return [*structure.spots, *structure.around]


def incoming(structure: Structure, way: Way, rows: Tensor) -> Tensor:
    """Return the messages from outside, A[B, C] H_C, or rows of the halo on the general path; from rows (n, d)."""
    if isinstance(way, Operator):
        return structure.spots[way].halo @ rows
    return rows[structure.around[way].halo]
