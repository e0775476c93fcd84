"""Write a store from a graph that comes piece by piece, in one step and in bounded memory.

>>> import tempfile
>>> pieces = Pieces(nodes=2, x=[np.eye(2)], edges=[EdgePiece(np.array([0]), np.array([1]))], expected_edges=1,
...                 y=[np.array([0, 1])], split=np.array([0, 2]))
>>> with tempfile.TemporaryDirectory() as place:
...     store = write_store(Path(place) / "pair", pieces)
...     sorted(path.name for path in store.path.iterdir())
['edge_index.npy', 'indptr.npy', 'split.npy', 'store.json', 'x.npy', 'y.npy']
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from topoff.data.array_file import Array, ArrayWriter, Entry, open_array
from topoff.data.check import check, check_graph
from topoff.data.edge_sort import EdgeSorter, Progress, SortedEdges, Tidy
from topoff.data.layout import SPLITS
from topoff.data.refusal import refuse
from topoff.data.store import Header, Store, open_store, write_header
from topoff.data.store_load import mapped_data
from topoff.machine.drafts import drafting

TYPES = ("float32", "float16", "float64")


@dataclass(frozen=True)
class EdgePiece:
    """Hold some of the edges."""

    source: Array  # (m,)
    target: Array  # (m,)
    weight: Array | None = None  # (m,)


@dataclass(frozen=True)
class Pieces:
    """Hold a graph that comes piece by piece: nodes in their order, edges in any."""

    nodes: int
    edges: Iterable[EdgePiece]
    expected_edges: int  # about
    x: Iterable[Array]  # (m, F) each
    y: Iterable[Array] | None = None  # (m,) or (m, c) each
    split: Array | None = None  # (n,) 0 train, 1 validation, 2 test, -1 none
    weights: str | None = None  # the type of the edges' weights, if they have any
    node_ids: Array | None = None  # (n,)
    part: Array | None = None  # (n,) ascending, where nodes lie by part
    came: int | None = None  # edges before they were tidied, where that was done earlier
    names: Mapping[str, Any] = field(default_factory=dict)  # class_names, encoding, notes
    stand_in: Mapping[str, Any] | None = None


def write_store(
    path: Path,
    pieces: Pieces,
    *,
    dtype: str | None = None,
    tidy: Tidy | None = None,
    progress: Progress | None = None,
) -> Store:
    """Write a graph to the folder `path`, replacing a store that is there, and return it opened.

    Features get the type `dtype`; without one, they keep theirs if they are floats. What is written is checked, as
    `topoff.data.check.check` does, before it is moved to its place.

    Raises:
        ValueError: the graph is none.
        OSError: the disk is full, or something else cannot be written; then nothing is left.
    """
    with drafting(path) as draft:
        write_draft(draft, pieces, dtype=dtype, tidy=tidy, progress=progress)
    return open_store(path)


def write_draft(
    folder: Path, pieces: Pieces, *, dtype: str | None, tidy: Tidy | None, progress: Progress | None
) -> Store:
    """Write a graph to a folder that is not there yet, check it, and return it opened."""
    if dtype is not None and dtype not in TYPES:
        refuse(f"the type of the features to be {', '.join(TYPES)}", f"'{dtype}'", "choose one of them")
    folder.mkdir()
    tell = progress or (lambda what, share: None)
    edges = _write_edges(pieces, folder, tidy=tidy, tell=tell)
    x = (_narrowed(rows, dtype) for rows in _told(pieces.x, tell, "writing features", pieces.nodes))
    arrays = edges.arrays | {"x": _write_rows(x, folder / "x.npy")}
    if pieces.y is not None:
        arrays["y"] = _write_rows(map(_labels, pieces.y), folder / "y.npy")
    kinds = {"split": np.int8, "part": np.int32, "node_ids": None}
    for name, kind in kinds.items():
        if (found := getattr(pieces, name)) is not None:
            arrays[name] = _write_rows([found if kind is None else found.astype(kind)], folder / f"{name}.npy")
    header = _header(pieces, edges, arrays, task=_task(folder, arrays, pieces.names.get("class_names")))
    tell("checking", 0.0)
    store = write_header(folder, header)
    data = mapped_data(store)
    _ = check_graph(data) if pieces.y is None else check(data)
    return store


def _write_edges(pieces: Pieces, folder: Path, *, tidy: Tidy | None, tell: Progress) -> SortedEdges:
    """Write edges, their weights and where each target's begin."""
    sizes = {"nodes": pieces.nodes, "expected": pieces.expected_edges}
    sorter = EdgeSorter(folder, **sizes, weights=pieces.weights, tidy=tidy)
    done = 0
    for piece in pieces.edges:
        sorter.add(piece.source, piece.target, piece.weight)
        done += len(piece.source)
        tell("collecting edges", min(1.0, done / max(1, pieces.expected_edges)))
    return sorter.write(progress=tell)


