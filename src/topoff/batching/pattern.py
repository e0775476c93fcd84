"""Which pairs of nodes there are: the pattern of a sparse matrix, as CSR arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pattern:
    """Hold which pairs of nodes there are, row by row, ascending and each once; no node with itself."""

    offsets: Ints  # (n + 1,)
    ids: Ints  # (m,) columns

    @property
    def rows(self) -> Ints:
        """Return the row of every pair; (m,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def positions(self, rows: Ints, columns: Ints) -> Ints:
        """Return where pairs are that the pattern holds; (k,).

        >>> pattern_of(np.array([0, 1, 1]), np.array([1, 2, 0]), num_nodes=3).positions(np.array([1]), np.array([2]))
        array([2])
        """
        num_nodes = len(self.offsets) - 1
        return np.searchsorted(self.rows * num_nodes + self.ids, rows * num_nodes + columns)


def pattern_of(rows: Ints, columns: Ints, *, num_nodes: int) -> Pattern:
    """Sort pairs by row; duplicates become one, self-loops go."""
    others = rows != columns
    keys = np.unique(rows[others].astype(np.int64) * num_nodes + columns[others])
    counts = np.bincount(keys // max(1, num_nodes), minlength=num_nodes)
    return Pattern(pointers(counts), keys % max(1, num_nodes))


def undirected(rows: Ints, columns: Ints, *, num_nodes: int) -> Pattern:
    """Return the pairs that are joined in some direction, each once, the smaller node as the row."""
    return pattern_of(np.minimum(rows, columns), np.maximum(rows, columns), num_nodes=num_nodes)


def pointers(counts: Ints) -> Ints:
    """Return where each row of a CSR matrix starts, and the end of the last, from the rows' sizes; (r,) -> (r + 1,)."""
    return np.append(0, np.cumsum(counts)).astype(np.int64)
