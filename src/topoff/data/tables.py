"""Read a graph from a folder of tables: nodes.csv or .parquet with ids, features and labels, and edges.csv or .parquet.

nodes: id (or node, node_id, else the first column), any feature columns, and optionally
       label          strings, whole numbers or booleans are classes; numbers with fractions are a quantity
       target         a quantity, whole numbers included
       label:<name>   several columns of 0 and 1: a node may have any number of these labels
       split          train, val, test or nothing; or 0, 1, 2, -1
edges: source, target, and optionally weight
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from topoff.data.columns import Column, Ints, Table, read_table, refuse_first, single_numbers
from topoff.data.encoding import check_encoding
from topoff.data.features import encode_columns, fit_columns
from topoff.data.ids import positions, unique_ids, written_ids
from topoff.data.labels import is_reserved, read_labels, read_split
from topoff.data.refusal import refuse
from topoff.machine.cache import Arrays

IDS = ("id", "node", "node_id")


@dataclass(frozen=True)
class Tables:
    """Hold a graph that was read from tables."""

    arrays: Arrays  # x float32 (n, d), edge_index (2, E); where given y, the masks (n,), edge_weight float32 (E,)
    node_ids: list[str] | list[int]  # (n,) as they are compared
    written: Any  # pyarrow.Array (n,), the ids as in the file
    class_names: list[str] | None  # of classes and of several labels, in the order of y
    encoding: dict[str, Any]  # JSON-able: enough to encode another table alike
    notes: list[str]  # what was done, one sentence each


@dataclass(frozen=True)
class EdgeTable:
    """Hold what was read of a table of edges."""

    arrays: Arrays  # edge_index (2, E) and, where given, edge_weight (E,)
    notes: list[str]
    degree: Callable[[], Ints]  # (n,) ends of edges at every node


EdgeReader = Callable[[Path, Column, Path], EdgeTable]  # of the folder, the ids (n,) and the file of the nodes


def read_tables(
    folder: str | Path, *, encoding: Mapping[str, Any] | None = None, edges: EdgeReader | None = None
) -> Tables:
    """Read the tables of a folder; with the `encoding` of an earlier read, encode features and labels as then.

    Edges are read by a function of its own where they do not fit into memory.

    Numbers are standardised, strings and booleans become one column per category, missing values are filled in and
    marked; see data/features. A node without a label is in no mask. Ids are compared as written, so that the integer 7
    and the string 7 are one id. Edges keep their direction. With an encoding, labels may be missing.

    Raises FileNotFoundError or ValueError in one sentence with the file, and the row and value where there is one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "nodes.csv").write_text("id,age,label\\nann,30,yes\\nbob,40,no\\ncid,,\\n")
    ...     _ = (Path(folder) / "edges.csv").write_text("source,target\\nann,bob\\nbob,ann\\n")
    ...     read = read_tables(folder)
    >>> read.arrays["x"].tolist(), read.arrays["y"].tolist(), read.class_names
    ([[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [1, 0, -1], ['no', 'yes'])
    >>> read.notes[0]
    'age: 1 of 3 missing, filled with the mean 35 and marked'
    """
    if encoding is not None:
        check_encoding(encoding)
    nodes = open_one(Path(folder), "nodes")
    path_of(Path(folder), "edges")  # before the work on nodes
    name, notes = id_column(nodes, encoding)
    if (Path(folder) / "graph.npz").is_file():
        notes.append("graph.npz: not read, as tables go before it")
    ids = unique_ids(nodes, name)
    graph = (edges or _read_edges)(Path(folder), ids, nodes.path)
    free = [column for column in nodes.columns if column != name and not is_reserved(column)]
    x, columns, feature_notes = _read_features(nodes, free, graph.degree, encoding=encoding)
    labels = read_labels(nodes, entry=(encoding or {}).get("label"), optional=encoding is not None)
    masks, split_notes = read_split(nodes, labels.y)
    fitted = {"id": name, **columns, "label": labels.entry}
    return Tables(
        arrays={"x": x, **graph.arrays, **({} if labels.y is None else {"y": labels.y}), **masks},
        node_ids=ids.to_pylist(),
        written=written_ids(nodes, name, ids),
        class_names=(labels.entry or {}).get("names"),
        encoding=fitted if encoding is None else dict(encoding),
        notes=[*notes, *feature_notes, *labels.notes, *split_notes, *graph.notes],
    )


def open_one(folder: Path, name: str) -> Table:
    """Read "nodes" or "edges" of a folder, which may be empty in one case only: a graph without edges."""
    table = read_table(path_of(folder, name))
    if name == "nodes" and table.rows == 0:
        refuse(f"{table.path} to hold a row per node", "a header only", "add the nodes")
    return table


def path_of(folder: Path, name: str) -> Path:
    """Return the file of "nodes" or "edges"; refuse a folder with none or two."""
    found = [path for path in (folder / f"{name}.csv", folder / f"{name}.parquet") if path.is_file()]
    if not found:
        raise FileNotFoundError(
            f"Expected {folder} to hold {name}.csv or {name}.parquet (got neither); write the {name} into one of them."
        )
    if len(found) > 1:
        refuse(f"one table of {name} in {folder}", f"{found[0].name} and {found[1].name}", "remove one of them")
    return found[0]


# ---- ids and edges


def id_column(nodes: Table, encoding: Mapping[str, Any] | None = None) -> tuple[str, list[str]]:
    """Return the name of the column of ids, and a note where it had to be guessed."""
    taken = {entry["name"] for entry in (encoding or {}).get("columns", ())}
    named = IDS if encoding is None else (encoding["id"], *IDS)
    found = next((name for name in named if name in nodes.columns and name not in taken), None)
    if found is not None:
        return found, []
    first = next(iter(nodes.columns))
    if is_reserved(first) or first in taken:
        got = f"the columns {', '.join(nodes.columns)}"
        refuse(f"{nodes.path} to have a column of ids", got, f"call it {' or '.join(IDS)}")
    return first, [f"{first or 'the first column'}: taken for the ids, as no column is called {', '.join(IDS)}"]


def _read_edges(folder: Path, ids: Column, nodes: Path) -> EdgeTable:
    """Return all edges."""
    found = edges_of(open_one(folder, "edges"), ids, nodes=nodes)
    index = found.arrays["edge_index"]
    return EdgeTable(found.arrays, [_direction(index, len(ids)), *found.notes], found.degree)


def edges_of(edges: Table, ids: Column, *, nodes: Path) -> EdgeTable:
    """Return edge_index and, where given, edge_weight of a table of edges, or of a piece of one, and notes."""
    missing = [name for name in ("source", "target") if name not in edges.columns]
    if missing:
        got = f"no {' and no '.join(missing)}, but {', '.join(edges.columns)}"
        remedy = "rename them, or write source,target as its first line"
        refuse(f"{edges.path} to have the columns source and target", got, remedy)
    ends = np.stack([positions(edges, name, ids, nodes=nodes) for name in ("source", "target")])
    arrays: Arrays = {"edge_index": ends}
    if "weight" in edges.columns:
        remedy = "write 1 where an edge has no particular weight"
        weight = single_numbers(edges, "weight", otherwise=remedy)
        refuse_first(edges, "weight", np.isnan(weight), expected="to hold a number in every row", remedy=remedy)
        arrays["edge_weight"] = weight
    unused = [name for name in edges.columns if name not in ("source", "target", "weight")]
    notes = [f"{', '.join(unused)}: not used, an edge has a weight only"] if unused else []
    return EdgeTable(arrays, notes, lambda: np.bincount(ends.reshape(-1), minlength=len(ids)))


def _direction(edges: np.ndarray[Any, Any], n: int) -> str:
    """Say how many edges there are and whether messages go both ways."""
    count = edges.shape[1]
    there, back = np.sort(edges[0] * n + edges[1]), np.sort(edges[1] * n + edges[0])
    found = np.searchsorted(there, back)
    both = int((there[np.minimum(found, count - 1)] == back).sum()) if count else 0
    if both == count:
        return f"edges: {count}, all of them in both directions" if count else "edges: none"
    way = f"{both} of them" if both else "none of them"
    return (
        f"edges: {count}, {way} in both directions; messages go from source to target only (write both directions, "
        "or convert the graph to an undirected one, if both ends should hear each other)"
    )


# ---- features


def _read_features(
    nodes: Table, free: list[str], degree: Callable[[], Ints], *, encoding: Mapping[str, Any] | None
) -> tuple[np.ndarray[Any, Any], dict[str, Any], list[str]]:
    """Return x (n, d), the encoding's part about the columns, and notes; choose the encoding where none is given."""
    if encoding is None:
        entries, notes = fit_columns(nodes, free)
        kept = {entry["name"] for entry in entries}
        columns: dict[str, Any] = {"columns": entries, "left_out": [name for name in free if name not in kept]}
    else:
        columns = {key: encoding[key] for key in ("columns", "left_out")}
        known = {*columns["left_out"], *(entry["name"] for entry in columns["columns"])}
        new = [name for name in free if name not in known]
        notes = [f"{', '.join(new)}: not used, as the first table had no such column"] if new else []
    if columns["columns"]:
        x, found = encode_columns(nodes, columns["columns"])
        return x, columns, notes + (found if encoding is not None else [])
    x = np.stack([np.log1p(degree()), np.ones(nodes.rows)], axis=1).astype(np.float32)
    what = "no usable feature column: the features are the logarithm of 1 + the degree and a constant"
    return x, columns, [*notes, what]
