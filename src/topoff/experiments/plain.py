"""What users run without topoff: plain PyG on the whole graph, one step per epoch; the peer of `topoff bench`.

>>> found = plain_epoch("wordnet", hidden=2, layers=1)
>>> found.epoch > 0, found.peak > 0
(True, True)
"""

from __future__ import annotations

import time
from dataclasses import dataclass

EPOCHS = 2  # after one that is not timed


@dataclass(frozen=True)
class Plain:
    """Hold what an epoch takes."""

    epoch: float  # seconds
    peak: float  # bytes


def plain_epoch(dataset: str, *, hidden: int, layers: int) -> Plain:
    """Time an epoch as in PyG's examples, with the allocator as users have it: call it in a process of its own."""
    import torch
    from torch.nn import functional as F

    from topoff.data.load import load
    from topoff.machine.memory import peak_memory
    from topoff.models.networks import GCN

    torch.manual_seed(0)
    data = load(dataset)
    model = GCN(data.num_features, hidden, out_channels=int(data.y.max()) + 1, num_layers=layers)
    optimizer, times = torch.optim.Adam(model.parameters(), lr=0.01), list[float]()
    model.train()
    for _ in range(1 + EPOCHS):
        start = time.perf_counter()
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        times.append(time.perf_counter() - start)
    return Plain(min(times[1:]), peak_memory())
