"""Sort edges that do not fit into memory: into ranges of targets on the disk first, then range by range.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     edges = EdgeSorter(Path(place), nodes=3, expected=4)
...     edges.add(np.array([2, 0, 1]), np.array([1, 1, 0]))
...     edges.add(np.array([0]), np.array([1]))
...     found = edges.write()
...     np.load(Path(place) / "edge_index.npy").tolist(), np.load(Path(place) / "indptr.npy").tolist()
([[1, 0, 0, 2], [0, 1, 1, 1]], [0, 1, 4, 4])
>>> found.duplicates, found.undirected
(1, False)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from topoff.data.array_file import Array, ArrayWriter, Entry, put
from topoff.data.edges import merged_weights
from topoff.data.refusal import refuse

RANGE = 1 << 22  # edges that are sorted in memory at a time, about
Ints = npt.NDArray[np.int64]
Progress = Callable[[str, float], object]  # what is done, and the share of it


@dataclass(frozen=True)
class Tidy:
    """Say what is done to edges before they are written."""

    undirected: bool = False  # add the reverse of every edge, and merge those that are then equal
    self_loops: bool = True  # keep them
    duplicates: bool = True  # keep them; merged, equal weights stay, others are summed up


@dataclass(frozen=True)
class SortedEdges:
    """Say what was written: edge_index.npy, indptr.npy and, with weights, edge_weight.npy."""

    edges: int
    came: int  # edges that were added, before they were tidied
    arrays: dict[str, Entry]
    self_loops: int
    duplicates: int  # copies beyond the first, which stay unless they are merged
    undirected: bool  # every edge has its reverse
    largest_degree: int  # of incoming edges


def id_type(nodes: int) -> np.dtype[Any]:
    """Return the type of node ids: int32 where they fit.

    >>> id_type(2**31).name, id_type(2**31 + 1).name
    ('int32', 'int64')
    """
    return np.dtype(np.int32 if nodes <= 2**31 else np.int64)


class EdgeSorter:
    """Take edges in any order and write them by target, then source; edges that are the same stay in their order.

    Args:
        folder: where the arrays, and until then the ranges, are written.
        nodes: how many there are.
        expected: how many edges will come, about; it decides about the ranges only.
        weights: the type of weights that come with every edge; None for edges without.
        tidy: what is done to the edges on the way.
    """

    def __init__(
        self, folder: Path, *, nodes: int, expected: int, weights: str | None = None, tidy: Tidy | None = None
    ) -> None:
        self.folder, self.nodes, self.tidy, self.came = folder, nodes, tidy or Tidy(), 0
        most = max(expected, 1) * (2 if self.tidy.undirected else 1)
        self.width = max(1, -(-nodes * RANGE // most))  # targets per range
        self.shift = max(1, (nodes - 1).bit_length())  # bits of a source in a key
        fields = [("key", np.int64)] if weights is None else [("key", np.int64), ("weight", np.dtype(weights))]
        self.record = np.dtype(fields)
        self.weights = None if weights is None else np.dtype(weights)
        self._places = folder / "ranges"
        self._places.mkdir()

    def add(self, source: Array, target: Array, weight: Array | None = None) -> None:
        """Take edges (m,); their order counts only among equal ones.

        Raises:
            ValueError: an id is no node's.
        """
        for ids in (source, target):
            if len(ids) and (ids.min() < 0 or ids.max() >= self.nodes):
                got = f"{int(ids.min())} to {int(ids.max())}"
                remedy = "renumber the nodes or add their rows to x"
                refuse(f"'edge_index' to hold node ids from 0 to {self.nodes - 1}", got, remedy)
        self.came += len(source)
        rows = np.empty(len(source), self.record)
        rows["key"] = target.astype(np.int64) << self.shift | source
        if weight is not None:
            rows["weight"] = weight
        between = source != target
        if self.tidy.undirected:
            reverse = rows[between]
            reverse["key"] = source[between].astype(np.int64) << self.shift | target[between]
            rows = np.concatenate([rows if self.tidy.self_loops else rows[between], reverse])
        elif not self.tidy.self_loops:
            rows = rows[between]
        rows = _sorted(rows)
        bounds = np.arange(0, self.nodes + self.width, self.width, dtype=np.int64)
        places = np.searchsorted(rows["key"], bounds << self.shift)
        for number in np.flatnonzero(np.diff(places)):
            with (self._places / str(number)).open("ab", buffering=0) as file:
                put(file, rows[places[number] : places[number + 1]].view(np.uint8).data)

    def write(self, *, progress: Progress | None = None) -> SortedEdges:
        """Write the arrays, remove the ranges, and say what was written."""
        degrees, tally = np.zeros(self.nodes, np.int64), _Tally()
        ranges = -(-self.nodes // self.width)
        with ExitStack() as files:
            writer = files.enter_context(ArrayWriter(self.folder / "edge_index.npy", id_type(self.nodes)))
            weights = files.enter_context(ArrayWriter(self.folder / "edge_weight.npy", self.weights or np.float32))
            for number in range(ranges):
                rows = self._range(number)
                source, target = rows["key"] & ((1 << self.shift) - 1), rows["key"] >> self.shift
                tally.add(source, target)
                low = number * self.width
                inside = np.bincount(target - low, minlength=min(self.width, self.nodes - low))
                degrees[low : low + len(inside)] = inside
                writer.append(source)
                if self.weights is not None:
                    weights.append(rows["weight"])
                if progress is not None:
                    progress("sorting edges", (number + 1) / ranges)
            arrays = self._finish(writer, degrees)
            if self.weights is not None:
                arrays["edge_weight"] = weights.finish((tally.edges,))
        if self.weights is None:
            weights.path.unlink()
        self._places.rmdir()
        return SortedEdges(
            edges=tally.edges,
            came=self.came,
            arrays=arrays,
            self_loops=tally.loops,
            duplicates=tally.copies,
            undirected=tally.balance == 0,
            largest_degree=int(degrees.max(initial=0)),
        )

    def _range(self, number: int) -> Array:
        """Read a range, in order, and remove its file."""
        path = self._places / str(number)
        rows = _sorted(np.fromfile(path, self.record)) if path.is_file() else np.empty(0, self.record)
        path.unlink(missing_ok=True)
        if not len(rows) or (self.tidy.duplicates and not self.tidy.undirected):
            return rows
        first = np.ones(len(rows), bool)
        np.not_equal(rows["key"][1:], rows["key"][:-1], out=first[1:])
        if self.weights is None or first.all():
            return rows[first]
        merged = rows[first]
        merged["weight"] = merged_weights(rows["weight"], np.cumsum(first) - 1, count=len(merged))
        return merged

    def _finish(self, writer: ArrayWriter, degrees: Ints) -> dict[str, Entry]:
        """Write the targets, which the degrees tell, behind the sources; and where each one's edges begin."""
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(degrees)])
        low = 0
        while low < self.nodes:
            high = max(low + 1, int(np.searchsorted(indptr, indptr[low] + RANGE)))
            high = min(high, self.nodes)
            writer.append(np.repeat(np.arange(low, high, dtype=writer.dtype), degrees[low:high]))
            low = high
        with ArrayWriter(self.folder / "indptr.npy", np.int64) as starts:
            starts.append(indptr)
            return {
                "edge_index": writer.finish((2, int(indptr[-1]))),
                "indptr": starts.finish((self.nodes + 1,)),
            }


class _Tally:
    """Count edges that come sorted by target and source, all of one target at once."""

    def __init__(self) -> None:
        self.edges = self.loops = self.copies = 0
        self.balance = 0  # 0 where every edge has its reverse; else by a chance of 2^-64

    def add(self, source: Ints, target: Ints) -> None:
        """Count some more."""
        first = np.ones(len(source), bool)
        first[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
        self.edges += len(source)
        self.loops += int((source == target).sum())
        self.copies += len(source) - int(first.sum())
        if self.copies:
            source, target = source[first], target[first]
        self.balance = (self.balance + _hash(source, target) - _hash(target, source)) % 2**64


def _hash(first: Ints, second: Ints) -> int:
    """Return the sum of a hash of pairs (m,), modulo 2^64, by the finalizer of splitmix64."""
    mixed = first.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + second.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return int(mixed.sum(dtype=np.uint64))


def _sorted(rows: Array) -> Array:
    """Return records by key; without weights by the fastest sort, since equal ones are the same."""
    if rows.dtype.names == ("key",):
        keys = rows["key"].copy()
        keys.sort()
        return keys.view(rows.dtype)
    return rows[np.argsort(rows["key"], kind="stable")]
