"""A store whose nodes lie by part: what a batch holds then lies in ranges, and is read in ranges.

Nodes get new numbers, part by part, and keep their names: `node_ids` of the new store are those of the old one, or, if
it has none, the old numbers. The parts lie beside them as `part`, and training takes them (`batches="stored"`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from topoff.data.array_file import Array
from topoff.data.describe_store import pieces_of
from topoff.data.edge_sort import Progress, Tidy, id_type
from topoff.data.store import Store, open_store
from topoff.data.store_write import EdgePiece, Pieces, write_draft
from topoff.machine.drafts import drafting
from topoff.machine.memory import free_memory
from topoff.machine.scan import picked

BYTES = 1 << 28  # of rows that are put into a new order at a time, at least: each time, all rows are walked once
SHARE = 4  # of the free memory, one of so many parts is taken for them


def write_by_part(
    path: Path,
    pieces: Pieces,
    parts: Callable[[Store], Array],
    *,
    dtype: str | None = None,
    tidy: Tidy | None = None,
    progress: Progress | None = None,
) -> Store:
    """Write a graph as `write_store` does, its nodes ordered by the `parts` (n,) that are found for it.

    It is written twice: as it comes, beside its place, and from there in the order of the parts.
    """
    with drafting(path) as draft:
        plain = write_draft(draft.with_name(f"{draft.name}.plain"), pieces, dtype=dtype, tidy=tidy, progress=progress)
        write_draft(draft, by_part(plain, parts(plain)), dtype=None, tidy=None, progress=progress)
    return open_store(path)


def by_part(store: Store, part: Array) -> Pieces:
    """Return the graph of a store with its nodes ordered by part, (n,), and within one as they were.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from topoff.data.generate import generate
    >>> from topoff.data.recipe import Recipe
    >>> with tempfile.TemporaryDirectory() as place:
    ...     pieces = by_part(generate(Recipe(nodes=100, edges=600), Path(place) / "small"), np.arange(100) % 2)
    >>> pieces.node_ids[:3].tolist(), pieces.part[[0, 49, 50]].tolist()
    ([0, 2, 4], [0, 0, 1])
    """
    header, known = store.header, store.header.arrays
    order = np.argsort(part, kind="stable")
    place = np.empty(len(order), id_type(header.nodes))
    place[order] = np.arange(len(order), dtype=place.dtype)
    ids = store.array("node_ids")[order] if "node_ids" in known else order
    return Pieces(
        nodes=header.nodes,
        edges=_edges(store, place),
        expected_edges=header.edges,
        x=_rows(store, "x", order),
        y=_rows(store, "y", order) if "y" in known else None,
        split=store.array("split")[order] if "split" in known else None,
        weights=known["edge_weight"].dtype if "edge_weight" in known else None,
        node_ids=ids,
        names=header.names,
        stand_in=header.stand_in,
        part=part[order],
        came=header.statistics["came"],
    )


def _edges(store: Store, place: Array) -> Iterator[EdgePiece]:
    """Yield the edges between the new numbers of nodes."""
    weight = store.array("edge_weight") if "edge_weight" in store.header.arrays else None
    indptr = store.array("indptr")
    for piece in pieces_of(store):
        some = None if weight is None else weight[indptr[piece.low] : indptr[piece.high]]
        yield EdgePiece(place[piece.source], place[piece.target], some)


def _rows(store: Store, name: str, order: Array) -> Iterator[Array]:
    """Yield the rows of an array in a new order; each lot of them is picked in one walk."""
    whole = store.tensor(name)
    lot = max(1, max(BYTES, (free_memory() or 0) // SHARE) // max(1, whole[:1].nbytes))
    for low in range(0, len(order), lot):
        wanted, back = torch.from_numpy(order[low : low + lot]).sort()
        rows = picked(whole, wanted)
        found = torch.empty_like(rows)
        found[back] = rows
        yield found.numpy()
