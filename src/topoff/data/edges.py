"""Change the edges of a graph: without self-loops, merged, both ways."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch_geometric.data import Data


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
    weighted = data.get("edge_weight") is not None
    weight = merged_weights(data.edge_weight.numpy() if weighted else np.ones(len(source)), inverse, count=len(key))
    ends = np.stack(np.divmod(key, n)) if len(key) else np.zeros((2, 0), dtype=np.int64)
    if undirected:
        between = ends[0] != ends[1]
        ends, weight = np.hstack([ends, ends[::-1, between]]), np.hstack([weight, weight[between]])
        order = np.lexsort((ends[1], ends[0]))
        ends, weight = ends[:, order], weight[order]
    out = copy.copy(data)
    out.edge_index = torch.from_numpy(np.ascontiguousarray(ends))
    if weighted:
        out.edge_weight = torch.from_numpy(weight)
    return out


def merged_weights(weight: np.ndarray[Any, Any], group: np.ndarray[Any, Any], *, count: int) -> np.ndarray[Any, Any]:
    """Return the weight of every group: the common one, else the sum."""
    import numpy as np

    first = np.zeros(count, dtype=weight.dtype)
    first[group] = weight  # any one of the group
    differs = np.zeros(count, dtype=bool)
    differs[group[weight != first[group]]] = True
    total = np.bincount(group, weights=weight, minlength=count).astype(weight.dtype)
    return np.where(differs, total, first)
