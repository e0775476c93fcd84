"""Run a function in several processes that torch.distributed connects, as torchrun would start them.

A test file imports it with `from processes import together`. A server that has imported torch once forks them, so that
they start in milliseconds; a function must be importable, so those of the laws are in `laws/shared_work.py`.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import socket
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from topoff.machine.ranks import Ranks, joined

MODULES = ["topoff", "topoff.training.seed", "topoff.compensation.top", "torch.distributed", "torchmetrics"]
PATIENCE = 120.0  # seconds


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def environment(rank: int, size: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun sets."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    return {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in names.items()}}


def together(work: Callable[..., Any], *arguments: Any, size: int = 2) -> list[Any]:
    """Call `work(ranks, ...)` in as many processes; return what each returns, or the error that it raised."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    port, ends, started = free_port(), [], []
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(work, arguments, environment(rank, size, port), there))
        process.start()
        there.close()
        ends.append(here)
        started.append(process)
    try:
        return [pickle.loads(end.recv_bytes()) if end.poll(PATIENCE) else TimeoutError("no answer") for end in ends]
    finally:
        for process in started:
            process.join(10)
            process.kill()


def _run(work: Callable[..., Any], arguments: tuple[Any, ...], variables: dict[str, str], end: Connection) -> None:
    """Do the work of one process."""
    import torch

    os.environ.update(variables)
    warnings.simplefilter("ignore")
    logging.getLogger("topoff").setLevel("WARNING")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        with joined() as ranks:
            found = work(ranks, *arguments)
    except Exception as error:
        error.add_note(traceback.format_exc())
        found = error
    end.send_bytes(pickle.dumps(found))  # not through shared memory, which would end with this process


def alone(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call `work(ranks, ...)` in this process."""
    return work(Ranks(), *arguments)
