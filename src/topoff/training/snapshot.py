"""Where a training stands, as one checkpoint: packed from its parts, and told to the other processes of a run.

>>> use_threads(0, origin="checkpoint/latest.safetensors")
Traceback (most recent call last):
ValueError: Expected 'threads' in checkpoint/latest.safetensors to be 1 to 1024 (got 0).
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from topoff.machine.ranks import Ranks
from topoff.methods.protocol import Method
from topoff.training.average import Average
from topoff.training.checkpoints import Checkpoint, Weights, content_of, flat, grouped, read_checkpoint
from topoff.training.pace import Pace
from topoff.training.run_folder import RunFolder
from topoff.training.state import THREADS, RunState, generator_state


def pack(
    progress: RunState,
    *,
    model: nn.Module,
    best: Weights,
    method: Method,
    optimizer: torch.optim.Optimizer,
    pace: Pace,
    average: Average,
    known: dict[str, Any],
) -> Checkpoint:
    """Return all state of a training, and what is `known` besides."""
    saved = optimizer.state_dict()
    state = {
        "progress": asdict(progress),
        "method": method.state(),
        "groups": saved["param_groups"],
        "threads": torch.get_num_threads(),
        **known,
    }
    tensors = {
        "model": model.state_dict(),
        "best": best,
        "fitted": method.weights(),
        "optimizer": {key: torch.as_tensor(value) for key, value in flat(saved["state"]).items()},
        "generator": generator_state(),
        "pace": pace.tensors(),
        "average": average.tensors(),
    }
    return Checkpoint(state, tensors)


def moments_of(tensors: dict[str, Weights]) -> dict[int, dict[str, Tensor]]:
    """Return what an optimiser remembers, by the number of the parameter."""
    return {int(number): entry for number, entry in grouped(tensors.get("optimizer", {})).items()}


def use_threads(threads: int, *, origin: object) -> None:
    """Compute with as many threads as a run began with: sums depend on it to the last bit.

    Raises:
        ValueError: no run has had so many.
    """
    if not 1 <= threads <= THREADS:
        raise ValueError(f"Expected 'threads' in {origin} to be 1 to {THREADS} (got {threads}).")
    torch.set_num_threads(threads)


def shared_checkpoint(folder: RunFolder, ranks: Ranks) -> Checkpoint | None:
    """Return the checkpoint in a folder that the first process has, and tells the others of; None without one."""
    found = folder.load(repair=True) if ranks.is_first else None
    if ranks.size == 1:
        return found
    content = ranks.tell(b"" if found is None else content_of(found))
    if ranks.is_first or not content:
        return found
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "told.safetensors"
        path.write_bytes(content)
        return read_checkpoint(path)
