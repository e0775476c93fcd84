"""Let the disk fail at every write of a small run; see that it ends in one sentence and goes on in the same bits.

    python scripts/disks.py                 every change of the disk; writes docs/results/disks.json
    python scripts/disks.py --every 3       each third one

Errors are injected before a change of the disk and, where bytes are written, after half of them. As root, file systems
of memory that are really too small, or become read-only, are mounted as well.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reliability import ROOT, record

sys.path.insert(0, str(ROOT / "tests"))

from faults import Ended, Fault, Machine
from trials import SHORT, Trial, refused_well, write_graph

ERRORS = (  # the number of the error, and whether it lasts
    *((errno.ENOSPC, True), (errno.EROFS, True), (errno.EIO, False), (errno.EACCES, False), (errno.EDQUOT, True)),
    *((errno.ENOSPC, False), (errno.EIO, True)),
)
SIZES = range(16, 400, 12)  # KB of a real file system


def inject(every: int, place: Path) -> dict[str, Any]:
    """Let changes of the disk fail; return what came of it, by error."""
    machine = Machine(place, plots=False)
    graph = write_graph(place / "graph.npz")
    trial, alone = Trial.of(machine, "train", graph, *SHORT, "--tensorboard")
    rows: dict[str, dict[str, int]] = {}
    problems, errors = list[str](), itertools.cycle(ERRORS)
    for at in range(1, len(alone.changes) + 1, every):
        number, lasting = next(errors)
        wrong, (ended,) = trial.survive(Fault(at, error=number, phase="disk", lasting=lasting))
        name = f"{errno.errorcode[number]}, {'from then on' if lasting else 'once'}"
        row = rows.setdefault(name, {"tried": 0, "refused": 0, "finished": 0, "same": 0})
        row["tried"] += 1
        row["refused"] += ended.code != 0 and refused_well(ended)
        row["finished"] += ended.code == 0
        row["same"] += not wrong
        if wrong:
            problems.append(f"{alone.changes[at - 1]}: {name}: {wrong}")
        print(at, alone.changes[at - 1], name, ended.err.strip(), wrong, flush=True)
    return {"changes": len(alone.changes), "errors": dict(sorted(rows.items())), "problems": problems}


@contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """Mount a file system of memory."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "topoff-faults", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def mount_small(every: int, place: Path) -> tuple[dict[str, int] | None, list[str]]:
    """Run on file systems that are too small, then made larger; and on one that becomes read-only, then is not."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        print("no file system of its own: only root can mount one")
        return None, []
    machine = Machine(place, plots=False)
    graph = write_graph(place / "graph.npz")
    trial, alone = Trial.of(machine, "train", graph, *SHORT, "--tensorboard")
    tried, sentences, problems = 0, 0, list[str]()
    for size in list(SIZES)[::every]:
        with mounted(machine.disk, f"size={size}k"):
            ended = trial.go_on(machine.disk / "run")
            repair(machine.disk, "size=64m")
            tried, sentences = tried + 1, sentences + check(trial, ended, f"{size} KB", problems)
    for step in range(1, 10, every):
        with mounted(machine.disk, "size=64m"):
            timer = threading.Timer(alone.seconds * step / 10, repair, [machine.disk, "ro"])
            timer.start()
            ended = trial.go_on(machine.disk / "run")
            timer.join()
            repair(machine.disk, "rw")
            tried, sentences = tried + 1, sentences + check(trial, ended, f"read-only at {step}/10", problems)
    figures = {"tried": tried, "refused": sentences, "finished": tried - sentences, "same": tried - len(problems)}
    return figures, problems


def repair(place: Path, options: str) -> None:
    """Mount a file system anew with other options; one that is being written cannot become read-only."""
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=False, capture_output=True)


def check(trial: Trial, ended: Ended, what: str, problems: list[str]) -> bool:
    """Go on where the disk is sound again; note what is wrong; return whether the run was refused in one sentence."""
    wrong = "" if refused_well(ended) else f"not one sentence: {ended.code} {ended.err}"
    last = trial.go_on(trial.machine.disk / "run")
    if not wrong and last.code:
        wrong = f"cannot go on: {last.err}"
    if not wrong and trial.bits(trial.machine.disk / "run") != trial.whole:
        wrong = "other bits"
    if wrong:
        problems.append(f"{what}: {wrong}")
    print(what, ended.code, ended.err.strip(), wrong, flush=True)
    return ended.code != 0


def main() -> None:
    """Let disks fail; write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    every = parser.parse_args().every
    with tempfile.TemporaryDirectory(prefix="disks-") as place:
        real, more = mount_small(every, Path(place) / "real")
        found = inject(every, Path(place) / "injected")
    found["problems"] += more
    if real is not None:
        found["errors"]["a real file system that is full, or read-only"] = real
    print(found)
    record("disks", found)
    if found["problems"]:
        raise SystemExit("Something was lost.")


if __name__ == "__main__":
    main()
