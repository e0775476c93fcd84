"""Read the files in the folder of a run, finished or not, into records that the page and its plots are made of.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (Path(folder) / "metrics.jsonl").write_text('{"epoch": 1, "loss": 1.2, "val": 0.8}')
...     found = read_run(Path(folder))
>>> found.epochs, found.seeds[0].last.val, found.seeds[0].result
(1, 0.8, None)
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeGuard

import numpy as np
from annotated_types import Ge, Le, Len

from topoff.training.records import Epoch, Result, Summary, summarize, validated
from topoff.training.run_folder import RunFolder, Settings

POINTS = 1200  # of one curve, over all seeds: keeps the page small
CLASSES = 50  # that a confusion matrix can show
SPLITS = {"test": "test", "val": "validation", "train": "training"}


@dataclass(frozen=True)
class Confusion:
    """Hold how often each class was taken for each."""

    counts: np.ndarray[Any, Any]  # (true, predicted)
    names: list[str]
    sizes: np.ndarray[Any, Any]  # nodes of each true class, also those taken for a class that has no column
    classes: int  # of the graph: where there are very many, only the largest have a row
    listed: tuple[tuple[str, str, int], ...] = ()  # the most frequent confusions, where some classes have no row

    @property
    def kept(self) -> list[int]:
        """List the classes to draw: all, or the largest of very many."""
        return sorted(np.argsort(-self.sizes, kind="stable")[:CLASSES].tolist())

    def mistakes(self, most: int = 10) -> list[tuple[str, str, int]]:
        """List the most frequent confusions: true class, predicted class, nodes."""
        if self.listed:
            return list(self.listed[:most])
        wrong = self.counts - np.diag(np.diag(self.counts))
        places = [divmod(int(index), len(wrong)) for index in np.argsort(-wrong, axis=None, kind="stable")[:most]]
        return [(self.names[i], self.names[j], int(wrong[i, j])) for i, j in places if wrong[i, j]]


Pair = Annotated[list[Any], Len(2, 2)]
Point = Annotated[list[Annotated[float, Ge(-1e100), Le(1e100)] | None], Len(2, 2)]  # of which an axis can be drawn


@dataclass(frozen=True)
class Details:
    """Say what details.json may hold; all of it may be missing."""

    split: str = ""
    batches: list[dict[str, Any]] = field(default_factory=list)
    degrees: dict[str, list[Any]] = field(default_factory=dict)
    classes: list[Any] = field(default_factory=list)
    per_class: list[dict[str, Any]] = field(default_factory=list)
    layers: list[Pair] = field(default_factory=list)  # a name and its error
    scatter: list[Point] = field(default_factory=list)  # true and predicted values


@dataclass(frozen=True)
class Seed:
    """Hold what one seed left in its folder."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    rows: list[Epoch] = field(default_factory=list)
    result: Result | None = None  # none: it was interrupted
    details: dict[str, Any] = field(default_factory=dict)
    confusion: Confusion | None = None
    notes: tuple[str, ...] = ()

    @property
    def last(self) -> Result:
        """Return the result, or the last measurements of an interrupted seed."""
        keys = (*SPLITS, "fidelity", "certificate", "seconds")
        measured = [(key, vars(row)[key]) for row in self.rows for key in keys]
        found: dict[str, Any] = {key: value for key, value in measured if finite(value)}
        if self.rows:
            epochs, seconds = self.rows[-1].passed, found.get("seconds")
            found |= {"epochs": int(epochs), "epoch_seconds": seconds / epochs if seconds and epochs else None}
        return self.result or Result(**found)

    @property
    def refreshes(self) -> int:
        """Count the refreshes."""
        return sum(row.refreshed for row in self.rows)

    @property
    def batches(self) -> list[dict[str, Any]]:
        """Number the batches."""
        return [{"batch": index} | row for index, row in enumerate(self.details.get("batches") or [], 1)]


