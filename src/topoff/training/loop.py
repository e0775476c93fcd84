"""The loop: epochs, optimiser, exact evaluation, checkpoints, resume.

A run is a function of its config and its graph: killed at any moment and resumed, it ends in the same bits. All state
is in one `Checkpoint`: weights, optimiser, generator, position in the epoch, and the weights that the compensation was
estimated from (it is estimated again, instead of being stored).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.fidelity import RelativeError
from topoff.data.layout import SPLITS
from topoff.machine.cache import content_hash
from topoff.machine.memory import peak_memory
from topoff.tasks.task import Task
from topoff.training.build import learning_rate, make_optimizer, make_parts
from topoff.training.config import Config
from topoff.training.defaults import Choice
from topoff.training.run_folder import Checkpoint, RunFolder


class Listener:
    """Hear what happens; every method may be overridden."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Hear how far the preparation is."""

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        """Hear of a step: the epoch (from 1), the share of it that is done, and the loss."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """Hear of the end of an epoch: its line in metrics.jsonl."""


@dataclass
class Progress:
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
    peak: int = 0
    train_peak: int = 0  # before the first evaluation


def batch_loss(task: Task, out: Tensor, batch: Data) -> Tensor:
    """Return the mean loss of the training nodes among a batch's targets, or the sum by the batch's own weights."""
    mask = batch.train_mask[: len(out)]
    weight = batch.loss_weight[: len(out)][mask] if "loss_weight" in batch else None
    return task.loss(out[mask], batch.y[: len(out)][mask], node_weight=weight)


def data_hash(data: Data) -> str:
    """Hash what training depends on."""
    names = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask", "edge_weight", "edge_attr")
    return content_hash(*(data[name].numpy() for name in names if data.get(name) is not None))


def versions() -> dict[str, str]:
    """Return the versions that results depend on."""
    names = ("topoff", "torch", "torch_geometric", "numpy", "scipy", "kaminpar", "pymetis")
    return {name: version(name) for name in names}


class Training:
    """Train one model with one seed, in one folder.

    Args:
        config: settings with nothing left open (see `choose`).
        data: the graph.
        folder: where the run is written.
        listener: told what happens.
        choices: what was chosen for the user, for the record.
    """

    def __init__(
        self,
        config: Config,
        data: Data,
        *,
        folder: RunFolder,
        listener: Listener | None = None,
        choices: list[Choice] | None = None,
    ) -> None:
        self.config, self.data, self.folder = config, data, folder
        self.listener, self.choices = listener or Listener(), choices or []
        self.parts = make_parts(config, data, progress=self.listener.preparing)
        self.optimizer = make_optimizer(config, self.parts.model, self.parts.method.parameters())
        self.progress = Progress()
        self.best_weights: dict[str, Tensor] = {}
        self.stop = False  # set from a signal handler: save after this step, then raise KeyboardInterrupt
        self._masks = {name: data[f"{name}_mask"] for name in SPLITS}
        self._saved_at = time.monotonic()
        # once: large graphs take seconds to hash
        self._origin: dict[str, Any] = {"data": data_hash(data), "versions": versions()}

    def run(self) -> Progress:
        """Train to the end, from the checkpoint where there is one; raise KeyboardInterrupt, saved, when stopped."""
        checkpoint = self.folder.load()
        start = time.perf_counter()
        if checkpoint is None:
            self.folder.keep_metrics(0)
            self.parts.method.prepare()
            self.progress.preprocess_seconds = time.perf_counter() - start
        else:
            self._restore(checkpoint)
        self._saved_at = time.monotonic()
        while self.progress.epoch < self.config.epochs and not self.progress.stopped_early:
            self._epoch()
        self._save()
        return self.progress

    # ---- one epoch

    def _epoch(self) -> None:
        """Take the steps that are left of this epoch, evaluate where it is due, write its line."""
        progress, number = self.progress, self.progress.epoch
        rate = learning_rate(self.config, number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for batch in self._timed_batches():
            loss = self._step(batch)
            progress.steps += 1
            progress.loss_sum, progress.loss_count = progress.loss_sum + loss, progress.loss_count + 1
            self._check_finite(loss)
            self.listener.stepped(number + 1, progress.loss_count / max(1, self._steps_per_epoch()), loss)
            self._save_if_due()
        loss = progress.loss_sum / max(1, progress.loss_count)
        progress.epoch, progress.loss_sum, progress.loss_count = number + 1, 0.0, 0
        record: dict[str, Any] = {"epoch": number + 1, "loss": loss, "lr": rate}
        record["refreshed"] = self.parts.method.refreshed_at == number != progress.refreshed_at
        if progress.epoch % (self.config.eval_every or 1) == 0 or progress.epoch == self.config.epochs:
            found = self._evaluate()
            record |= found | {"refreshed": found["refreshed"] or record["refreshed"]}
        record["seconds"], record["train_seconds"] = round(progress.seconds, 4), round(progress.train_seconds, 4)
        self.folder.append(record)
        self.listener.evaluated(record)
        self._save_if_due()

    def _timed_batches(self) -> Iterator[Data]:
        """Yield the batches of this epoch; refreshes and steps count as training, checkpoints do not."""
        batches = self.parts.method.batches()
        while True:
            start = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self._step_started = start
            yield batch

    def _step(self, batch: Data) -> float:
        """Take one step of the optimiser; return the loss."""
        self.parts.model.train()
        self.optimizer.zero_grad()
        loss = self.parts.method.learn(batch, self._loss)
        if self.config.clip:
            nn.utils.clip_grad_norm_(self.parts.method.parameters(), self.config.clip)
        self.optimizer.step()
        value = float(loss)
        self._count(time.perf_counter() - self._step_started, training=True)
        return value

    def _loss(self, out: Tensor, batch: Data) -> Tensor:
        """Return the loss of the training nodes among a batch's targets."""
        return batch_loss(self.parts.task, out, batch)

    def _steps_per_epoch(self) -> int:
        """Count the steps of an epoch, as far as they are known."""
        return len(self.parts.method)

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise ValueError(
                f"Expected the loss to stay finite (got {loss} in epoch {self.progress.epoch + 1}); lower --lr, or set "
                "--clip 1.0."
            )

    # ---- evaluation

    def _evaluate(self) -> dict[str, Any]:
        """Score exactly on the whole graph; keep the best weights; say how far one batch was from the truth."""
        start, progress, method = time.perf_counter(), self.progress, self.parts.method
        may_stop = bool(self.config.patience) and progress.waited + 1 >= self.config.patience
        last = progress.epoch == self.config.epochs or may_stop
        if progress.epoch == self.config.epochs:
            method.freeze()  # no epoch would use a refresh
        if not progress.train_peak:  # later the evaluation's own is in it
            progress.train_peak = peak_memory()
        nodes, seen = (None, method.outputs()) if last else method.sample(progress.epoch)
        before = time.perf_counter()
        out, refreshed = method.exact()
        exact_seconds = time.perf_counter() - before
        progress.fidelity = 1 - _error(out.cpu(), seen, nodes=nodes)
        scores = self.parts.task.score(out.cpu(), self.data.y, masks=self._masks)
        self._keep_best(scores)
        self._count(time.perf_counter() - start)
        if refreshed:
            progress.train_seconds += exact_seconds
            progress.refreshed_at = progress.epoch
        certificate = method.certificate_ if refreshed else None
        found = {"refreshed": refreshed, "fidelity": progress.fidelity, "certificate": certificate}
        return {name: None if math.isnan(value) else value for name, value in scores.items()} | found

    def _keep_best(self, scores: dict[str, float]) -> None:
        """Keep the weights at the best validation score; without validation nodes, the last ones."""
        progress = self.progress
        before = None if progress.best is None else progress.best["val"]
        if math.isnan(scores["val"]) or self.parts.task.better(scores["val"], before):
            progress.best, progress.waited = {"epoch": progress.epoch, **scores}, 0
            self.best_weights = copy.deepcopy(self.parts.model.state_dict())
            return
        progress.waited += 1
        progress.stopped_early = bool(self.config.patience) and progress.waited >= self.config.patience

    def _count(self, seconds: float, *, training: bool = False) -> None:
        """Add to the clock."""
        self.progress.seconds += seconds
        self.progress.train_seconds += seconds if training else 0.0

    # ---- surviving

    def _save_if_due(self) -> None:
        """Save when the last checkpoint is old enough, or when the user wants to stop."""
        if self.stop or time.monotonic() - self._saved_at >= self.config.checkpoint_seconds:
            self._save()
        if self.stop:
            raise KeyboardInterrupt

    def _save(self) -> None:
        """Write all state into one file."""
        progress, method = self.progress, self.parts.method
        progress.peak = max(progress.peak, peak_memory())
        saved = self.optimizer.state_dict()
        moments = {f"{i}/{key}": t for i, entry in saved["state"].items() for key, t in entry.items()}
        state = {
            "progress": asdict(progress),
            "method": method.state(),
            "groups": saved["param_groups"],
            "threads": torch.get_num_threads(),
            **self._origin,
        }
        tensors = {
            "model": self.parts.model.state_dict(),
            "best": self.best_weights,
            "fitted": method.weights(),
            "optimizer": {key: torch.as_tensor(value) for key, value in moments.items()},
            "generator": generator_state(),
        }
        self.folder.save(Checkpoint(state, tensors))
        self._saved_at = time.monotonic()

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: the graph or a version is not the one that the run began with.
        """
        state, tensors = checkpoint.state, checkpoint.tensors
        self._refuse_difference(state)
        torch.set_num_threads(state["threads"])  # sums depend on it to the last bit
        self.parts.model.load_state_dict(tensors["model"])
        self.parts.method.restore(state["method"], tensors.get("fitted", {}))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.get("optimizer", {}).items():
            number, _, key = name.partition("/")
            moments.setdefault(int(number), {})[key] = tensor
        self.optimizer.load_state_dict({"state": moments, "param_groups": state["groups"]})
        self.best_weights = tensors.get("best", {})
        self.progress = Progress(**state["progress"])
        self.folder.keep_metrics(self.progress.epoch)
        set_generator_state(tensors["generator"])

    def _refuse_difference(self, state: dict[str, Any]) -> None:
        """Refuse to go on with another graph or other versions."""
        content, now = self._origin["data"], self._origin["versions"]
        if state["data"] != content:
            raise ValueError(
                f"Expected the graph that the run began with (got another one: content {content[:8]} "
                f"instead of {state['data'][:8]}); restore the data, or start a new run."
            )
        pairs = [(name, old, now.get(name)) for name, old in state["versions"].items()]
        changed = [f"{name} {old} -> {new}" for name, old, new in pairs if new != old]
        if changed:
            raise ValueError(
                f"Expected the versions that the run began with (got {', '.join(changed)}); install those, or start a "
                "new run."
            )


def generator_state() -> dict[str, Tensor]:
    """Return the state of torch's generators."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_generator_state(state: dict[str, Tensor]) -> None:
    """Restore the state of torch's generators."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _error(exact: Tensor, seen: Tensor, *, nodes: Tensor | None) -> float:
    """Return the relative error of outputs that training sees, over the nodes that have one."""
    truth = exact if nodes is None else exact[nodes]
    known = ~seen.isnan().flatten(1).any(dim=1)
    error = RelativeError()
    error.add(truth[known], seen[known])
    return error.value()
