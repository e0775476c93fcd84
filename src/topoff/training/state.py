"""Where a run stands, and what it must find again to be resumed to the bit: the graph, the versions, the generators."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.machine.cache import content_hash


@dataclass
class RunState:
    """Hold where a run stands, besides tensors; JSON-able."""

    epoch: int = 0  # finished ones
    steps: int = 0
    loss_sum: float = 0.0  # of the steps of the current epoch
    loss_count: int = 0
    seconds: float = 0.0  # of everything after the preparation
    train_seconds: float = 0.0  # of steps and refreshes
    preprocess_seconds: float = 0.0
    best: dict[str, Any] | None = None  # epoch and scores at the best validation
    waited: int = 0  # evaluations since
    stopped_early: bool = False
    fidelity: float | None = None
    refreshed_at: int = -1  # epoch that an evaluation's refresh was made for
    peak: int = 0  # of memory, in bytes
    train_peak: int = 0  # before the first evaluation; 0: not known, since the process has had a higher one before


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    names = ("topoff", "torch", "torch_geometric", "numpy", "scipy", "kaminpar", "pymetis")
    return {name: version(name) for name in names}


def origin(data: Data) -> dict[str, Any]:
    """Return what a resumed run must find as it was: the content of the graph, and the versions."""
    names = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask", "edge_weight", "edge_attr")
    found = [data[name].numpy() for name in names if data.get(name) is not None]
    return {"data": content_hash(*found), "versions": versions()}


def refuse_difference(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise ValueError where the graph or a version is not the one that the run began with."""
    if before["data"] != now["data"]:
        raise ValueError(
            f"Expected the graph that the run began with (got another one: content {now['data'][:8]} "
            f"instead of {before['data'][:8]}); restore the data, or start a new run."
        )
    pairs = [(name, old, now["versions"].get(name)) for name, old in before["versions"].items()]
    changed = [f"{name} {old} -> {new}" for name, old, new in pairs if new != old]
    if changed:
        raise ValueError(
            f"Expected the versions that the run began with (got {', '.join(changed)}); install those, or start a "
            "new run."
        )


def generator_state() -> dict[str, Tensor]:
    """Return the state of torch's generators.

    >>> before = generator_state()
    >>> first = torch.rand(3)
    >>> set_generator_state(before)
    >>> torch.equal(torch.rand(3), first)
    True
    """
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_generator_state(state: dict[str, Tensor]) -> None:
    """Restore the state of torch's generators."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
