"""The loop: steps, optimiser, exact evaluation, checkpoints, resume.

A run is a function of its config and its graph: killed at any moment and resumed, it ends in the same bits. All state
is in one `Checkpoint`: weights, optimiser, generator, position in the epoch, and the weights that the compensation was
estimated from (it is estimated again, instead of being stored).
"""

from __future__ import annotations

import copy
import math
import time
from pathlib import Path
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from topoff.data.layout import SPLITS
from topoff.machine.json_objects import checksum
from topoff.machine.memory import peak_memory
from topoff.machine.ranks import Ranks
from topoff.training.average import Average
from topoff.training.build import Setup, batches_per_step, make_method, make_optimizer
from topoff.training.checkpoints import Checkpoint
from topoff.training.divergence import check_outputs, raise_diverged
from topoff.training.joint import JointStep, check_same_weights, steps_of
from topoff.training.listener import Listener
from topoff.training.pace import pace_of
from topoff.training.records import Epoch, validated
from topoff.training.run_folder import RunFolder
from topoff.training.scoring import examine
from topoff.training.snapshot import moments_of, pack, shared_checkpoint, use_threads
from topoff.training.state import RunState, load_weights, origin, refuse_difference, set_generator_state


class Training:
    """Train one model with one seed, in one folder; the listener is told what happens.

    `inherited` is the peak memory that the process had before the run, in bytes; 0 where `forget_peak` could forget it.
    `ranks` are the processes that train together: all of them run this, and the first one writes.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        folder: RunFolder,
        listener: Listener | None = None,
        inherited: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.setup, self.config, self.data, self.folder = setup, setup.config, setup.data, folder
        self.listener, self._inherited = listener or Listener(), inherited
        self.task, self.model = setup.task, setup.model
        self.method = make_method(setup, progress=self.listener.preparing, ranks=self.ranks)
        self.optimizer = make_optimizer(self.config, self.model, self.method.parameters())
        self.progress, self.pace = RunState(), pace_of(self.config, folder)
        self.average = Average(self.model, wanted=bool(self.config.average))
        self.best_weights: dict[str, Tensor] = {}
        self.best_output: Tensor | None = None  # (n, out) of these, where the last evaluation has found them
        self.stop = False  # set from a signal handler: save after this step, then raise KeyboardInterrupt
        self._stops = False  # the same, where a step has several batches: all processes have agreed on it
        self.per_step = batches_per_step(self.config)
        self.joint = JointStep(self.method, self.task, ranks=self.ranks, seed=self.config.seed)
        self._saved_at = time.monotonic()
        self.origin = origin(self.data, self.config)  # once: large graphs take seconds to hash

    def run(self) -> RunState:
        """Train to the end, from the checkpoint where there is one; raise KeyboardInterrupt, saved, when stopped."""
        checkpoint = shared_checkpoint(self.folder, self.ranks)
        start = time.perf_counter()
        if checkpoint is None:
            self.folder.keep_metrics(0)
            self.method.prepare()
            self.progress.preprocess_seconds = time.perf_counter() - start
        else:
            self._restore(checkpoint)
        self._saved_at, begun = time.monotonic(), self.progress.steps
        try:
            while not (self.pace.over(self.progress) or self.progress.stopped_early):
                self._epoch()
        except (Exception, SystemExit) as error:  # no finite loss, or an error of the model's, which may exit, too
            if self.best_weights and not isinstance(error, OSError | MemoryError):
                facts = {"data": self.origin["data"], "encoding": self._encoding}
                self.folder.save_model(self.best_weights, metadata=facts)
            raise
        self._save()
        self.pace.write(self.folder)
        self.method.freeze()
        if self.progress.steps == begun and self.progress.loss_count:  # who measures next finds whole epochs
            next(iter(self.method.batches()), None)
        return self.progress

    # ---- one epoch

    def _epoch(self) -> None:
        """Take the steps that are left of this epoch, evaluate where it is due, write its line."""
        progress, start = self.progress, time.perf_counter()
        for batches in steps_of(self.method, self.per_step // self.ranks.size):
            loss = self._step(batches, waited=time.perf_counter() - start)
            if loss is None:
                continue
            self.average.add(progress.steps + 1)
            self._count(loss, seconds=time.perf_counter() - start)  # refreshes are training, checkpoints are not
            over = self.pace.over(progress)
            if progress.loss_count < self.length:  # in the middle of the epoch
                if over or self.pace.due(progress, whole=False):
                    self._write_line(whole=False)
                over = self.pace.over(progress) or progress.stopped_early
                self._save_if_due()
                if over:
                    return
            elif not over:  # else there is an evaluation to come, without which the run has not ended
                self._save_if_due()
            start = time.perf_counter()
        if not progress.loss_count:  # no batch had training nodes: the time goes by all the same
            progress.train_seconds += time.perf_counter() - start
            progress.stepped_at = progress.spent
        self._write_line(whole=True)
        self._save_if_due()

    def _set_rate(self, rate: float) -> None:
        """Take the next step at this learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _count(self, loss: float, *, seconds: float) -> None:
        """Take a step into account; refuse to go on from a loss that is not finite."""
        progress = self.progress
        progress.seconds += seconds
        progress.train_seconds += seconds
        progress.stepped_at = progress.spent
        progress.steps += 1
        progress.loss_count += 1
        progress.loss_sum += loss
        if not math.isfinite(loss):
            came = f"{loss} in epoch {progress.current}"
            raise_diverged(self.data, f"the loss to stay finite (got {came}", kept=self._kept)
        self.listener.stepped(progress.current, self.pace.share(progress, part=self.part), loss)

    @property
    def part(self) -> float:
        """How much of the current epoch is done."""
        return self.progress.loss_count / max(1, self.length)

    @property
    def length(self) -> int:
        """The steps of an epoch, those included that have no training nodes."""
        return -(-len(self.method) // self.per_step)

    def _write_line(self, *, whole: bool) -> None:
        """Write the line of an epoch, or of what is done of it, evaluated where that is due."""
        progress, number = self.progress, self.progress.epoch
        share, loss = 1.0 if whole else self.part, progress.loss_sum / max(1, progress.loss_count)
        if whole:
            progress.epoch, progress.loss_sum, progress.loss_count = number + 1, 0.0, 0
        refreshed = self.method.refreshed_at == number != progress.refreshed_at
        progress.refreshed_at = number if refreshed else progress.refreshed_at
        last = self.pace.over(progress)
        due = last or self.pace.due(progress, whole=whole)
        found = self._evaluate(last=last) if due else {}
        found["refreshed"] = found.get("refreshed", False) or refreshed
        found |= {"seconds": round(progress.seconds, 4), "train_seconds": round(progress.train_seconds, 4)}
        rate = self.optimizer.param_groups[0]["lr"]
        epoch = Epoch(number + 1, loss, rate, **found, evaluated=due, share=share)
        self.folder.append(epoch)
        self.listener.evaluated(epoch)

    def _step(self, batches: list[Data], *, waited: float) -> float | None:
        """Take the step that this process has such batches of, at its rate; return its loss, if it has one."""
        if self.per_step == 1:
            self._set_rate(self.pace.rate(self.progress, waited=waited))
            return self.step(batches[0])
        self.model.train()
        self.optimizer.zero_grad()
        found = self.joint.gradient(batches, number=self.progress.steps, stop=self.stop)
        self._stops = found.stop
        if found.loss is not None:
            self._set_rate(self.pace.rate(self.progress, waited=waited))
            self.optimizer.step()
        return found.loss

    def step(self, batch: Data) -> float:
        """Take one step of the optimizer; return the loss."""
        self.model.train()
        self.optimizer.zero_grad()
        loss = self.method.learn(batch, self.task.batch_loss)
        self.optimizer.step()
        return float(loss)

    # ---- evaluation

    def _evaluate(self, *, last: bool) -> dict[str, Any]:
        """Score exactly on the whole graph; keep the best weights; say how far one batch was from the truth."""
        start, progress, method = time.perf_counter(), self.progress, self.method
        if self.ranks.size > 1:
            check_same_weights(self.model, self.ranks)
        may_stop = bool(self.config.patience) and progress.waited + 1 >= self.config.patience
        if last:
            method.freeze()  # no step would use a refresh
        if progress.best is None:  # the first one: later the evaluation's own peak is in it
            progress.train_peak = peak if (peak := peak_memory()) > self._inherited else 0
        may_refresh = self.pace.refreshes(progress)
        method.frozen = last or not may_refresh
        exam = examine(method, self.average, number=progress.epoch, whole=last or may_stop)
        method.frozen = last
        for out in (exam.out, exam.own):
            if out is not None:
                check_outputs(out, self.data, epoch=progress.current, kept=self._kept)
        masks = {name: self.data[f"{name}_mask"] for name in SPLITS}
        scores = self.task.score(exam.out, self.data.y, masks=masks)
        if self._keep_best(scores) and last and self.ranks.size == 1:
            self.best_output = exam.out  # for the details: it is not computed again
        self.pace.evaluated(progress, may_refresh=may_refresh)
        progress.examined(exam, seconds=time.perf_counter() - start)
        certificate = method.certificate_ if exam.refreshed else None
        found = {"refreshed": exam.refreshed, "fidelity": exam.fidelity, "certificate": certificate}
        return {name: None if math.isnan(value) else value for name, value in scores.items()} | found

    def _keep_best(self, scores: dict[str, float]) -> bool:
        """Keep the weights at the best validation score, or without validation nodes the last ones; say whether so."""
        progress = self.progress
        before = None if progress.best is None else progress.best["val"]
        if math.isnan(scores["val"]) or self.task.better(scores["val"], before):
            progress.best, progress.waited = {"epoch": progress.current, **scores}, 0
            with self.average.in_place():
                self.best_weights = copy.deepcopy(self.model.state_dict())
            return True
        progress.waited += 1
        progress.stopped_early = bool(self.config.patience) and progress.waited >= self.config.patience
        return False

    # ---- surviving

    @property
    def _encoding(self) -> str:
        """The checksum of how tables became features."""
        return checksum(getattr(self.data.get("names"), "encoding", None))

    @property
    def _kept(self) -> str:
        """The folder of the best weights; nothing where nothing was evaluated yet."""
        return str(self.folder.path) if self.best_weights else ""

    def _save_if_due(self) -> None:
        """Save when the last checkpoint is old enough, or when the user wants to stop."""
        stop = self.stop if self.per_step == 1 else self._stops
        if stop or time.monotonic() - self._saved_at >= self.config.checkpoint_seconds:
            self._save()
        if stop:
            raise KeyboardInterrupt

    def _save(self) -> None:
        """Write all state into one file; of several processes the first one does."""
        self._saved_at = time.monotonic()
        if not self.ranks.is_first:
            return
        self.progress.peak, self.progress.sent = max(self.progress.peak, peak_memory()), self.ranks.counts
        known = {"metrics": self.folder.mark_of_metrics(), "encoding": self._encoding, **self.origin}
        parts: dict[str, Any] = {"method": self.method, "optimizer": self.optimizer, "pace": self.pace}
        parts["average"] = self.average
        self.folder.save(pack(self.progress, model=self.model, best=self.best_weights, known=known, **parts))
        if not self.folder.finished:  # weights that a failure kept: from here on the checkpoint knows better
            (self.folder.path / "model.safetensors").unlink(missing_ok=True)
        self._saved_at = time.monotonic()

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; refuse another graph, or other settings or versions, than the run began with."""
        place = self.folder.path / "checkpoint"
        try:
            refuse_difference(checkpoint.state, self.origin)
            self._take(checkpoint, origin=place)
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise ValueError(
                f"Expected {place} to hold a checkpoint of this run (got {type(error).__name__}: "
                f"{' '.join(str(error).split())}); restore it from a copy, or start again with --overwrite."
            ) from error

    def _take(self, checkpoint: Checkpoint, *, origin: Path) -> None:
        """Take over the state of a checkpoint."""
        state, tensors = checkpoint.state, checkpoint.tensors
        progress = validated(RunState, state["progress"], origin=str(origin))
        use_threads(state["threads"], origin=origin)
        load_weights(self.model, tensors["model"], origin=origin, name=self.config.model)
        self.method.restore(state["method"], tensors.get("fitted", {}))
        self.optimizer.load_state_dict({"state": moments_of(tensors), "param_groups": state["groups"]})
        self.best_weights = tensors.get("best", {})
        self.average.restore(tensors.get("average", {}))
        self.progress, self.ranks.counts = progress, progress.sent
        self.pace.restore(tensors.get("pace", {}))
        self.folder.keep_metrics(progress.epoch, share=self.part, mark=state.get("metrics"))
        set_generator_state(tensors["generator"])
