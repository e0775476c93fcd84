"""How much of the messages from outside a compensation misses: per batch and pooled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from topoff.compensation.factors import ways_of
from topoff.compensation.sight import Sight, gathered
from topoff.forward.plan import Plan
from topoff.graph.operators import full_type
from topoff.machine.shelf import Shelf

COLUMNS = 32  # of each layer that a certificate looks at
COPIED = 2**27  # bytes of such columns that are copied, so that batches need not pick their rows out of all


@dataclass(frozen=True)
class BatchReport:
    """Describe the compensation of one batch."""

    nodes: int
    boundary: int  # rows that receive messages from outside, or halo nodes on the general path
    rank: int  # directions that carry energy
    condition: float  # of the matrix that was inverted
    certificate: float  # share of the messages from outside that is missed


def describe_batch(batch: Data, certificate: float) -> BatchReport:
    """Collect what is known of a batch's compensation."""
    structure, compensation = batch.supplement.structure, batch.get("compensation")
    rows = [spot.outer for spot in structure.spots.values()]
    rows += [near.halo.numel() for near in structure.around.values()]
    rank, condition = (0, 1.0) if compensation is None else (compensation.rank, compensation.condition)
    return BatchReport(structure.nodes.numel(), max(rows, default=0), rank, condition, certificate)


def as_row(report: BatchReport) -> list[float]:
    """Return the numbers of a report.

    >>> report_of(as_row(BatchReport(3, 2, 1, 1.5, 0.25)))
    BatchReport(nodes=3, boundary=2, rank=1, condition=1.5, certificate=0.25)
    """
    return list(astuple(report))


def report_of(row: list[float]) -> BatchReport:
    """Undo `as_row`."""
    return BatchReport(*(int(number) for number in row[:3]), *row[3:])


class Residual:
    """Account for ||A[B,C] H_C - estimate|| / ||A[B,C] H_C||: per batch and pooled over batches and layers."""

    def __init__(
        self,
        batches: list[Data],
        *,
        plan: Plan,
        offsets: bool = True,
        shelf: Shelf | None = None,
        sight: Sight | None = None,
    ) -> None:
        """Look at some batches; without `offsets`, at their factors alone. Embeddings may lie on a `shelf`.

        With `sight`, what is added is what batches see of them.
        """
        self._structures = [batch.supplement.structure for batch in batches]
        self._compensations = [batch.compensation for batch in batches]
        self._plan, self._offsets, self._shelf, self._sums = plan, offsets, shelf, np.zeros((len(batches), 2))
        self._sight = sight

    def add(self, place: str, rows: Tensor) -> None:
        """Add the embeddings (n, d) that a propagation reads; of wide ones, every so many of their columns."""
        step = max(1, rows.size(1) // COLUMNS)
        ways = ways_of(place, self._plan)
        given: dict[str, Any] = {"place": place, "offsets": self._offsets, "step": step}
        if self._sight is not None:
            for number, structure in enumerate(self._structures):
                found = self._compensations[number].residual(
                    structure, ways, rows[:, ::step], sight=self._sight, **given
                )
                self._sums[number] += found
            return
        for group in gathered(self._structures, rows[:, ::step], shelf=self._shelf):
            near = group.rows.to(full_type(rows.dtype))
            if near.nbytes <= COPIED:  # else it stays a view, out of which every batch takes what it reads
                near = near.contiguous()
            for number, structure in zip(group.numbers, group.structures, strict=True):
                compensation = self._compensations[number]
                self._sums[number] += compensation.residual(structure, ways, near, **given)

    def pool(self, over: Callable[[list[list[float]]], list[list[float]]]) -> None:
        """Take the sums of the batches of all processes instead of those at hand."""
        self._sums = np.array(over(self._sums.tolist()))

    def pooled(self) -> float:
        """Return the certificate over all batches."""
        return _ratio(self._sums.sum(0))

    def per_batch(self) -> list[float]:
        """Return the certificate of each batch."""
        return [_ratio(row) for row in self._sums]


def _ratio(sums: np.ndarray[Any, Any]) -> float:
    """Return the root of the share that is missing.

    >>> _ratio(np.array([1.0, 4.0]))
    0.5
    """
    return float((sums[0] / sums[1]) ** 0.5) if sums[1] > 0 else 0.0
