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
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.fidelity import RelativeError
from topoff.data.layout import SPLITS
from topoff.machine.memory import peak_memory
from topoff.tasks.task import Task
from topoff.training.build import Plan, learning_rate, make_optimizer, make_parts
from topoff.training.records import Epoch
from topoff.training.run_folder import Checkpoint, RunFolder
from topoff.training.state import RunState, generator_state, origin, refuse_difference, set_generator_state


class Listener:
    """Hear what happens; every method may be overridden."""

    def planned(self, plan: Plan) -> None:
        """Hear what is about to be trained."""

    def trains(self, training: Training) -> None:
        """Hear of the training itself, before its first step: it can be stopped."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Hear how far the preparation is."""

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        """Hear of a step: the epoch (from 1), the share of it that is done, and the loss."""

    def evaluated(self, epoch: Epoch) -> None:
        """Hear of the end of an epoch: its line in metrics.jsonl."""


def batch_loss(task: Task, out: Tensor, batch: Data) -> Tensor:
    """Return the mean loss of the training nodes among a batch's targets, or the sum by the batch's own weights."""
    mask = batch.train_mask[: len(out)]
    weight = batch.loss_weight[: len(out)][mask] if "loss_weight" in batch else None
    return task.loss(out[mask], batch.y[: len(out)][mask], node_weight=weight)


class Training:
    """Train one model with one seed, in one folder.

    Args:
        plan: what is trained.
        folder: where the run is written.
        listener: told what happens.
        inherited: peak memory that the process had before the run, in bytes; 0 where `forget_peak` could forget it.
    """

    def __init__(self, plan: Plan, *, folder: RunFolder, listener: Listener | None = None, inherited: int = 0) -> None:
        self.plan, self.config, self.data, self.folder = plan, plan.config, plan.data, folder
        self.listener, self._inherited = listener or Listener(), inherited
        self.parts = make_parts(plan, progress=self.listener.preparing)
        self.optimizer = make_optimizer(self.config, self.parts.model, self.parts.method.parameters())
        self.progress = RunState()
        self.best_weights: dict[str, Tensor] = {}
        self.stop = False  # set from a signal handler: save after this step, then raise KeyboardInterrupt
        self._masks = {name: self.data[f"{name}_mask"] for name in SPLITS}
        self._saved_at = time.monotonic()
        self._origin = origin(self.data)  # once: large graphs take seconds to hash

    def run(self) -> RunState:
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
        refreshed = self.parts.method.refreshed_at == number != progress.refreshed_at
        due = progress.epoch % (self.config.eval_every or 1) == 0 or progress.epoch == self.config.epochs
        found = self._evaluate() if due else {"refreshed": False}
        found |= {"refreshed": found["refreshed"] or refreshed}
        found |= {"seconds": round(progress.seconds, 4), "train_seconds": round(progress.train_seconds, 4)}
        epoch = Epoch(number + 1, loss, rate, **found, evaluated=due)
        self.folder.append(epoch)
        self.listener.evaluated(epoch)
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
        if progress.best is None:  # the first one: later the evaluation's own peak is in it
            progress.train_peak = peak if (peak := peak_memory()) > self._inherited else 0
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
        refuse_difference(state, self._origin)
        torch.set_num_threads(state["threads"])  # sums depend on it to the last bit
        self.parts.model.load_state_dict(tensors["model"])
        self.parts.method.restore(state["method"], tensors.get("fitted", {}))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.get("optimizer", {}).items():
            number, _, key = name.partition("/")
            moments.setdefault(int(number), {})[key] = tensor
        self.optimizer.load_state_dict({"state": moments, "param_groups": state["groups"]})
        self.best_weights = tensors.get("best", {})
        self.progress = RunState(**state["progress"])
        self.folder.keep_metrics(self.progress.epoch)
        set_generator_state(tensors["generator"])


def _error(exact: Tensor, seen: Tensor, *, nodes: Tensor | None) -> float:
    """Return the relative error of outputs that training sees, over the nodes that have one."""
    truth = exact if nodes is None else exact[nodes]
    known = ~seen.isnan().flatten(1).any(dim=1)
    error = RelativeError()
    error.add(truth[known], seen[known])
    return error.value()
