"""Describe a graph in numbers, and warn about what would fail or cost accuracy, before anything is trained.

>>> import torch
>>> from torch_geometric.data import Data
>>> mask = torch.tensor([True, True, False])
>>> path = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), y=torch.tensor([0, 1, 1]),
...             train_mask=mask, val_mask=~mask, test_mask=mask & ~mask)
>>> found = describe(path)
>>> found.nodes, found.undirected, found.degree.max, found.homophily, found.task
(3, True, 2, 0.5, 'binary')
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.data.check import check
from topoff.data.describe_store import columns_of, ends_of, homophily_of
from topoff.data.description import ClassCount, Degrees, Description, Features, Target, list_warnings
from topoff.data.layout import SPLITS
from topoff.data.store import Store, stored

__all__ = ["ClassCount", "Degrees", "Description", "Features", "Target", "degree_histogram", "describe"]

COLUMNS = 64  # features that are looked at in one go, so that their float64 copy stays small

Ints = npt.NDArray[np.int64]


def describe(data: Data) -> Description:
    """Return the description of a graph that `load` returned, or of any `Data` that passes its checks.

    Homophily is the share of edges that join nodes of one class, over edges between different nodes with known labels;
    the adjusted one, (h - e) / (1 - e) with e the share that random edges of the same degrees would have, is 0 for
    labels that say nothing about edges, whatever the number and the sizes of the classes.

    Raises ValueError or TypeError, as `topoff.data.check.check` does.
    """
    data = check(data).cpu()
    edges = [data[name] for name in ("edge_index", "edge_weight", "edge_attr") if data.get(name) is not None]
    memory = {"x": data.x.nbytes, "edges": sum(values.nbytes for values in edges)}
    store = stored(data)
    if store is not None:
        graph, features = _stored_structure(data, store) | _stored_homophily(data, store), _stored_features(data.x)
    else:
        graph = _structure(data) | _homophily(data.edge_index, data.y)
        features = _features(data.x.flatten(1))
    found = Description(**graph, **_labels(data), features=features, memory=memory)
    return replace(found, warnings=list_warnings(found))


def degree_histogram(degrees: Tensor) -> dict[str, list[int]]:
    """Count degrees (n,) in bins 0, 1, 2-3, 4-7, ...: bin i holds edges[i] <= degree < edges[i + 1]."""
    top = int(degrees.max()) if degrees.numel() else 0
    edges = [0, *(2**power for power in range(top.bit_length() + 1))]  # the last one is above every degree
    return {"edges": edges, "counts": np.histogram(degrees.cpu().numpy(), bins=edges)[0].tolist()}


# ---- the edges


def _structure(data: Data) -> dict[str, Any]:
    """Describe the edges; one sparse matrix serves duplicates, directions and components."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, edges = int(data.num_nodes), data.edge_index.size(1)
    source, target = data.edge_index.numpy()
    matrix = coo_array((np.ones(edges, dtype=bool), (source, target)), shape=(n, n)).tocsr()
    matrix.sum_duplicates()
    reverse = matrix.T.tocsr()
    undirected = bool((matrix.indptr == reverse.indptr).all() and (matrix.indices == reverse.indices).all())
    count, component = connected_components(matrix, directed=True, connection="weak")
    loops = source == target
    heard = np.bincount(target[~loops], minlength=n)
    incoming = np.bincount(target, minlength=n)
    weight, attr = data.get("edge_weight"), data.get("edge_attr")
    return {
        "nodes": n,
        "edges": edges,
        "undirected": undirected,
        "weighted": weight is not None,
        "negative_weights": 0 if weight is None else int((weight < 0).sum()),
        "edge_features": 0 if attr is None else math.prod(attr.shape[1:]),
        "self_loops": int(loops.sum()),
        "duplicates": edges - int(matrix.nnz),
        "isolated": int((heard + np.bincount(source[~loops], minlength=n) == 0).sum()),
        "unreached": int((heard == 0).sum()),
        "degree": _degrees(incoming),
        "degree_out": None if undirected else _degrees(np.bincount(source, minlength=n)),
        "histogram": degree_histogram(torch.from_numpy(incoming)),
        "components": int(count),
        "largest_component": int(np.bincount(component).max()),
    }


def _stored_structure(data: Data, store: Store) -> dict[str, Any]:
    """Describe the edges of a store, in bounded memory."""
    ends, header, weight = ends_of(store), store.header, data.get("edge_weight")
    known = header.statistics
    heard = ends.incoming - ends.loops
    return {
        "nodes": header.nodes,
        "edges": header.edges,
        "undirected": known["undirected"],
        "weighted": weight is not None,
        "negative_weights": 0 if weight is None else int((weight < 0).sum()),
        "edge_features": 0,
        "self_loops": known["self_loops"],
        "duplicates": known["duplicates"],
        "isolated": int((heard + ends.outgoing - ends.loops == 0).sum()),
        "unreached": int((heard == 0).sum()),
        "degree": _degrees(ends.incoming),
        "degree_out": None if known["undirected"] else _degrees(ends.outgoing),
        "histogram": degree_histogram(torch.from_numpy(ends.incoming)),
        "components": ends.components,
        "largest_component": ends.largest_component,
    }


def _degrees(degrees: Ints) -> Degrees:
    return Degrees(int(degrees.min()), float(np.median(degrees)), float(degrees.mean()), int(degrees.max()))


