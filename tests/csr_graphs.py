"""Graphs as CSR arrays: who hears from whom."""

import numpy as np
import numpy.typing as npt

from graphs import communities, corners
from topoff.batching.pagerank import Ints, senders

Floats = npt.NDArray[np.float64]


Csr = tuple[Ints, Ints]


def of_edges(pairs: list[tuple[int, int]], n: int) -> Csr:
    """Return a CSR of (row, neighbour) pairs as they are: duplicates and self-loops stay."""
    row, column = np.array(sorted(pairs)).T
    return np.append(0, np.cumsum(np.bincount(row, minlength=n))), column


def dense(csr: Csr) -> Floats:
    """Return D^-1 A."""
    offsets, ids = csr
    matrix = np.zeros((len(offsets) - 1, len(offsets) - 1))
    for row in range(len(matrix)):
        for column in ids[offsets[row] : offsets[row + 1]]:
            matrix[row, column] += 1 / (offsets[row + 1] - offsets[row])
    return matrix


def closed_form(csr: Csr, alpha: float) -> Floats:
    walk = dense(csr)
    return np.asarray(alpha * np.linalg.inv(np.eye(len(walk)) - (1 - alpha) * walk), dtype=np.float64)


def undirected() -> Csr:
    return senders(communities(40, degree=3).edge_index, 40)


def star(leaves: int) -> Csr:
    return of_edges(
        [(0, leaf) for leaf in range(1, leaves + 1)] + [(leaf, 0) for leaf in range(1, leaves + 1)], leaves + 1
    )


GRAPHS = {
    "undirected": undirected(),
    "directed": senders(communities(40, directed=True).edge_index, 40),
    "corners": senders(corners().edge_index, 14),
    "backwards": senders(corners().edge_index, 14, flows=("target_to_source",)),
    "loops and duplicates": of_edges([(0, 0), (0, 1), (0, 1), (1, 2), (2, 2), (2, 0), (4, 4), (5, 0), (5, 3)], 6),
    "no edges": (np.zeros(4, dtype=np.int64), np.zeros(0, dtype=np.int64)),
}
