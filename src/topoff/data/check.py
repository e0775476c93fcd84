"""Check a graph: what passes is a plain, valid `Data`."""

import copy
import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.data.attributes import check_attributes
from topoff.data.layout import MASKS
from topoff.data.refusal import refuse, refuse_type
from topoff.data.split import masked
from topoff.data.store import stored

GAPS = 1000  # classes of which any number may be missing
ROWS = 1 << 16  # of features that are looked at in one go
SPREAD = 10  # times those that occur, up to which ids of more classes may go


def check(data: Data, *, labels: bool = True) -> Data:
    """Return a validated copy of `data`, sharing tensors that need no conversion; keep further attributes as they are.

    x (n, d), or (n, t, d) and more, float32 or float64, finite (integers, bool and half precision become float32);
    edge_index int64 (2, E) contiguous, in range; y int64 (n,) classes without large gaps among their ids, or 0/1 float
    (n, c) multi-label, or float (n,) regression, with -1 or NaN for nodes in no mask; bool masks (n,) that do not
    overlap, train_mask not empty; OGB's `split_idx`, or `train_idx`, `valid_idx`, `test_idx`, become masks; edge_weight
    (E,) finite, in x's dtype; edge_attr with E rows; further attributes as `check_attributes` wants them. Directed
    edges, self-loops, duplicates and isolated nodes stay as they are. With labels=False, y, all masks, or those besides
    train_mask may be missing. On the memory-mapped arrays of a store, int32 edges and float16 features stay, too.

    Raises ValueError or TypeError in one sentence with the remedy.

    >>> mask = torch.tensor([True, False])
    >>> check(Data(x=torch.eye(2, dtype=torch.long), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]),
    ...            train_mask=mask, val_mask=~mask, test_mask=mask & ~mask)).x.dtype
    torch.float32
    """
    if _is_stamped(data, "check" if labels else "check_given"):
        return copy.copy(data)
    out = check_graph(data)
    if labels and "y" not in out:
        refuse("'y' to be a dense torch.Tensor", "nothing", "set data.y to one, or load the graph with labels=False")
    used = torch.zeros(len(out.x), dtype=torch.bool, device=out.x.device)
    masks = [name for name in MASKS if labels or name in out]
    if masks:
        for name in dict.fromkeys(["train_mask", *masks]):
            out[name] = _check_mask(name, out.get(name), len(used))
            used = used | out[name]
        _check_disjoint(out, masks)
    if "y" in out:
        out.y = _check_y(out.y, used)
        _check_labels(out)
    return _stamped(out, "check_given", "check_graph", *(["check"] if labels else []))


def check_graph(data: Data) -> Data:
    """Return a validated copy of `data` as `check` does, but ask for no labels and no masks; for prediction."""
    if not isinstance(data, Data):
        refuse_type(data)
    if _is_stamped(data, "check_graph"):
        return copy.copy(data)
    if "adj_t" in data:
        refuse("the edges in 'edge_index'", "'adj_t'", "set edge_index from adj_t.coo() and delete adj_t")
    if "edge_label" in data or "edge_label_index" in data:
        refuse("labels of nodes", "'edge_label'", "link tasks are not supported yet: delete it and set data.y")
    out = Data.from_dict(data.to_dict())
    store = stored(data)  # whose types stay as they are: a copy may not fit into memory
    out.x = _check_x(data.x, convert=store is None)
    out = masked(out, len(out.x))
    if data.get("num_nodes", len(out.x)) != len(out.x):
        refuse(f"'x' to have {data.num_nodes} rows, as num_nodes says", str(len(out.x)), "give every node a row")
    out.edge_index = _check_edge_index(data.edge_index, out.x.size(0), convert=store is None)
    if data.get("edge_weight") is not None:
        weight = _check_edge_values("edge_weight", data.edge_weight, out.edge_index.size(1))
        _check_size("edge_weight", weight, dtype=out.x.dtype)
        out.edge_weight = weight.to(out.x.dtype)
    if data.get("edge_attr") is not None:
        out.edge_attr = _check_edge_values("edge_attr", data.edge_attr, out.edge_index.size(1))
    if "batch" in out and "ptr" in out:  # of PyG's Batch: where its graphs begin in the order of all nodes
        del out.ptr
    check_attributes(out)
    return _stamped(out, "check_graph")


