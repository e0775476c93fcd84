"""Fit node sets in several processes: the first one partitions the graph, and all take its parts.

>>> import torch
>>> from torch_geometric.data import Data
>>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), num_nodes=4)
>>> sets = NodeSets(method="random", ratio=0.5)
>>> fit_together(sets, ring, ranks=Ranks())
>>> sets.parts_.tolist()
[0, 1, 2, 3]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from topoff.batching.node_sets import NodeSets
from topoff.batching.overlapping_sets import SampledSets
from topoff.machine.ranks import Ranks

if TYPE_CHECKING:
    from torch_geometric.data import Data


def fit_together(sets: NodeSets | SampledSets, data: Data, *, ranks: Ranks, cache: bool = False) -> None:
    """Fit node sets to the graph of `data`, to the same ones in every process; sampled ones are so by their seed."""
    if ranks.size == 1 or isinstance(sets, SampledSets):
        sets.fit(data, cache=cache)
        return
    parts = sets.fit(data, cache=cache).parts_ if ranks.is_first else None
    content = ranks.tell(b"" if parts is None else parts.numpy().tobytes())
    if parts is None:
        sets.fit(data, parts=torch.frombuffer(bytearray(content), dtype=torch.int64))


def check_processes(ranks: Ranks, *, accumulate: int, batches: int) -> None:
    """Refuse what several processes cannot share out.

    Raises:
        ValueError: there are more of them than batches, or a step's batches cannot be dealt evenly.

    >>> check_processes(Ranks(0, 3), accumulate=3, batches=2)
    Traceback (most recent call last):
    ValueError: Expected at most 2 processes, one per batch (got 3); start fewer, or choose a smaller ratio.
    """
    if accumulate < 1:
        raise ValueError(f"Expected accumulate to be at least 1 (got {accumulate}): it counts the batches of a step.")
    if ranks.size > batches:
        raise ValueError(
            f"Expected at most {batches} processes, one per batch (got {ranks.size}); start fewer, or choose a smaller "
            "ratio."
        )
    if accumulate % ranks.size:
        raise ValueError(
            f"Expected as many processes as divide the {accumulate} batches of a step (got {ranks.size}); start "
            "another number of them, or begin a new run."
        )
