"""Train several methods under one protocol: every (method, seed) in a process of its own, one after the other.

A process of its own makes peak memory its own, and lets one method run out of memory without stopping the others. Each
one starts with an empty cache: none profits from the partition that another one has paid for.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch_geometric.data import Data

from topoff.experiments.gradients import measure_gradient
from topoff.experiments.jobs import MEASURED, Failure, Job, Watcher
from topoff.machine.memory import keep_freed_memory
from topoff.tasks.task import Task, task_of
from topoff.training.build import device_of, model_for
from topoff.training.config import Config
from topoff.training.defaults import Choice, choose
from topoff.training.loop import Training
from topoff.training.result import write_result
from topoff.training.run_folder import RunFolder
from topoff.training.trained import graph_of

PATIENCE = 3.0  # seconds that a process gets to end
STOPPED = 143  # exit code of a process that was asked to stop
OFTEN = 0.2  # seconds between two words about steps


def train_all(jobs: Sequence[Job], *, watcher: Watcher) -> dict[tuple[str, int], Failure]:
    """Train every job that is not finished; return why those failed that did, by method and seed.

    Raises:
        ValueError: what no method could do anything about, before any was trained: no such graph, model, metric or
            device.
    """
    failures: dict[tuple[str, int], Failure] = {}
    refused: dict[str, Failure] = {}
    for number, job in enumerate(jobs, 1):
        method, seed = job.config.method, job.config.seed
        if job.finished:
            watcher.kept(job, number, len(jobs))
            continue
        if method in refused:
            failures[method, seed] = refused[method]
            continue
        watcher.started(job, number, len(jobs))
        failure = _tried(job, jobs, watcher=watcher)
        watcher.ended(job, failure)
        if failure is not None:
            failures[method, seed] = failure
        if failure is not None and failure.refused:
            refused[method] = failure
            left = [other for other in jobs[number:] if other.config.method == method and not other.finished]
            if left:
                watcher.skipped(left)
    return failures


def _tried(job: Job, jobs: Sequence[Job], *, watcher: Watcher) -> Failure | None:
    """Run one job; what no method could use is a failure of its method alone where another job has been trained."""
    try:
        return train_apart(job, watcher=watcher)
    except Unusable as error:
        if not any(other.finished or RunFolder(other.folder).metrics() for other in jobs):
            raise
        return Failure(str(error), refused=True)


def train_apart(job: Job, *, watcher: Watcher) -> Failure | None:
    """Run one job in a process of its own; return why it failed, if it did.

    Raises:
        Unusable: there is no such graph, model, metric or device.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="topoff-compare-") as cache:
        process = context.Process(target=_work, args=(job, sender, cache), daemon=True)
        process.start()
        try:
            sender.close()  # the process has its own: when it dies, reading ends
            failure = _listen(receiver, process, watcher=watcher)
            process.join(PATIENCE)
            return failure
        finally:
            _end(process)


def _listen(receiver: Connection, process: BaseProcess, *, watcher: Watcher) -> Failure | None:
    """Pass on what a process says, to its last word; where it dies without one, say of what."""
    while True:
        try:
            kind, *told = receiver.recv()
        except (EOFError, OSError):
            process.join()
            return Failure(_cause_of_death(process.exitcode))
        if kind == "unusable":
            process.join(PATIENCE)  # it ends by itself
            raise Unusable(told[0])
        if kind == "failed":
            return Failure(told[0], refused=told[1])
        if kind == "done":
            return None
        getattr(watcher, kind)(*told)


def _end(process: BaseProcess) -> None:
    """End a process that still runs: let it save and stop, then stop at once, then make it."""
    for push in (process.terminate, process.terminate, process.kill):
        if process.is_alive():
            push()
            process.join(PATIENCE)


def _cause_of_death(code: int | None) -> str:
    """Name what an exit code says.

    >>> _cause_of_death(-9), _cause_of_death(3)
    ('killed (SIGKILL): most likely the machine ran out of memory', 'ended without a word (exit code 3)')
    """
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"killed ({name})" + (": most likely the machine ran out of memory" if name == "SIGKILL" else "")
    return f"ended without a word (exit code {code})"


# ---- inside the process


class Unusable(ValueError):  # noqa: N818
    """Say that no method can train with these settings."""


