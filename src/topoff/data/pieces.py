"""Any graph piece by piece, for a store: what is large is read in pieces, what is small as ever.

| source | in pieces | whole |
|---|---|---|
| .npz, with a dense x | x, edge_index, edge_weight | labels, split, names |
| .npz of another layout, PyG datasets | - | all |
| csv, parquet | edges | nodes: how a column becomes features depends on all of its values |
| OGB's raw folder, large published graphs, stores | edges, features | labels, split |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch_geometric.data import Data

from topoff.data.archive import Member, open_members
from topoff.data.array_file import Array
from topoff.data.columns import Column, Ints, plain_table
from topoff.data.ids import as_array, node_ids
from topoff.data.layout import CSR, LAYOUT
from topoff.data.load import data_of_arrays, data_of_tables, load
from topoff.data.npz import unify
from topoff.data.ogb_raw import is_ogb, read_ogb
from topoff.data.published import RAW
from topoff.data.refusal import refuse, within
from topoff.data.sources import Source, find_source, graph_file, known_name
from topoff.data.store import open_store
from topoff.data.store_write import EdgePiece, Pieces
from topoff.data.table_file import open_pieces
from topoff.data.tables import EdgeTable, edges_of, path_of, read_tables
from topoff.data.write import known_names, split_codes
from topoff.machine.cache import Arrays

EDGES = 1 << 22  # of arrays that are read in one go
ROWS = 1 << 16
LARGE = ("x", "edge_index", "edge_weight")
EDGE_BYTES = 16  # of a line in a file of edges, about


def pieces_of(
    source: str | Path, *, root: str | Path | None = None, split: int = 0, seed: int = 0, trust: bool = False
) -> Pieces:
    """Return a graph that `topoff.load` reads, or OGB's raw folder, in pieces.

    Raises FileNotFoundError or ValueError in one sentence with the remedy; what is wrong with a piece, when it comes.

    >>> pieces = pieces_of("wordnet")
    >>> pieces.nodes, pieces.expected_edges, next(iter(pieces.x)).shape
    (117791, 349438, (65536, 128))
    """
    if known_name(source) is None and is_ogb(Path(source)):
        raw = read_ogb(Path(source))
        with within(source):
            light = data_of_arrays(raw.arrays, split=split, seed=seed)
        edges = (EdgePiece(*ends) for ends in raw.edges())
        return _with_light(light, x=raw.x(), edges=edges, expected=raw.expected_edges)
    found = find_source(source, root=root)
    if found.tables:
        return _table_pieces(found.path, split=split, seed=seed)
    members = _members(found)
    if members is not None:
        with within(source):
            return _npz_pieces(members, graph_file(found.path), split=split, seed=seed)
    if found.store:
        open_store(found.path).verify()  # what is written gets checksums of its own
    whole = found.name not in RAW and not found.store  # those become a store first; a store is mapped
    return data_pieces(load(source, root=root, split=split, seed=seed, trust=trust, in_memory=whole))


def data_pieces(data: Data) -> Pieces:
    """Return a graph in memory piece by piece.

    Raises:
        ValueError: it has edge features, which a store has no place for.
    """
    if data.get("edge_attr") is not None:
        refuse("a graph without edge_attr for a store", "one with it", "write an .npz file instead")
    source, target = data.edge_index.numpy()
    weight = None if data.get("edge_weight") is None else data.edge_weight.numpy()

    def edges() -> Iterator[EdgePiece]:
        """Hand out the edges, some at a time."""
        for low in range(0, len(source), EDGES):
            some = slice(low, low + EDGES)
            yield EdgePiece(source[some], target[some], None if weight is None else weight[some])

    kind = None if weight is None else weight.dtype.name
    return _with_light(data, x=_rows(data.x.numpy()), edges=edges(), expected=len(source), weights=kind)


def _with_light(
    data: Data, *, x: Iterable[Array], edges: Iterable[EdgePiece], expected: int, weights: str | None = None
) -> Pieces:
    """Return pieces with the labels, split and names of a graph whose own features and edges do not count."""
    names = data.get("names")
    given = {key: getattr(names, key, None) for key in ("class_names", "encoding", "notes")}
    ids = as_array(node_ids(data)) if known_names(data, "node_ids") or getattr(names, "ids", None) is not None else None
    return Pieces(
        nodes=int(data.num_nodes or 0),
        edges=edges,
        expected_edges=expected,
        x=x,
        y=_rows(data.y.numpy()) if "y" in data else None,
        split=split_codes(data) if "y" in data else None,
        weights=weights,
        node_ids=ids,
        stand_in=None if (store := getattr(names, "store", None)) is None else store.header.stand_in,
        names={key: list(value) if isinstance(value, tuple) else value for key, value in given.items()},
    )


def _rows(array: Array) -> Iterator[Array]:
    return (array[low : low + ROWS] for low in range(0, len(array), ROWS))


# ---- npz


def _members(found: Source) -> dict[str, Member] | None:
    """Return the arrays of an .npz file whose features and edges can be read in pieces; None for all else."""
    if found.name is not None or found.store or not graph_file(found.path).is_file():
        return None
    members = open_members(graph_file(found.path), wanted=LAYOUT)
    plain = all(name in members and not members[name].fortran for name in ("x", "edge_index"))
    if not plain or any(name in members for name in (*CSR, "edge_attr")):
        return None
    shapes = members["x"].shape, members["edge_index"].shape
    numbers = members["x"].dtype.kind in "biuf" and members["edge_index"].dtype.kind in "iu"
    return members if numbers and len(shapes[0]) == len(shapes[1]) == 2 and shapes[1][0] == 2 else None


def _npz_pieces(members: dict[str, Member], path: Path, *, split: int, seed: int) -> Pieces:
    """Return the graph of an .npz file; labels, split and names are read and checked without the large arrays."""
    x, index, weight = (members.get(name) for name in LARGE)
    assert x is not None
    assert index is not None
    if weight is not None and (weight.shape != index.shape[1:] or weight.dtype.kind not in "biuf"):
        got = f"{weight.dtype} of shape {weight.shape}"
        refuse(f"'edge_weight' to hold {index.shape[1]} numbers, one per edge", got, "one value per edge")
    small: Arrays = {name: member.read() for name, member in members.items() if name not in LARGE}
    stand_ins: Arrays = {"x": np.zeros((x.shape[0], 1), np.float32), "edge_index": np.zeros((2, 0), np.int64)}
    light = data_of_arrays(unify({**small, **stand_ins}, others=[], origin=str(path)), split=split, seed=seed)

    def edges() -> Iterator[EdgePiece]:
        """Hand out the edges, some at a time."""
        ends = zip(index.pieces(EDGES, row=0), index.pieces(EDGES, row=1), strict=True)
        weights = iter(weight.pieces(EDGES)) if weight is not None else None
        for source, target in ends:
            yield EdgePiece(source, target, None if weights is None else next(weights))

    kind = None if weight is None else "float64" if x.dtype == np.float64 else "float32"
    return _with_light(light, x=x.pieces(ROWS), edges=edges(), expected=index.shape[1], weights=kind)


# ---- tables


@dataclass(frozen=True)
class _EdgeFile:
    """Read a table of edges in pieces, as often as it is asked for."""

    path: Path
    ids: Column  # (n,)
    nodes: Path

    def pieces(self) -> Iterator[EdgeTable]:
        """Yield the edges."""
        before = 0
        for piece in open_pieces(self.path):
            yield edges_of(plain_table(self.path, piece, before=before), self.ids, nodes=self.nodes)
            before += piece.num_rows

    def degree(self) -> Ints:
        """Count the ends of edges at every node, (n,)."""
        counts = np.zeros(len(self.ids), np.int64)
        for piece in self.pieces():
            counts += piece.degree()
        return counts


def _table_pieces(folder: Path, *, split: int, seed: int) -> Pieces:
    """Return the graph of a folder of tables."""
    files: list[_EdgeFile] = []

    def later(folder: Path, ids: Column, nodes: Path) -> EdgeTable:
        """Look at the first edges only."""
        files.append(_EdgeFile(path_of(folder, "edges"), ids, nodes))
        first = next(files[0].pieces())
        none: dict[str, Any] = {"edge_index": np.zeros((2, 0), np.int64)}
        weighted = {"edge_weight": np.zeros(0, np.float32)} if "edge_weight" in first.arrays else {}
        return EdgeTable(none | weighted, first.notes, files[0].degree)

    tables = read_tables(folder, edges=later)
    light = data_of_tables(tables, folder, split=split, seed=seed)
    found = (_edge_piece(each.arrays) for each in files[0].pieces())
    weights = "float32" if "edge_weight" in tables.arrays else None
    expected = files[0].path.stat().st_size // EDGE_BYTES
    return _with_light(light, x=_rows(tables.arrays["x"]), edges=found, expected=expected, weights=weights)


def _edge_piece(arrays: Arrays) -> EdgePiece:
    source, target = arrays["edge_index"]
    return EdgePiece(source, target, arrays.get("edge_weight"))
