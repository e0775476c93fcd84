"""Load a graph from a name, a file, a folder or a PyG `Data`, and check it: what comes out is a plain, valid `Data`."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from topoff.cache import Arrays
from topoff.sources import MASKS, NAMES, graph_file, known_name, places_of, read_graph


@dataclass(frozen=True, repr=False)
class Names:
    """Hold what a graph's nodes and classes are called; PyG carries it along in `data.names` and never slices it.

    >>> Names(node_ids=["ann", "bob"], class_names=["no", "yes"])
    Names(2 node ids, 2 classes)
    """

    node_ids: list[str] | list[int] | None = None  # (n,) the user's own, in the order of x
    class_names: list[str] | None = None  # in the order of y's classes, or of its columns
    encoding: dict[str, Any] | None = None  # JSON-able: how tables became features, for load(encoding=...)
    notes: tuple[str, ...] = ()  # what was done to tables, one sentence each

    def __repr__(self) -> str:
        counts = {"node ids": self.node_ids, "classes": self.class_names, "notes": self.notes}
        return f"Names({', '.join(f'{len(part)} {name}' for name, part in counts.items() if part)})"


def load(
    source: str | Path | Data,
    *,
    root: str | Path | None = None,
    split: int = 0,
    seed: int = 0,
    encoding: Mapping[str, Any] | None = None,
    labels: bool = True,
) -> Data:
    """Return the graph that `source` names, validated by `check`.

    `source` is "wordnet" (ships with the package), the name of a PyG dataset (raw files in `root/<Name>/raw`, by
    default in the cache folder; nothing else is written there), an .npz file, a folder with one graph.npz or with
    tables (nodes.csv or .parquet, edges.csv or .parquet: see topoff.tables), all of them also relative to `root`, or
    a PyG `Data`, which is not changed. `split` chooses among several splits; where there is none, 60/20/20 % of the
    labelled nodes are drawn from `seed`. Where nodes or classes have names, `data.names` holds them.

    `encoding`, from the `data.names.encoding` of an earlier graph, makes features and labels of tables as it was done
    there; then labels and training nodes may be missing. Other sources need none and ignore it. With labels=False an
    .npz file may lack y, and then has no masks either: enough for prediction.

    Raises FileNotFoundError, ValueError or TypeError in one sentence with the remedy.

    >>> graph = load(Data(x=torch.eye(5), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.arange(5)), seed=1)
    >>> int(graph.train_mask.sum()), int(graph.val_mask.sum()), int(graph.test_mask.sum())
    (3, 1, 1)
    """
    if isinstance(source, Data):
        return check(_choose_split(Data.from_dict(source.to_dict()), split=split, seed=seed))
    if not isinstance(source, str | Path):
        _refuse_type(source)
    folder = _table_folder(source, root=root)
    if folder is not None:
        return _load_tables(folder, encoding=encoding, split=split, seed=seed)
    arrays = read_graph(source, root=root, labels=labels)
    names = {name: arrays.pop(name) for name in NAMES if name in arrays}
    data = _tensors(arrays)
    data = check(_choose_split(data, split=split, seed=seed)) if "y" in arrays else check_graph(data)
    if names:
        data.names = _check_names(names, data)
    return data


def _tensors(arrays: Arrays) -> Data:
    return Data(**{name: torch.from_numpy(array) for name, array in arrays.items()})


def _table_folder(source: str | Path, *, root: str | Path | None) -> Path | None:
    """Return the folder of tables that `source` stands for, None where it is a name or an .npz file."""
    for place in places_of(source, root=root) if known_name(source) is None else ():
        if place.is_dir():
            from topoff.tables import is_table_folder  # late: pyarrow is heavy, and needed for tables only

            if is_table_folder(place):
                return place
        if graph_file(place).is_file():
            return None
    return None


def _load_tables(folder: Path, *, encoding: Mapping[str, Any] | None, split: int, seed: int) -> Data:
    """Read tables; with an encoding, for prediction, ask for no labels and no training nodes."""
    from topoff.tables import read_tables

    tables = read_tables(folder, encoding=encoding)
    data = _tensors(tables.arrays)
    data.names = Names(tables.node_ids, tables.class_names, tables.encoding, tuple(tables.notes))
    if "y" in data and data.y.dim() == 2 and data.y.size(1) == 1:  # one column label:<name> is two classes
        data.y = data.y.view(-1).nan_to_num(-1.0).long()
        name = (tables.class_names or ["1"])[0]
        data.names = replace(data.names, class_names=[f"not {name}", name])
    if "y" in data:
        data = _choose_split(data, split=split, seed=seed)
        if data.y.dim() == 2:
            data.y = data.y.nan_to_num(0.0)  # nodes without labels, which are in no mask by now
    elif encoding is None:
        got = f"features only: {', '.join(entry['name'] for entry in tables.encoding['columns']) or 'none'}"
        remedy = "name the column to be learnt label, or target if it is a quantity"
        _refuse(f"the table of nodes in {folder} to have labels", got, remedy)
    return check(data) if encoding is None else check_graph(data)


def _check_names(arrays: Arrays, data: Data) -> Names:
    """Return the names of nodes and classes as lists, as many as there are."""
    ids, classes = (arrays.get(name) for name in NAMES)
    n = data.x.size(0)
    if ids is not None and ids.shape != (n,):
        _refuse(f"'node_ids' to have shape ({n},), one id per node", str(ids.shape), "give every node one")
    y = data.y if "y" in data else torch.zeros(0)
    needed = y.size(1) if y.dim() == 2 else 0 if y.is_floating_point() else int(y.max()) + 1
    if classes is not None and (classes.ndim != 1 or len(classes) < needed):
        _refuse(f"'class_names' to name {needed} classes", f"shape {classes.shape}", "give every class in y a name")
    return Names(None if ids is None else ids.tolist(), None if classes is None else classes.tolist())


def check(data: Data) -> Data:
    """Return a validated copy of `data`, sharing tensors that need no conversion; keep further attributes as they are.

    x (n, d) float32 or float64, finite (integers, bool and half precision become float32); edge_index int64 (2, E)
    contiguous, in range; y int64 (n,) classes, or 0/1 float (n, c) multi-label, or float (n,) regression, with -1 or
    NaN for nodes in no mask; bool masks (n,) that do not overlap, train_mask not empty; edge_weight (E,) finite, in
    x's dtype; edge_attr with E rows. Directed edges, self-loops, duplicates and isolated nodes stay as they are.

    Raises ValueError or TypeError in one sentence with the remedy.

    >>> mask = torch.tensor([True, False])
    >>> check(Data(x=torch.eye(2, dtype=torch.long), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]),
    ...            train_mask=mask, val_mask=~mask, test_mask=mask & ~mask)).x.dtype
    torch.float32
    """
    out = check_graph(data)
    for name in MASKS:
        out[name] = _check_mask(name, data.get(name), out.x.size(0))
    _check_disjoint(out)
    out.y = _check_y(data.y, out.train_mask | out.val_mask | out.test_mask)
    return out


def check_graph(data: Data) -> Data:
    """Return a validated copy of `data` as `check` does, but ask for no labels and no masks; for prediction.

    >>> check_graph(Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]))).num_nodes
    2
    """
    if not isinstance(data, Data):
        _refuse_type(data)
    if "adj_t" in data:
        _refuse("the edges in 'edge_index'", "'adj_t'", "set edge_index from adj_t.coo() and delete adj_t")
    if "edge_label" in data or "edge_label_index" in data:
        _refuse("labels of nodes", "'edge_label'", "link tasks are not supported yet: delete it and set data.y")
    out = Data.from_dict(data.to_dict())
    out.x = _check_x(data.x)
    if data.get("num_nodes", len(out.x)) != len(out.x):
        _refuse(f"'x' to have {data.num_nodes} rows, as num_nodes says", str(len(out.x)), "give every node a row")
    out.edge_index = _check_edge_index(data.edge_index, out.x.size(0))
    if data.get("edge_weight") is not None:
        out.edge_weight = _check_edge_values("edge_weight", data.edge_weight, out.edge_index.size(1)).to(out.x.dtype)
    if data.get("edge_attr") is not None:
        out.edge_attr = _check_edge_values("edge_attr", data.edge_attr, out.edge_index.size(1))
    return out


def row_normalised(data: Data) -> Data:
    """Return the graph with the features of every node divided by their sum; rows of zeros stay.

    Raises:
        ValueError: negative features.

    >>> row_normalised(Data(x=torch.tensor([[1.0, 3.0], [0.0, 0.0]]))).x
    tensor([[0.2500, 0.7500],
            [0.0000, 0.0000]])
    """
    if bool((data.x < 0).any()):
        least = f"{float(data.x.min()):.3g}"
        _refuse("features that are not negative for row_normalize", least, "give counts, or leave it out")
    data, sums = copy.copy(data), data.x.sum(dim=1, keepdim=True)
    data.x = data.x / sums.where(sums > 0, 1)
    return data


# ---- the checks


def _refuse(expected: str, got: str, remedy: str) -> NoReturn:
    """Raise the one sentence."""
    raise ValueError(f"Expected {expected} (got {got}); {remedy}.")


def _refuse_type(source: Any) -> NoReturn:
    """Raise TypeError for what is neither a name, a path nor a homogeneous graph."""
    remedy = "pass a name, a path or a torch_geometric.data.Data, such as dataset[0]"
    if isinstance(source, HeteroData):
        remedy = "node and edge types are not supported yet: convert it with data.to_homogeneous()"
    raise TypeError(f"Expected the graph to be a homogeneous PyG Data (got {type(source).__name__}); {remedy}.")


def _dense(name: str, value: Any) -> Tensor:
    """Return `value` if it is a dense tensor."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        got = "nothing" if value is None else str(getattr(value, "layout", type(value).__name__))
        _refuse(f"'{name}' to be a dense torch.Tensor", got, f"set data.{name} to one")
    if value.is_complex():
        _refuse(f"'{name}' to be real", str(value.dtype), "split it into real and imaginary parts")
    return value


