"""Load a graph from a name, a file, a folder or a PyG `Data`, and check it: what comes out is a plain, valid `Data`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch_geometric.data import Data

from topoff.data.check import check, check_graph
from topoff.data.layout import NAMES
from topoff.data.names import Names
from topoff.data.published import RAW
from topoff.data.published_store import published_store
from topoff.data.refusal import refuse, refuse_type, within
from topoff.data.sources import find_source, read_graph
from topoff.data.split import choose_split
from topoff.data.store import open_store
from topoff.data.store_load import load_store
from topoff.machine.cache import Arrays

if TYPE_CHECKING:
    from topoff.data.tables import Tables


def load(
    source: str | Path | Data,
    *,
    root: str | Path | None = None,
    split: int = 0,
    seed: int = 0,
    encoding: Mapping[str, Any] | None = None,
    labels: bool = True,
    trust: bool = False,
    in_memory: bool | None = None,
) -> Data:
    """Return the graph that `source` names, validated by `check`.

    `source` is "wordnet" (ships with the package), the name of a published graph (raw files in `root/<Name>/raw`, as
    PyG and OGB lay them out, by default in the cache folder; nothing else is written there), an .npz file, a folder
    with one graph.npz or with tables (nodes.csv or .parquet, edges.csv or .parquet: see data/tables) or that is a store
    (see data/store), all of them also relative to `root`, or a PyG `Data`, which is not changed. `./Cora` is always a
    path and `name:Cora` always the dataset: where plain `Cora` could be both, it is refused. `split` chooses among
    several splits; where there is none, 60/20/20 % of the labelled nodes are drawn from `seed`. Where nodes or classes
    have names, `data.names` holds them.

    `encoding`, from the `data.names.encoding` of an earlier graph, makes features and labels of tables as it was done
    there; then labels and training nodes may be missing. Other sources need none and ignore it. With labels=False a
    `Data` or an .npz file may lack y; without a split of its own it then has no masks either: enough for prediction and
    for self-supervised training.

    Large published graphs (OGB's, GraphSAINT's, Reddit: data/published) are never downloaded; they become a store in
    the cache folder when they are first loaded. ogbn-arxiv, -products and -papers100M have edges both ways.

    A store is read into memory up to 2 GiB of features and edges; a larger one is mapped: int32 edges and features
    stay on the disk until they are used. `in_memory` decides otherwise; other sources are always read.

    No file is unpickled, so that none can run code; raw files that only unpickling could read are refused unless
    `trust` is given, for files from a place that you trust.

    Raises FileNotFoundError, ValueError or TypeError in one sentence with the remedy.

    >>> graph = load(Data(x=torch.eye(5), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.arange(5)), seed=1)
    >>> int(graph.train_mask.sum()), int(graph.val_mask.sum()), int(graph.test_mask.sum())
    (3, 1, 1)
    """
    if isinstance(source, Data):
        return check(choose_split(Data.from_dict(source.to_dict()), split=split, seed=seed), labels=labels)
    if not isinstance(source, str | Path):
        refuse_type(source)
    found = find_source(source, root=root)
    if found.tables:
        return _load_tables(found.path, encoding=encoding, split=split, seed=seed)
    with within(source):
        if found.store or found.name in RAW:
            store = open_store(found.path) if found.name is None else published_store(found.name, found.root)
            return choose_split(load_store(store, in_memory=in_memory), split=split, seed=seed)
        return data_of_arrays(read_graph(found, labels=labels, trust=trust), split=split, seed=seed)


def data_of_arrays(arrays: Arrays, *, split: int, seed: int) -> Data:
    """Make a checked graph of arrays in one layout; the names of classes say how many there are."""
    names = {name: arrays.pop(name) for name in NAMES if name in arrays}
    if arrays["x"].ndim > 2:
        remedy = "flatten them, or pass a Data to a model of your own that takes more dimensions"
        refuse("the features to have shape (nodes, features)", str(arrays["x"].shape), remedy)
    data = _tensors(arrays)
    if "class_names" in names and names["class_names"].ndim == 1:
        data.names = Names(None, names["class_names"].tolist())
    data = check(choose_split(data, split=split, seed=seed)) if "y" in arrays else check_graph(data)
    if names:
        data.names = _check_names(names, data)
    return data


def _tensors(arrays: Arrays) -> Data:
    return Data(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def _load_tables(folder: Path, *, encoding: Mapping[str, Any] | None, split: int, seed: int) -> Data:
    """Read tables; with an encoding, for prediction, ask for no labels and no training nodes."""
    from topoff.data.tables import read_tables

    return data_of_tables(read_tables(folder, encoding=encoding), folder, encoding=encoding, split=split, seed=seed)


def data_of_tables(
    tables: Tables, folder: Path, *, encoding: Mapping[str, Any] | None = None, split: int, seed: int
) -> Data:
    """Make a checked graph of tables that were read."""
    data = _tensors(tables.arrays)
    data.names = Names(
        tables.node_ids, tables.class_names, tables.encoding, tuple(tables.notes), tables.written, folder
    )
    if "y" in data and data.y.dim() == 2 and data.y.size(1) == 1:  # one column label:<name> is two classes
        data.y = data.y.view(-1).nan_to_num(-1.0).long()
        name = (tables.class_names or ["1"])[0]
        data.names = replace(data.names, class_names=[f"not {name}", name])
    if "y" in data:
        data = choose_split(data, split=split, seed=seed)
        if data.y.dim() == 2:
            data.y = data.y.nan_to_num(0.0)  # nodes without labels, which are in no mask by now
    elif encoding is None:
        got = f"features only: {', '.join(entry['name'] for entry in tables.encoding['columns']) or 'none'}"
        remedy = "name the column to be learnt label, or target if it is a quantity"
        refuse(f"the table of nodes in {folder} to have labels", got, remedy)
    return check(data) if encoding is None else check_graph(data)


def _check_names(arrays: Arrays, data: Data) -> Names:
    """Return the names of nodes and classes as lists: as many as there are, each of them once."""
    ids, classes = (arrays.get(name) for name in NAMES)
    n = data.x.size(0)
    if ids is not None:
        if ids.shape != (n,):
            refuse(f"'node_ids' to have shape ({n},), one id per node", str(ids.shape), "give every node one")
        _check_distinct("node_ids", ids.tolist())
    y = data.y if "y" in data else torch.zeros(0)
    several = y.dim() == 2
    needed = y.size(1) if several else 0 if y.is_floating_point() else int(y.max()) + 1
    if classes is not None:
        if classes.ndim != 1 or len(classes) < needed or (several and len(classes) > needed):
            refuse(f"'class_names' to name {needed} classes", f"shape {classes.shape}", "give every class in y a name")
        _check_distinct("class_names", [name.strip() for name in classes.tolist()])
    return Names(None if ids is None else ids.tolist(), None if classes is None else classes.tolist())


def _check_distinct(key: str, names: list[Any]) -> None:
    """Refuse names that are empty, twice there, or no text: what is written by them could not be told apart."""
    first: dict[Any, int] = {}
    for position, name in enumerate(names):
        if isinstance(name, str) and not name.strip():
            refuse(f"every entry of '{key}' to be a name", f"an empty one at {position}", "name it")
        if isinstance(name, str) and not name.isascii() and any("\ud800" <= letter <= "\udfff" for letter in name):
            refuse(f"every entry of '{key}' to be text", f"half a surrogate pair at {position}", "correct it")
        if first.setdefault(name, position) != position:
            got = f"{name!r:.60} at {first[name]} and at {position}"
            refuse(f"every entry of '{key}' to be there once", got, "rename one of them")
