"""Basic embeddings: the input of every conv, for the current weights or for random initialisations (Section 5.1)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.calling import Call
from topoff.convs import Conv, plain
from topoff.graph import Graph
from topoff.layerwise import Collect, exact
from topoff.plan import Plan


def embed(
    model: nn.Module,
    graph: Graph,
    batches: Sequence[Data],
    *,
    plan: Plan,
    collect: Collect,
    call: Call | None = None,
) -> Tensor:
    """Run exact inference, hand the (n, d) input of every conv to `collect`, and return the output (n, out).

    Inputs that are the raw features (or fixed propagations of them) are left out: their halo terms are known exactly.
    """

    def filtered(conv: Conv, hop: int, rows: Tensor) -> None:
        if not plan.is_constant(conv, hop):
            collect(conv, hop, rows.reshape(rows.size(0), -1).cpu())

    return exact(model, graph, batches, call=call, collect=filtered)


def reinitialised(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of the model with fresh random parameters; the global generator is left as it was.

    Raises:
        ValueError: for a parameter that no `reset_parameters()` reaches.

    >>> layer = nn.Linear(2, 2)
    >>> bool((reinitialised(layer, 0).weight == reinitialised(layer, 0).weight).all())
    True
    """
    fresh = copy.deepcopy(plain(model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, module in fresh.named_modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
            elif any(True for _ in module.parameters(recurse=False)) and not _reset_above(fresh, name):
                own = next(name for name, _ in module.named_parameters(recurse=False))
                raise ValueError(
                    f"Expected {type(module).__name__} '{name}' to have reset_parameters() (got parameter '{own}' that "
                    f"nothing resets): add the method, or use inits=1, which needs no random initialisation."
                )
    return fresh


def _reset_above(model: nn.Module, name: str) -> bool:
    """Return whether a module that contains this one resets parameters on its behalf."""
    parts = name.split(".")
    above = [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]
    return any(callable(getattr(module, "reset_parameters", None)) for module in above)