@dataclass(frozen=True)
class Run:
    """Hold a run of one or several seeds, and its result (what is known so far of an interrupted one)."""

    seeds: tuple[Seed, ...]
    result: Result | Summary
    config: dict[str, Any]
    command: str
    several: bool
    notes: tuple[str, ...]

    @property
    def regression(self) -> bool:
        """Say whether scores are plain numbers; a run without a result is judged by its scores."""
        if self.result.task:
            return self.result.task == "regression"
        scores = [score for seed in self.seeds for row in seed.rows for score in (row.train, row.val, row.test)]
        return self.metric in ("r2", "rmse", "mae") or any(finite(value) and not 0 <= value <= 1 for value in scores)

    @property
    def points(self) -> int:
        """Say how many points of a curve are drawn, at most."""
        return max(50, POINTS // len(self.seeds))

    @property
    def epochs(self) -> int:
        """Count the epochs of the longest seed."""
        return max(len(seed.rows) for seed in self.seeds)

    @property
    def broken(self) -> int:
        """Count the epochs whose loss is no finite number."""
        return sum(not finite(row.loss) for seed in self.seeds for row in seed.rows)

    @property
    def metric(self) -> str:
        """Name the score."""
        name = str(self.result.metric or self.config.get("metric") or "score")
        return "score" if name == "auto" else name.replace("_", " ")


def read_run(folder: Path) -> Run:
    """Read all files of a run.

    Args:
        folder: of a run of one seed, or of several (with its seed-<s> folders); it may be unfinished.

    Raises:
        ValueError: the folder is no run, or a file in it cannot be read.
    """
    inner = sorted(folder.glob("seed-*/"), key=lambda path: (len(path.name), path.name))  # seed-2 before seed-10
    own = _read_seed(folder, name="0")
    path = folder / "result.json"
    found = RunFolder(folder).read_json(path.name) if path.is_file() else {}
    summary = Summary.of(found, origin=str(path)) if "runs" in found else None
    if not (own.rows or found or own.config or own.notes or inner):
        raise ValueError(
            f"Expected run to be a folder with metrics.jsonl, result.json or seed-<s> folders (got {folder}); "
            "give the folder that 'topoff train' wrote."
        )
    if not inner and summary is None:
        return _assembled([own], own, result=own.last, notes=_notes(own, "This run"), several=False)
    seeds = [_read_seed(path, name=path.name.removeprefix("seed-")) for path in inner]
    if summary is not None:
        seeds = seeds or [Seed("" if run.seed is None else str(run.seed), result=run) for run in summary.runs]
    notes = [note for seed in seeds for note in _notes(seed, f"Seed {seed.name}")]
    if summary is None:
        finished = sum(seed.result is not None for seed in seeds)
        count = f"{finished} of the {len(seeds)} seeds that it began"
        notes.insert(0, f"This run was interrupted, or is still running: {count} are finished.")
        known = [seed.last for seed in seeds if seed.result] or [seed.last for seed in seeds]
        summary = summarize(known, command=known[0].command, partial=True)
    return _assembled(seeds, own, result=summary, notes=notes, several=True)


def finite(value: object) -> TypeGuard[float]:
    """Say whether a value is a number that can be shown.

    >>> finite(0.5), finite(math.nan), finite(True), finite(None)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _assembled(seeds: list[Seed], own: Seed, *, result: Result | Summary, notes: list[str], several: bool) -> Run:
    """Put a run together; what its result does not name, its settings do."""
    config = own.config or seeds[0].config
    command = result.command or own.command or seeds[0].command
    named: dict[str, Any] = {
        key: str(vars(result)[key] or config.get(key) or "") for key in ("dataset", "model", "method")
    }
    return Run(tuple(seeds), dataclasses.replace(result, **named), config, command, several, tuple(notes))


def _notes(seed: Seed, who: str) -> list[str]:
    """Say what is missing of a seed."""
    when = f"after epoch {seed.rows[-1].epoch}" if seed.rows else "before its first epoch ended"
    missing = f"{who} was interrupted {when}, or is still running: without result.json, the last numbers are shown."
    return [*([] if seed.result else [missing]), *seed.notes]


def _read_seed(folder: Path, *, name: str) -> Seed:
    """Read the files of one seed, each of which may be missing."""
    run, metrics = RunFolder(folder), RunFolder(folder).read_metrics()
    cut = (f"The last line of {folder.name}/metrics.jsonl was cut off and is left out.",) if metrics.cut else ()
    settings = run.settings() if (folder / "config.toml").is_file() else Settings({}, "", {})
    several = run.finished and "runs" in run.read_json("result.json")  # a summary: see `read_run`
    result = run.result() if run.finished and not several else None
    details = run.read_json("details.json") if (folder / "details.json").is_file() else {}
    validated(Details, details, origin=str(folder / "details.json"))
    confusion = _confusion(details, path=folder / "details.json")
    name = name if result is None or result.seed is None else str(result.seed)
    return Seed(name, settings.keys, settings.command, metrics.epochs, result, details, confusion, cut)


def _confusion(details: dict[str, Any], *, path: Path) -> Confusion | None:
    """Take the confusion matrix out of the details, if there is one."""
    if not details.get("confusion"):
        return None
    try:
        counts = np.array(details["confusion"], dtype=float)
    except (TypeError, ValueError, OverflowError):  # ragged, or no numbers
        counts = np.zeros(0)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not np.isfinite(counts).all():
        came = json.dumps(details["confusion"])[:40]
        raise ValueError(f"Expected confusion in {path} to be a square table of counts (got {came}); run again.")
    if not counts.any():  # there were no test nodes
        return None
    known = [str(name) for name in details.get("classes") or []]
    confused = details.get("confused")
    if confused is None:
        names = known if len(known) == len(counts) else [str(number) for number in range(len(counts))]
        return Confusion(counts, names, counts.sum(1), len(counts))
    try:
        sizes = np.array(details["sizes"], dtype=float)
        listed = tuple((known[true], known[taken], int(times)) for true, taken, times in details["mistakes"])
        names = [known[one] for one in confused]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(
            f"Expected confused, sizes and mistakes in {path} to be about its classes (got others); run again."
        ) from error
    if len(names) != len(counts) or sizes.shape != (len(counts),):
        raise ValueError(
            f"Expected confused and sizes in {path} to have {len(counts)} entries (got {len(names)}); run again."
        )
    return Confusion(counts, names, sizes, len(known), listed)
