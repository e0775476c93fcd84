"""Read OGB's raw folder of a node dataset, as its archive unpacks: <folder>/raw/*.csv.gz and <folder>/split/<kind>/.

raw/num-node-list.csv.gz   the number of nodes
raw/edge.csv.gz            source,target: a line per edge, as OGB has it (ogbn-products lists each edge one way only)
raw/node-feat.csv.gz       a line of numbers per node
raw/node-label.csv.gz      a class per node, nan for none; or several columns of 0 and 1
split/<kind>/              train.csv.gz, valid.csv.gz and test.csv.gz: node ids
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from topoff.data.array_file import Array
from topoff.data.refusal import refuse
from topoff.data.split import WORDS
from topoff.machine.cache import Arrays

BLOCK = 1 << 25  # bytes that are parsed at a time
LINE = 5  # compressed bytes of an edge, about
NEEDED = ("num-node-list", "edge", "node-feat", "node-label")


@dataclass(frozen=True)
class OgbGraph:
    """Hold a raw folder: what is small, and where the rest is."""

    folder: Path
    nodes: int
    arrays: Arrays  # y and masks, with x (n, 1) and edge_index (2, 0) in place of the large ones
    expected_edges: int

    def edges(self) -> Iterator[Array]:
        """Yield edges (2, m)."""
        for columns in _columns(_file(self.folder, "edge"), kind=pa.int64()):
            if len(columns) != 2:
                path = _file(self.folder, "edge")
                refuse(f"two node ids in every line of {path}", f"{len(columns)} values", "unpack OGB's archive again")
            yield np.stack(columns)

    def x(self) -> Iterator[Array]:
        """Yield features (m, F), all n of them in the end."""
        path, done = _file(self.folder, "node-feat"), 0
        for columns in _columns(path, kind=pa.float32()):
            yield np.stack(columns, axis=1)
            done += len(columns[0])
        if done != self.nodes:
            refuse(f"{path} to have {self.nodes} lines, one per node", f"{done}", "unpack OGB's archive again")


def is_ogb(folder: Path) -> bool:
    """Whether a folder is that of an OGB dataset with its raw csv files.

    >>> is_ogb(Path("wordnet"))
    False
    """
    return (folder / "raw" / "num-node-list.csv.gz").is_file()


def read_ogb(folder: Path) -> OgbGraph:
    """Read what is small of a raw folder: the number of nodes, labels and split.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is not as OGB writes it.
    """
    for name in NEEDED:
        if not _file(folder, name).is_file():
            path = _file(folder, name)
            raise FileNotFoundError(f"Expected OGB's raw file {path} (got no such file); unpack its archive again.")
    numbers = _whole(_file(folder, "num-node-list"), kind=pa.int64())
    if numbers.shape != (1, 1):
        got = f"{len(numbers)} lines"
        refuse(f"one graph, and its number of nodes in {_file(folder, 'num-node-list')}", got, "give a node dataset")
    nodes = int(numbers[0, 0])
    arrays: Arrays = {"x": np.zeros((nodes, 1), np.float32), "edge_index": np.zeros((2, 0), np.int64)}
    arrays["y"] = _labels(_file(folder, "node-label"), nodes)
    expected = _file(folder, "edge").stat().st_size // LINE
    return OgbGraph(folder, nodes, arrays | read_masks(folder, nodes), expected)


def _file(folder: Path, name: str) -> Path:
    return folder / "raw" / f"{name}.csv.gz"


def _labels(path: Path, nodes: int) -> Array:
    """Return classes (n,), -1 for none, or 0/1 (n, c)."""
    labels = _whole(path, kind=pa.float32())
    if len(labels) != nodes:
        refuse(f"{path} to have {nodes} lines, one per node", f"{len(labels)}", "unpack OGB's archive again")
    if labels.shape[1] > 1:
        return labels
    return np.nan_to_num(labels[:, 0], nan=-1.0).astype(np.int64)


def read_masks(folder: Path, nodes: int) -> Arrays:
    """Return the masks of the split, if there is one.

    Raises as `read_ogb` does.
    """
    kinds = sorted(path for path in (folder / "split").glob("*") if path.is_dir())
    if not kinds:
        return {}
    if len(kinds) > 1:
        got = ", ".join(path.name for path in kinds)
        refuse(f"one split in {folder / 'split'}", got, "move all others out of the folder")
    masks = {}
    for name, words in WORDS.items():
        path = kinds[0] / f"{words[0]}.csv.gz"
        if not path.is_file():
            raise FileNotFoundError(f"Expected OGB's split in {path} (got no such file); unpack its archive again.")
        ids = _whole(path, kind=pa.int64()).reshape(-1)
        if ids.size and (ids.min() < 0 or ids.max() >= nodes):
            got = f"{ids.min()} to {ids.max()}"
            refuse(f"{path} to hold node ids from 0 to {nodes - 1}", got, "unpack OGB's archive again")
        masks[f"{name}_mask"] = np.zeros(nodes, bool)
        masks[f"{name}_mask"][ids] = True
    return masks


def _whole(path: Path, *, kind: Any) -> Array:
    """Read a small file, (lines, values)."""
    pieces = [np.stack(columns, axis=1) for columns in _columns(path, kind=kind)]
    return np.concatenate(pieces) if pieces else np.zeros((0, 1), kind.to_pandas_dtype())


def _columns(path: Path, *, kind: Any) -> Iterator[list[Array]]:
    """Yield the columns of a csv.gz file without header, some lines at a time."""
    try:
        with gzip.open(path) as first:
            line = first.readline().strip()
        if not line:
            return
        names = [f"f{number}" for number in range(line.count(b",") + 1)]
        with pa.input_stream(str(path), compression="gzip") as handle:
            reader = pyarrow.csv.open_csv(
                handle,
                read_options=pyarrow.csv.ReadOptions(column_names=names, block_size=BLOCK),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, kind), null_values=["", "nan"]
                ),
            )
            for batch in reader:
                yield [column.to_numpy(zero_copy_only=False) for column in batch.columns]
    except (pa.ArrowException, OSError, EOFError) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        reason = str(error).splitlines()[0][:100] if str(error) else "a damaged file"
        raise ValueError(
            f"Expected {path} to be OGB's csv.gz of {kind} (got {reason}); unpack OGB's archive again."
        ) from error
