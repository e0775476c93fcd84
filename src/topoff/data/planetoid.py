"""Read the raw files that PyG unpickles: Planetoid's eight, and the one .npz file of the karate club's graphs.

The arrays are the same, bit by bit, as PyG's readers give; nothing in the files is run (data/unpickle).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from topoff.data.archive import check_memory, read_archive
from topoff.data.npz import densify
from topoff.data.refusal import refuse
from topoff.data.unpickle import plain_of
from topoff.machine.cache import Arrays

VALIDATION = 500  # nodes after the training nodes, in the public split
Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


def read_planetoid(folder: Path, name: str) -> Arrays:
    """Return x, y, edge_index and the masks of the public split of Cora, CiteSeer or PubMed.

    Raises:
        Pickled: a file names something to be run.
        ValueError: a file is damaged, or does not fit the others.
    """
    files = {part: folder / f"ind.{name}.{part}" for part in ("tx", "allx", "y", "ty", "ally", "graph", "test.index")}
    tx, allx, y, ty, ally = (_matrix(files[part]) for part in ("tx", "allx", "y", "ty", "ally"))
    graph = plain_of(files["graph"].read_bytes(), origin=str(files["graph"]))
    if not isinstance(graph, dict):
        refuse(f"{files['graph']} to hold the neighbours of every node", type(graph).__name__, "fetch it again")
    tests = _test_nodes(files["test.index"])
    if len(tx) != len(tests) or len(ty) != len(tests) or len(allx) != len(ally) or tx.shape[1:] != allx.shape[1:]:
        shapes = f"tx {tx.shape}, ty {ty.shape}, allx {allx.shape}, ally {ally.shape} and {len(tests)} test nodes"
        refuse(f"the raw files of {name} in {folder} to fit each other", shapes, "fetch them again")
    ordered = np.sort(tests)
    if name == "citeseer":  # isolated test nodes are missing: they get rows of zeros
        span = int(ordered[-1] - ordered[0]) + 1
        check_memory(span * tx.shape[1] * tx.itemsize, what=f"the test nodes of {name} in {folder}")
        tx, ty = (_spread(rows, ordered - ordered[0], span) for rows in (tx, ty))
    x, labels = np.concatenate([allx, tx]), np.concatenate([ally, ty]).argmax(axis=1)
    n = len(x)
    if ordered[0] < 0 or ordered[-1] >= n or len(y) + VALIDATION > n:
        got = f"{ordered[0]} to {ordered[-1]}, and {len(y)} training nodes"
        refuse(f"test nodes in {files['test.index']} from 0 to {n - 1}", got, "fetch the files again")
    x[tests], labels[tests] = x[ordered], labels[ordered]
    nodes = np.arange(n)
    masks = {
        "train_mask": nodes < len(y),
        "val_mask": (nodes >= len(y)) & (nodes < len(y) + VALIDATION),
        "test_mask": np.isin(nodes, tests),
    }
    return {"x": x, "edge_index": _edges(graph, n, files["graph"]), "y": labels, **masks}


def read_karate(path: Path) -> Arrays:
    """Return x, y and edge_index of GitHub, FacebookPagePage, LastFMAsia or DeezerEurope.

    Raises:
        Pickled: an array holds objects.
        ValueError: the file is damaged, or lacks one of its three arrays.
    """
    keys = ("features", "target", "edges")
    arrays = read_archive(path, wanted=keys).arrays
    if missing := [key for key in keys if key not in arrays]:
        refuse(f"{path} to have the arrays {', '.join(keys)}", f"no {', '.join(missing)}", "fetch it again")
    x, y, edges = (arrays[key] for key in keys)
    if x.ndim != 2 or y.ndim != 1 or edges.ndim != 2 or any(one.dtype.kind not in "biuf" for one in (x, y, edges)):
        got = f"features {x.shape}, target {y.shape} and edges {edges.shape} of {x.dtype}, {y.dtype}, {edges.dtype}"
        refuse(f"{path} to hold tables of numbers", got, "fetch it again")
    return {
        "x": x.astype(np.float32),
        "edge_index": np.ascontiguousarray(edges.T.astype(np.int64)),
        "y": y.astype(np.int64),
    }


def _matrix(path: Path) -> Floats:
    """Return a pickled matrix, dense or CSR, as float32."""
    found = plain_of(path.read_bytes(), origin=str(path))
    if isinstance(found, dict) and {"data", "indices", "indptr", "shape"} == set(found):
        found = densify(*(found[part] for part in ("data", "indices", "indptr", "shape")), origin=str(path))
    if not isinstance(found, np.ndarray) or found.ndim != 2 or not found.size:
        got = f"shape {found.shape}" if isinstance(found, np.ndarray) else type(found).__name__
        refuse(f"{path} to hold one matrix", got, "fetch it again")
    return found.astype(np.float32)


def _test_nodes(path: Path) -> Ints:
    """Return the ids of the test nodes, one in every line, none twice."""
    lines = path.read_text(encoding="ascii", errors="replace").split()
    wrong = next((line for line in lines if not line.isdigit() or len(line) > 12), None if lines else "nothing")
    if wrong is not None:
        refuse(f"{path} to hold node ids, one in every line", f"{wrong!r:.40}", "fetch it again")
    found = np.array(lines, dtype=np.int64)
    if len(np.unique(found)) < len(found):
        refuse(f"{path} to hold every node id once", f"{len(found) - len(np.unique(found))} twice", "fetch it again")
    return found


def _spread(rows: Floats, places: Ints, span: int) -> Floats:
    """Return rows at their places among `span` rows of zeros."""
    out = np.zeros((span, rows.shape[1]), dtype=rows.dtype)
    out[places] = rows
    return out


def _edges(graph: dict[Any, Any], n: int, path: Path) -> Ints:
    """Return edges (2, E) from every node to its neighbours, once each, without loops, sorted by target and source."""
    wrong = next((key for key, ids in graph.items() if not _are_nodes([key], n) or not _are_nodes(ids, n)), None)
    if wrong is not None:
        got = f"others of node {wrong}" if isinstance(wrong, int) else f"a node that is a {type(wrong).__name__}"
        refuse(f"{path} to list neighbours from 0 to {n - 1}", got, "fetch it again")
    source = np.repeat(np.array(list(graph), dtype=np.int64), [len(ids) for ids in graph.values()])
    target = np.array([one for ids in graph.values() for one in ids], dtype=np.int64)
    pairs = np.unique((target * n + source)[source != target])
    return np.stack([pairs % n, pairs // n])


def _are_nodes(ids: Any, n: int) -> bool:
    return isinstance(ids, list) and all(isinstance(one, int) and 0 <= one < n for one in ids)
