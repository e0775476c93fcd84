"""`topoff convert`: write any graph that `topoff.load` reads as an .npz file or a folder of tables; tidy its edges."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np
    from torch_geometric.data import Data

EXAMPLES = """Examples:

  topoff convert Cora cora.npz --undirected --remove-duplicates

  topoff convert graph.npz graph/ --format csv"""

FORMATS = ("csv", "parquet")
TABLES = tuple(f"{table}.{ending}" for table in ("nodes", "edges") for ending in FORMATS)
OTHER_FILES = (".csv", ".tsv", ".parquet", ".json", ".npy", ".pt", ".pkl", ".gz", ".zip", ".h5")
SPLITS = ("train", "val", "test")
SPARSE = 0.1  # share of entries that are not zero, below which features are stored as CSR


def convert(
    dataset: Annotated[
        str, typer.Argument(help="'wordnet', a PyG dataset's name, an .npz file or a folder, also of tables.")
    ],
    out: Annotated[str, typer.Argument(help="A file ending in .npz, else a folder for nodes and edges as tables.")],
    root: Annotated[str | None, typer.Option(help="Folder of the raw files of PyG datasets.")] = None,
    split: Annotated[int, typer.Option(help="Which of the dataset's splits to write.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the split, where the dataset has none.", min=0)] = 0,
    table_format: Annotated[
        str | None, typer.Option("--format", help="Of a folder's tables: csv or parquet (default).")
    ] = None,
    undirected: Annotated[
        bool,
        typer.Option(
            "--undirected",
            help="Add the reverse of every edge and merge duplicates. Merged edges of equal weight keep it, others get "
            "the sum of their weights, the same one both ways. Edges are sorted by source and target.",
        ),
    ] = False,
    remove_self_loops: Annotated[
        bool, typer.Option("--remove-self-loops", help="Drop edges from a node to itself.")
    ] = False,
    remove_duplicates: Annotated[
        bool,
        typer.Option("--remove-duplicates", help="Merge edges with the same source and target, weights as above."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT where it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one line of JSON.")] = False,
    quiet: Annotated[bool, typer.Option(help="Print nothing but JSON and errors.")] = False,
) -> None:
    """Write a graph as one .npz file or as a folder of tables; `topoff` reads both, with the same labels and split.

    A folder's features are standardised when it is read, as those of any table.
    """
    from rich.console import Console

    ending = _ending(out, table_format)
    path = check_place(out, overwrite=overwrite)
    with Console(stderr=True, quiet=quiet).status("loading") as status:
        from topoff.data import load

        data = load(dataset, root=root, split=split, seed=seed)
        edges_before = data.edge_index.size(1)
        status.update("converting")
        if remove_self_loops:
            data = without_self_loops(data)
        if undirected or remove_duplicates:
            data = merge_edges(data, undirected=undirected)
        status.update("writing")
        with replacing(path) as place:
            write_npz(data, place) if ending == "npz" else write_tables(data, place, ending=ending)
    edges = data.edge_index.size(1)
    if as_json:
        sizes = {"nodes": data.num_nodes, "edges": edges, "edges_before": edges_before, "features": data.num_features}
        typer.echo(json.dumps({"out": str(path), "format": ending, **sizes}))
    elif not quiet:
        change = "" if edges == edges_before else f" (before: {edges_before:,})"
        typer.echo(f"{path}: {data.num_nodes:,} nodes, {edges:,} edges{change}, {data.num_features:,} features")


def _ending(out: str, table_format: str | None) -> str:
    """Return "npz", "csv" or "parquet"."""
    suffix = Path(out).suffix.lower()
    if suffix in OTHER_FILES:
        raise ValueError(
            f"Expected OUT to end in .npz or to be a folder (got '{out}'); for tables, name a folder and add --format."
        )
    if table_format is not None and table_format not in FORMATS:
        raise ValueError(f"Expected --format to be {' or '.join(FORMATS)} (got '{table_format}'); or leave it out.")
    if suffix != ".npz":
        return table_format or "parquet"
    if table_format is not None:
        raise ValueError(
            f"Expected no --format with an .npz file (got '{table_format}'); leave it out, or name a folder."
        )
    return "npz"


# ---- the place


def check_place(out: str, *, overwrite: bool) -> Path:
    """Return the absolute path of `out`, refused if it exists (unless `overwrite`) or cannot be reached.

    A folder is overwritten only if it holds tables alone: nobody's other files are removed.

    >>> check_place("/nowhere/graph.npz", overwrite=False)
    Traceback (most recent call last):
    ValueError: Expected the folder of OUT to exist (got no folder /nowhere); create it first.
    """
    path = Path(out).expanduser().resolve()
    if not path.parent.is_dir():
        raise ValueError(f"Expected the folder of OUT to exist (got no folder {path.parent}); create it first.")
    if not path.exists():
        return path
    if not overwrite:
        raise FileExistsError(f"Expected OUT to be new (got {path}, which exists); add --overwrite to replace it.")
    wanted_file = path.suffix.lower() in (".npz", ".csv")
    others = [] if path.is_file() else sorted(name.name for name in path.iterdir() if name.name not in TABLES)
    if path.is_dir() == wanted_file or others:
        got = f"a folder with {others[0]}" if others else "a folder" if path.is_dir() else "a file"
        wanted = "a file" if wanted_file else "a folder of tables only"
        raise ValueError(f"Expected {path} to be {wanted} to overwrite it (got {got}); choose another place.")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a place beside `path` to write a file or a folder to, then move it there; leave nothing after a failure.

    Raises ValueError in one sentence where writing fails.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as place:
    ...         _ = place.write_text("whole")
    ...     [found.name for found in Path(folder).iterdir()]
    ['a.txt']
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name[:100]}.", dir=path.parent) as folder:
            place, old = Path(folder) / "new", Path(folder) / "old"
            yield place
            if path.is_dir():  # a folder cannot be replaced in one step: keep the old one until the new one is there
                os.replace(path, old)
                try:
                    os.replace(place, path)
                except OSError:
                    os.replace(old, path)
                    raise
            else:
                os.replace(place, path)
    except OSError as error:
        raise ValueError(
            f"Expected to write {path} (got {error.strerror or error}); choose a place with room that can be written."
        ) from error


# ---- the edges


def without_self_loops(data: Data) -> Data:
    """Return the graph without edges from a node to itself; weights and features of the others stay theirs."""
    keep = data.edge_index[0] != data.edge_index[1]
    out = copy.copy(data)
    for name in ("edge_index", "edge_weight", "edge_attr"):
        if data.get(name) is not None:
            out[name] = data[name][:, keep].contiguous() if name == "edge_index" else data[name][keep]
    return out


def merge_edges(data: Data, *, undirected: bool) -> Data:
    """Return the graph with one edge per (source, target), and its reverse where `undirected`; sorted by both.

    Merged edges (where undirected, also those of opposite directions) keep their weight if all have the same, else get
    the sum, in both directions.

    Raises ValueError for a graph with edge features: there is no one way to merge them.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> weight = torch.tensor([1.0, 2.0, 5.0])
    >>> path = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 2], [1, 0, 1]]), edge_weight=weight)
    >>> merged = merge_edges(path, undirected=True)
    >>> merged.edge_index.tolist(), merged.edge_weight.tolist()
    ([[0, 1, 1, 2], [1, 0, 2, 1]], [3.0, 3.0, 5.0, 5.0])
    """
    import numpy as np
    import torch

    if data.get("edge_attr") is not None:
        raise ValueError(
            "Expected a graph without edge_attr to merge edges (got one with it); edge features cannot be merged: "
            "leave out --undirected and --remove-duplicates, or the features."
        )
    n = int(data.num_nodes)
    source, target = data.edge_index.numpy()
    if undirected:
        source, target = np.minimum(source, target), np.maximum(source, target)
    key, inverse = np.unique(source * n + target, return_inverse=True)
    weight = None if data.get("edge_weight") is None else _merged(data.edge_weight.numpy(), inverse, count=len(key))
    ends = np.stack(np.divmod(key, n)) if len(key) else np.zeros((2, 0), dtype=np.int64)
    if undirected:
        between = ends[0] != ends[1]
        ends = np.concatenate([ends, ends[::-1, between]], axis=1)
        weight = None if weight is None else np.concatenate([weight, weight[between]])
        order = np.lexsort((ends[1], ends[0]))
        ends, weight = ends[:, order], None if weight is None else weight[order]
    out = copy.copy(data)
    out.edge_index = torch.from_numpy(np.ascontiguousarray(ends))
    if weight is not None:
        out.edge_weight = torch.from_numpy(weight)
    return out


def _merged(weight: np.ndarray[Any, Any], group: np.ndarray[Any, Any], *, count: int) -> np.ndarray[Any, Any]:
    """Return the weight of every group: the common one, else the sum."""
    import numpy as np

    first = np.zeros(count, dtype=weight.dtype)
    first[group] = weight  # any one of the group
    differs = np.zeros(count, dtype=bool)
    differs[group[weight != first[group]]] = True
    total = np.bincount(group, weights=weight, minlength=count).astype(weight.dtype)
    return np.where(differs, total, first)


# ---- the files


def write_npz(data: Data, path: Path) -> None:
    """Write a graph in the layout that `topoff.load` reads back exactly."""
    import numpy as np
    import scipy.sparse

    x = data.x.numpy()
    arrays: dict[str, Any] = {"edge_index": data.edge_index.numpy(), "y": data.y.numpy(), "split": _split_codes(data)}
    if np.count_nonzero(x) < SPARSE * x.size:
        rows = scipy.sparse.csr_array(x)
        parts = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr, "shape": np.array(rows.shape)}
        arrays |= {f"x_{name}": part for name, part in parts.items()}
    else:
        arrays["x"] = x
    arrays |= {name: data[name].numpy() for name in ("edge_weight", "edge_attr") if data.get(name) is not None}
    arrays |= {key: np.array(known) for key in ("node_ids", "class_names") if (known := known_names(data, key))}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _split_codes(data: Data) -> np.ndarray[Any, Any]:
    """Return 0 (train), 1 (validation), 2 (test), -1 (none) per node."""
    import numpy as np

    codes = np.full(int(data.num_nodes), -1, dtype=np.int64)
    for code, name in enumerate(SPLITS):
        codes[data[f"{name}_mask"].numpy()] = code
    return codes


def write_tables(data: Data, folder: Path, *, ending: str) -> None:
    """Write a folder with the tables nodes and edges, as "csv" or "parquet".

    Raises ValueError for a graph with edge features, which tables have no column for.
    """
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    if data.get("edge_attr") is not None:
        raise ValueError(
            "Expected a graph without edge_attr for a folder of tables (got one with it); write an .npz file instead."
        )
    ids = pyarrow.array(known_names(data, "node_ids") or range(int(data.num_nodes)))
    edges = {"source": ids.take(data.edge_index[0].numpy()), "target": ids.take(data.edge_index[1].numpy())}
    if data.get("edge_weight") is not None:
        edges["weight"] = pyarrow.array(data.edge_weight.numpy())
    words = pyarrow.array([*SPLITS, None]).take(pyarrow.array(_split_codes(data) % 4))  # -1 becomes 3
    features = {f"f{number}": pyarrow.array(column) for number, column in enumerate(data.x.t().contiguous().numpy())}
    nodes = {"id": ids, **features, **_label_columns(data), "split": words}
    folder.mkdir()
    write = pyarrow.csv.write_csv if ending == "csv" else pyarrow.parquet.write_table
    write(pyarrow.table(nodes), folder / f"nodes.{ending}")
    write(pyarrow.table(edges), folder / f"edges.{ending}")


def _label_columns(data: Data) -> dict[str, Any]:
    """Return the column target (regression), label:<name> (multi-label) or label (classes); no label is no value."""
    import pyarrow

    y, names = data.y.numpy(), known_names(data, "class_names")
    if y.ndim == 2:
        columns = zip(names or range(y.shape[1]), y.T, strict=False)  # there may be more names than labels
        return {f"label:{name}": pyarrow.array(column.astype("int8")) for name, column in columns}
    if y.dtype.kind == "f":
        return {"target": pyarrow.array(y, from_pandas=True)}  # NaN is no value
    labels = pyarrow.array(y, mask=y < 0)
    return {"label": pyarrow.array(names).take(labels) if names else labels}


def known_names(data: Data, key: str) -> list[Any]:
    """Return the user's own "node_ids" or "class_names", strings if not all are integers; empty where unknown."""
    known = list(getattr(getattr(data, "names", None), key, None) or ())
    return known if all(isinstance(name, int) for name in known) else [str(name) for name in known]
