"""Faults on purpose: runs of the command line that are killed, or whose disk fails, at a chosen moment.

`trials` compares what comes of them; `scripts/kills.py`, `scripts/disks.py` and the tests share both. A verb runs in a
real process of its own; a server that has imported torch once forks it, so that it starts in milliseconds.

Where a fault strikes is told by counting: the changes of the disk under one folder (files opened to be written, bytes
written, flushed, folders made, names moved or removed), or the calls of a function that stands for a phase.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, ClassVar

MODULES = ("topoff", "topoff.cli.app", "topoff.training.seed", "topoff.training.predictions", "topoff.report.page",
           "topoff.experiments.page", "topoff.experiments.table", "topoff.experiments.processes", "rich.progress",
           "matplotlib.backends.backend_svg", "pyarrow.parquet")  # fmt: skip
PHASES = {
    "preparation": "topoff.methods.top:Top.prepare",
    "step": "topoff.training.loop:Training.step",
    "evaluation": "topoff.methods.top:Top.exact",
    "checkpoint": "topoff.training.run_folder:RunFolder.save",
    "result": "topoff.training.run_folder:RunFolder.save_model",
    "report": "topoff.report.page:write_report",
    "seeds": "topoff.training.seed:train_seed",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
MOVES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod")
FREEING = ("os.rename", "os.remove", "os.rmdir", "os.chmod")  # what a full disk still allows
RELATIVE = ("os.remove", "os.rmdir", "os.mkdir")
FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Fault:
    """Say when a process fails, and how: with an error of the disk, or (`error` 0) killed."""

    at: float = 0  # which change of the disk, from 1, or which call of the phase; without either, seconds
    error: int = 0  # of the system; 0: SIGKILL
    phase: str = ""  # a key of PHASES; "disk": changes of the disk; "": seconds after the start
    delay: float = 0.0  # seconds into the call of a phase
    lasting: bool = False  # whether the disk fails from then on, or once
    group: bool = False  # kill the processes that this one has started as well


@dataclass(frozen=True)
class Ended:
    """Hold how a process ended."""

    code: int  # exit code; -9: killed
    err: str  # stderr
    seconds: float
    changes: list[str] = field(default_factory=list)  # of the disk that it made, where they were counted

    @property
    def sentences(self) -> list[str]:
        """Return the lines of stderr that are no warnings."""
        return [line for line in self.err.splitlines() if not line.startswith("topoff: warning: ")]


class Disk:
    """Count the changes of the disk under a folder while it is watched, and let some of them fail, in this process."""

    watched: ClassVar[list[Disk]] = []  # at most one; Python never forgets an audit hook, so that there is one for all

    def __init__(self, root: Path, fault: Fault | None = None) -> None:
        self.root, self.fault = f"{root}/", fault or Fault()
        self.changes: list[str] = []
        self.log: int | None = None  # a file to note the changes in
        self._busy = threading.local()

    @contextmanager
    def watching(self) -> Iterator[Disk]:
        """Watch this process."""
        if not Disk.watched:
            sys.addaudithook(lambda event, arguments: Disk.watched[-1].heard(event, arguments))
            Disk.watched.append(self)
        before = (io.open, os.fsync)
        Disk.watched[-1] = self
        io.open = builtins.open = partial(self._opened, before[0])
        os.fsync = partial(self._flushed, before[1])
        try:
            yield self
        finally:
            io.open, os.fsync = before
            builtins.open = before[0]
            Disk.watched[-1] = Disk(Path(os.devnull))

    def change(self, event: str, path: Any) -> None:
        """Note a change; fail where it is time to."""
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        name = os.path.abspath(os.fsdecode(path))
        if getattr(self._busy, "here", False) or not name.startswith(self.root):
            return
        self._busy.here = True
        try:
            self.changes.append(f"{event} {name.removeprefix(self.root)}")
            if self.log is not None:
                os.write(self.log, f"{self.changes[-1]}\n".encode())
            self._fail(event, name)
        finally:
            self._busy.here = False

    def _fail(self, event: str, name: str) -> None:
        fault, count = self.fault, len(self.changes)
        if fault.phase != "disk" or not fault.at or count < fault.at:
            return
        if not fault.error:
            _strike(fault)
        if count > fault.at and not fault.lasting:
            return
        if fault.error not in FULL or event not in FREEING:
            raise OSError(fault.error, os.strerror(fault.error), name)

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Hear of what Python is about to do, whoever asked for it."""
        if event in RELATIVE and arguments[-1] > 0:  # the last one is the folder that the path is seen from
            self.change(event, Path(os.readlink(f"/proc/self/fd/{arguments[-1]}"), os.fsdecode(arguments[0])))
        elif event in MOVES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
            self.change(event, arguments[0])

    def _opened(self, opened: Any, file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        """Open a file so that its writes are counted, too."""
        own = not isinstance(file, int) and os.path.abspath(os.fsdecode(file)).startswith(self.root)
        if not own or "r" in mode or kwargs.get("opener"):
            return opened(file, mode, buffering, *args, **kwargs)
        raw = _Torn(os.fspath(file), mode.replace("t", "").replace("b", ""))
        raw.disk = self
        if "b" in mode:
            return raw if buffering == 0 else (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        return io.TextIOWrapper(io.BufferedWriter(raw), *args, **kwargs)

    def _flushed(self, flushed: Callable[[int], None], file: int) -> None:
        self.change("os.fsync", file)
        flushed(file)


class _Torn(io.FileIO):
    """A file whose bytes are written in two halves: the fault strikes in between."""

    disk: Disk

    def write(self, content: Any, /) -> int:
        """Write all bytes."""
        view = memoryview(content).cast("B")
        done = super().write(view[: len(view) // 2]) if len(view) > 1 else 0
        self.disk.change("write", self.name)
        while done < len(view):
            done += super().write(view[done:])
        return done


def _strike(fault: Fault) -> None:
    """Kill this process."""
    os.killpg(0, signal.SIGKILL) if fault.group else os.kill(os.getpid(), signal.SIGKILL)


def _strike_after(seconds: float, fault: Fault) -> None:
    """Kill this process some seconds from now."""

    def strike() -> None:
        time.sleep(seconds)
        _strike(fault)

    threading.Thread(target=strike, daemon=True).start()


def _arm_phase(fault: Fault) -> None:
    """Kill in the `at`-th call of a phase."""
    module, _, path = PHASES[fault.phase].partition(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original, calls = getattr(owner, name), [0]

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == fault.at:
            _strike_after(fault.delay, fault)
        return original(*args, **kwargs)

    setattr(owner, name, counted)


def _run(arguments: list[str], place: str, fault: Fault, count: bool, plots: bool) -> None:  # noqa: FBT001
    """Run a verb, the main function of its process."""
    import torch

    from topoff.cli import app

    root = Path(place)
    os.setsid()  # Ctrl-C of the user and kills of the whole group stay apart
    for number, name in ((0, os.devnull), (1, root / "stdout"), (2, root / "stderr")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.environ |= {"TOPOFF_CACHE": str(root / "disk" / "cache"), "TMPDIR": str(root / "disk" / "temp")}
    tempfile.tempdir = None  # the server's own
    os.chdir(root / "disk")
    torch.set_num_threads(1)
    sys.argv = ["topoff", *arguments]
    if not plots:
        setattr(importlib.import_module("topoff.report.page"), "build_report", _no_plots)  # noqa: B010
    disk = Disk(root / "disk", fault)
    disk.log = os.open(root / "changes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    if fault.phase in PHASES:
        _arm_phase(fault)
    elif not fault.phase and fault.at:
        _strike_after(fault.at, fault)
    with disk.watching() if count or fault.phase == "disk" else nullcontext():
        app.main()


def _await_group(leader: int) -> None:
    """Wait for the processes that a killed one has started: they notice that nobody listens."""
    for _ in range(600):
        try:
            os.killpg(leader, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.killpg(leader, signal.SIGKILL)


class Machine:
    """Run verbs in processes of their own; `place/disk` is the disk that faults happen on.

    Runs lie in `place/disk`, beside the cache and the temporary files of the processes.
    """

    def __init__(self, place: Path, *, plots: bool = True) -> None:
        self.place, self.disk, self.plots = place, place / "disk", plots  # plots take most of the time of a small run
        (self.disk / "temp").mkdir(parents=True, exist_ok=True)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(MODULES))

    def clear(self) -> None:
        """Forget the run before, and the cache: preparations are interrupted, too."""
        for path in [*self.disk.glob("run"), *self.disk.glob(".run.*"), self.disk / "cache", self.disk / "temp"]:
            shutil.rmtree(path, ignore_errors=True)

    def start(self, *arguments: object, fault: Fault | None = None, count: bool = False) -> ForkServerProcess:
        """Start a verb."""
        (self.disk / "temp").mkdir(exist_ok=True)
        words = [str(argument) for argument in arguments]
        process = self._context.Process(target=_run, args=(words, str(self.place), fault or Fault(), count, self.plots))
        process.start()
        return process

    def run(self, *arguments: object, fault: Fault | None = None, count: bool = False) -> Ended:
        """Run a verb to its end, whichever that is."""
        start = time.perf_counter()
        process = self.start(*arguments, fault=fault, count=count)
        process.join(300)
        _await_group(process.pid or 0)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"Expected `topoff {' '.join(map(str, arguments))}` to end (got 300 s of {fault}).")
        changes = (self.place / "changes").read_text().splitlines()
        err = (self.place / "stderr").read_text(errors="replace")
        return Ended(process.exitcode, err, time.perf_counter() - start, changes)


class Here(Machine):
    """Run verbs in this process, which is faster: for errors of the disk, not for kills."""

    def __init__(self, place: Path, *, plots: bool = True) -> None:
        self.place, self.disk, self.plots = place, place / "disk", plots
        self.disk.mkdir(parents=True, exist_ok=True)

    def run(self, *arguments: object, fault: Fault | None = None, count: bool = False) -> Ended:
        """Run a verb to its end."""
        from topoff.cli import app

        start, disk, code, said = time.perf_counter(), Disk(self.disk, fault), 0, io.StringIO()
        before = sys.argv, os.environ.get("TOPOFF_CACHE")
        sys.argv, os.environ["TOPOFF_CACHE"] = ["topoff", *map(str, arguments)], str(self.disk / "cache")
        try:
            with redirect_stderr(said), redirect_stdout(io.StringIO()), warnings.catch_warnings(), self._drawing():
                warnings.simplefilter("default")  # pytest makes errors of them
                with disk.watching():
                    app.main()
        except SystemExit as left:
            code = int(left.code or 0)
        finally:
            sys.argv = before[0]
            os.environ.update({"TOPOFF_CACHE": before[1]} if before[1] else {})
        return Ended(code, said.getvalue(), time.perf_counter() - start, disk.changes)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Draw plots only where they are wanted."""
        page: Any = importlib.import_module("topoff.report.page")
        before, page.build_report = page.build_report, page.build_report if self.plots else _no_plots
        try:
            yield
        finally:
            page.build_report = before


def _no_plots(run: Path) -> str:
    return "no plots"
