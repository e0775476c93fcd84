"""The arrays of small graphs as they lie in .npz files, and the `Data` that they must become."""

from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from topoff.data.layout import MASKS
from topoff.data.names import Names

N = 6


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    """A directed, weighted graph.npz with a self-loop, a duplicate edge and an isolated, unlabelled node."""
    parts = {
        "x": np.arange(2 * N, dtype=np.float32).reshape(N, 2),
        "edge_index": np.array([[0, 0, 2, 3, 4], [1, 1, 2, 0, 3]]),
        "edge_weight": np.array([1, 0.5, -1, 0, 2], dtype=np.float32),
        "y": np.array([0, 7, 0, 7, 3, -1]),
        **{name: np.isin(np.arange(N), nodes) for name, nodes in zip(MASKS, ([0, 1], [2], [3, 4]), strict=True)},
        "class_names": np.array(list("abcdefgh")),
        "vocab": np.array([object()]),
    }
    return {name: np.asarray(value) for name, value in {**parts, **changes}.items() if value is not None}


def expected() -> Data:
    """The same graph as a Data."""
    names = ("x", "edge_index", "edge_weight", "y", *MASKS)
    return Data(**{name: torch.from_numpy(arrays()[name]) for name in names}, names=Names(None, list("abcdefgh")))


def same(first: Data, second: Data) -> bool:
    return set(first.keys()) == set(second.keys()) and all(
        first[key] == second[key]
        if isinstance(first[key], Names)
        else torch.equal(first[key], second[key]) and first[key].dtype == second[key].dtype
        for key in first.keys()  # noqa: SIM118
    )


def benchmark() -> dict[str, np.ndarray]:
    """The layout of the heterophilous benchmark, two splits."""
    masks = {f"{name}s": np.stack([arrays()[name]] * 2) for name in MASKS}
    masks["train_masks"][1, 1] = False
    edges = np.array([[0, 1], [2, 2], [4, 3], [3, 4]])
    return {"node_features": np.eye(N, dtype=np.float32), "node_labels": np.arange(N), "edges": edges, **masks}


def mask(*nodes: int, n: int = N) -> torch.Tensor:
    out = torch.zeros(n, dtype=torch.bool)
    out[list(nodes)] = True
    return out


def crooked(**changes: Any) -> Data:
    """Directed, weighted, with a self-loop (2, 2), a duplicate edge (0, 1), an isolated, unlabelled node 5."""
    parts = {
        "x": torch.arange(2.0 * N).view(N, 2),
        "edge_index": torch.tensor([[0, 0, 2, 3, 4], [1, 1, 2, 0, 3]]),
        "edge_weight": torch.tensor([1.0, 0.5, -1.0, 0.0, 2.0]),
        "edge_attr": torch.ones(5, 3),
        "y": torch.tensor([0, 7, 0, 7, 3, -1]),
        "train_mask": mask(0, 1),
        "val_mask": mask(2),
        "test_mask": mask(3, 4),
    }
    return Data(**{name: value for name, value in {**parts, **changes}.items() if value is not None})


def ring(n: int = 30, *, classes: int = 3) -> Data:
    """Return an undirected ring without anything to warn of: every class has n / classes nodes in a row."""
    ids = torch.arange(n)
    forth = torch.stack([ids, (ids + 1) % n])
    train = ids % 2 == 0
    return Data(
        x=torch.randn(n, 4, dtype=torch.float64),
        edge_index=torch.cat([forth, forth.flip(0)], dim=1),
        y=ids * classes // n,
        train_mask=train,
        val_mask=~train & (ids % 4 == 1),
        test_mask=~train & (ids % 4 == 3),
    )