def _check_x(value: Any) -> Tensor:
    x = _dense("x", value)
    if x.dim() != 2 or x.size(0) == 0 or x.size(1) == 0:
        remedy = "a graph needs at least one node and one feature; use torch.ones(n, 1) where there are none"
        _refuse("'x' to have shape (nodes, features)", str(tuple(x.shape)), remedy)
    x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    finite = torch.isfinite(x).all(dim=1)
    if not finite.all():
        rows = (~finite).nonzero().view(-1)
        _refuse("'x' to be finite", f"NaN or inf in {len(rows)} rows, first {int(rows[0])}", "replace or impute them")
    return x


def _check_edge_index(value: Any, n: int) -> Tensor:
    if hasattr(value, "as_tensor"):  # PyG's EdgeIndex
        value = value.as_tensor()
    edge_index = _dense("edge_index", value)
    if edge_index.is_floating_point() or edge_index.dtype == torch.bool:
        _refuse("'edge_index' to hold integers", str(edge_index.dtype), "convert node ids with .long()")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        remedy = "one column per edge; transpose a list of pairs with .t()"
        _refuse("'edge_index' to have shape (2, edges)", str(tuple(edge_index.shape)), remedy)
    edge_index = edge_index.long().contiguous()
    if edge_index.numel() and (edge_index.min() < 0 or edge_index.max() >= n):
        got = f"{int(edge_index.min())} to {int(edge_index.max())}"
        _refuse(f"'edge_index' to hold node ids from 0 to {n - 1}", got, "renumber the nodes or add their rows to x")
    return edge_index


