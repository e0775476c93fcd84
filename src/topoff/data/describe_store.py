"""Describe a graph on the arrays of a store in bounded memory: the same numbers as `describe` finds in memory.

Edges lie by target, so that a range of targets is a range of edges; features are looked at in ranges of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from topoff.data.array_file import Array
from topoff.data.store import Store

EDGES = 1 << 22  # that are looked at in one go, unless one node has more
ROWS = 1 << 16

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ends:
    """Hold what nodes have of edges."""

    incoming: Ints  # (n,)
    outgoing: Ints  # (n,)
    loops: Ints  # (n,)
    components: int  # weakly connected
    largest_component: int


def ends_of(store: Store) -> Ends:
    """Count the edges of every node, and the components.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from topoff.data.generate import generate
    >>> from topoff.data.recipe import Recipe
    >>> with tempfile.TemporaryDirectory() as place:
    ...     found = ends_of(generate(Recipe(nodes=100, edges=600), Path(place) / "small"))
    >>> bool((found.incoming == found.outgoing).all()), int(found.loops.sum())
    (True, 0)
    """
    n = store.header.nodes
    incoming, outgoing, loops = np.diff(store.array("indptr")), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for piece in pieces_of(store):
        outgoing += np.bincount(piece.source, minlength=n)
        loops[piece.low : piece.high] = np.bincount(
            (piece.target - piece.low)[piece.source == piece.target], minlength=piece.high - piece.low
        )
    label = _components(store)
    sizes = np.bincount(label, minlength=n)
    return Ends(incoming, outgoing, loops, int((sizes > 0).sum()), int(sizes.max()))


@dataclass(frozen=True)
class Piece:
    """Hold the edges of a range of targets."""

    low: int
    high: int
    source: Array  # (m,)
    target: Array  # (m,)


def pieces_of(store: Store) -> Iterator[Piece]:
    """Yield all edges, some at a time."""
    indptr, edges, low = store.array("indptr"), store.array("edge_index"), 0
    while low < store.header.nodes:
        high = int(np.searchsorted(indptr, indptr[low] + EDGES, side="right")) - 1
        high = min(max(low + 1, high), store.header.nodes)
        some = slice(int(indptr[low]), int(indptr[high]))
        yield Piece(low, high, np.asarray(edges[0, some]), np.asarray(edges[1, some]))
        low = high


def _components(store: Store) -> Ints:
    """Return (n,) the smallest node of each one's component, by joining the trees that an edge finds apart."""
    label = np.arange(store.header.nodes)
    changed = True
    while changed:
        changed = False
        for piece in pieces_of(store):
            one, other = label[piece.source], label[piece.target]
            apart = one != other
            if apart.any():
                changed = True
                low, high = np.minimum(one[apart], other[apart]), np.maximum(one[apart], other[apart])
                np.minimum.at(label, high, low)
                label = label[label]
        while not np.array_equal(label, parents := label[label]):
            label = parents
    return label


def homophily_of(store: Store, y: Tensor) -> dict[str, float | None]:
    """Return the edge homophily and the adjusted one, as `describe` defines them, for classes `y` (n,)."""
    labels = y.numpy()
    same, counted, ends = 0, 0, np.zeros(int(y.max()) + 1, np.int64)
    for piece in pieces_of(store):
        between = piece.source != piece.target
        one, other = labels[piece.source[between]], labels[piece.target[between]]
        known = (one >= 0) & (other >= 0)
        one, other = one[known], other[known]
        same, counted = same + int((one == other).sum()), counted + len(one)
        for side in (one, other):
            ends += np.bincount(side, minlength=len(ends))
    if not counted:
        return {"homophily": None, "adjusted_homophily": None}
    share, expected = same / counted, float(np.square(ends / (2 * counted)).sum())
    adjusted = (share - expected) / (1 - expected) if int((ends > 0).sum()) > 1 else None
    return {"homophily": share, "adjusted_homophily": adjusted}


def columns_of(x: Tensor) -> dict[str, Any]:
    """Return lowest, highest and deviation of every column (d,) of features (n, d), and the entries that are zero."""
    lowest, highest, total, zeros = None, None, torch.zeros(x.size(1), dtype=torch.float64), 0
    for rows in torch.split(x, ROWS):
        wide = rows.double()
        least, most = wide.amin(dim=0), wide.amax(dim=0)
        lowest = least if lowest is None else torch.minimum(lowest, least)
        highest = most if highest is None else torch.maximum(highest, most)
        total += wide.sum(dim=0)
        zeros += wide.numel() - int(torch.count_nonzero(wide))
    mean, squares = total / x.size(0), torch.zeros_like(total)
    for rows in torch.split(x, ROWS):
        squares += (rows.double() - mean).square().sum(dim=0)
    return {"lowest": lowest, "highest": highest, "std": (squares / x.size(0)).sqrt(), "zeros": zeros / x.numel()}
