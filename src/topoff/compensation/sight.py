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

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from topoff.compensation.principal import full_precision
from topoff.forward.structure import Structure
from topoff.graph.operators import Operator, full_type
from topoff.machine.scan import picked
from topoff.machine.shelf import Shelf

Way = Operator | str  # how messages come in: through an operator, or on the general path through a neighbourhood


class Sight:
    """Say where in one matrix (s, d) the rows and messages of every batch are."""

    def __init__(self, structures: Sequence[Structure], *, shelf: Shelf | None = None) -> None:
        """Count the rows of some batches; `shelf` is where matrices of all nodes lie."""
        self.structures, self.shelf, self.size = structures, shelf, 0
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
        seen = rows.new_empty((self.size, rows.size(1)), dtype=full_type(rows.dtype))
        for group in gathered(self.structures, rows, shelf=self.shelf):
            near = group.rows.to(seen.dtype)
            for number, structure in zip(group.numbers, group.structures, strict=True):
                own, *messages = self._places[id(self.structures[number])]
                seen[own] = near[structure.nodes]
                for place, way in zip(messages, ways_into(structure), strict=True):
                    seen[place] = incoming(structure, way, near)
        return seen

    def own(self, structure: Structure, seen: Tensor) -> Tensor:
        """Return the batch's own rows; (b, d)."""
        return seen[self._places[id(structure)][0]]

    @property
    def count(self) -> int:
        """Count the batches' own rows."""
        return sum(structure.nodes.numel() for structure in self.structures)

    def norm(self, seen: Tensor) -> float:
        """Return the norm of the batches' own rows."""
        return math.hypot(*(float(torch.linalg.vector_norm(self.own(each, seen))) for each in self.structures))

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


@dataclass(frozen=True)
class Group:
    """Hold some batches that read rows together, and these rows; nodes are numbered by their place among them."""

    numbers: range  # of the batches
    structures: Sequence[Structure]
    rows: Tensor  # (u, d)


def gathered(structures: Sequence[Structure], rows: Tensor, *, shelf: Shelf | None = None) -> Iterator[Group]:
    """Yield all batches with the rows (n, d) that they read: all of them, of a matrix in memory.

    One that lies on a shelf's disk is walked from end to end, once for as many batches as may have their rows in memory
    together: a random read for every row would take hours.
    """
    if shelf is None or not shelf.is_away(rows):
        yield Group(range(len(structures)), structures, rows)
        return
    most, first = shelf.room() // max(1, rows.size(1) * full_type(rows.dtype).itemsize), 0
    while first < len(structures):
        last, size = first + 1, _count(structures[first])
        while last < len(structures) and size + _count(structures[last]) <= most:
            last, size = last + 1, size + _count(structures[last])
        group = structures[first:last]
        nodes = torch.unique(torch.cat([ids for structure in group for ids in _read_by(structure)]))
        yield Group(range(first, last), [_among(nodes, each) for each in group], picked(rows, nodes))
        first = last


def _read_by(structure: Structure) -> list[Tensor]:
    """Return the nodes whose rows a batch reads: its own, and those of its halo, these several times."""
    found = [spot.halo.ids for spot in structure.spots.values()]
    return [structure.nodes, *(each.long() for each in found), *(near.halo for near in structure.around.values())]


def _count(structure: Structure) -> int:
    """Count the rows that a batch reads, or a few more."""
    return sum(map(len, _read_by(structure)))


def _among(nodes: Tensor, structure: Structure) -> Structure:
    """Return a batch whose nodes are numbered by their place among some, which are ascending."""
    spots, around = {}, {}
    for operator, spot in structure.spots.items():
        ids = torch.searchsorted(nodes, spot.halo.ids.long()).to(spot.halo.ids.dtype)
        spots[operator] = replace(spot, halo=replace(spot.halo, ids=ids, shape=(spot.halo.shape[0], len(nodes))))
    for flow, near in structure.around.items():
        around[flow] = replace(near, halo=torch.searchsorted(nodes, near.halo))
    return replace(structure, nodes=torch.searchsorted(nodes, structure.nodes), spots=spots, around=around)
