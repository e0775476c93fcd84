"""Say that training has left the finite numbers, why as far as the graph tells, and what to do.

>>> raise_diverged(Data(x=torch.ones(2, 1)), "the loss to stay finite (got nan in epoch 3", kept="runs/a")
Traceback (most recent call last):
ValueError: Expected the loss to stay finite (got nan in epoch 3); lower --lr, or set --clip 1.0; the best weights so \
far are kept in runs/a.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.data.layout import MASKS
from topoff.forward.finite import suspicious


def check_outputs(out: Tensor, data: Data, *, epoch: int, kept: str) -> None:
    """Refuse outputs (n, outputs) that are not finite at a node that counts: scores of NaN mean nothing."""
    scored = torch.stack([data[name] for name in MASKS]).any(dim=0)
    wrong = ~out.reshape(len(out), -1).isfinite().all(dim=1) & scored
    if bool(wrong.any()):
        came = f"others at {int(wrong.sum()):,} of {int(scored.sum()):,} after epoch {epoch}"
        raise_diverged(data, f"finite outputs at all labelled nodes (got {came}", kept=kept)


def raise_diverged(data: Data, expected: str, *, kept: str) -> NoReturn:
    """Raise for a loss or outputs that are not finite; `kept` names the folder of the best weights, if there are any.

    Raises:
        ValueError: with what in the graph may be the reason, and what to do.
    """
    found = suspicious(data)
    first = "" if not found else "scale such features, or make such weights positive; if that is not it, "
    last = f"; the best weights so far are kept in {kept}" if kept else ""
    raise ValueError(f"Expected {expected}{found and '; '}{found}); {first}lower --lr, or set --clip 1.0{last}.")