def _work(job: Job, sender: Connection, cache: str) -> None:
    """Run a job, the main function of its process: tell what happens, and in the end how it went."""
    teller = _Teller(sender)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the first one decides
    signal.signal(signal.SIGTERM, teller.stop)
    keep_freed_memory()
    os.environ["TOPOFF_CACHE"] = cache
    os.chdir(job.place)
    last: tuple[Any, ...] = ("done",)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: sender.send(("warned", str(message)))
            train_seed(job, watcher=teller)
    except BrokenPipeError:
        sys.exit(1)  # nobody listens any more
    except KeyboardInterrupt:
        sys.exit(STOPPED)  # saved
    except Unusable as error:
        last = ("unusable", str(error))
    except Exception as error:
        last = ("failed", *_told(error, job.folder, stepped=teller.has_stepped))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # from here on nothing is lost
    sender.send(last)


def _told(error: Exception, folder: Path, *, stepped: bool) -> tuple[str, bool]:
    """Say in one line why a run failed, and whether it was refused; what is unexpected leaves its traceback."""
    if isinstance(error, ValueError):
        return " ".join(str(error).split()), not stepped and not RunFolder(folder).metrics()
    RunFolder(folder).write("error.txt", traceback.format_exc())
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return "out of memory", False
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} (see {folder / 'error.txt'})", False


class _Teller(Watcher):
    """Tell the first process what happens in this one, and stop when it wishes so."""

    def __init__(self, sender: Connection) -> None:
        self._sender, self._told_at = sender, 0.0
        self._training: Training | None = None

    @property
    def has_stepped(self) -> bool:
        """Whether the optimiser has taken a step: what fails later is no refusal."""
        return self._training is not None and self._training.progress.steps > 0

    def trains(self, training: Training) -> None:
        """Remember the training: it can be stopped."""
        self._training = training

    def stop(self, *_: object) -> None:
        """Let the training save after its step and stop; the second time, or before there is one, stop at once."""
        if self._training is None or self._training.stop:
            sys.exit(STOPPED)
        self._training.stop = True

    def _often_enough(self) -> bool:
        now = time.monotonic()
        due = now - self._told_at >= OFTEN
        self._told_at = now if due else self._told_at
        return due

    def knows(self, metric: str, epochs: int) -> None:
        """Tell of the score and the epochs."""
        self._sender.send(("knows", metric, epochs))

    def preparing(self, what: str, done: int, total: int) -> None:
        """Tell of the preparation."""
        if self._often_enough():
            self._sender.send(("preparing", what, done, total))

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        """Tell of steps."""
        if self._often_enough():
            self._sender.send(("stepped", epoch, share, loss))

    def evaluated(self, record: dict[str, Any]) -> None:
        """Tell of an epoch."""
        self._sender.send(("evaluated", record))


def train_seed(job: Job, *, watcher: Watcher) -> None:
    """Train one method with one seed, as `topoff train` does; then measure its gradient at the last weights.

    Raises:
        Unusable: there is no such graph, task, model or device.
        ValueError: the method refuses the model or the graph, or training failed.
    """
    folder = RunFolder(job.folder)
    load = _load_average()
    data, chosen, task, choices = _open(job)
    watcher.knows(task.metric, chosen.epochs)
    encoding = getattr(data.get("names"), "encoding", None)
    if encoding:  # before training: a run that is killed can predict, too
        folder.write("encoding.json", encoding)
    training = Training(chosen, data, folder=folder, listener=watcher, choices=choices)
    watcher.trains(training)
    training.run()
    last = copy.deepcopy(training.parts.model.state_dict())
    measured: dict[str, Any] = {"load": [load, _load_average()]}
    if folder.finished:
        measured = folder.read_json(MEASURED) if (job.folder / MEASURED).is_file() else measured
    else:
        write_result(training, command=job.command)
    folder.write(MEASURED, measured)
    if job.gradients:
        training.parts.model.load_state_dict(last)
        watcher.preparing("measuring the gradient", 0, 1)
        folder.write(MEASURED, measured | measure_gradient(training))


def _open(job: Job) -> tuple[Data, Config, Task, list[Choice]]:
    """Load the graph and choose what was left open; all that can fail here fails for every method."""
    try:
        data = graph_of(job.config)
        chosen, choices = choose(job.config, data)
        task = task_of(data.y, train_mask=data.train_mask, metric=chosen.metric, class_weight=chosen.class_weight)
        device_of(chosen.device)
        model_for(chosen, data, outputs=task.outputs)
    except (ValueError, TypeError, OSError) as error:
        raise Unusable(" ".join(str(error).split())) from error
    return data, chosen, task, choices


def _load_average() -> float | None:
    """Return how many processes wanted to run in the last minute, on average."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
