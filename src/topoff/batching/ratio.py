"""How many nodes a batch has, where the user leaves it open, and which nodes are batched at all.

>>> usual_ratio(500, labels=100)
(1.0, '500 nodes fit in one batch')
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from topoff.batching.pattern import Ints

if TYPE_CHECKING:
    from torch_geometric.data import Data

RATIO = 0.03  # nodes per batch, as a share of all
WHOLE = 1_000  # nodes of a graph that is one batch
SMALL, LARGE = 400, 3_000  # nodes that a batch has at least and at most, where the user leaves it open
LABELS = 64  # training nodes that it has at least


def chosen_ratio(data: Data, *, train_only: bool, reach: int | None = None) -> float:
    """Choose the fraction per batch of a graph's nodes, of its training nodes, or of those that they reach."""
    nodes, known = int(data.num_nodes or 0), "train_mask" in data
    labels = int(data.train_mask.sum()) if known else nodes
    hops = 0 if train_only else reach
    return usual_ratio(nodes if hops is None or not known else len(near_training(data, hops)), labels=labels)[0]


def near_training(data: Data, hops: int) -> Ints:
    """List the training nodes and those within so many edges of one, whatever their direction, ascending.

    Raises:
        ValueError: for a number of edges that is none.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> path = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), train_mask=torch.tensor([True] + [False] * 3))
    >>> near_training(path, 2)
    array([0, 1, 2])
    """
    if not isinstance(hops, int) or isinstance(hops, bool) or hops < 0:
        raise ValueError(
            f"Expected 'reach' to be a whole number of edges >= 0 (got {hops!r}); leave it out for all nodes."
        )
    source, target = data.edge_index.cpu()
    near, before = data.train_mask.cpu().clone(), -1
    while hops and before < (before := int(near.sum())):  # until nothing more is reached
        sends, receives = source[near[target]], target[near[source]]
        near[sends] = near[receives] = True
        hops -= 1
    return np.flatnonzero(near.numpy())


def usual_ratio(nodes: int, *, labels: int) -> tuple[float, str]:
    """Choose the fraction of nodes per batch, in bounds: small batches are many steps in little time.

    >>> usual_ratio(120_000, labels=50_000)
    (0.025, 'a batch has at most 3,000 nodes: many steps in little time')
    """
    if nodes <= WHOLE:
        return 1.0, f"{nodes:,} nodes fit in one batch"
    usual = -(-nodes // LARGE) if nodes * RATIO > LARGE else round(1 / RATIO)
    most, least = min((labels // LABELS, f"{LABELS} training nodes"), (nodes // SMALL, f"{SMALL} nodes"))
    if most < usual:
        return round(1 / max(1, most), 4), f"a batch has at least about {least}"
    if nodes * RATIO > LARGE:
        return round(1 / usual, 6), f"a batch has at most {LARGE:,} nodes: many steps in little time"
    return RATIO, f"{usual} batches; smaller ones are more steps in the same time, larger ones are less noisy"


def count_batches(ratio: float) -> int:
    """Return how many batches make an epoch: `round(1 / ratio)`, at least 1."""
    if not 0 < ratio <= 1:
        raise ValueError(f"Expected 'ratio' to be in (0, 1] (got {ratio}); 0.1 gives 10 batches.")
    return max(1, round(1 / ratio))
