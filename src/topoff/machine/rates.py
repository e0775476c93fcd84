"""How fast the machine is, at what training takes: measured, in a tenth of a second or two.

>>> rates = rates_of(1000, 16)
>>> min(rates.flops, rates.bytes, rates.items, rates.gathered) > 0
True
"""

from __future__ import annotations

import timeit
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional as F

MATRIX = 2**27  # bytes of what is copied, or rows are read from, at most: more than most processors keep
REPEATS = 4


@dataclass(frozen=True)
class Rates:
    """Say how fast the machine is."""

    flops: float  # of a dense product, per second
    bytes: float  # read and written by a copy of a large matrix, per second
    items: float  # that are sorted, per second
    gathered: float  # bytes of rows here and there that are added up, per second


def rates_of(nodes: int, width: int) -> Rates:
    """Measure the machine, on rows as wide as those of a layer, and, as far as that is quick, as many."""
    rows, square, large = torch.ones(4096, 256), torch.ones(256, 256), torch.ones(MATRIX // 4)
    numbers = np.random.default_rng(0).permutation(2**16)
    shape = max(1, min(nodes, MATRIX // (4 * max(1, width)))), max(1, width)
    whole = torch.ones(shape)
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, len(whole), 2**17))
    starts = torch.arange(0, len(ids), 16)
    jobs = (
        lambda: rows @ square,
        large.clone,
        lambda: np.argsort(numbers),
        lambda: F.embedding_bag(ids, whole, starts, mode="sum"),
    )
    times = [max(min(timeit.repeat(job, number=1, repeat=REPEATS)), 1e-9) for job in jobs]
    amounts = 2.0 * rows.numel() * 256, 2.0 * large.numel() * 4, len(numbers), ids.numel() * width * 4.0
    return Rates(*(amount / seconds for amount, seconds in zip(amounts, times, strict=True)))
