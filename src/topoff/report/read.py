"""Read the files in the folder of a run, finished or not, into records that the page and its plots are made of.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (Path(folder) / "metrics.jsonl").write_text('{"epoch": 1, "loss": 1.2, "val": 0.8}')
...     found = read_run(Path(folder))
>>> found.epochs, found.seeds[0].last["val"], found.seeds[0].result
(1, 0.8, None)
"""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

POINTS = 1200  # of one curve, over all seeds: keeps the page small
CLASSES = 50  # that a confusion matrix can show
SPLITS = {"test": "test", "val": "validation", "train": "training"}
SUMMARISED = (*SPLITS, "epoch_seconds", "preprocess_seconds", "seconds", "peak_rss_mb", "fidelity", "epochs")


@dataclass(frozen=True)
class Confusion:
    """Hold how often each class was taken for each."""

    counts: np.ndarray[Any, Any]  # (true, predicted)
    names: list[str]

    @property
    def kept(self) -> list[int]:
        """List the classes to draw: all, or the largest of very many."""
        order = np.argsort(-self.counts.sum(1), kind="stable")[:CLASSES]
        return sorted(int(index) for index in order)

    def mistakes(self, most: int = 10) -> list[tuple[str, str, int]]:
        """List the most frequent confusions: true class, predicted class, nodes."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        places = [divmod(int(index), len(self.names)) for index in order]
        return [
            (self.names[row], self.names[column], int(wrong[row, column]))
            for row, column in places
            if wrong[row, column]
        ]


@dataclass(frozen=True)
class Seed:
    """Hold what one seed left in its folder."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)  # one per epoch
    result: dict[str, Any] | None = None  # none: it was interrupted
    details: dict[str, Any] = field(default_factory=dict)
    confusion: Confusion | None = None
    notes: tuple[str, ...] = ()

    @property
    def last(self) -> dict[str, Any]:
        """Return the result, or the last measurements of an interrupted seed."""
        return self.result or _last(self.rows)

    @property
    def refreshes(self) -> int:
        """Count the refreshes."""
        return sum(bool(row.get("refreshed")) for row in self.rows)

    @property
    def batches(self) -> list[dict[str, Any]]:
        """Number the batches."""
        return [{"batch": index} | row for index, row in enumerate(self.details.get("batches") or [], 1)]


@dataclass(frozen=True)
class Run:
    """Hold a run of one or several seeds, and its result (what is known so far of an interrupted one)."""

    seeds: tuple[Seed, ...]
    result: dict[str, Any]
    config: dict[str, Any]
    command: str
    several: bool
    notes: tuple[str, ...]

    @property
    def regression(self) -> bool:
        """Say whether scores are plain numbers; a run without a result is judged by its scores."""
        if "task" in self.result:
            return bool(self.result["task"] == "regression")
        scores = [row.get(split) for seed in self.seeds for row in seed.rows for split in SPLITS]
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
        return sum("loss" in row and not finite(row["loss"]) for seed in self.seeds for row in seed.rows)

    @property
    def metric(self) -> str:
        """Name the score."""
        name = str(self.result.get("metric") or self.config.get("metric") or "score")
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
    if not (own.rows or own.result or own.config or own.notes or inner):
        raise ValueError(
            f"Expected run to be a folder with metrics.jsonl, result.json or seed-<s> folders (got {folder}); "
            "give the folder that 'topoff train' wrote."
        )
    several = bool(inner) or "runs" in (own.result or {})
    if not several:
        return _assembled([own], own, notes=_notes(own, "This run"), several=False)
    seeds = [_read_seed(path, name=path.name.removeprefix("seed-")) for path in inner]
    seeds = seeds or [Seed(str(result.get("seed", "")), result=result) for result in (own.result or {})["runs"]]
    notes = [note for seed in seeds for note in _notes(seed, f"Seed {seed.name}")]
    if own.result is None:
        finished = sum(seed.result is not None for seed in seeds)
        count = f"{finished} of the {len(seeds)} seeds that it began"
        notes.insert(0, f"This run was interrupted, or still goes on: {count} are finished.")
    return _assembled(seeds, own, notes=notes, several=True)


