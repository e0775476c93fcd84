"""Train for long, and see whether memory, open files or threads grow.

python scripts/soak.py                500 epochs of each loop; writes docs/results/soak.json
python scripts/soak.py --epochs 50    a try, which writes nothing
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import topoff
from reliability import ROOT, record
from topoff.machine.memory import keep_freed_memory
from topoff.training.config import make_config
from topoff.training.listener import Listener
from topoff.training.records import Epoch
from topoff.training.run_folder import RunFolder
from topoff.training.seed import train_seed

sys.path.insert(0, str(ROOT / "tests"))

from graphs import communities

EPOCHS, NODES, WARM = 500, 1500, 0.2  # share of the epochs in which things may still grow
GROWTH_MB = 8.0  # that is within the noise of an allocator


@dataclass
class Samples:
    """Hold what the process held, after each epoch."""

    memory: list[float] = field(default_factory=list)  # resident, in MB
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def take(self) -> None:
        """Look at the process."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        self.files.append(len(os.listdir("/proc/self/fd")) - 1)  # without that of the listing
        self.threads.append(len(os.listdir("/proc/self/task")))

    def figures(self) -> dict[str, Any]:
        """Compare the tenth after the warm-up with the last tenth."""
        count = len(self.memory)
        first, last = slice(int(WARM * count), int((WARM + 0.1) * count)), slice(int(0.9 * count), count)
        memory = [round(statistics.median(self.memory[part]), 2) for part in (first, last)]
        counts = {
            "files": [min(self.files[part]) for part in (first, last)],  # some come and go
            "threads": [min(self.threads[part]) for part in (first, last)],
        }
        still = memory[1] - memory[0] <= GROWTH_MB and all(after <= before for before, after in counts.values())
        samples = [round(size, 1) for size in self.memory[:: max(1, count // 20)]]
        return {"epochs": count, "memory_mb": memory, **counts, "grew": not still, "samples_mb": samples}


def library(data: Data, *, epochs: int) -> Samples:
    """Train with a loop as users write it around `TOP`."""
    samples, model = Samples(), GCN(data.num_features, 32, num_layers=3, out_channels=int(data.y.max()) + 1)
    top = topoff.TOP(model, data, ratio=0.1, rank=16, refresh="every=5", cache=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        model.train()
        for batch in top:
            optimizer.zero_grad()
            loss = F.cross_entropy(top(batch)[batch.train_mask], batch.y[batch.train_mask])
            torch.autograd.backward(loss)
            optimizer.step()
        model.eval()
        top.predict()
        samples.take()
    return samples


class _Sampler(Listener):
    """Look at the process after every epoch of a run."""

    def __init__(self) -> None:
        self.samples = Samples()

    def evaluated(self, epoch: Epoch) -> None:
        """Look at the process."""
        self.samples.take()


def command_line(data: Data, *, epochs: int) -> Samples:
    """Train as `topoff train` does: exact scores, a line of metrics and a checkpoint after every epoch."""
    sampler = _Sampler()
    wanted = {"dataset": "communities", "epochs": epochs, "hidden": 32, "ratio": 0.1, "rank": 16, "refresh": "every=5"}
    config = make_config(wanted | {"eval_every": 1, "checkpoint_seconds": 0.0, "patience": None})
    with tempfile.TemporaryDirectory() as place:
        train_seed(config, RunFolder(Path(place) / "run").create(), data=data, listener=sampler)
    return sampler.samples


def main() -> None:
    """Run both loops; write what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    epochs = parser.parse_args().epochs
    keep_freed_memory()
    torch.manual_seed(0)
    data = topoff.load(communities(NODES, dtype=torch.float32))
    loops: dict[str, Callable[..., Samples]] = {"library": library, "topoff train": command_line}
    found = {name: loop(data, epochs=epochs).figures() for name, loop in loops.items()}
    for name, figures in found.items():
        print(name, figures)
    if epochs >= EPOCHS:
        record("soak", {"epochs": epochs, "nodes": NODES, "loops": found})
    if any(figures["grew"] for figures in found.values()):
        raise SystemExit("Something grew.")


if __name__ == "__main__":
    main()
