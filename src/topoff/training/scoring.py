"""What an evaluation looks at: the exact output that is scored, and how far batches are from their own.

Where weights are averaged, the average is scored, and a batch is compared with it. At refreshes, where the exact output
of the weights that train comes for nothing, and at the end, batches are compared with that.

>>> import torch
>>> from torch_geometric.data import Data
>>> from torch_geometric.nn import GCN
>>> from topoff.data.load import load
>>> from topoff.methods.full import Full
>>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
>>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
>>> full = Full(GCN(3, 4, num_layers=2, out_channels=2), data)
>>> full.prepare()
>>> exam = examine(full, Average(full.model, wanted=False), number=0, whole=True)
>>> tuple(exam.out.shape), exam.fidelity, exam.refreshed
((20, 2), 1.0, False)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from torch import Tensor

from topoff.compensation.fidelity import fidelity_of, known_rows
from topoff.methods.protocol import Method
from topoff.training.average import Average


@dataclass(frozen=True)
class Exam:
    """Hold what is scored, and what was found out besides."""

    out: Tensor  # (n, outputs), exact
    own: Tensor | None  # (n, outputs), that of the weights that train, where it was computed besides
    fidelity: float  # of the batches that were looked at
    refreshed: bool = False  # whether the method took the occasion
    seconds: float = 0.0  # that this took


def examine(method: Method, average: Average, *, number: int, whole: bool) -> Exam:
    """Return the exact output that is scored; compare the batch with a `number`, or the `whole` of them."""
    if average.wanted and not whole and not method.due:
        with average.in_place():
            return _look(method, number=number, whole=False)
    exam = _look(method, number=number, whole=whole)
    if not average.wanted:
        return exam
    frozen, method.frozen = method.frozen, True
    try:
        with average.in_place():
            return replace(exam, out=method.exact()[0].cpu(), own=exam.out)
    finally:
        method.frozen = frozen


def _look(method: Method, *, number: int, whole: bool) -> Exam:
    """Compare batches with the exact output of the weights that the model has."""
    nodes, seen = known_rows(method.outputs()) if whole else method.sample(number)
    start = time.perf_counter()
    out, refreshed = method.exact()
    seconds, out = time.perf_counter() - start, out.cpu()
    fidelity = fidelity_of(out if nodes is None else out[nodes], seen)
    return Exam(out, None, fidelity, refreshed, seconds if refreshed else 0.0)
