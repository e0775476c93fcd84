"""Basic embeddings: the input of every conv, for the current weights or for random initialisations (Section 5.1)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import Call, plain
from topoff.forward.exact import exact
from topoff.forward.lockstep import Lockstep, Remember
from topoff.forward.norms import Moments
from topoff.forward.plan import Plan
from topoff.graph.graph import Graph


def embed(
    model: nn.Module,
    graph: Graph,
    batches: Sequence[Data] | Sequence[Tensor],
    *,
    plan: Plan,
    collect: Remember,
    call: Call | None = None,
    moments: dict[str, Moments] | None = None,
    last: str | None = None,
    lockstep: Callable[..., Lockstep] | None = None,
) -> Tensor:
    """Run exact inference, hand the (n, d) input of every propagation to `collect`, and return the output (n, out).

    Inputs that are the raw features (or fixed propagations of them) are left out: their halo terms are known exactly.
    `moments` is filled with what norms over all nodes see. With the `last` place it ends, and returns None. `lockstep`
    is for several processes, see `exact`.
    """

    def filtered(place: str, rows: Tensor) -> None:
        """Pass on what is not known beforehand."""
        if not is_known(place, plan):
            collect(place, rows.reshape(rows.size(0), -1).cpu())

    given: dict[str, Any] = {"call": call, "moments": moments, "last": last, "lockstep": lockstep}
    out: Tensor = exact(model, graph, batches, plan=plan, remember=filtered, **given)
    return out


def is_known(place: str, plan: Plan) -> bool:
    """Whether what a propagation reads, at "conv/call/hop", is the raw features or a fixed propagation of them."""
    name, _, hop = place.rsplit("/", 2)
    conv = next(conv for conv in plan.convs if conv.name == name)
    return conv.path != "general" and plan.is_constant(conv, int(hop))


def reinitialized(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of the model with fresh random parameters; the global generator is left as it was.

    Raises:
        ValueError: for a parameter that no `reset_parameters()` reaches.

    >>> layer = nn.Linear(2, 2)
    >>> bool((reinitialized(layer, 0).weight == reinitialized(layer, 0).weight).all())
    True
    """
    forgotten = unreset_parameter(model)
    if forgotten:
        raise ValueError(
            f"Expected every parameter to be drawn by a reset_parameters() (got parameter '{forgotten}' that nothing "
            f"resets): add the method, or use inits=1, which needs no random initialisation."
        )
    fresh = copy.deepcopy(plain(model))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return fresh


def random_network(model: nn.Module, number: int, *, seed: int) -> nn.Module:
    """Return one of the random initialisations that belong to a seed; 0 is the one that certificates hold out."""
    return reinitialized(model, seed * 1009 + number)


def random_networks(model: nn.Module, count: int, *, seed: int) -> list[nn.Module]:
    """Return the first random initialisations that belong to a seed, without the one that certificates hold out."""
    return [random_network(model, number, seed=seed) for number in range(1, count + 1)]


def unreset_parameter(model: nn.Module) -> str | None:
    """Return the name of a parameter that no `reset_parameters()` of its module, or of one around it, can reach."""
    model = plain(model)
    for name, _ in model.named_parameters():
        path = name.split(".")[:-1]
        around = [model.get_submodule(".".join(path[:depth])) for depth in range(len(path) + 1)]
        if not any(callable(getattr(module, "reset_parameters", None)) for module in around):
            return name
    return None
