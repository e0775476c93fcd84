"""Kill runs at many moments, resume them, and compare their bits with those of a run that was left alone.

    python scripts/kills.py                 50 kills; writes docs/results/kills.json and caches.json
    python scripts/kills.py --count 10      a try, which writes nothing

Moments are drawn from a seed: uniformly over the time that the run takes, in a call of each phase, at a change of the
disk, and in a comparison, with and without the process that it has started.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reliability import ROOT, record

sys.path.insert(0, str(ROOT / "tests"))

from faults import PHASES, Fault, Machine
from trials import SETTINGS, Trial, bits, leftovers, write_graph

COUNT, SEED, PROCESSES, ROUNDS = 50, 11, 4, 5
CALLS = {"preparation": 2, "step": 20, "evaluation": 6, "checkpoint": 20, "result": 2, "report": 1, "seeds": 2}
ANY, DISK, COMPARE = "any moment", "a change of the disk", "a comparison"


def moments(rng: np.random.Generator, *, seconds: float, changes: int, compared: float) -> Iterator[tuple[str, Fault]]:
    """Draw moments without end: where they are, and the fault."""
    while True:
        yield ANY, Fault(float(rng.uniform(0, seconds)))
        yield DISK, Fault(int(rng.integers(1, changes + 1)), phase="disk")
        for phase in PHASES:
            call, delay = int(rng.integers(1, CALLS[phase] + 1)), float(rng.uniform(0, 0.05))
            yield phase, Fault(call, phase=phase, delay=delay * (rng.random() < 0.7))
        yield COMPARE, Fault(float(rng.uniform(0, compared)), group=bool(rng.integers(2)))


def kill(count: int, place: Path) -> dict[str, Any]:
    """Kill so many runs; return what came of them."""
    rng, machine = np.random.default_rng(SEED), Machine(place)
    graph = write_graph(place / "graph.npz")
    trial, alone = Trial.of(machine, "train", graph, *SETTINGS, "--seeds", "0,1", predict=True)
    other = Machine(place / "compare")
    methods = ["--methods", "top,cluster", "--no-gradients"]
    compare, both = Trial.of(other, "compare", graph, *methods, *SETTINGS, predict=True)
    phases: dict[str, dict[str, int]] = {}
    problems, twice = list[str](), 0
    drawn = moments(rng, seconds=alone.seconds, changes=len(alone.changes), compared=both.seconds)
    while sum(row["tried"] for row in phases.values()) < count:
        where, fault = next(drawn)
        faults = [fault]
        if rng.random() < 0.3:
            faults.append(Fault(float(rng.uniform(0, alone.seconds / 2))))
        wrong, ended = (compare if where == COMPARE else trial).survive(*faults)
        if ended[0].code != -9:  # it had ended before
            continue
        twice += sum(end.code == -9 for end in ended) > 1
        row = phases.setdefault(where, {"tried": 0, "same": 0})
        row["tried"] += 1
        row["same"] += not wrong
        if wrong:
            problems.append(f"{where}, {faults}: {wrong}")
        print(where, fault, wrong or "same bits", flush=True)
    tried, same = (sum(row[key] for row in phases.values()) for key in ("tried", "same"))
    return {"seed": SEED, "tried": tried, "same": same, "twice": twice, "phases": phases, "problems": problems}


def share_cache(rounds: int, place: Path, *, processes: int = PROCESSES) -> dict[str, Any]:
    """Begin several runs at once with one empty cache; return what came of them."""
    machine, right, damaged, left = Machine(place), 0, 0, 0
    graph = write_graph(place / "graph.npz")
    trial, _ = Trial.of(machine, "train", graph, *SETTINGS)
    for number in range(rounds):
        machine.clear()
        runs = [machine.disk / f"{number}-{index}" for index in range(processes)]
        started = [machine.start("train", graph, *SETTINGS, "--out", run) for run in runs]
        for process, run in zip(started, runs, strict=True):
            process.join(300)
            right += process.exitcode == 0 and bits(run) == trial.whole
        cache = machine.disk / "cache"
        damaged += sum(zipfile.ZipFile(path).testzip() is not None for path in cache.glob("*.npz"))
        left += len([path for path in leftovers(machine.disk) if path.startswith("cache/")])
    tried = rounds * processes
    return {"processes": processes, "rounds": rounds, "tried": tried, "right": right, "damaged": damaged, "left": left}


def main() -> None:
    """Kill runs, then let several share a cache; write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory(prefix="kills-") as place:
        shared = share_cache(ROUNDS if count >= COUNT else 1, Path(place) / "caches")
        print(shared, flush=True)
        killed = kill(count, Path(place) / "kills")
    print(killed)
    if count >= COUNT:
        record("caches", shared)
        record("kills", killed)
    if killed["problems"] or shared["right"] < shared["tried"] or shared["damaged"] or shared["left"]:
        raise SystemExit("Something was lost.")


if __name__ == "__main__":
    main()
