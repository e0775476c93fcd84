"""What a model is not to be given, not to change and not to fail on: refused, each in one sentence.

>>> raise_in_place("pos")
Traceback (most recent call last):
ValueError: Expected the model to leave its input features alone (got 'pos' changed in place): write pos = pos.clone() \
first, or change the features of the graph before wrapping it.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.machine.user_code import is_out_of_memory, told


def check_unchanged(batch: Data, own: dict[str, Tensor], changed: list[str]) -> None:
    """Refuse a batch whose features or edges are not those that it was cut with.

    Features to which something is added that needs a gradient, as adversarial training does, are welcome: the nodes
    outside the batch keep theirs.

    Raises:
        ValueError: with where to change them instead.
    """
    for key in changed:
        now = batch.get(key)
        if isinstance(now, Tensor) and now is not own[key]:
            learnt = key == "x" and now.requires_grad and batch.supplement.wide is None
            if learnt or is_same(now, own[key]):
                continue
        raise ValueError(
            f"Expected a batch as it was handed out (got another '{key}', or one that was written to): the nodes "
            f"outside it would not change with it; change features and edges in the model's forward, or the graph "
            f"before wrapping it."
        )


def raise_in_place(name: str = "x") -> NoReturn:
    """Raise for a model that writes into its features."""
    raise ValueError(
        f"Expected the model to leave its input features alone (got '{name}' changed in place): write {name} = "
        f"{name}.clone() first, or change the features of the graph before wrapping it."
    )


class ForeignInputError(ValueError):
    """Say that a conv was given edges or attributes that are not the batch's own."""


def raise_foreign(conv: object, name: str) -> NoReturn:
    """Raise for edges or edge values that are not the batch's own."""
    raise ForeignInputError(
        f"Expected {conv} to receive the batch's own '{name}' (got another tensor, unlike the trial run): call it "
        f"with the same edges whatever the batch, or change the graph before wrapping it."
    )


def raise_narrow(conv: object) -> NoReturn:
    """Raise for a wide model that was called with the batch alone."""
    raise ValueError(
        f"Expected {conv} to read the rows of the batch and of its neighbours (got other rows), for the model computes "
        f"with the edges itself: call it with what `with compensating(model, batch) as seen:` yields."
    )


def raise_broken(error: Exception, nodes: int) -> NoReturn:
    """Raise for a model that does not run on a part of the graph; errors of ours and lack of memory stay themselves."""
    if is_refusal(error) or is_out_of_memory(error):
        raise error
    raise ValueError(
        f"Expected the model to run on a part of the graph (got {told(error)}; on {nodes} of its "
        f"nodes): check how it is called, and that it holds no sizes, edges or tables of the whole graph."
    ) from error


def is_refusal(error: Exception) -> bool:
    """Whether an error is one of our sentences; torch says "Expected", too."""
    return isinstance(error, ValueError) and str(error).startswith("Expected") and "(got" in str(error)


def is_same(tensor: Tensor, own: Tensor | None) -> bool:
    """Say whether a tensor is, or equals, the batch's own."""
    if own is None or tensor is own:
        return own is not None
    return tensor.shape == own.shape and tensor.dtype == own.dtype and bool(torch.equal(tensor, own))
