"""Where a run stands, and what it must find again to be resumed to the bit: the graph, the versions, the generators."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.stored import stored_parts
from topoff.machine.cache import content_hash
from topoff.training.config import Config
from topoff.training.scoring import Exam

FREE = ("dataset", "root", "device", "checkpoint_seconds")  # settings that may change: the graph has its own check
OLDER = {"average": False}  # what versions did that did not have the setting, where that is not to leave it open
THREADS = 1024  # more than that no run has had


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
    refreshed_at: int = -1  # epoch of the last refresh that a line tells of
    peak: int = 0  # of memory, in bytes
    train_peak: int = 0  # before the first evaluation; 0: not known, since the process has had a higher one before
    refresh_seconds: float = 0.0  # on the clock, of evaluations that were refreshes, too
    stepped_at: float = 0.0  # seconds that were spent at the last step
    evaluated_at: float = 0.0  # seconds that were spent at the last evaluation
    sent: dict[str, list[int]] = field(default_factory=dict)  # between processes: see `Ranks.counts`
    evaluation_seconds: float | None = None  # that one took off the clock at least, but for the first, which is slower

    @property
    def spent(self) -> float:
        """The seconds of preparation, refreshes and steps: what a run by seconds counts."""
        return self.preprocess_seconds + self.train_seconds

    @property
    def current(self) -> int:
        """The epoch (from 1) of the last step; 1 before there is one."""
        return max(1, self.epoch + (self.loss_count > 0))

    def examined(self, exam: Exam, *, seconds: float) -> None:
        """Take an evaluation into account: a refresh counts as training, all else is off the clock."""
        self.seconds += seconds
        self.fidelity = exam.fidelity
        if exam.refreshed:
            self.train_seconds += exam.seconds
            self.refresh_seconds += exam.seconds
            self.refreshed_at = self.epoch
        if self.evaluated_at:
            off = seconds - exam.seconds
            self.evaluation_seconds = min(off, self.evaluation_seconds or off)
        self.evaluated_at = self.spent


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    names = ("topoff", "torch", "torch_geometric", "numpy", "scipy", "kaminpar", "pymetis")
    return {name: version(name) for name in names}


def data_hash(data: Data) -> str:
    """Return the hash of a graph's content; that of a store, whether it is mapped or read."""
    names = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask", "edge_weight", "edge_attr")
    parts = stored_parts(data)  # which batches may be made of
    arrays = [data[name].numpy() for name in names if data.get(name) is not None]
    return content_hash(*arrays, *([] if parts is None else [parts]), widened=True)


def origin(data: Data, config: Config) -> dict[str, Any]:
    """Return what a resumed run must find as it was: the content of the graph, the settings, and the versions."""
    return {"data": data_hash(data), "versions": versions(), "config": vars(config)}


def refuse_difference(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise ValueError where the graph, a setting or a version is not the one that the run began with."""
    if before["data"] != now["data"]:
        raise ValueError(
            f"Expected the graph that the run began with (got another one: content {now['data'][:8]} "
            f"instead of {before['data'][:8]}); restore the data, or start a new run."
        )
    settings: dict[str, Any] = before.get("config", now["config"])  # older versions did not record them
    edited = [
        f"{key}: {settings.get(key)} -> {new}"
        for key, new in now["config"].items()
        if settings.get(key, OLDER.get(key)) != new and key not in FREE
    ]
    if edited:
        raise ValueError(
            f"Expected config.toml as the checkpoint knows it (got {'; '.join(edited)}); restore it, or start "
            "a new run."
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


def load_weights(model: nn.Module, weights: dict[str, Tensor], *, origin: object, name: str) -> None:
    """Load weights of a file into a model.

    Raises:
        ValueError: they do not fit, are of another kind of number, or are NaN; `origin` names the file, `name`
            the model.

    >>> one = {"weight": torch.ones(1, 1, dtype=torch.long)}
    >>> load_weights(nn.Linear(1, 1, bias=False), one, origin="x.safetensors", name="mine")
    Traceback (most recent call last):
    ValueError: Expected 'weight' in x.safetensors to hold numbers of type torch.float32 (got torch.int64); train again.
    """
    for key, own in model.state_dict().items():
        given = weights.get(key)
        if given is None or not isinstance(own, Tensor):
            continue  # load_state_dict says so
        if (own.is_floating_point(), own.is_complex()) != (given.is_floating_point(), given.is_complex()):
            raise ValueError(
                f"Expected '{key}' in {origin} to hold numbers of type {own.dtype} (got {given.dtype}); train again."
            )
    for key, _ in model.named_parameters():
        if key in weights and bool(weights[key].isnan().any()):
            raise ValueError(f"Expected '{key}' in {origin} to be finite (got NaN); train again.")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"Expected the weights in {origin} to fit the model '{name}' (got {' '.join(str(error).split())}); restore "
            "the model's code as it was, or train again."
        ) from error
