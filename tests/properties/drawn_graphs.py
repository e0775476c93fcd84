"""Draw small graphs as people have them: directed or not, with loops, duplicates, isolated nodes, ids, weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import csv, parquet

Array = np.ndarray[Any, Any]
IDS = ("none", "int64", "uint64", "string")


@dataclass(frozen=True)
class Drawn:
    """Hold a drawn graph, before it is written to files."""

    x: Array  # (n, d)
    edges: Array  # int64 (2, E)
    weight: Array | None  # (E,)
    y: Array  # int64 (n,), float (n,) or 0/1 (n, c)
    ids: Array | None  # (n,) all different
    names: list[str] | None  # of the classes


@st.composite
def drawn_graphs(draw: st.DrawFn, *, ids: tuple[str, ...] = IDS) -> Drawn:
    """Draw a graph of 6 to 40 nodes; numbers come from a drawn seed, structure from the drawn choices."""
    n, seed = draw(st.integers(6, 40)), draw(st.integers(0, 2**32 - 1))
    numbers = np.random.default_rng(seed)
    count = draw(st.integers(0, 4 * n))
    edges = numbers.integers(0, max(1, n - draw(st.integers(0, 2))), (2, count))  # the last ones may be isolated
    if draw(st.booleans()):
        edges = np.concatenate([edges, edges[::-1]], axis=1)
    x = numbers.normal(size=(n, draw(st.integers(1, 6)))).astype(draw(st.sampled_from(["float32", "float64"])))
    weight = numbers.uniform(0.1, 3, edges.shape[1]).astype(x.dtype) if draw(st.booleans()) else None
    kind, classes = draw(st.sampled_from(["classes", "regression", "multilabel"])), draw(st.integers(2, 4))
    y = {
        "classes": np.arange(n) % classes,
        "regression": numbers.normal(size=n).astype(np.float32),
        "multilabel": (numbers.random((n, classes)) < 0.5).astype(np.float32),
    }[kind]
    names = [f"{word} {k}" for k, word in enumerate(["red", "grün", "=1+1", "<b>"][:classes])]
    named = draw(st.booleans()) and kind != "regression"
    return Drawn(x, edges, weight, y, _ids(draw(st.sampled_from(ids)), n, numbers), names if named else None)


def _ids(kind: str, n: int, numbers: np.random.Generator) -> Array | None:
    """Return ids of a kind, all different; those of uint64 do not fit into int64, nor into a float."""
    if kind == "none":
        return None
    if kind == "uint64":
        return (np.uint64(2**63) + np.arange(n, dtype=np.uint64))[numbers.permutation(n)]
    if kind == "int64":
        return (np.arange(n) - 2**62)[numbers.permutation(n)]
    return np.array([f"{start}{k:03}" for k, start in enumerate(numbers.choice(["=", "-", "ü", " a", "0"], n))])


def write_npz(graph: Drawn, path: Path) -> Path:
    """Write the graph as an .npz file."""
    parts: dict[str, Any] = {"x": graph.x, "edge_index": graph.edges, "y": graph.y, "edge_weight": graph.weight}
    parts |= {"node_ids": graph.ids, "class_names": None if graph.names is None else np.array(graph.names)}
    np.savez(path, **{name: value for name, value in parts.items() if value is not None})
    return path


def write_tables(graph: Drawn, folder: Path, *, ending: str) -> Path:
    """Write the graph as tables; an id is its row where it has none."""
    ids = np.arange(len(graph.x)) if graph.ids is None else graph.ids
    nodes: dict[str, Any] = {"id": ids} | {f"x{k}": column for k, column in enumerate(graph.x.T)}
    if graph.y.ndim == 2:
        nodes |= {f"label:{k}": column.astype(int) for k, column in enumerate(graph.y.T)}
    elif graph.y.dtype == np.float32:
        nodes["target"] = graph.y
    else:
        nodes["label"] = graph.y if graph.names is None else [graph.names[k] for k in graph.y]
    edges = {"source": ids[graph.edges[0]], "target": ids[graph.edges[1]]}
    if graph.weight is not None:
        edges["weight"] = graph.weight
    folder.mkdir()
    for name, columns in (("nodes", nodes), ("edges", edges)):
        table = pa.table(columns)
        place = str(folder / f"{name}.{ending}")
        parquet.write_table(table, place) if ending == "parquet" else csv.write_csv(table, place)
    return folder
