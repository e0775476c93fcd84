"""Run a function, or a verb of the command line, in several processes that torch.distributed connects.

A test file imports it with `from processes import together`. The variables are those that torchrun sets; a server that
has imported torch once forks the processes, so that they start in milliseconds. A function must be importable, so those
of the tests are in `shared_work.py`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from commands import Done
from topoff.machine.ranks import Ranks, joined

MODULES = ["topoff", "topoff.training.seed", "topoff.report.page", "torch.distributed", "rich.progress"]
PATIENCE = 120.0  # seconds
SERVER = multiprocessing.get_context("forkserver")


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in names.items()}}


def fork(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Start a process that calls a function."""
    SERVER.set_forkserver_preload(MODULES)
    process = SERVER.Process(target=target, args=arguments)
    process.start()
    return process


# ---- functions


def together(work: Callable[..., Any], *arguments: Any, size: int = 2) -> list[Any]:
    """Call `work(ranks, ...)` in as many processes; return what each returns, or the error that it raised."""
    port, ends, started = free_port(), [], []
    for rank in range(size):
        here, there = SERVER.Pipe(duplex=False)
        started.append(fork(_work, work, arguments, environment(rank, size, port), there))
        there.close()
        ends.append(here)
    try:
        return [pickle.loads(end.recv_bytes()) if end.poll(PATIENCE) else TimeoutError("no answer") for end in ends]
    finally:
        for process in started:
            process.join(10)
            process.kill()


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call `work(ranks, ...)` in this process."""
    return work(Ranks(), *arguments)


def _work(work: Callable[..., Any], arguments: tuple[Any, ...], variables: dict[str, str], end: Connection) -> None:
    """Do the work of one process."""
    _prepare(variables)
    warnings.simplefilter("ignore")
    logging.getLogger("topoff").setLevel("WARNING")
    try:
        with joined() as ranks:
            found = work(ranks, *arguments)
    except Exception as error:
        error.add_note(traceback.format_exc())
        found = error
    end.send_bytes(pickle.dumps(found))  # not through shared memory, which would end with this process


def _prepare(variables: dict[str, str]) -> None:
    import torch

    os.environ.update(variables)
    torch.set_num_threads(1)
    torch.manual_seed(0)


# ---- verbs


@dataclass(frozen=True)
class Verb:
    """Hold a verb that runs in a process of its own."""

    process: ForkServerProcess
    place: Path  # of its outputs

    def end(self) -> Done:
        """Wait for its end."""
        self.process.join(PATIENCE)
        assert self.process.exitcode is not None, "it hangs"
        out, err = (self.place.with_suffix(f".{name}").read_text() for name in ("out", "err"))
        return Done(self.process.exitcode, out, err)


def start_verbs(folders: Sequence[Path], *words: object, port: int = 0, size: int = 0) -> list[Verb]:
    """Start `topoff ...` in a process for every folder, in which it stands; all are of one run."""
    port, size, found = port or free_port(), size or len(folders), []
    for rank, folder in enumerate(folders):
        place = folder / f"output-{port}-{rank}"
        variables = environment(rank, size, port) if size > 1 else {}
        found.append(Verb(fork(_verb, [*map(str, words)], variables, folder, place), place))
    return found


def run_verbs(folders: Sequence[Path], *words: object) -> list[Done]:
    """Run `topoff ...` in a process for every folder; return what each left."""
    return [verb.end() for verb in start_verbs(folders, *words)]


def _verb(words: list[str], variables: dict[str, str], folder: Path, place: Path) -> None:
    """Run a verb as `python -m topoff` does, its outputs in files."""
    from topoff.cli.app import main

    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(place.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.chdir(folder)
    sys.argv = ["topoff", *words]
    _prepare(variables)
    main()
