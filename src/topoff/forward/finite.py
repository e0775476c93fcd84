"""Why a model's plain output is not finite: found by trying, so that nobody looks for it in the batches.

>>> from torch_geometric.nn import GCN
>>> data = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]), edge_weight=torch.tensor([-3.0, 1.0]))
>>> model = GCN(3, 2, num_layers=1)
>>> def run(given):
...     return model(given.x, given.edge_index, given.edge_weight)
>>> refuse_not_finite(run(data), run=run, piece=data, model=model)
Traceback (most recent call last):
ValueError: Expected the model's output to be finite (got nan at 2 of 2 nodes in its plain forward: 1 of 2 edge \
weights is negative, and with their absolute values it is finite); make the weights positive, or use a model that does \
not take roots of degrees, such as sage.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data

from topoff.forward.difference import is_finite
from topoff.forward.intercept import map_tensors

LARGE = 0.4  # of the exponents of a type: the largest number to this power is as large as features should be
POSITIVE = "make the weights positive, or use a model that does not take roots of degrees, such as sage"
SCALED = "scale the features, for example to mean 0 and deviation 1"
WEIGHED = "look for weights that are huge, or that sum to zero at a node"
ITS_OWN = "look in its forward for a division by zero, a logarithm, a root or numbers too large for their type"


def refuse_not_finite(out: Any, *, run: Callable[[Data], Any], piece: Data, model: nn.Module, name: str = "") -> None:
    """Refuse outputs that hold NaN or infinity; `run` gives those of a changed piece, to find out why.

    Raises:
        ValueError: with the reason that was found, and what to do.
    """
    if not is_finite(out):
        reason, remedy = _reason(run, piece, model)
        came = f"{_where(out, piece)} in its plain forward{reason}"
        raise ValueError(f"Expected {name or 'the model'}'s output to be finite (got {came}); {remedy}.")


def suspicious(data: Data) -> str:
    """Say what in a graph's numbers makes outputs infinite or NaN in many models; nothing where all is well."""
    found, weight = [], _weights(data)
    size = float(data.x.abs().max()) if data.x.numel() else 0.0
    if size > torch.finfo(data.x.dtype).max ** LARGE:
        found.append(f"the largest |x| is {size:.0e}")
    if weight is not None and bool((data[weight] < 0).any()):
        found.append(_negative(data[weight]))
    return "; ".join(found)


def _reason(run: Callable[[Data], Any], piece: Data, model: nn.Module) -> tuple[str, str]:
    """Return what makes the output infinite or NaN, and the remedy: the first change that heals it."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not is_lazy(tensor) and torch.is_floating_point(tensor) and not bool(tensor.isfinite().all()):
            return f": '{name}' of the model is not finite", "initialise it, or train with a smaller learning rate"
    size = float(piece.x.abs().max()) if piece.x.numel() else 0.0
    tried: list[tuple[str, Tensor, str, str]] = []
    if (key := _weights(piece)) is not None:
        values = piece[key]
        if bool((values < 0).any()):
            healed = f"{_negative(values)}, and with their absolute values it is finite"
            tried.append((key, values.abs(), healed, POSITIVE))
        spread = (
            f"edge weights lie between {float(values.min()):.1e} and {float(values.max()):.1e}" if len(values) else ""
        )
        tried.append((key, torch.ones_like(values), f"{spread}, and with 1 for all it is finite", WEIGHED))
    if size > 1:
        tried.append(("x", piece.x / size, f"the largest |x| is {size:.1e}, and below 1 it is finite", SCALED))
    for key, values, reason, remedy in tried:
        changed = copy.copy(piece)
        changed[key] = values
        if is_finite(run(changed)):
            return f": {reason}", remedy
    return "", ITS_OWN


def _negative(weight: Tensor) -> str:
    count = int((weight < 0).sum())
    return f"{count:,} of {len(weight):,} edge weights {'is' if count == 1 else 'are'} negative"


def _weights(data: Data) -> str | None:
    """Name the edge weights of a graph, where it has some."""
    for key in ("edge_weight", "edge_attr"):
        value = data.get(key)
        if isinstance(value, Tensor) and torch.is_floating_point(value) and (value.dim() == 1 or value.size(-1) == 1):
            return key
    return None


def _where(out: Any, piece: Data) -> str:
    """Say what came, and at how many nodes."""
    found: list[Tensor] = []
    map_tensors(out, lambda tensor: found.append(tensor.detach()))
    bad = next(tensor for tensor in found if not bool(tensor.isfinite().all()))
    value = "nan" if bool(bad.isnan().any()) else "inf" if bool((bad == torch.inf).any()) else "-inf"
    rows = ~bad.isfinite().reshape(len(bad), -1).all(dim=1) if bad.dim() and len(bad) == piece.num_nodes else None
    return value if rows is None else f"{value} at {int(rows.sum())} of {len(rows)} nodes"
