"""A store as a `Data`: mapped into memory, or read into it.

A graph that is read has what every graph in memory has: float32 features and int64 edges. One that is mapped has what
the store has: features also in float16, and int32 edges.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch_geometric.data import Data

from topoff.data.check import check, check_graph, vouched
from topoff.data.layout import MASKS
from topoff.data.names import Names
from topoff.data.store import Store
from topoff.machine.memory import free_memory

IN_MEMORY = 2 << 30  # bytes of features and edges up to which a graph is read
SHARE = 8  # of the free memory, a graph that is read takes at most one of so many parts


def load_store(store: Store, *, in_memory: bool | None = None) -> Data:
    """Return the graph of a store; read, where it takes up to 2 GiB and little of the free memory, or where that is
    wished, else mapped.

    What is read is compared with its checksums and checked like any other graph. What is mapped was checked when it was
    written, and `Store.verify` compares the checksums.

    Raises:
        ValueError: what is read is not what was written.
    """
    if in_memory is None:
        free = free_memory()
        in_memory = memory_needed(store) <= (IN_MEMORY if free is None else min(IN_MEMORY, free // SHARE))
    if not in_memory:
        return vouched(mapped_data(store))
    store.verify()
    data = mapped_data(store)
    for name in ("x", "edge_index", "edge_weight", "y"):
        if name in data:
            data[name] = data[name].clone()
    data.x = data.x.float() if data.x.dtype == torch.float16 else data.x
    data.edge_index = data.edge_index.long()
    if data.names.ids is not None:
        data.names = replace(data.names, node_ids=data.names.ids.to_pylist())
    return check(data) if "y" in data else check_graph(data)


def memory_needed(store: Store) -> int:
    """Return the bytes of features, in float32 at least, and of int64 edges with their weights."""
    header = store.header
    wide = max(4, np.dtype(header.dtype).itemsize)
    return header.nodes * header.features * wide + header.edges * (16 + wide * ("edge_weight" in header.arrays))


def mapped_data(store: Store) -> Data:
    """Return a `Data` on the memory-mapped arrays of a store, with masks, and names as `load` gives them."""
    present = [name for name in ("x", "edge_index", "edge_weight", "y") if name in store.header.arrays]
    data = Data(**{name: store.tensor(name) for name in present})
    if "split" in store.header.arrays:
        codes = store.tensor("split")
        data.update({name: codes == code for code, name in enumerate(MASKS)})
    data.names = _names(store)
    return data


def stand_in_text(settings: dict[str, Any] | None) -> str | None:
    """Say in a few words what a generated graph stands in for.

    >>> stand_in_text({"preset": "products", "scale": 0.1, "seed": 1})
    'stand-in of products, scale 0.1, seed 1'
    """
    if settings is None:
        return None
    of = f" of {settings['preset']}" if settings.get("preset") else ""
    scale = f", scale {settings['scale']:g}" if settings.get("scale", 1) != 1 else ""
    return f"stand-in{of}{scale}, seed {settings.get('seed', 0)}"


def _names(store: Store) -> Names:
    """Return the names; ids of nodes are an array, since a list of so many objects may not fit into memory."""
    known, ids = store.header.names, None
    if "node_ids" in store.header.arrays:
        array = store.array("node_ids")
        ids = pa.array(np.asarray(array)) if array.dtype.kind in "iu" else pa.array(array.tolist(), pa.large_string())
    return Names(
        ids=ids,
        class_names=known.get("class_names"),
        encoding=known.get("encoding"),
        notes=tuple(known.get("notes", ())),
        store=store,
        stand_in=stand_in_text(store.header.stand_in),
    )
