"""Seconds per epoch of one and of two processes of one thread each, and the bytes between them.

    python benchmarks/ranks.py [--dataset wordnet] [--epochs 10] [--hidden 128] [--repeats 3]
    python benchmarks/ranks.py --reduce          # one flat sum against DistributedDataParallel, on this machine

Every case is a real `topoff train`, alone or under torchrun, with the same batches per step (`--accumulate 2`); the
figure is the least of several runs. Two processes want two idle cores: run it alone, or say that the machine was busy.
"""

from __future__ import annotations

import os
import sys

if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    sys.path.pop(0)  # or the neighbour operator.py hides the standard library's

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from topoff.machine.gradients import sum_gradients
from topoff.machine.ranks import Ranks, joined

LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(processes: int, words: list[str], place: Path) -> dict[str, Any]:
    """Train in one process or two; return the result."""
    launch = LAUNCH if processes > 1 else []
    command = [sys.executable, *launch, "-m", "topoff", "train", *words, "--out", str(place), "--json", "--quiet"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def scaling(dataset: str, *, epochs: int, hidden: int, repeats: int) -> None:
    """Print seconds and bytes of one process and two."""
    words = [dataset, "--epochs", str(epochs), "--hidden", str(hidden), "--accumulate", "2"]
    print(f"{dataset}, GCN 3 x {hidden}, {epochs} epochs, two batches per step; load average {os.getloadavg()[0]:.1f}")
    print("processes  prepare s  epoch s  evaluate s  sent/epoch  sent/refresh  would be sent")
    for processes in (1, 2):
        with tempfile.TemporaryDirectory() as place:
            found = [run(processes, words, Path(place) / str(number)) for number in range(repeats)]
        best = {key: min(each[key] for each in found) for key in ("preprocess_seconds", "epoch_seconds", "seconds")}
        rest = (best["seconds"] - best["preprocess_seconds"]) / epochs - best["epoch_seconds"]
        sent = [found[0][key] for key in ("bytes_per_epoch", "bytes_per_refresh", "rivals_bytes_per_epoch")]
        print(
            f"{processes:9}  {best['preprocess_seconds']:9.2f}  {best['epoch_seconds']:7.3f}  {rest:10.3f}  {sent[0]}  "
            f"{sent[1]}  {sent[2]}"
        )


def reduce(ranks: Ranks) -> None:
    """Compare a step of one flat sum with one of DistributedDataParallel, on rows of a batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 47))
    x, parameters = torch.randn(2000, 100), list(model.parameters())

    def flat() -> None:
        """Sum once, after the backward pass."""
        model.zero_grad()
        model(x).square().mean().backward()
        sum_gradients(parameters, [torch.ones(4)], ranks=ranks)

    wrapped = DistributedDataParallel(model)

    def in_buckets() -> None:
        """Let DDP sum during the backward pass; our four numbers need a sum of their own."""
        wrapped.zero_grad()
        wrapped(x).square().mean().backward()
        dist.all_reduce(torch.ones(4))

    for name, step in (("flat", flat), ("DDP", in_buckets)) * 2:
        times = []
        for _ in range(60):
            start = time.perf_counter()
            step()
            times.append(time.perf_counter() - start)
        if ranks.is_first:
            print(f"{name:5} {1000 * min(times):.2f} ms least, {1000 * sorted(times)[30]:.2f} ms median of 60 steps")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="wordnet")
    for name, default in (("epochs", 10), ("hidden", 128), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--reduce", action="store_true")
    given = parser.parse_args()
    if "RANK" in os.environ:
        torch.set_num_threads(1)
        with joined() as ranks:
            reduce(ranks)
    elif given.reduce:
        subprocess.run([sys.executable, *LAUNCH, __file__, "--reduce"], check=True)
    else:
        scaling(given.dataset, epochs=given.epochs, hidden=given.hidden, repeats=given.repeats)


if __name__ == "__main__":
    main()
