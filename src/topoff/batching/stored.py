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
    """Return the part of every node, (n,), where the graph brings it along; None where not, or only for other nodes."""
    parts: Ints | None = getattr(getattr(data, "names", None), "parts", None)
    return parts if parts is not None and len(parts) == data.num_nodes else None


def brought(data: Data, *, asked: int | None) -> Ints:
    """Return the part of every node, (n,) int64.

    Raises:
        ValueError: the graph brings none along, or another number of them than was asked for.
    """
    parts = stored_parts(data)
    if parts is None:
        raise ValueError(
            f"Expected a graph that brings the parts of its {data.num_nodes} nodes along for batches 'stored' (got "
            "none); write it with topoff convert --by-part, or choose another partitioner."
        )
    found = int(parts.max()) + 1
    if asked not in (None, found):
        raise ValueError(f"Expected 'parts' to be {found}, as in the store (got {asked}); leave it out.")
    return parts.astype(np.int64)
