"""The records that a run leaves, one reader and one writer each: a line of metrics.jsonl, and result.json.

A key that a file lacks, since it was measured by an older version or not at all, is None here. Nothing imports torch.

>>> Epoch.of({"epoch": 1, "loss": 0.5, "lr": 0.01, "refreshed": False}).line()
{'epoch': 1, 'loss': 0.5, 'lr': 0.01, 'refreshed': False, 'seconds': None, 'train_seconds': None}
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, get_type_hints

from topoff.data.layout import SPLITS
from topoff.machine.json_objects import checksum

MEASURED = (*SPLITS, "fidelity", "certificate")  # in a line of an epoch that was evaluated
AVERAGED = (*SPLITS, "epoch_seconds", "preprocess_seconds", "seconds", "peak_rss_mb", "train_peak_rss_mb", "fidelity",
            "epochs")  # over seeds  # fmt: skip


Kind = TypeVar("Kind")
TRUSTED = ("task", "outputs", "metric", "center", "scale", "classes", "features", "data_hash")  # by who predicts


def validated(kind: type[Kind], found: Mapping[str, Any], *, origin: str, nulls: bool = False) -> Kind:
    """Make a record of an object from a file, called `origin` in errors; what is no field of it is left out.

    What is null has the field's default, unless `nulls` are values.

    Raises:
        ValueError: a value is of another type, or one is missing.

    >>> validated(Epoch, {"epoch": "x"}, origin="line 3 of metrics.jsonl")
    Traceback (most recent call last):
    ValueError: Expected 'epoch' in line 3 of metrics.jsonl to be a valid integer (got 'x'); restore it, or train again.
    """
    from pydantic import ValidationError  # late: `--help` does without

    known = _known(kind, found)
    if nulls:
        known = {item.name: found.get(item.name) for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name, adapter in _adapters(kind).items():  # type: ignore[arg-type]
        try:
            adapter.validate_python(known.get(name), strict=True) if name in known else None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, (name, *first["loc"])))
            wish = first["msg"].removeprefix("Input should be ").partition(", ")[0]
            came = f"{first['input']!r:.60}"
            raise ValueError(
                f"Expected '{place}' in {origin} to be {wish} (got {came}); restore it, or train again."
            ) from error
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        if item.name not in known and item.default is item.default_factory is dataclasses.MISSING:
            raise ValueError(f"Expected '{item.name}' in {origin} (got nothing); restore it, or train again.")
    return kind(**known)


@functools.cache
def _adapters(kind: Hashable) -> dict[str, Any]:
    """Make what validates the fields of a kind of record."""
    from pydantic import TypeAdapter

    return {name: TypeAdapter(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def _known(kind: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Take the fields of a record out of an object; what is null has the field's default."""
    return {item.name: found[item.name] for item in dataclasses.fields(kind) if found.get(item.name) is not None}


@dataclass(frozen=True)
class Epoch:
    """Hold a line of metrics.jsonl; the scores are in it where the epoch was evaluated.

    A run by seconds is also evaluated, and ends, in the middle of an epoch: such a line has its `share`.

    >>> Epoch(3).passed, Epoch(3, share=0.25).passed
    (3, 2.25)
    """

    epoch: int  # from 1
    loss: float | None = None  # mean over the steps
    lr: float | None = None
    refreshed: bool = False  # whether the method estimated anew in this epoch
    train: float | None = None  # exact scores; None for an empty split
    val: float | None = None
    test: float | None = None
    fidelity: float | None = None  # of the outputs that training sees
    certificate: float | None = None
    seconds: float | None = None  # since the preparation
    train_seconds: float | None = None  # of steps and refreshes
    evaluated: bool = False  # in the file: whether the line has scores
    share: float = 1.0  # of the epoch that is done; in the file where it is not all of it

    @property
    def place(self) -> tuple[int, float]:
        """The epochs that are done, and the share of the next one: what the lines are sorted by."""
        return (self.epoch, 0.0) if self.share == 1 else (self.epoch - 1, self.share)

    @property
    def passed(self) -> float:
        """The epochs that are done, as one number."""
        return self.epoch if self.share == 1 else self.epoch - 1 + self.share

    @classmethod
    def of(cls, line: Mapping[str, Any], *, origin: str = "the line") -> Self:
        """Read a line."""
        measured = {"evaluated": any(key in line for key in MEASURED)}
        return validated(cls, {**line, **measured}, origin=origin)

    def line(self) -> dict[str, Any]:
        """Return the line, as it is written."""
        left = {"evaluated", *(() if self.evaluated else MEASURED), *(("share",) if self.share == 1 else ())}
        return {key: value for key, value in vars(self).items() if key not in left}