def _check_mask(name: str, value: Any, n: int) -> Tensor:
    if value is None:
        _refuse(f"'{name}' to be given", "nothing", "add it (all False is allowed), or leave out all masks in load()")
    mask = _dense(name, value)
    if mask.dtype != torch.bool or mask.shape != (n,):
        remedy = "make a mask with one True or False per node; load(split=...) chooses among columns"
        _refuse(f"'{name}' to be bool of shape ({n},)", f"{mask.dtype} of shape {tuple(mask.shape)}", remedy)
    return mask


def _check_disjoint(data: Data) -> None:
    for first, second in ((0, 1), (0, 2), (1, 2)):
        both = int((data[MASKS[first]] & data[MASKS[second]]).sum())
        if both:
            remedy = "give each node to one of them"
            _refuse(f"'{MASKS[first]}' and '{MASKS[second]}' not to overlap", f"{both} common nodes", remedy)
    if not data.train_mask.any():
        _refuse("'train_mask' to hold a node", "no training nodes", "set it where nodes with labels are to be learnt")


def _check_y(value: Any, used: Tensor) -> Tensor:
    y = _dense("y", value)
    y = y.squeeze(1) if y.dim() == 2 and y.size(1) == 1 else y
    if y.dim() not in (1, 2) or y.size(0) != len(used):
        remedy = "one label, or one row of 0/1 labels, per node"
        _refuse(f"'y' to have {len(used)} rows", f"shape {tuple(y.shape)}", remedy)
    if y.dim() == 2:
        if not ((y == 0) | (y == 1)).all():
            _refuse("multi-label 'y' to hold 0 and 1", f"values other than these in {y.dtype}", "binarise it")
        return y if y.is_floating_point() else y.float()
    if y.is_floating_point():
        if not torch.isfinite(y[used]).all():
            _refuse("'y' to be finite in all masks", "NaN or inf", "take nodes without a target out of the masks")
        return y
    y = y.long()
    if (y < -1).any() or (y[used] < 0).any():
        got = f"{int(y.min())}, {int((y[used] < 0).sum())} negative ones in the masks"
        _refuse("'y' to hold classes from 0", got, "mark nodes without a label with -1 and take them out of the masks")
    return y