def finite(value: object) -> TypeGuard[float]:
    """Say whether a value is a number that can be shown.

    >>> finite(0.5), finite(math.nan), finite(True), finite(None)
    (True, False, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _assembled(seeds: list[Seed], own: Seed, *, notes: list[str], several: bool) -> Run:
    """Put a run together; where its own result is missing, from what its seeds have."""
    single = [seed.last for seed in seeds if seed.result] or [seed.last for seed in seeds]
    result = own.result or (_summary(single) if several else single[0])
    config = own.config or seeds[0].config
    command = str(result.get("command") or own.command or seeds[0].command)
    named = {key: result.get(key) or config.get(key) or "" for key in ("dataset", "model", "method")}
    return Run(tuple(seeds), result | named, config, command, several, tuple(notes))


def _notes(seed: Seed, who: str) -> list[str]:
    """Say what is missing of a seed."""
    when = f"after epoch {seed.rows[-1]['epoch']}" if seed.rows else "before its first epoch ended"
    missing = f"{who} was interrupted {when}, or still goes on: without result.json, the numbers are the last measured."
    return [*([] if seed.result else [missing]), *seed.notes]


def _last(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Collect the last measurement of everything, in the form of a result."""
    keys = (*SPLITS, "fidelity", "certificate", "seconds")
    found = {key: row[key] for row in rows for key in keys if finite(row.get(key))}
    if rows:
        found["epochs"] = rows[-1]["epoch"]
        found["epoch_seconds"] = (
            found["seconds"] / found["epochs"] if found.get("seconds") and found["epochs"] else None
        )
    return found


def _summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Give mean and unbiased standard deviation of every number over seeds; the rest is that of the first."""
    found = {
        key: value for key, value in results[0].items() if key not in ("best_epoch", "certificate", "steps", "seed")
    }
    for key in SUMMARISED:
        values = [result[key] for result in results if finite(result.get(key))]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found[key] = {"mean": statistics.fmean(values), "std": spread} if values else None
    return found


def _read_seed(folder: Path, *, name: str) -> Seed:
    """Read the files of one seed, each of which may be missing."""
    rows, notes = _read_metrics(folder / "metrics.jsonl")
    config, command = _read_config(folder / "config.toml")
    result, details = (_read_object(folder / file) for file in ("result.json", "details.json"))
    confusion = _confusion(details or {}, path=folder / "details.json")
    return Seed(str((result or {}).get("seed", name)), config, command, rows, result, details or {}, confusion, notes)


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Read one object per line and epoch; a last line that was cut off is dropped, with a note."""
    rows: list[dict[str, Any]] = []
    lines = [(number, line) for number, line in enumerate(_bytes(path).split(b"\n"), 1) if line.strip()]
    for number, line in lines:
        try:
            row = _parse(line, path=path, line=number)
        except ValueError:
            if number < lines[-1][0]:
                raise
            return rows, (f"The last line of {path.parent.name}/{path.name} was cut off and is left out.",)
        epoch = row.get("epoch")
        if not isinstance(epoch, int):
            raise ValueError(f"Expected {path} to give each line an epoch (got {epoch!r} in line {number}); repair it.")
        while rows and rows[-1]["epoch"] >= epoch:  # a resumed run repeats the epochs after its checkpoint
            rows.pop()
        rows.append(row)
    return rows, ()


def _read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no file."""
    return _parse(_bytes(path), path=path) if path.exists() else None


def _parse(text: bytes, *, path: Path, line: int = 1) -> dict[str, Any]:
    """Parse a JSON object that starts in some line of a file."""
    try:
        found = json.loads(text.decode())
    except json.JSONDecodeError as error:
        reason, line = error.msg, line + error.lineno - 1
    except UnicodeDecodeError as error:
        reason, line = "bytes that are not UTF-8", line + text.count(b"\n", 0, error.start)
    else:
        if isinstance(found, dict):
            return found
        reason = f"a {type(found).__name__}"
    raise ValueError(f"Expected {path} to hold a JSON object (got {reason} in line {line}); repair it or run again.")


def _read_config(path: Path) -> tuple[dict[str, Any], str]:
    """Read the settings, and the command from the comment in the first line."""
    try:
        text = _bytes(path).decode()
        config = tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"Expected {path} to hold TOML (got {error}); repair it or run again.") from error
    return config, text.partition("\n")[0].removeprefix("#").strip() if text.startswith("#") else ""


def _bytes(path: Path) -> bytes:
    """Read a file; nothing where there is none."""
    return path.read_bytes() if path.is_file() else b""


def _confusion(details: dict[str, Any], *, path: Path) -> Confusion | None:
    """Take the confusion matrix out of the details, if there is one."""
    if not details.get("confusion"):
        return None
    try:
        counts = np.array(details["confusion"], dtype=float)
    except (TypeError, ValueError):  # ragged, or no numbers
        counts = np.zeros(0)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not np.isfinite(counts).all():
        came = json.dumps(details["confusion"])[:40]
        raise ValueError(f"Expected confusion in {path} to be a square table of counts (got {came}); run again.")
    if not counts.any():  # there were no test nodes
        return None
    known = details.get("classes") or []
    names = [str(name) for name in (known if len(known) == len(counts) else range(len(counts)))]
    return Confusion(counts, names)
