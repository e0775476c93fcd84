"""Compensate batches of a theory's graph, and measure their outputs against the exact forward."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.compensation.top import TOP
from topoff.experiments.theory_graphs import with_weights
from topoff.forward.call import evaluating

NETWORKS = 3  # random networks behind a compensation
FIRST = 1000  # seed of the first of them; what is measured has smaller ones


def compensated(model: nn.Module, data: Data, *, sets: NodeSets, rank: int, networks: int = NETWORKS) -> TOP:
    """Return TOP as the theory has it: estimated once from random networks, without ridge, offset and refresh.

    The model's own weights take no part in the estimate. Rank 0 leaves the halo out.
    """
    settings: dict[str, Any] = {"ridge": 0.0, "refresh": "never", "offset": False, "tolerance": float("inf")}
    top = TOP(model, data, batches=sets, rank=rank, call=_call, **settings)
    top.prepare(networks=random_networks(model, networks))
    return top


def _call(model: nn.Module, batch: Data) -> Tensor:
    """Call the model; written out, nothing needs to be announced."""
    out: Tensor = model(batch.x, batch.edge_index)
    return out


def random_networks(model: nn.Module, count: int) -> list[nn.Module]:
    """Return copies of a model with random weights."""
    return [with_weights(copy.deepcopy(model), seed=FIRST + number) for number in range(count)]


def batch_of(top: TOP, nodes: Tensor) -> Data:
    """Return the batch that holds exactly these nodes, which must be one of TOP's."""
    return next(batch for batch in top.cover() if batch.n_id.sort().values.equal(nodes.sort().values))


def error_of(out: Tensor, exact: Tensor) -> float:
    """Return the relative error of rows in the Frobenius norm.

    >>> import torch
    >>> error_of(torch.tensor([3.0, 3.0]).double(), torch.tensor([3.0, 4.0]).double())
    0.2
    """
    return float((out - exact).norm() / exact.norm())


def output_of(top: TOP, batch: Data) -> Tensor:
    """Return the outputs (b, out) of a batch through TOP, in eval mode."""
    with evaluating(top.model):
        out: Tensor = top(batch)
    return out


def exact_output(model: nn.Module, data: Data) -> Tensor:
    """Return the plain full-batch forward (n, out), in eval mode: the truth, without any of our code."""
    with evaluating(model):
        out: Tensor = model(data.x, data.edge_index)
    return out