def _check_edge_values(name: str, value: Any, edges: int) -> Tensor:
    values = _dense(name, value)
    wrong = values.size(0) != edges if name == "edge_attr" and values.dim() > 0 else values.shape != (edges,)
    if wrong:
        remedy = "one value per edge; several go to edge_attr"
        _refuse(f"'{name}' to have {edges} rows, as edge_index", f"shape {tuple(values.shape)}", remedy)
    if not torch.isfinite(values).all():
        _refuse(f"'{name}' to be finite", "NaN or inf", "replace them or remove these edges")
    return values


# ---- the split


def _choose_split(data: Data, *, split: int, seed: int) -> Data:
    """Turn several-column masks or OGB's split_idx into one mask each; draw the masks where there is no split."""
    n = len(data.x) if isinstance(data.get("x"), Tensor) and data.x.dim() else 0
    indices = data.get("split_idx")
    if indices is not None:
        del data.split_idx
        if any(name in data for name in MASKS):
            _refuse("one split", "'split_idx' and masks", "delete one of them")
        data.update(_masks_from_indices(indices, n))
    several = [name for name in MASKS if isinstance(data.get(name), Tensor) and data[name].dim() == 2]
    count = min((data[name].size(1) for name in several), default=1)
    if not 0 <= split < count:
        _refuse(f"'split' to be from 0 to {count - 1}", str(split), "this graph has no other split")
    for name in several:
        data[name] = data[name][:, split].contiguous()
    if not any(name in data for name in MASKS):
        data.update(_draw_masks(data.get("y"), n, seed=seed))
    return data


def _masks_from_indices(indices: Any, n: int) -> dict[str, Tensor]:
    """Turn {"train": ids, "valid": ids, "test": ids} into masks."""
    masks = {}
    for name, keys in zip(MASKS, (("train",), ("valid", "val"), ("test",)), strict=True):
        found = [key for key in keys if key in indices]
        if not found:
            _refuse(f"'split_idx' to have the key '{keys[0]}'", f"{sorted(indices)}", "add it, empty if need be")
        ids = torch.as_tensor(indices[found[0]]).long().view(-1)
        if ids.numel() and (ids.min() < 0 or ids.max() >= n):
            _refuse(f"'split_idx' to hold node ids from 0 to {n - 1}", str(int(ids.max())), "renumber them")
        masks[name] = torch.zeros(n, dtype=torch.bool, device=ids.device).index_fill_(0, ids, value=True)
    return masks


def _draw_masks(y: Any, n: int, *, seed: int) -> dict[str, Tensor]:
    """Draw 60/20/20 % of the labelled nodes."""
    labelled = np.arange(n)
    if isinstance(y, Tensor) and y.dim() and len(y) == n:
        flat = y.reshape(n, -1)
        known = ~flat.isnan().any(1) if y.is_floating_point() else (flat >= 0).any(1)
        labelled = known.nonzero().view(-1).cpu().numpy()
    order = np.random.default_rng(seed).permutation(labelled)
    first, second = -(-6 * len(order) // 10), -(-8 * len(order) // 10)
    masks = {}
    for name, ids in zip(MASKS, np.split(order, [first, second]), strict=True):
        masks[name] = torch.zeros(n, dtype=torch.bool)
        masks[name][torch.from_numpy(ids)] = True
    return masks
