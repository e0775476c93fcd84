"""Parts that a graph brings along, because its nodes lie by part on the disk: they need not be found again.

>>> from types import SimpleNamespace
>>> from torch_geometric.data import Data
>>> data = Data(num_nodes=3)
>>> data.names = SimpleNamespace(parts=np.array([0, 0, 1], np.int32))
>>> brought(data, asked=None)
array([0, 0, 1])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from topoff.batching.pattern import Ints

if TYPE_CHECKING:
    from torch_geometric.data import Data

STORED = "stored"  # the method of node sets that take such parts


def stored_parts(data: Data) -> Ints | None:
    """Return the part of every node, (n,), where the graph brings it along; else None."""
    parts: Ints | None = getattr(getattr(data, "names", None), "parts", None)
    return parts


def brought(data: Data, *, asked: int | None) -> Ints:
    """Return the part of every node, (n,) int64.

    Raises:
        ValueError: the graph brings none along, or another number of them than was asked for.
    """
    parts = stored_parts(data)
    if parts is None or len(parts) != data.num_nodes:
        came = "none" if parts is None else f"those of {len(parts)} nodes, for {data.num_nodes}"
        raise ValueError(
            f"Expected a graph that brings its parts along for batches 'stored' (got {came}); write it with topoff "
            "convert --by-part, or choose another partitioner."
        )
    found = int(parts.max()) + 1
    if asked not in (None, found):
        raise ValueError(f"Expected 'parts' to be {found}, as in the store (got {asked}); leave it out.")
    return parts.astype(np.int64)
