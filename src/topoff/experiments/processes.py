"""Train several methods under one protocol: every (method, seed) in a process of its own, one after the other.

A process of its own makes peak memory its own, and lets one method run out of memory without stopping the others. Each
one starts with an empty cache: none profits from the partition that another one has paid for.
"""

from __future__ import annotations

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

from topoff.experiments.gradients import measure_gradient
from topoff.experiments.jobs import MEASURED, Failure, Job, Watcher, read_measured
from topoff.experiments.others import Others
from topoff.machine.memory import keep_freed_memory
from topoff.machine.notices import hearing
from topoff.machine.user_code import is_out_of_memory, user_code
from topoff.training.build import Setup
from topoff.training.listener import Running
from topoff.training.records import Epoch
from topoff.training.run_folder import RunFolder
from topoff.training.seed import train_seed

PATIENCE = 3.0  # seconds that a process gets to end
STOPPED = 143  # exit code of a process that was asked to stop
OFTEN = 0.2  # seconds between two words about steps


class Unusable(ValueError):  # noqa: N818
    """Say that no method can train with these settings."""


def train_all(jobs: Sequence[Job], *, watcher: Watcher) -> dict[tuple[str, int], Failure]:
    """Train every job that is not finished; return why those failed that did, by method and seed.

    Raises:
        ValueError: what no method could do anything about, before any was trained: no such graph, model, metric or
            device.
    """
    failures: dict[tuple[str, int], Failure] = {}
    refused: set[str] = set()  # methods: another seed would not help
    for number, job in enumerate(jobs, 1):
        method, seed = job.config.method, job.config.seed
        if job.finished:
            watcher.kept(job, number, len(jobs))
            continue
        if method in refused:
            continue
        watcher.started(job, number, len(jobs))
        try:
            failure = train_apart(job, watcher=watcher)
        except Unusable as error:  # a failure of this method alone, where another job has been trained
            if not any(other.finished or RunFolder(other.folder).metrics() for other in jobs):
                raise
            failure = Failure(str(error), refused=True)
        watcher.ended(job, failure)
        if failure is not None:
            failures[method, seed] = failure
            refused |= {method} if failure.refused else set()
            same = [other for other in jobs[number:] if other.config.method == method]
            left = [other for other in same if failure.refused and not other.finished]
            failures |= {(method, other.config.seed): failure for other in left}
            if left:
                watcher.skipped(left)
    return failures


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
        finally:  # where it still runs: let it save and stop, then stop at once, then make it
            for push in (process.terminate, process.terminate, process.kill):
                if process.is_alive():
                    push()
                    process.join(PATIENCE)


def _listen(receiver: Connection, process: BaseProcess, *, watcher: Watcher) -> Failure | None:
    """Pass on what a process says, to its last word; where it dies without one, say of what."""
    while True:
        try:
            told = receiver.recv()
        except (EOFError, OSError):
            process.join()
            return Failure(_cause_of_death(process.exitcode))
        match told:
            case "knows", metric, epochs:
                watcher.knows(metric, epochs)
            case "preparing", what, done, total:
                watcher.preparing(what, done, total)
            case "stepped", epoch, share, loss:
                watcher.stepped(epoch, share, loss)
            case "evaluated", epoch:
                watcher.evaluated(epoch)
            case "warned", text:
                watcher.warned(text)
            case "unusable", reason:
                process.join(PATIENCE)  # it ends by itself
                raise Unusable(reason)
            case "failed", reason, refused:
                return Failure(reason, refused=refused)
            case _:
                return None  # done


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


def _work(job: Job, sender: Connection, cache: str) -> None:
    """Run a job, the main function of its process: tell what happens, and in the end how it went."""
    teller = _Teller(sender)
    for name in ("SIGINT", "SIGHUP"):  # which reach all processes: the first one decides
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, teller.stop)
    keep_freed_memory()
    os.environ["TOPOFF_CACHE"] = cache
    os.chdir(job.place)
    last: tuple[Any, ...] = ("done",)
    try:
        with warnings.catch_warnings(), hearing(lambda _: None):
            warnings.showwarning = lambda message, *_, **__: sender.send(("warned", str(message)))
            with user_code("the model to run", remedy="correct it there", anything=False):
                train_job(job, watcher=teller)
    except BrokenPipeError:
        sys.exit(1)  # nobody listens any more
    except KeyboardInterrupt:
        sys.exit(STOPPED)  # saved
    except Exception as error:
        last = _last_word(error, job.folder, teller=teller)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # from here on nothing is lost
    sender.send(last)


def _last_word(error: Exception, folder: Path, *, teller: _Teller) -> tuple[Any, ...]:
    """Say in one line why a run failed, and whether it was refused; what is unexpected leaves its traceback.

    What fails before there is a setup (the graph, the task, the model, the device) fails for every method.
    """
    text = " ".join(str(error).split())
    if not teller.has_plan and isinstance(error, ValueError | TypeError | OSError):
        return "unusable", text
    if isinstance(error, ValueError):
        return "failed", text, not teller.has_stepped and not RunFolder(folder).metrics()
    RunFolder(folder).write("error.txt", traceback.format_exc())
    if is_out_of_memory(error):
        return "failed", "out of memory", False
    return "failed", f"{type(error).__name__}: {text[:300]} (see {folder / 'error.txt'})", False


class _Teller(Watcher):
    """Tell the first process what happens in this one, and stop when it wishes so."""

    def __init__(self, sender: Connection) -> None:
        self._sender, self._told_at, self.has_plan = sender, 0.0, False
        self._training: Running | None = None

    @property
    def has_stepped(self) -> bool:
        """Whether the optimiser has taken a step: what fails later is no refusal."""
        return self._training is not None and self._training.progress.steps > 0

    def stop(self, *_: object) -> None:
        """Let the training save after its step and stop; the second time, or before there is one, stop immediately."""
        if self._training is None or self._training.stop:
            sys.exit(STOPPED)
        self._training.stop = True

    def _tell_now_and_then(self, *word: object) -> None:
        if time.monotonic() - self._told_at >= OFTEN:
            self._told_at = time.monotonic()
            self._sender.send(word)

    def set_up(self, setup: Setup) -> None:
        """Tell of the score and the epochs."""
        self.has_plan = True
        self._sender.send(("knows", setup.task.metric, setup.config.epochs))

    def trains(self, training: Running) -> None:
        """Remember the training: it can be stopped."""
        self._training = training

    def preparing(self, what: str, done: int, total: int) -> None:
        """Tell of the preparation."""
        self._tell_now_and_then("preparing", what, done, total)

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        """Tell of steps."""
        self._tell_now_and_then("stepped", epoch, share, loss)

    def evaluated(self, epoch: Epoch) -> None:
        """Tell of an epoch."""
        self._sender.send(("evaluated", epoch))


def train_job(job: Job, *, watcher: Watcher) -> None:
    """Train one method with one seed, then measure its gradient at the last weights.

    Raises:
        ValueError: there is no such graph, task, model or device, the method refuses the model or the graph, or
            training failed.
    """
    folder, before, others = RunFolder(job.folder), _load_average(), Others()
    training = train_seed(job.config, folder, listener=watcher, command=job.command, trust=job.trust)
    measured = read_measured(folder) or {"load": [before, _load_average()], "busy": others.cores()}
    folder.write(MEASURED, measured)
    if job.gradients:
        watcher.preparing("measuring the gradient", 0, 1)
        folder.write(MEASURED, measured | measure_gradient(training))


def _load_average() -> float | None:
    """Return how many processes wanted to run in the last minute, on average."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
