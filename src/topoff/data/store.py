"""A graph in a folder, in plain arrays that are mapped into memory instead of being read.

`store.json` says what there is; beside it lie `edge_index.npy` (2, E), by target, then source; `indptr.npy` (n + 1,),
where the edges of each target begin; `x.npy` (n, F); and, where there are labels, `y.npy` and `split.npy` (n,): 0
train, 1 validation, 2 test, -1 none. `edge_weight.npy`, `node_ids.npy` and, where nodes lie by part, `part.npy` may be
there. A store is checked once, when it is written: opening one compares names, sizes and shapes, and `verify` the
checksums of all that lies in it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.data.array_file import REMEDY, Array, Entry, check_array, open_array, verify_array
from topoff.data.layout import OPTIONAL, STORE, STORED
from topoff.data.refusal import refuse
from topoff.machine.json_objects import checksum, parse_object

FORMAT, VERSION = "topoff-store", 1


@dataclass(frozen=True)
class Header:
    """Hold what `store.json` says."""

    nodes: int
    edges: int  # directed: columns of edge_index
    features: int
    dtype: str  # of x: float32, float16 or float64
    task: str | None  # classes, multilabel or regression; None without labels
    classes: int | None  # or labels; None for regression and without labels
    arrays: dict[str, Entry]
    statistics: dict[str, Any]  # came, self_loops, duplicates, undirected, largest_degree, splits
    names: dict[str, Any] = field(default_factory=dict)  # class_names, encoding, notes: as in `Names`
    stand_in: dict[str, Any] | None = None  # what the generator was asked for; None for data of the world

    def json(self) -> dict[str, Any]:
        """Return it as it is written."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return content | {"checksum": checksum(content)}


@dataclass(frozen=True)
class Store:
    """Hold an open store: its place and its header; arrays are mapped when they are first asked for."""

    path: Path
    header: Header

    def array(self, name: str) -> Array:
        """Return an array by its name, such as "indptr", mapped copy on write; the same one every time."""
        if name not in self._open:
            self._open[name] = open_array(self.path / f"{name}.npy", self.header.arrays[name])
        return self._open[name]

    def tensor(self, name: str) -> Tensor:
        """Return an array as a tensor on the same memory."""
        return torch.from_numpy(self.array(name))

    @property
    def bytes(self) -> int:
        """Return the size of all arrays."""
        return sum(entry.size for entry in self.header.arrays.values())

    def verify(self) -> None:
        """Read everything and compare checksums.

        Raises:
            ValueError: a file is not what was written.
        """
        for name, entry in self.header.arrays.items():
            verify_array(self.path / f"{name}.npy", entry)

    @cached_property
    def _open(self) -> dict[str, Array]:
        return {}

    def __deepcopy__(self, _: object) -> Store:
        return self  # frozen, and its arrays may be larger than memory

    def __reduce__(self) -> Any:
        return open_store, (self.path,)


def is_store(path: Path) -> bool:
    """Whether a path is the folder of a store, of whatever version.

    >>> is_store(Path("wordnet.npz"))
    False
    """
    return (path / STORE).is_file()


def open_store(path: Path) -> Store:
    """Open a store: read its header, and compare it with the sizes and shapes of the arrays.

    Raises:
        FileNotFoundError: an array is missing.
        ValueError: the header is damaged or of another version, or an array is not of the size that it says.

    >>> open_store(Path("nowhere"))
    Traceback (most recent call last):
    FileNotFoundError: Expected a store in nowhere (got no nowhere/store.json); give the folder that holds one.
    """
    if not is_store(path):
        remedy = "give the folder that holds one"
        raise FileNotFoundError(f"Expected a store in {path} (got no {path / STORE}); {remedy}.")
    store = Store(path, _header(path / STORE))
    for name, entry in store.header.arrays.items():
        check_array(path / f"{name}.npy", entry)
    return store


def write_header(folder: Path, header: Header) -> Store:
    """Write `store.json`, which makes a store of a folder of arrays."""
    (folder / STORE).write_text(json.dumps(header.json(), indent=1))
    return Store(folder, header)


def stored(data: Data) -> Store | None:
    """Return the store whose memory-mapped arrays a graph's features and edges are; None for a graph in memory.

    >>> stored(Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]))) is None
    True
    """
    store = getattr(data.get("names"), "store", None)
    if not isinstance(store, Store):
        return None
    ours = all(_is_at(data.get(name), store.array(name)) for name in ("x", "edge_index"))
    return store if ours else None


def _is_at(tensor: Any, array: Array) -> bool:
    return isinstance(tensor, Tensor) and tensor.shape == array.shape and tensor.data_ptr() == array.ctypes.data


def _header(path: Path) -> Header:
    """Read `store.json`."""
    found = parse_object(path.read_bytes(), path=path)
    if found.get("format") != FORMAT:
        refuse(f"{path} to be the header of a store", f"format {found.get('format')!r:.60}", REMEDY)
    if found.get("version") != VERSION:
        remedy = f"write it again with this version of topoff, which reads version {VERSION} only"
        refuse(f"{path} to be of version {VERSION}", f"version {found.get('version')!r:.60}", remedy)
    wanted = found.pop("checksum", None)
    if (came := checksum(found)) != wanted:
        refuse(f"{path} to have the checksum {wanted!r:.20} that it names", f"{came}: it has changed", REMEDY)
    del found["format"], found["version"]
    try:
        found["arrays"] = {
            str(name): Entry(str(each["dtype"]), tuple(map(int, each["shape"])), str(each["crc32"]))
            for name, each in found["arrays"].items()
        }
        header = Header(**found)
        _check_arrays(header)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"Expected {path} to describe the arrays of a store (got something else: {error}); {REMEDY}."
        ) from error
    return header


def _check_arrays(header: Header) -> None:
    """Refuse arrays that do not fit together, or have names that lead elsewhere."""
    shapes = {name: entry.shape for name, entry in header.arrays.items()}
    wanted = {
        "edge_index": (2, header.edges),
        "indptr": (header.nodes + 1,),
        "x": (header.nodes, header.features),
        "split": (header.nodes,),
        "edge_weight": (header.edges,),
        "node_ids": (header.nodes,),
        "part": (header.nodes,),
    }
    kinds = {"edge_index": "i", "indptr": "i", "x": "f", "y": "if", "split": "i", "edge_weight": "f"}
    kinds |= {"node_ids": "iuU", "part": "i"}
    for name in (*STORED, *(shapes.keys() - set(STORED))):
        if name not in (*STORED, *OPTIONAL) or name not in shapes:
            raise KeyError(name)
        if (name == "y" and shapes[name][:1] != (header.nodes,)) or shapes[name] != wanted.get(name, shapes[name]):
            raise ValueError(f"{name} of shape {shapes[name]}")
        if np.dtype(header.arrays[name].dtype).kind not in kinds[name]:
            raise ValueError(f"{name} of {header.arrays[name].dtype}")
