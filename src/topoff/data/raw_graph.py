"""Read published raw files, piece by piece: GraphSAINT's, Reddit's, PPI's, and OGB's of papers100M.

A `RawGraph` holds what is small, labels and split, and hands out features and edges in pieces, as often as asked.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     np.save(Path(folder) / "feats.npy", np.eye(3))
...     open_rows(Path(folder) / "feats.npy").shape
(3, 3)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from topoff.data.archive import Member, check_array_file, open_members
from topoff.data.array_file import Array
from topoff.data.class_map import read_class_map
from topoff.data.edge_sort import Tidy
from topoff.data.layout import MASKS
from topoff.data.ogb_raw import read_masks, read_ogb
from topoff.data.refusal import refuse
from topoff.machine.cache import Arrays

EDGES = 1 << 22  # that are read in one go
ROWS = 1 << 16
REMEDY = "fetch it again"
ROLES = ("tr", "va", "te")
BOTH_WAYS = Tidy(undirected=True)


@dataclass(frozen=True)
class RawGraph:
    """Hold a graph as its raw files have it."""

    y: Array  # (n,) classes, -1 for none; or (n, c) 0/1
    split: Array  # (n,) int8: 0 train, 1 validation, 2 test, -1 none
    x: Callable[[], Iterator[Array]]  # (m, F) each
    edges: Callable[[], Iterator[Array]]  # (2, m) each
    expected_edges: int  # about
    tidy: Tidy  # what makes the graph of its edges that everybody trains on


def read_raw(kind: str, folder: Path) -> RawGraph:
    """Return the graph in a folder whose files are all there.

    Raises:
        ValueError: a file is damaged, or not of its layout.
    """
    readers = {"ogb": _ogb, "ogb-binary": _ogb_binary, "saint": _saint, "reddit": _reddit, "ppi": _ppi}
    return readers[kind](folder)


# ---- OGB


def _ogb(folder: Path) -> RawGraph:
    """Return the graph of OGB's csv files; products lists every edge one way, and the papers symmetrise arxiv."""
    raw = read_ogb(folder)
    split = _codes(raw.arrays, folder)
    return RawGraph(raw.arrays["y"], split, raw.x, raw.edges, raw.expected_edges, BOTH_WAYS)


def _ogb_binary(folder: Path) -> RawGraph:
    """Return the graph of OGB's .npz files, of papers100M."""
    path, labels = folder / "raw" / "data.npz", folder / "raw" / "node-label.npz"
    found = _members(path, {"edge_index": "iu", "node_feat": "f"})
    y = _members(labels, {"node_label": "fiu"})["node_label"].read().reshape(-1)
    edges, x = found["edge_index"], found["node_feat"]
    if edges.shape[:1] != (2,) or len(edges.shape) != 2 or len(x.shape) != 2 or len(y) != x.shape[0] or x.fortran:
        got = f"edge_index {edges.shape}, node_feat {x.shape} and {len(y)} labels"
        refuse(f"{path} and {labels.name} to hold one graph", got, REMEDY)
    y = np.where(np.isfinite(y), y, -1).astype(np.int64)

    def pieces() -> Iterator[Array]:
        """Hand out the edges, some at a time; (2, e)."""
        if edges.fortran:  # by columns: pairs, one after the other
            return (pairs.T for pairs in replace(edges, shape=edges.shape[::-1], fortran=False).pieces(EDGES))
        ends = (edges.pieces(EDGES, row=row) for row in (0, 1))
        return (np.stack(pair) for pair in zip(*ends, strict=True))

    split = _codes(read_masks(folder, len(y)), folder)
    return RawGraph(y, split, lambda: x.pieces(ROWS), pieces, edges.shape[1], BOTH_WAYS)


def _codes(masks: Arrays, folder: Path) -> Array:
    """Return the split (n,) of masks."""
    split = np.full(len(masks[MASKS[0]]), -1, np.int8)
    for code, name in enumerate(MASKS):
        if both := int((split[masks[name]] >= 0).sum()):
            refuse(f"the split in {folder / 'split'} to list every node once", f"{both} nodes twice", REMEDY)
        split[masks[name]] = code
    return split


# ---- GraphSAINT, Reddit


def _saint(folder: Path) -> RawGraph:
    """Return the graph of GraphSAINT's four files; its adjacency has both directions."""
    raw = folder / "raw"
    x, adjacency = open_rows(raw / "feats.npy"), raw / "adj_full.npz"
    nodes = len(x)
    found = _members(adjacency, {"indices": "iu", "indptr": "iu"})
    indptr, indices = found["indptr"].read().astype(np.int64), found["indices"]
    whole = indptr.shape == (nodes + 1,) and indptr[0] == 0 and indices.shape == (indptr[-1],)
    if not whole or (np.diff(indptr) < 0).any():
        got = f"{indices.shape[0]} entries, and row pointers of shape {indptr.shape} up to {indptr.max(initial=0)}"
        refuse(f"{adjacency} to be the CSR matrix of {nodes} nodes", got, REMEDY)

    def pieces() -> Iterator[Array]:
        """Hand out the edges, some at a time; (2, e)."""
        low = 0
        for some in indices.pieces(EDGES):
            places = np.arange(low, low + len(some))
            yield np.stack([np.searchsorted(indptr, places, side="right") - 1, some.astype(np.int64)])
            low += len(some)

    split, y = _roles(raw / "role.json", nodes), read_class_map(raw / "class_map.json", nodes)
    return RawGraph(y, split, lambda: _rows(x), pieces, indices.shape[0], Tidy())


