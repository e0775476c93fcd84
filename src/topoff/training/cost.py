"""Estimate what an epoch will cost before it runs."""

from __future__ import annotations

import timeit
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data

from topoff.training.config import Config
from topoff.training.workload import workload

GATHER = 20.0  # what a gathered byte costs, in copied ones: rows lie apart, and memory is fresh
INTERPRETER = 450 * 2**20  # bytes of Python, torch and PyG before anything is loaded


@dataclass(frozen=True)
class Estimate:
    """Say what training is about to cost."""

    epoch_seconds: float
    memory: int  # bytes
    batches: int
    batch_nodes: int  # whose outputs a batch is for


@dataclass(frozen=True)
class Rates:
    """Say how fast the machine is."""

    flops: float  # of a dense product, per second
    bytes: float  # of a copy, per second
    items: float  # that are sorted, per second


def estimate(config: Config, data: Data, model: nn.Module) -> Estimate:
    """Estimate seconds per epoch and peak memory from what the method computes, and from rates that are measured here.

    Dense products at the machine's own rate, three times each (forward, two backward); sparse products, norms and
    dropout at its memory rate; sampling at the rate of sorting. A guide, right to a factor of about two.

    >>> from topoff.training.config import make_config
    >>> data = Data(x=torch.rand(20, 3), edge_index=torch.zeros(2, 30, dtype=torch.int64))
    >>> found = estimate(make_config({"dataset": "mine", "ratio": 0.25}), data, nn.Linear(3, 2))
    >>> found.batches, found.batch_nodes
    (4, 5)
    """
    work, width = workload(config, data), int(data.x.element_size())
    nodes, edges = int(data.num_nodes or 0), data.edge_index.size(1)
    rank = config.rank if config.method == "top" and isinstance(config.rank, int) else 0
    matrices = [p for p in model.parameters() if p.dim() == 2]
    flops = moved = active = 0.0
    for number, matrix in enumerate(matrices):
        layer = number * len(work.rows) // len(matrices)  # parameters come in the order of the layers
        rows, columns = work.rows[layer], matrix.size(0)
        flops += 6.0 * rows * matrix.numel() + 12.0 * rows * rank * columns
        moved += 2.0 * width * (work.messages[layer] + rows) * columns + 30.0 * width * rows * columns
        active += rows * columns * width
    if work.batches > 1:  # a batch gathers its features; of SIGN, every power of the operator times them
        powers = 1 + config.layers if config.method == "sign" else 1
        moved += GATHER * width * work.rows[0] * powers * data.x.size(1)
    rates = _rates()
    seconds = flops / rates.flops + moved / rates.bytes + work.examined / rates.items
    held = nodes * (data.x.size(1) * width * 3 + rank * width * 8) + edges * 60
    held += 10 * active / work.batches + 5 * width * sum(p.numel() for p in model.parameters())
    return Estimate(seconds, int(INTERPRETER + held), work.batches, work.targets)


def _rates() -> Rates:
    """Measure the machine, in a few milliseconds."""
    rows, square, large = torch.ones(4096, 256), torch.ones(256, 256), torch.ones(4 * 2**20)
    numbers = np.random.default_rng(0).permutation(2**16)
    jobs = (lambda: rows @ square, large.clone, lambda: np.argsort(numbers))
    product, copy, sort = (max(min(timeit.repeat(job, number=1, repeat=5)), 1e-9) for job in jobs)
    return Rates(2.0 * rows.numel() * 256 / product, 2.0 * large.numel() * 4 / copy, len(numbers) / sort)
