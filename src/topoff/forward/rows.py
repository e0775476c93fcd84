"""What the batches of a forward return: rows of nodes, or what all of them have in common.

>>> common([torch.ones(2), torch.ones(2)])
tensor([1., 1.])
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor


class Holder(Protocol):
    """Say how many nodes a batch has, and how many rows its model sees."""

    @property
    def size(self) -> int:
        """Its nodes, b."""

    @property
    def rows(self) -> int:
        """The rows that its model sees: more than b in a wide model."""


def has_rows(part: Any, holder: Holder) -> bool:
    """Whether something is a tensor with a row for every node of a batch, or for all that its model sees."""
    return isinstance(part, Tensor) and part.dim() > 0 and part.size(0) in (holder.size, holder.rows)


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


def raise_other_depth() -> NoReturn:
    """Raise for batches of which some are at their end."""
    raise ValueError(
        "Expected every batch to pass the same convs (got a forward whose depth depends on the batch): let it not "
        "depend on the rows or the size of the input."
    )


def raise_other_conv(conv: object) -> NoReturn:
    """Raise for batches that have come to different convs."""
    raise ValueError(
        f"Expected every batch to pass the same convs (got {conv} for one batch and another one for another): let the "
        f"forward not depend on the rows or the size of the input."
    )