def _roles(path: Path, nodes: int) -> Array:
    """Return the split (n,) of role.json, {"tr": ids, "va": ids, "te": ids}."""
    found = read_json(path)
    split = np.full(nodes, -1, np.int8)
    for code, role in enumerate(ROLES):
        ids = np.asarray(found.get(role, "missing") if isinstance(found, dict) else "missing")
        if ids.dtype.kind not in "iu" or ids.ndim != 1 or ids.min(initial=0) < 0 or ids.max(initial=0) >= nodes:
            got = f"no ids from 0 to {nodes - 1} under '{role}'"
            refuse(f"{path} to list nodes under {', '.join(ROLES)}", got, REMEDY)
        if (split[ids] >= 0).any():
            refuse(f"{path} to list every node once", f"some of '{role}' twice", REMEDY)
        split[ids] = code
    return split


def _reddit(folder: Path) -> RawGraph:
    """Return PyG's Reddit: nodes in one file, a COO matrix in the other; copies of an edge are merged, as in PyG."""
    nodes, adjacency = folder / "raw" / "reddit_data.npz", folder / "raw" / "reddit_graph.npz"
    found = _members(nodes, {"feature": "f", "label": "iu", "node_types": "iu"})
    ends = _members(adjacency, {"row": "iu", "col": "iu"})
    x, y, types = found["feature"], found["label"].read(), found["node_types"].read()
    fit = len(x.shape) == 2 and y.shape == types.shape == x.shape[:1] and not x.fortran
    if not fit or ends["row"].shape != ends["col"].shape:
        shapes = {name: member.shape for name, member in {**found, **ends}.items()}
        refuse(f"{nodes} and {adjacency.name} to hold one graph", f"shapes {shapes}", REMEDY)
    split = np.select([types == 1, types == 2, types == 3], [0, 1, 2], -1).astype(np.int8)

    def pieces() -> Iterator[Array]:
        """Hand out the edges, some at a time; (2, e)."""
        sides = (ends[name].pieces(EDGES) for name in ("row", "col"))
        return (np.stack(pair) for pair in zip(*sides, strict=True))

    merged = Tidy(duplicates=False)
    return RawGraph(y.astype(np.int64), split, lambda: x.pieces(ROWS), pieces, ends["row"].shape[0], merged)


# ---- PPI: 24 graphs of one tissue each


def _ppi(folder: Path) -> RawGraph:
    """Return PyG's PPI as one graph: 20 tissues for training, 2 and 2 for the rest, no edge between any two."""
    raw, begin, parts = folder / "raw", 0, []
    for word in ("train", "valid", "test"):
        x, y, tissue = (open_rows(raw / f"{word}_{file}.npy") for file in ("feats", "labels", "graph_id"))
        if not len(x) == len(y) == len(tissue):
            got = f"{len(x)} rows of features, {len(y)} of labels, {len(tissue)} of graph ids"
            refuse(f"the {word} files in {raw} to fit each other", got, REMEDY)
        parts.append((x, y, begin + _links(raw / f"{word}_graph.json", tissue)))
        begin += len(x)
    edges = np.concatenate([links for _, _, links in parts], axis=1)
    split = np.repeat(np.arange(3, dtype=np.int8), [len(x) for x, _, _ in parts])

    def rows() -> Iterator[Array]:
        """Hand out the features, tissue by tissue."""
        return (some for x, _, _ in parts for some in _rows(x))

    y = np.concatenate([labels for _, labels, _ in parts]).astype(np.uint8)
    return RawGraph(y, split, rows, lambda: iter([edges]), edges.shape[1], BOTH_WAYS)


def _links(path: Path, tissue: Array) -> Array:
    """Return edges (2, m), each once, without loops and those between two graphs, as PyG leaves them out."""
    found = read_json(path)
    links = found.get("links") if isinstance(found, dict) else None
    try:
        ends = np.array([(link["source"], link["target"]) for link in links or ()], np.int64).reshape(-1, 2)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected {path} to list links by source and target (got others); {REMEDY}.") from error
    if not len(ends) or ends.min() < 0 or ends.max() >= len(tissue):
        refuse(f"{path} to link nodes from 0 to {len(tissue) - 1}", f"{len(ends)} links, or others", REMEDY)
    kept = (ends[:, 0] != ends[:, 1]) & (tissue[ends[:, 0]] == tissue[ends[:, 1]])
    low, high = np.sort(ends[kept], axis=1).T
    return np.stack(np.divmod(np.unique(low * len(tissue) + high), len(tissue)))


# ---- files


def open_rows(path: Path) -> Array:
    """Map an .npy file of numbers into memory.

    Raises:
        ValueError: it is damaged, or holds something else.
    """
    check_array_file(path, expected=f"{path} to be a whole .npy file")
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:  # of an empty array, or of objects
        raise ValueError(f"Expected {path} to hold rows of numbers (got {error}); {REMEDY}.") from error
    if array.ndim not in (1, 2) or array.dtype.kind not in "biuf":
        refuse(f"{path} to hold rows of numbers", f"{array.dtype} of shape {array.shape}", REMEDY)
    return array


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        ValueError: it is none, or only a part of one.
    """
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected {path} to be a whole JSON file (got {error}); {REMEDY}.") from error


def _rows(array: Array) -> Iterator[Array]:
    return (np.asarray(array[low : low + ROWS]) for low in range(0, len(array), ROWS))


def _members(path: Path, kinds: Mapping[str, str]) -> dict[str, Member]:
    """Return arrays of an .npz file by name, of the kinds that they must have."""
    found = open_members(path, wanted=tuple(kinds))
    for name, kind in kinds.items():
        if name not in found or found[name].dtype.kind not in kind or not found[name].shape:
            got = f"{found[name].dtype} of shape {found[name].shape}" if name in found else "none"
            refuse(f"{path} to have the array '{name}'", got, REMEDY)
    return found