def _state(data: Data) -> dict[str, tuple[int, int]]:
    """Return what changes when an attribute is replaced, or a tensor written to."""
    counted = {key: isinstance(value, Tensor) and not value.is_inference() for key, value in data.to_dict().items()}
    return {key: (id(data[key]), data[key]._version if counts else 0) for key, counts in counted.items()}


def _stamped(data: Data, *checks: str) -> Data:
    """Note which checks a graph has passed as it is: one that is not changed need not be checked again."""
    vars(data)["_passed"] = dict.fromkeys(checks, _state(data))
    return data


def _is_stamped(data: Data, check: str) -> bool:
    return isinstance(data, Data) and vars(data).get("_passed", {}).get(check) == _state(data)


def vouched(data: Data) -> Data:
    """Take a graph as checked: one on the arrays of a store, which was checked when it was written."""
    labels = ("check", "check_given") if "y" in data else ()
    return _stamped(data, *labels, "check_graph")


def row_normalized(data: Data) -> Data:
    """Return the graph with the features of every node divided by their sum; rows of zeros stay.

    Raises ValueError for negative features.
    """
    if bool((data.x < 0).any()):
        least = f"{float(data.x.min()):.3g}"
        refuse("features that are not negative for row_normalize", least, "give counts, or leave it out")
    data, sums = copy.copy(data), data.x.sum(dim=-1, keepdim=True)
    data.x = data.x / sums.where(sums > 0, 1)
    return data


def standardized(data: Data) -> Data:
    """Return the graph with every feature of mean 0 and deviation 1 over all nodes; constant ones become 0.

    >>> standardized(Data(x=torch.tensor([[1.0, 5.0], [3.0, 5.0]]))).x.tolist()
    [[-0.7071067690849304, 0.0], [0.7071067690849304, 0.0]]
    """
    data, deviation = copy.copy(data), data.x.std(dim=0)
    data.x = (data.x - data.x.mean(dim=0)) / deviation.where(deviation > 0, 1)
    return data


# ---- the checks