@dataclass(frozen=True)
class Record:
    """Hold an object of a JSON file; the fields are its keys, in their order."""

    @classmethod
    def of(cls, found: Mapping[str, Any], *, origin: str = "the record") -> Self:
        """Read the object; `origin` names it in errors."""
        return validated(cls, found, origin=origin)

    def json(self) -> dict[str, Any]:
        """Return the object, as it is written."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Result(Record):
    """Hold result.json of a run of one seed."""

    train: float | None = None  # exact scores at the best validation score; None for an empty split
    val: float | None = None
    test: float | None = None
    metric: str = ""
    task: str = ""  # a key of tasks.task.METRICS_OF
    outputs: int = 0  # columns of the model's output
    center: float = 0.0  # mean and standard deviation of the training targets, of a regression
    scale: float = 1.0
    classes: list[str] = field(default_factory=list)
    best_epoch: int | None = None
    epochs: int | None = None  # that were run
    steps: int | None = None
    seconds: float | None = None  # wall-clock, preparation and evaluation included
    preprocess_seconds: float | None = None
    epoch_seconds: float | None = None  # of steps and refreshes
    peak_rss_mb: float | None = None  # of the process
    train_peak_rss_mb: float | None = None  # before the first evaluation
    fidelity: float | None = None
    certificate: float | None = None
    processes: int | None = None  # that trained together, where there were several
    bytes_per_epoch: int | None = None  # that passed between them for the steps of an epoch
    bytes_per_refresh: int | None = None  # for an exact forward, its basis and its outputs
    rivals_bytes_per_epoch: dict[str, int] | None = None  # that other methods would send (see training/traffic)
    parameters: int | None = None
    dataset: str = ""
    stand_in: str | None = None  # what a generated graph stands in for
    nodes: int | None = None
    edges: int | None = None
    features: int | None = None
    data_hash: str = ""  # of the graph's content
    model: str = ""
    method: str = ""
    seed: int | None = None
    stopped_early: bool = False
    command: str = ""
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    chosen: list[dict[str, Any]] = field(default_factory=list)  # what, value and why


@dataclass(frozen=True)
class Spread:
    """Hold the mean and the unbiased standard deviation of a number over seeds."""

    mean: float | None
    std: float | None

    @classmethod
    def over(cls, values: Sequence[float | None]) -> Self:
        """Return those of some values: a deviation of 0 for one, none where a value is missing.

        >>> Spread.over([0.5, 0.7]), Spread.over([0.5, None])
        (Spread(mean=0.6, std=0.14142135623730948), Spread(mean=None, std=None))
        """
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return cls(None, None)
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0)


@dataclass(frozen=True)
class Summary(Record):
    """Hold result.json of a run of several seeds."""

    metric: str = ""  # to `chosen`: of the first seed
    task: str = ""
    dataset: str = ""
    stand_in: str | None = None  # what a generated graph stands in for
    nodes: int | None = None
    edges: int | None = None
    features: int | None = None
    model: str = ""
    method: str = ""
    parameters: int | None = None
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    chosen: list[dict[str, Any]] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)
    train: Spread | None = None
    val: Spread | None = None
    test: Spread | None = None
    epoch_seconds: Spread | None = None
    preprocess_seconds: Spread | None = None
    seconds: Spread | None = None
    peak_rss_mb: Spread | None = None
    train_peak_rss_mb: Spread | None = None
    fidelity: Spread | None = None
    epochs: Spread | None = None
    command: str = ""
    runs: list[Result] = field(default_factory=list)

    @classmethod
    def of(cls, found: Mapping[str, Any], *, origin: str = "the record") -> Self:
        """Read the object, and the records inside it."""
        found = dict(found)
        for key in AVERAGED:
            if isinstance(found.get(key), dict):
                found[key] = validated(Spread, found[key], origin=f"'{key}' in {origin}", nulls=True)
        if isinstance(found.get("runs"), list):
            runs = [(f"'runs' in {origin}", run) for run in found["runs"]]
            found["runs"] = [Result.of(run, origin=where) if isinstance(run, dict) else run for where, run in runs]
        return super().of(found, origin=origin)


def seal_of(result: Result, encoding: Mapping[str, Any] | None) -> str:
    """Return the checksum of what a prediction depends on besides the weights."""
    return checksum({**{key: vars(result)[key] for key in TRUSTED}, "encoding": encoding})


def summarize(results: Sequence[Result], *, command: str, partial: bool = False) -> Summary:
    """Sum up the results of several seeds; where they are `partial`, over the seeds that have a number.

    >>> summarize([Result(test=0.5, seed=0), Result(test=0.7, seed=1)], command="topoff train x").test
    Spread(mean=0.6, std=0.14142135623730948)
    """
    rows = [vars(result) for result in results]
    spreads: dict[str, Spread | None] = {}
    for key in AVERAGED:
        values = [row[key] for row in rows if not partial or row[key] is not None]
        spreads[key] = Spread.over(values) if values else None
    first = {key: value for key, value in _known(Summary, rows[0]).items() if key not in AVERAGED}
    more: dict[str, Any] = {"seeds": [result.seed for result in results], "command": command, "runs": list(results)}
    return Summary(**first | spreads | more)
