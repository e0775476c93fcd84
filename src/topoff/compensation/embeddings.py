"""Basic embeddings: the input of every conv, for the current weights or for random initialisations (Section 5.1)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.principal import ROWS, directions, full_precision
from topoff.forward.call import Call, plain
from topoff.forward.exact import exact
from topoff.forward.lockstep import Lockstep, Remember
from topoff.forward.norms import Moments
from topoff.forward.plan import Plan
from topoff.graph.graph import Chain, Graph
from topoff.graph.operators import Operator, full_type

SAMPLE_ROWS = 2048  # of the propagated features, evenly spaced, that their leading directions come from


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


@full_precision()
def leading_features(graph: Graph, chain: Chain, width: int | None) -> Tensor:
    """Return the leading directions of the propagated features, at most `width` of them; (n, width).

    They are A (X V), with V from a sample of the rows of A X, which may be much wider than what is kept.
    """
    x, dtype, shelf = graph.data.x, full_type(graph.dtype), graph.shelf
    if width is None or width >= x.size(1):
        return graph.propagated(chain).to(dtype)
    sample = graph.propagated_rows(chain, torch.arange(0, len(x), max(1, len(x) // SAMPLE_ROWS)))
    leading = directions(sample.to(dtype), width)
    shape = len(x), leading.size(1)  # a few nodes have fewer directions
    found = torch.empty(shape, dtype=dtype) if shelf is None else shelf.empty(shape, dtype)
    for place, rows in zip(torch.split(found, ROWS), torch.split(x, ROWS), strict=True):
        torch.mm(rows.to(dtype), leading, out=place)
    for operator in chain:
        found = graph.aggregation(operator).product(found, dtype=dtype, shelf=shelf)
    return found


def smoothed(graph: Graph, operator: Operator, rows: Tensor, *, hops: int) -> Iterator[Tensor]:
    """Yield A H, A A H, ... for rows of all nodes H (n, d), each of norm 1: sums of neighbours grow with every hop."""
    for _ in range(hops):
        rows = graph.aggregation(operator).product(rows, dtype=full_type(graph.dtype), shelf=graph.shelf)
        rows /= float(torch.linalg.vector_norm(rows)) or 1.0
        yield rows


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
