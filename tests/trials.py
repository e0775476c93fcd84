"""Trials: a run that had faults is brought to its end, and compared with one that was left alone, bit by bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from faults import Ended, Fault, Machine

NODES = 120
TIMES = ("seconds", "rss_mb", "date", "machine", "command", "load", "time_to_target")  # differ between any two runs
SETTINGS = ["--epochs", "4", "--hidden", "8", "--layers", "2", "--ratio", "0.25", "--rank", "4", "--dropout", "0.3"]
SETTINGS += ["--eval-every", "2", "--refresh", "every=2", "--checkpoint-seconds", "0", "--quiet"]
SHORT = [*SETTINGS[2:], "--epochs", "2", "--set", "ratio=0.5"]


def write_graph(path: Path) -> Path:
    """Write a random graph of three classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, NODES)
    x = (np.eye(3)[y] + rng.normal(size=(NODES, 3))).astype(np.float32)
    np.savez(path, x=x, y=y, edge_index=rng.integers(0, NODES, (2, 4 * NODES)))
    return path


def timeless(value: Any) -> Any:
    """Leave out of a record what differs between any two runs: times, memory, date."""
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if not key.endswith(TIMES)}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def bits(top: Path) -> dict[str, Any]:
    """Return what must be the same in two runs, by file: weights, metrics, results, details, predictions."""
    readers: dict[str, Callable[[Path], Any]] = {
        ".safetensors": lambda path: hashlib.sha256(path.read_bytes()).hexdigest(),
        ".jsonl": lambda path: [timeless(json.loads(line)) for line in path.read_text().splitlines()],
        ".json": lambda path: timeless(json.loads(path.read_text())),
        ".csv": Path.read_text,
    }
    names = ("model.safetensors", "metrics.jsonl", "result.json", "details.json", "measured.json", "predictions.csv")
    found = [path for name in names for path in sorted(top.rglob(name)) if not path.parent.name.endswith(".part")]
    return {str(path.relative_to(top)): readers[path.suffix](path) for path in found}


def leftovers(disk: Path) -> list[str]:
    """Name the files of processes that were killed or refused: drafts, and what lies in the temporary folder."""
    drafts = [path for path in disk.rglob("*") if path.name.endswith(".part")]
    others = [path for path in (disk / "temp").glob("*") if not path.name.startswith("torch_geometric")]  # not ours
    return [str(path.relative_to(disk)) for path in drafts + others]


def refused_well(ended: Ended) -> bool:
    """Whether a process that did not succeed said so in one sentence."""
    said = ended.sentences
    if ended.code == 0:
        return not said
    return ended.code in (1, 2) and len(said) == 1 and said[0].startswith("topoff: ") and "unexpected" not in said[0]


@dataclass(frozen=True)
class Trial:
    """Run one command with faults, bring it to its end as a user would, and compare it with one that was left alone."""

    machine: Machine
    begin: list[object]  # the command, without --out
    whole: dict[str, Any]  # bits of the run that was left alone
    predict: bool = False  # whether predictions are among them

    @classmethod
    def of(cls, machine: Machine, *begin: object, predict: bool = False) -> tuple[Trial, Ended]:
        """Leave a run alone; return what it is compared by, and how it ended."""
        run, trial = machine.disk / "whole", cls(machine, list(begin), {}, predict)
        ended = machine.run(*begin, "--out", run, count=True)
        if ended.code:
            raise ValueError(f"Expected a run without a fault to end well (got {ended.code} {ended.err}).")
        return replace(trial, whole=trial.bits(run)), ended

    def survive(self, *faults: Fault) -> tuple[str, list[Ended]]:
        """Return what is wrong, if anything, and how the processes ended that had the faults."""
        run, ended = self.machine.disk / "run", list[Ended]()
        self.machine.clear()
        for fault in faults:
            ended.append(self.go_on(run, fault))
            if fault.error and not refused_well(ended[-1]):
                return f"not one sentence: {ended[-1].code} {ended[-1].err}", ended
        last = self.go_on(run)
        if last.code:
            return f"cannot go on: {last.code} {last.err}", ended
        left = [path for path in leftovers(self.machine.disk) if path.startswith("run/")]
        if left:
            return f"left behind: {left}", ended
        found = self.bits(run)
        different = [key for key in self.whole.keys() | found.keys() if found.get(key) != self.whole.get(key)]
        return (f"other bits in {different}" if different else ""), ended

    def go_on(self, run: Path, fault: Fault | None = None) -> Ended:
        """Resume a run where there is something to resume, else begin it."""
        if self.begin[0] == "train" and (run / "config.toml").is_file():
            return self.machine.run("train", "--resume", run, "--quiet", fault=fault)
        return self.machine.run(*self.begin, "--out", run, fault=fault)

    def bits(self, run: Path) -> dict[str, Any]:
        """Return the bits of a finished run."""
        for model in sorted(run.rglob("model.safetensors")) if self.predict else ():
            done = self.machine.run("predict", model.parent, "--out", model.with_name("predictions.csv"), "--quiet")
            if done.code:
                raise ValueError(f"Expected predictions of {model.parent} (got {done.code} {done.err}).")
        return bits(run)
