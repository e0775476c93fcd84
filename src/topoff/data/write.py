"""Write a graph: an .npz file, or a folder of tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from topoff.data.layout import SPLITS, STORE_FILES
from topoff.machine.places import expand_home

if TYPE_CHECKING:
    import numpy as np
    from torch_geometric.data import Data

FORMATS = ("csv", "parquet", "store")
TABLES = tuple(f"{table}.{ending}" for table in ("nodes", "edges") for ending in FORMATS[:2])
OTHER_FILES = (".csv", ".tsv", ".parquet", ".json", ".npy", ".pt", ".pkl", ".gz", ".zip", ".h5")


def ending_of(out: str, table_format: str | None) -> str:
    """Return "npz", "csv", "parquet" or "store".

    >>> ending_of("graph.store", None), ending_of("graph", "csv"), ending_of("graph", None)
    ('store', 'csv', 'parquet')
    """
    suffix = Path(out).suffix.lower()
    if suffix in OTHER_FILES:
        raise ValueError(
            f"Expected OUT to end in .npz or to be a folder (got '{out}'); for tables, name a folder and add --format."
        )
    if table_format is not None and table_format not in FORMATS:
        known = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise ValueError(f"Expected --format to be {known} (got '{table_format}'); or leave it out.")
    if suffix != ".npz":
        return table_format or ("store" if suffix == ".store" else "parquet")
    if table_format is not None:
        raise ValueError(
            f"Expected no --format with an .npz file (got '{table_format}'); leave it out, or name a folder."
        )
    return "npz"


# ---- the place


def check_place(out: str, *, overwrite: bool) -> Path:
    """Return the absolute path of `out`, and refuse one that exists (unless `overwrite`) or has no parent folder.

    A folder is overwritten only if it holds nothing but tables, or a store: other files are never removed.

    >>> check_place("/nowhere/graph.npz", overwrite=False)
    Traceback (most recent call last):
    ValueError: Expected the folder of OUT to exist (got no folder /nowhere); create it first.
    """
    check_spelling(out)
    path = expand_home(out).resolve()
    if not path.parent.is_dir():
        raise ValueError(f"Expected the folder of OUT to exist (got no folder {path.parent}); create it first.")
    if not path.exists():
        return path
    if not overwrite:
        raise FileExistsError(f"Expected OUT to be new (got {path}, which exists); add --overwrite to replace it.")
    wanted_file = path.suffix.lower() in (".npz", ".csv")
    ours = (*TABLES, *STORE_FILES)
    others = [] if path.is_file() else sorted(name.name for name in path.iterdir() if name.name not in ours)
    if path.is_dir() == wanted_file or others:
        got = f"a folder with {others[0]}" if others else "a folder" if path.is_dir() else "a file"
        wanted = "a file" if wanted_file else "a folder of tables only"
        raise ValueError(f"Expected {path} to be {wanted} to overwrite it (got {got}); choose another path.")
    return path


def check_spelling(out: str | Path) -> None:
    """Refuse a path that is no UTF-8: neither libraries nor a result in text or JSON could name it."""
    if any("\ud800" <= letter <= "\udfff" for letter in str(out)):
        raise ValueError(f"Expected the output to have a name in UTF-8 (got {str(out)!a}); choose another name.")


# ---- the files


def write_npz(data: Data, path: Path) -> None:
    """Write a graph in the layout that `topoff.load` reads back exactly."""
    import numpy as np

    from topoff.data.ids import as_array, node_ids
    from topoff.data.npz import stored_features

    arrays: dict[str, Any] = {"edge_index": data.edge_index.numpy(), "y": data.y.numpy(), "split": split_codes(data)}
    arrays |= stored_features(data.x.numpy())
    arrays |= {name: data[name].numpy() for name in ("edge_weight", "edge_attr") if data.get(name) is not None}
    if known_names(data, "node_ids"):
        arrays["node_ids"] = as_array(node_ids(data))
    if known_names(data, "class_names"):
        arrays["class_names"] = np.array([str(name) for name in known_names(data, "class_names")])
    with path.open("wb") as file:
        np.savez(file, **arrays)


def split_codes(data: Data) -> np.ndarray[Any, Any]:
    """Return 0 (train), 1 (validation), 2 (test), -1 (none) per node."""
    codes = data.train_mask + 2 * data.val_mask + 3 * data.test_mask - 1
    return codes.numpy()  # type: ignore[no-any-return]


def write_tables(data: Data, folder: Path, *, ending: str) -> None:
    """Write a folder with the tables nodes and edges, as "csv" or "parquet".

    Raises ValueError for a graph with edge features, which tables have no column for.
    """
    import pyarrow

    from topoff.data.ids import node_ids, simple
    from topoff.data.table_copy import write_table

    if data.get("edge_attr") is not None:
        raise ValueError(
            "Expected a graph without edge_attr for a folder of tables (got one with it); write an .npz file instead."
        )
    ids = simple(node_ids(data))
    edges = {"source": ids.take(data.edge_index[0].numpy()), "target": ids.take(data.edge_index[1].numpy())}
    if data.get("edge_weight") is not None:
        edges["weight"] = pyarrow.array(data.edge_weight.numpy())
    features = {f"f{number}": pyarrow.array(column) for number, column in enumerate(data.x.t().contiguous().numpy())}
    nodes = {"id": ids, **features, **_label_columns(data), "split": split_column(data)}
    _check_kept(nodes, ending=ending)
    folder.mkdir()
    write_table(nodes, folder / f"nodes.{ending}")
    write_table(edges, folder / f"edges.{ending}")


def split_column(data: Data) -> Any:
    """Return the split of every node as a pyarrow.Array (n,) of strings; nothing for a node in none."""
    import pyarrow

    return pyarrow.array([*SPLITS, None]).take(pyarrow.array(split_codes(data) % 4))  # -1 becomes 3


def _check_kept(nodes: dict[str, Any], *, ending: str) -> None:
    """Refuse ids and classes that a table would give back as others, such as a class NA, which means no class."""
    import pyarrow

    from topoff.data.columns import plain_table
    from topoff.data.ids import unique_ids, written_ids
    from topoff.data.labels import read_labels

    named: dict[str, Any] = {name: nodes[name] for name in ("id", "label") if name in nodes}
    table = plain_table(Path(f"nodes.{ending}"), pyarrow.table(named))
    back = {"id": written_ids(table, "id", unique_ids(table, "id")).to_pylist()}
    if "label" in named:
        labels = read_labels(table)
        assert labels.y is not None  # without any label, read_labels refuses
        names = (labels.entry or {}).get("names")
        back["label"] = [names[code] if code >= 0 else None for code in labels.y] if names else labels.y.tolist()
    for name, after in back.items():
        for one, other in zip(named[name].to_pylist(), after, strict=True):
            same = str(one).lower() == other if other in ("true", "false") else str(one) == str(other)
            if not same:
                what = "node_ids" if name == "id" else "class_names"
                raise ValueError(
                    f"Expected '{what}' that a table keeps (got '{one}', which would be read as {other!r}); rename it, "
                    "or write an .npz file."
                )


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
    names: Any = getattr(data, "names", None)
    known = list(getattr(names, key, None) or ())
    if key == "node_ids" and not known and getattr(names, "ids", None) is not None:
        known = names.ids.to_pylist()
    return known if all(isinstance(name, int) for name in known) else [str(name) for name in known]