def _told(pieces: Iterable[Array], tell: Progress, what: str, total: int) -> Iterator[Array]:
    """Tell how many rows have come."""
    done = 0
    for rows in pieces:
        yield rows
        done += len(rows)
        tell(what, min(1.0, done / total))


def _write_rows(pieces: Iterable[Array], path: Path) -> Entry:
    """Write pieces with the same number of columns, and the type of the first one."""
    pieces = iter(pieces)
    first = next(pieces)
    count = 0
    with ArrayWriter(path, first.dtype) as writer:
        for rows in itertools.chain([first], pieces):
            writer.append(rows)
            count += len(rows)
        return writer.finish((count, *first.shape[1:]))


def _narrowed(x: Array, dtype: str | None) -> Array:
    """Return features in another type; refuse those that would become infinite."""
    if dtype is None:
        dtype = x.dtype.name if x.dtype.name in TYPES else "float32"
    with np.errstate(over="ignore"):
        narrow = x.astype(dtype, copy=False)
    if narrow.dtype.itemsize < x.dtype.itemsize and not np.array_equal(np.isfinite(x), np.isfinite(narrow)):
        largest = float(np.abs(x[np.isfinite(x)]).max())
        refuse(f"features within the range of {dtype}", f"{largest:.3g}", "scale them, or store a wider type")
    return narrow


def _labels(y: Array) -> Array:
    """Return labels in the type that training takes: int64 classes, float32 0/1 for several."""
    if y.ndim == 2:
        return y.astype(np.float32, copy=False)
    return y if y.dtype.kind == "f" else y.astype(np.int64, copy=False)


def _task(folder: Path, arrays: Mapping[str, Entry], named: Sequence[str] | None) -> dict[str, Any]:
    """Say what is to be learnt: the kind of task and the number of classes or labels."""
    if "y" not in arrays:
        return {"task": None, "classes": None}
    entry = arrays["y"]
    if len(entry.shape) == 2:
        return {"task": "multilabel", "classes": entry.shape[1]}
    if entry.dtype.startswith("float"):
        return {"task": "regression", "classes": None}
    largest = int(open_array(folder / "y.npy", entry).max(initial=-1))
    return {"task": "classes", "classes": max(largest + 1, len(named or ()))}


def _header(pieces: Pieces, edges: SortedEdges, arrays: dict[str, Entry], *, task: Mapping[str, Any]) -> Header:
    """Say what was written."""
    counted = ("came", "self_loops", "duplicates", "undirected", "largest_degree")
    statistics = {name: getattr(edges, name) for name in counted}
    statistics["came"] = edges.came if pieces.came is None else pieces.came
    if pieces.split is not None:
        statistics["splits"] = {name: int((pieces.split == code).sum()) for code, name in enumerate(SPLITS)}
    return Header(
        nodes=pieces.nodes,
        edges=edges.edges,
        features=arrays["x"].shape[1],
        dtype=arrays["x"].dtype,
        **task,
        arrays=arrays,
        statistics=statistics,
        names={key: value for key, value in pieces.names.items() if value},
        stand_in=None if pieces.stand_in is None else dict(pieces.stand_in),
    )