def _dense(name: str, value: Any) -> Tensor:
    """Return `value` if it is a dense tensor."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        got = "nothing" if value is None else str(getattr(value, "layout", type(value).__name__))
        refuse(f"'{name}' to be a dense torch.Tensor", got, f"set data.{name} to one")
    if value.is_complex():
        refuse(f"'{name}' to be real", str(value.dtype), "split it into real and imaginary parts")
    return value


def _check_x(value: Any, *, convert: bool) -> Tensor:
    x = _dense("x", value)
    if x.dim() < 2 or x.numel() == 0:
        remedy = "a graph needs at least one node and one feature; use torch.ones(n, 1) where there are none"
        refuse("'x' to have shape (nodes, features)", str(tuple(x.shape)), remedy)
    x = x if x.dtype in (torch.float32, torch.float64) or not convert else x.float()
    finite = [torch.isfinite(some).flatten(1).all(dim=1) for some in torch.split(x, ROWS)]
    if not all(bool(some.all()) for some in finite):
        rows = (~torch.cat(finite)).nonzero().view(-1)
        refuse("'x' to be finite", f"NaN or inf in {len(rows)} rows, first {int(rows[0])}", "replace or impute them")
    _check_size("x", x, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)
    return x


def _check_size(name: str, values: Tensor, *, dtype: torch.dtype) -> None:
    """Refuse numbers whose squares are infinite in the type that is computed with: no loss of them is a number."""
    values = values.detach() if values.is_floating_point() else values.to(dtype)
    low, high = (float(one) for one in values.aminmax()) if values.numel() else (0.0, 0.0)
    most = math.sqrt(torch.finfo(dtype).max)
    if max(-low, high) > most:
        row = int(values.abs().argmax()) // math.prod(values.shape[1:])
        got = f"{high if high >= -low else low:.3g} in row {row}"
        remedy = "scale it, or replace what stands for a missing value"
        refuse(f"'{name}' to hold numbers up to {most:.2g}, whose squares {dtype} can hold", got, remedy)


def _check_edge_index(value: Any, n: int, *, convert: bool) -> Tensor:
    if hasattr(value, "as_tensor"):  # PyG's EdgeIndex
        value = value.as_tensor()
    edge_index = _dense("edge_index", value)
    if edge_index.is_floating_point() or edge_index.dtype == torch.bool:
        refuse("'edge_index' to hold integers", str(edge_index.dtype), "convert node ids with .long()")
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        remedy = "one column per edge; transpose a list of pairs with .t()"
        refuse("'edge_index' to have shape (2, edges)", str(tuple(edge_index.shape)), remedy)
    edge_index = edge_index.long().contiguous() if convert else edge_index
    if edge_index.numel() and (edge_index.min() < 0 or edge_index.max() >= n):
        got = f"{int(edge_index.min())} to {int(edge_index.max())}"
        refuse(f"'edge_index' to hold node ids from 0 to {n - 1}", got, "renumber the nodes or add their rows to x")
    return edge_index


def _check_mask(name: str, value: Any, n: int) -> Tensor:
    if value is None:
        refuse(f"'{name}' to be given", "nothing", "add it (all False is allowed), or leave out all masks in load()")
    mask = _dense(name, value)
    if mask.dtype != torch.bool or mask.shape != (n,):
        remedy = "make a mask with one True or False per node; load(split=...) chooses among columns"
        refuse(f"'{name}' to be bool of shape ({n},)", f"{mask.dtype} of shape {tuple(mask.shape)}", remedy)
    return mask


def _check_disjoint(data: Data, masks: list[str]) -> None:
    for first, second in itertools.combinations(masks, 2):
        if both := int((data[first] & data[second]).sum()):
            remedy = "give each node to one of them"
            refuse(f"'{first}' and '{second}' not to overlap", f"{both} common nodes", remedy)
    if not data.train_mask.any():
        refuse("'train_mask' to hold a node", "no training nodes", "set it where nodes with labels are to be learnt")


def _check_y(value: Any, used: Tensor) -> Tensor:
    y = _dense("y", value)
    y = y.squeeze(1) if y.dim() == 2 and y.size(1) == 1 else y
    if y.dim() not in (1, 2) or y.size(0) != len(used) or y.numel() == 0:
        remedy = "one label, or one row of 0/1 labels, per node"
        refuse(f"'y' to have {len(used)} rows", f"shape {tuple(y.shape)}", remedy)
    if y.dim() == 2:
        if not ((y == 0) | (y == 1)).all():
            refuse("multi-label 'y' to hold 0 and 1", f"values other than these in {y.dtype}", "binarise it")
        return y if y.is_floating_point() else y.float()
    if y.is_floating_point():
        if not torch.isfinite(y[used]).all():
            refuse("'y' to be finite in all masks", "NaN or inf", "take nodes without a target out of the masks")
        return y
    y = y.long()
    if (y < -1).any() or (y[used] < 0).any():
        got = f"{int(y.min())}, {int((y[used] < 0).sum())} negative ones in the masks"
        refuse("'y' to hold classes from 0", got, "mark nodes without a label with -1 and take them out of the masks")
    return y


def _check_labels(data: Data) -> None:
    """Refuse targets that are too large to be squared, and ids of classes with large gaps: each costs an output.

    Classes that have names are meant, however few of them occur.
    """
    y = data.y
    if y.dim() == 2:
        return
    if y.is_floating_point():
        _check_size("y", y.where(torch.isfinite(y), 0.0), dtype=data.x.dtype)
        return
    classes = int(y.max()) + 1
    named = len(getattr(data.get("names"), "class_names", None) or ())
    if classes <= max(GAPS, named):
        return
    occurring = len(y[y >= 0].unique())
    if classes > SPREAD * occurring:
        remedy = "number the classes from 0 without gaps, as np.unique(y, return_inverse=True)[1] does, or, if y is a "
        remedy += "quantity, make it floating point"
        refuse("'y' to number the classes that occur", f"{occurring:,} classes with ids up to {classes - 1:,}", remedy)


def _check_edge_values(name: str, value: Any, edges: int) -> Tensor:
    values = _dense(name, value)
    wrong = values.size(0) != edges if name == "edge_attr" and values.dim() > 0 else values.shape != (edges,)
    if wrong:
        remedy = "one value per edge; several go to edge_attr"
        refuse(f"'{name}' to have {edges} rows, as edge_index", f"shape {tuple(values.shape)}", remedy)
    if not torch.isfinite(values).all():
        refuse(f"'{name}' to be finite", "NaN or inf", "replace them or remove these edges")
    return values
