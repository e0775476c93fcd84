"""Look at all that a graph carries besides features, edges, masks and labels: batches must be able to carry it, too.

Tensors, arrays and lists with one entry per node or edge are cut; all else goes into every batch as it is.

>>> import torch
>>> ring = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), n_id=torch.arange(3))
>>> check_attributes(ring)
Traceback (most recent call last):
ValueError: Expected a graph without 'n_id' (got one); every batch has its own: give yours another name.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import is_sparse

from topoff.data.layout import CARRIED
from topoff.data.refusal import refuse

PER_NODE = ("pos", "batch", "node_type")  # what PyG's own names promise
PER_EDGE = ("edge_type", "e_id")


def check_attributes(data: Data) -> None:
    """Refuse what a batch could not carry, or only wrongly; `x` and `edge_index` are known to be right.

    Raises:
        ValueError: for names that batches need for themselves, tensors that require a gradient, lists of node ids
            other than `edge_index`, sparse matrices, and rows of nodes or edges inside a dict or a list.
    """
    sizes = (data.x.size(0), data.edge_index.size(1))
    for name, value in data.to_dict().items():
        if name in CARRIED:
            refuse(f"a graph without '{name}'", "one", "every batch has its own: give yours another name")
        if isinstance(value, Tensor) and value.requires_grad:
            remedy = "detach it; what is to be learnt belongs into the model, features for instance as an nn.Embedding"
            refuse(f"'{name}' to be constant", "a tensor that requires a gradient", remedy)
        if name not in ("x", "edge_index", "y"):
            _check_entries(name, value, sizes)


def _check_entries(name: str, value: Any, sizes: tuple[int, int]) -> None:
    """Refuse what cannot be cut into the entries of some nodes and edges."""
    if isinstance(value, Tensor | np.ndarray) or is_sparse(value):
        _check_rows(name, value, sizes)
    elif isinstance(value, Mapping) or (isinstance(value, list | tuple) and len(value) not in sizes):
        inside = value.values() if isinstance(value, Mapping) else value
        if any(_rows(one) in sizes for one in inside):
            got = f"tensors with as many rows inside a {type(value).__name__}"
            refuse(f"'{name}' to hold nothing per node or edge", got, "make each of them an attribute of its own")


def _check_rows(name: str, value: Any, sizes: tuple[int, int]) -> None:
    """Refuse sparse matrices, lists of node ids, and rows that are missing."""
    rows, shape = _rows(value), tuple(getattr(value, "shape", ()))
    if is_sparse(value) and rows in sizes:
        remedy = "set it to its to_dense(), or delete it where the model does not read it"
        refuse(f"'{name}' to be dense", f"a sparse matrix of shape {shape}", remedy)
    if ("index" in name or name == "face") and _is_integer(value) and (len(shape) > 1 or rows not in (None, *sizes)):
        remedy = "batches number their nodes anew: delete it, add its pairs to edge_index with an edge_type, or call it"
        remedy += " something without 'index' if it holds no node ids"
        refuse(f"'edge_index' to be the only list of node ids, which '{name}' is by its name", f"shape {shape}", remedy)
    for names, size, what in ((PER_NODE, sizes[0], "node"), (PER_EDGE, sizes[1], "edge")):
        if name in names and rows != size:
            remedy = "complete it, delete it or give it another name"
            refuse(f"'{name}' to have {size} rows, one per {what}", f"shape {shape}", remedy)


def _rows(value: Any) -> int | None:
    """Return the number of rows of a tensor or array; none for anything else."""
    shape = getattr(value, "shape", None) if isinstance(value, Tensor | np.ndarray) or is_sparse(value) else None
    return int(shape[0]) if shape else None


def _is_integer(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(np.issubdtype(value.dtype, np.integer))
    return isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool
