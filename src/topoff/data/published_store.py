"""Published graphs as stores: raw files become one, once, in the cache folder; from then on that is what is loaded.

Nothing is written beside the raw files. `topoff convert ogbn-products products.store --root DIR` makes a store in a
place of your own.

>>> try:
...     published_store("Reddit", Path("nowhere"))
... except FileNotFoundError as error:
...     print(str(error).partition(" (got")[0])
Expected the raw files of Reddit at nowhere/Reddit/raw/reddit_data.npz, nowhere/Reddit/raw/reddit_graph.npz
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from topoff.data.array_file import Array
from topoff.data.edge_sort import Progress
from topoff.data.layout import MASKS
from topoff.data.published import RAW, check_count, check_labels, refuse_missing
from topoff.data.raw_graph import ROWS, RawGraph, read_raw
from topoff.data.store import Store, is_store, open_store
from topoff.data.store_write import EdgePiece, Pieces, write_store
from topoff.machine.cache import cache_dir, content_hash
from topoff.machine.memory import readable
from topoff.machine.notices import notify

VERSION = "1"  # of what is made of raw files; another one makes new stores


def published_store(name: str, root: Path) -> Store:
    """Return the store of a published graph, written first where there is none of these raw files.

    It lies in the folder `stores` of the cache ($TOPOFF_CACHE), and is another one when a raw file has changed. What
    is done is told by notices, since it takes minutes for a graph of a hundred million edges.

    Raises:
        FileNotFoundError: a raw file is missing.
        ValueError: one is damaged, or a count is not the published one; then nothing is left.
        OSError: the disk is full.
    """
    files = RAW[name]
    paths = files.paths(root)
    if missing := [path for path in paths if not path.is_file()]:
        refuse_missing(name, missing)
    place = cache_dir() / "stores" / f"{name}-{_key(paths)}"
    if is_store(place):
        try:
            return open_store(place)
        except (ValueError, FileNotFoundError) as error:
            warnings.warn(f"{error} It is written again from the raw files of {name}.", RuntimeWarning, stacklevel=2)
    graph = read_raw(files.kind, root / files.folder)
    check_labels(name, graph.y, {mask: graph.split == code for code, mask in enumerate(MASKS)})
    notify(f"{name}: {readable(sum(path.stat().st_size for path in paths))} of raw files become a store, once: {place}")
    place.parent.mkdir(parents=True, exist_ok=True)
    return write_store(place, _pieces(name, graph), dtype="float32", tidy=graph.tidy, progress=_telling(name))


def _telling(name: str) -> Progress:
    """Return what tells of every work that begins."""
    told: set[str] = set()

    def tell(what: str, share: float) -> None:
        """Tell of a work once."""
        if what not in told:
            told.add(what)
            notify(f"{name}: {what} ...")

    return tell


def _key(paths: list[Path]) -> str:
    """Return what tells raw files from others, or from themselves once they have changed."""
    found = ((path.resolve(), path.stat()) for path in paths)
    return content_hash(VERSION, *(f"{path}:{state.st_size}:{state.st_mtime_ns}" for path, state in found))


def _pieces(name: str, graph: RawGraph) -> Pieces:
    """Return the graph piece by piece; what has come is counted, and compared at the end."""
    return Pieces(
        nodes=len(graph.y),
        edges=_edges(name, graph),
        expected_edges=graph.expected_edges,
        x=_features(name, graph),
        y=(graph.y[low : low + ROWS] for low in range(0, len(graph.y), ROWS)),
        split=graph.split,
    )


def _edges(name: str, graph: RawGraph) -> Iterator[EdgePiece]:
    """Yield edges; refuse more or fewer than published."""
    count = 0
    for ends in graph.edges():
        count += ends.shape[1]
        yield EdgePiece(*ends)
    check_count(name, "edges", count)


def _features(name: str, graph: RawGraph) -> Iterator[Array]:
    """Yield features; refuse more or fewer than published, and than there are labels."""
    count = 0
    for rows in graph.x():
        check_count(name, "features", rows.shape[1] if rows.ndim == 2 else 1)
        count += len(rows)
        yield np.ascontiguousarray(rows)
    check_count(name, "nodes", count)
