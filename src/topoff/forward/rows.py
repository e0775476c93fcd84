"""What the batches of a forward return: rows of nodes, or what all of them have in common.

>>> common([torch.ones(2), torch.ones(2)])
tensor([1., 1.])
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor


def common(parts: list[Any]) -> Any:
    """Return what all batches have in common beside their rows, such as a penalty on the weights.

    Raises:
        ValueError: where they differ.
    """
    first = parts[0]
    if not all(_is_same(first, part) for part in parts):
        got = f"shape {tuple(first.shape)}" if isinstance(first, Tensor) else type(first).__name__
        raise ValueError(
            f"Expected every output to have one row per node, or not to depend on the nodes (got {got} that is another "
            f"one for every batch): compute it outside of the model, from its rows."
        )
    return first


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.shape == other.shape and bool(torch.allclose(one, other))
    return bool(one == other)


def raise_rows(part: Any, *, of: str, size: int, whole: int | None = None) -> NoReturn:
    """Raise for what has not one row per node."""
    if isinstance(part, Tensor) and part.dim() and part.size(0) == whole:
        raise ValueError(
            f"Expected {of} to have one row per node of the batch (got a row for every node of the graph, {whole} for "
            f"{size}): a table of all nodes inside the model must be indexed by batch.n_id, give call=lambda model, "
            f"batch: ..."
        )
    got = f"shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
    raise ValueError(
        f"Expected {of} to have one row per node (got {got} for a batch of {size} nodes): let the model return rows of "
        f"nodes, and pool outside of it."
    )
