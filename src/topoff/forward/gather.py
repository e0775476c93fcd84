"""Put what batches return into one output for all nodes, in the order of the nodes.

>>> parts = [Part(torch.tensor([1]), 1, 1), Part(torch.tensor([0]), 1, 1)]
>>> gather([torch.ones(1, 2), torch.zeros(1, 2)], parts, num_nodes=2).tolist()
[[0.0, 0.0], [1.0, 1.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

from topoff.forward.extended import is_alias
from topoff.graph.aggregation import Empty
from topoff.machine.shelf import put


class Holder(Protocol):
    """Say which nodes a batch has, and how many rows its model sees."""

    @property
    def nodes(self) -> Tensor:
        """Its nodes; (b,)."""

    @property
    def size(self) -> int:
        """How many there are, b."""

    @property
    def rows(self) -> int:
        """Rows that its model sees: more than b in a wide model."""


@dataclass(frozen=True)
class Part:
    """Hold what is known of a batch that is gone."""

    nodes: Tensor  # (b,)
    size: int  # b
    rows: int  # those of a wide model


def gather(
    parts: Sequence[Any],
    holders: Sequence[Holder],
    *,
    num_nodes: int,
    of: str = "the output",
    inner: bool = False,
    empty: Empty | None = None,
) -> Any:
    """Put the rows of all batches into one matrix, in the order of the nodes; in tuples and dicts, all of them."""
    first = parts[0]
    given: dict[str, Any] = {"num_nodes": num_nodes, "of": of, "inner": True, "empty": empty}
    if isinstance(first, dict):
        return {key: gather([part[key] for part in parts], holders, **given) for key in first}
    if isinstance(first, (tuple, list)):
        found = [gather(list(items), holders, **given) for items in zip(*parts, strict=True)]
        return type(first)(*found) if hasattr(first, "_fields") else type(first)(found)
    whole: Tensor | None = None
    if inner and len(parts) > 1 and all(isinstance(part, Tensor) and is_alias(part, first) for part in parts):
        return first  # one tensor, whatever its number of rows
    for holder, part in zip(holders, parts, strict=True):
        if not has_rows(part, holder):
            if inner:
                return _common(parts)
            raise_rows(part, of=of, size=holder.size, whole=num_nodes)
        if whole is None:
            whole = empty_like(part, num_nodes, empty=empty)
        put(whole, holder.nodes, part[: holder.size])
    assert whole is not None
    return whole


def has_rows(part: Any, holder: Holder) -> bool:
    """Whether something is a tensor with a row for every node of a batch, or for all that its model sees."""
    return isinstance(part, Tensor) and part.dim() > 0 and part.size(0) in (holder.size, holder.rows)


def empty_like(part: Tensor, num_nodes: int, *, empty: Empty | None = None) -> Tensor:
    """Return an empty matrix for all nodes, of the kind of a batch's rows; on disk where `empty` makes it there."""
    shape = (num_nodes, *part.shape[1:])
    return part.new_empty(shape) if empty is None or part.device.type != "cpu" else empty(shape, part.dtype)


def _common(parts: Sequence[Any]) -> Any:
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
