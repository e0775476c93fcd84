"""What is compensated, and by how many directions, where the user leaves it open.

>>> usual_rank("kaminpar", offset=True), usual_rank("kaminpar", offset=False), usual_rank("random", offset=True)
(16, 64, 64)
"""

from __future__ import annotations

from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.batching.overlapping_sets import SampledSets
from topoff.compensation.refresh import SCARCE

LITTLE, MUCH, MOST = 16, 64, 128  # rank
NODES_PER_RANK = 8  # a regression wants several rows per direction


def usual_rank(batches: str, *, offset: bool, labels: int | None = None, nodes: int = 0, batch: int = 0) -> int:
    """Return the rank for a kind of batches; `labels` are the training nodes, where these are batched alone.

    Little of what changes is outside of clusters; most is, where batches hold `labels` of many `nodes`. A `batch` must
    be large enough for that.

    >>> [usual_rank("random", offset=True, labels=80_000, nodes=nodes, batch=3_000) for nodes in (10**5, 10**6)]
    [64, 128]
    """
    if labels is None:
        return LITTLE if offset and batches in ("kaminpar", "metis", "ldg", "stored") else MUCH
    return MOST if offset and nodes > SCARCE * labels and batch >= NODES_PER_RANK * MOST else MUCH


def rank_for(sets: NodeSets | SampledSets, data: Data, *, offset: bool) -> int:
    """Return the rank for the batches of a graph."""
    alone = getattr(sets, "train_only", False) and "train_mask" in data
    labels = int(data.train_mask.sum()) if alone else None
    batch = (labels or 0) // len(sets)
    return usual_rank(sets.method, offset=offset, labels=labels, nodes=int(data.num_nodes or 0), batch=batch)


def has_offset(*, offset: bool | None, estimator: str, refresh: str) -> bool:
    """Return whether only changes are compensated: as the user says, else with our estimator where it is refreshed.

    >>> [has_offset(offset=None, estimator="ridge", refresh=refresh) for refresh in ("auto", "never")]
    [True, False]
    """
    return estimator == "ridge" and refresh != "never" if offset is None else offset