def _homophily(edge_index: Tensor, y: Tensor) -> dict[str, float | None]:
    """Return the edge homophily and the adjusted one (Platonov et al., 2023); none where they are not defined."""
    undefined: dict[str, float | None] = {"homophily": None, "adjusted_homophily": None}
    if y.dim() != 1 or y.is_floating_point():
        return undefined
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    of_source, of_target = y[source], y[target]
    known = (of_source >= 0) & (of_target >= 0)
    of_source, of_target = of_source[known], of_target[known]
    if not len(of_source):
        return undefined
    same = float((of_source == of_target).double().mean())
    ends = torch.bincount(torch.cat([of_source, of_target])).double() / (2 * len(of_source))
    expected = float(ends.square().sum())
    adjusted = (same - expected) / (1 - expected) if int((ends > 0).sum()) > 1 else None
    return {"homophily": same, "adjusted_homophily": adjusted}


def _stored_homophily(data: Data, store: Store) -> dict[str, float | None]:
    classes = data.y.dim() == 1 and not data.y.is_floating_point()
    return homophily_of(store, data.y) if classes else {"homophily": None, "adjusted_homophily": None}


# ---- the labels


def _labels(data: Data) -> dict[str, Any]:
    """Describe the task, the classes and the split."""
    masks = {name: data[f"{name}_mask"] for name in SPLITS}
    sizes = {name: int(mask.sum()) for name, mask in masks.items()}
    splits = {**sizes, "none": int(data.num_nodes) - sum(sizes.values())}
    y = data.y
    if y.dim() == 1 and y.is_floating_point():
        known = y[masks["train"]].double()
        target = Target(float(known.min()), float(known.mean()), float(known.std(correction=0)), float(known.max()))
        counts: dict[str, Any] = {"classes": [], "balance": None, "majority": None, "target": target}
        return {"task": "regression", **counts, "splits": splits, "unlabelled": int((~torch.isfinite(y)).sum())}
    several = y.dim() == 2
    names = _class_names(data, y.size(1) if several else int(y.max()) + 1)
    all_of = {"count": torch.ones_like(masks["train"]), **masks}
    columns = {key: _occurrences(y[mask], len(names)) for key, mask in all_of.items()}
    classes = [ClassCount(name, *counts) for name, *counts in zip(names, *columns.values(), strict=True)]
    balance, majority = (None, None) if several else _balance(columns["train"])
    return {
        "task": "multilabel" if several else "binary" if len(names) == 2 else "classes",
        "classes": classes,
        "balance": balance,
        "majority": majority,
        "target": None,
        "splits": splits,
        "unlabelled": 0 if several else int((y < 0).sum()),
    }


def _class_names(data: Data, count: int) -> list[str]:
    """Name the classes by the graph's own names, as far as it has them, else by their numbers."""
    known = getattr(getattr(data, "names", None), "class_names", None) or []
    own = [str(name) for name in known]
    return own + [str(number) for number in range(len(own), count)]


def _occurrences(y: Tensor, classes: int) -> list[int]:
    """Count the nodes of each class, or those that carry each label; unlabelled ones count nowhere."""
    if y.dim() == 2:
        counts = y.double().sum(dim=0).long().tolist()
        return [*counts, *[0] * (classes - len(counts))]
    return torch.bincount(y[y >= 0], minlength=classes).tolist()


def _balance(counts: list[int]) -> tuple[float | None, float]:
    """Return the entropy of classes over its maximum (none for one class), and the largest one's share."""
    total = sum(counts)
    shares = [count / total for count in counts if count]
    entropy = -sum(share * math.log(share) for share in shares)
    return entropy / math.log(len(counts)) if len(counts) > 1 else None, max(shares)


# ---- the features


def _stored_features(x: Tensor) -> Features:
    """Describe the columns of a store, some rows at a time."""
    found = columns_of(x)
    varies = found["lowest"] != found["highest"]
    std = found["std"][varies] if bool(varies.any()) else torch.ones(1, dtype=torch.float64)
    return Features(
        count=x.size(1),
        dtype=str(x.dtype).removeprefix("torch."),
        min=float(found["lowest"].min()),
        max=float(found["highest"].max()),
        zeros=found["zeros"],
        constant=int((~varies).sum()),
        scale_ratio=float(std.max() / std.min().clamp(min=torch.finfo(torch.float64).tiny)),
    )


def _features(x: Tensor) -> Features:
    """Describe the columns, some at a time; scaled by their largest entry, so that squares stay finite."""
    lowest, highest = x.amin(dim=0).double(), x.amax(dim=0).double()
    varies = (lowest != highest).nonzero().view(-1)
    stds = []
    for some in torch.split(varies, COLUMNS) if len(varies) else ():
        largest = torch.maximum(lowest[some].abs(), highest[some].abs())
        stds.append((x[:, some].double() / largest).std(dim=0, correction=0) * largest)
    std = torch.cat(stds) if stds else torch.ones(1, dtype=torch.float64)
    tiniest, greatest = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).max
    return Features(
        count=x.size(1),
        dtype=str(x.dtype).removeprefix("torch."),
        min=float(lowest.min()),
        max=float(highest.max()),
        zeros=1 - int(torch.count_nonzero(x)) / x.numel(),
        constant=x.size(1) - len(varies),
        scale_ratio=min(float(std.max() / std.min().clamp(min=tiniest)), greatest),
    )
