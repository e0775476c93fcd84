"""Estimate what an epoch will cost before it runs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from topoff.methods.registry import METHODS
from topoff.training.config import Config

INTERPRETER = 450 * 2**20  # bytes of Python, torch and PyG before anything is loaded


@dataclass(frozen=True)
class Estimate:
    """Say what training is about to cost."""

    epoch_seconds: float
    memory: int  # bytes
    batches: int
    batch_nodes: int


def estimate(config: Config, data: Data, model: nn.Module) -> Estimate:
    """Estimate seconds per epoch and peak memory from sizes, and from two rates that are measured here.

    Dense products at the machine's own rate, three times each (forward, two backward); sparse products, norms and
    dropout at its memory rate. A guide, right to a factor of about two.

    >>> from topoff.training.config import make_config
    >>> data = Data(x=torch.rand(20, 3), edge_index=torch.zeros(2, 30, dtype=torch.int64))
    >>> found = estimate(make_config({"dataset": "mine", "ratio": 0.25}), data, nn.Linear(3, 2))
    >>> found.batches, found.batch_nodes
    (4, 5)
    """
    nodes, edges, width = int(data.num_nodes or 0), data.edge_index.size(1), int(data.x.element_size())
    matrices = [p for p in model.parameters() if p.dim() == 2]
    columns = sum(p.size(0) for p in matrices)
    compensating = config.method == "top" and isinstance(config.rank, int)
    rank = int(config.rank or 0) if compensating else 0
    flops = 6.0 * nodes * sum(p.numel() for p in matrices) + 12.0 * nodes * rank * columns
    moved = 2.0 * width * (edges + nodes) * columns + 30.0 * width * nodes * columns
    speed, bandwidth = _rates()
    ratio = config.ratio if "ratio" in METHODS[config.method].settings and config.ratio else 1.0
    batch = max(1, round(nodes * min(1.0, ratio)))
    held = nodes * (data.x.size(1) * width * 3 + rank * width * 8) + edges * 60
    held += batch * columns * width * 10 + 5 * width * sum(p.numel() for p in model.parameters())
    batches = max(1, round(1 / ratio))
    return Estimate(flops / speed + moved / bandwidth, int(INTERPRETER + held), batches, batch)


def _rates() -> tuple[float, float]:
    """Measure operations per second of a dense product and bytes per second of a copy, in a few milliseconds."""
    rows = torch.ones(4096, 256)
    square = torch.ones(256, 256)
    large = torch.ones(4 * 2**20)
    product = _fastest(lambda: rows @ square)
    copy = _fastest(lambda: large.clone())
    return 2.0 * rows.numel() * 256 / product, 2.0 * large.numel() * 4 / copy


def _fastest(job: Any) -> float:
    """Return the shortest of five runs in seconds."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        job()
        times.append(time.perf_counter() - start)
    return max(min(times), 1e-9)
