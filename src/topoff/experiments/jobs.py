"""What a comparison trains: jobs, one of a method and a seed, from the words of the user; and who hears of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topoff.methods.registry import METHODS
from topoff.training.config import Config, make_config, nearest
from topoff.training.listener import Listener
from topoff.training.run_folder import RunFolder

NUMBER = (int, float)
MEASURED = "measured.json"  # of a run: its gradient error, and the load of the machine
# Else nothing could be compared:
SHARED = ("dataset", "root", "split", "row_normalize", "standardize", "metric", "seed", "method", "epochs", "seconds")


@dataclass(frozen=True)
class Job:
    """Say what one process trains."""

    config: Config  # of one method and one seed; it may leave things open
    folder: Path
    command: str
    gradients: bool = True  # measure the gradient error in the end
    place: str = "."  # where the process works: relative paths are meant from there
    trust: bool = False  # whether the graph's files may run code
    trial: str = ""  # what is tried, in words

    @property
    def name(self) -> str:
        """Name the job for people."""
        return f"{self.config.method}, {self.trial or f'seed {self.config.seed}'}"

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do; a gradient that was left out can be measured later."""
        wanted = "gradient_error" if self.gradients else "load"
        return RunFolder(self.folder).finished and wanted in read_measured(RunFolder(self.folder))


def read_measured(folder: RunFolder) -> dict[str, Any]:
    """Read what was measured of a run besides its result: its gradient error, the load; nothing where it was not.

    Raises:
        ValueError: the file holds something else.
    """
    path = folder.path / MEASURED
    found = folder.read_json(MEASURED) if path.is_file() else {}
    for key, kinds in (
        ("gradient_error", NUMBER),
        ("gradient_cosine", NUMBER),
        ("gradient_noise", NUMBER),
        ("busy", NUMBER),
        ("note", str),
        ("load", list),
    ):
        value = found.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise ValueError(f"Expected {path} to hold what was measured (got {value!r} as {key}); remove the file.")
    return found


@dataclass(frozen=True)
class Failure:
    """Say why a job left no result."""

    reason: str
    refused: bool = False  # before the first step, because of the model or the graph: another seed would not help


class Watcher(Listener):
    """Hear what happens in a comparison, besides what happens in a training; every method may be overridden."""

    def started(self, job: Job, number: int, total: int) -> None:
        """Hear that a job begins: its number, from 1, of how many."""

    def kept(self, job: Job, number: int, total: int) -> None:
        """Hear of a job that had finished earlier."""

    def skipped(self, jobs: Sequence[Job]) -> None:
        """Hear of jobs of a method that are not tried, since it refused another seed."""

    def knows(self, metric: str, epochs: int | None) -> None:
        """Hear how the job that began is scored, and how many epochs it has; None where seconds end it."""

    def warned(self, text: str) -> None:
        """Hear a warning."""

    def ended(self, job: Job, failure: Failure | None) -> None:
        """Hear that a job has ended."""


def parse_methods(text: str) -> list[str]:
    """Read names of methods, comma-separated, or "all".

    Raises:
        ValueError: an unknown name, with the nearest one, or a name that stands twice.

    >>> parse_methods("full,tpo")
    Traceback (most recent call last):
    ValueError: Expected --methods to be 'all' or names of methods (got 'tpo'); did you mean 'top'?
    """
    if text.strip() == "all":
        return list(METHODS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METHODS:
            remedy = nearest(name, METHODS, what="methods")
            raise ValueError(f"Expected --methods to be 'all' or names of methods (got '{name}'); {remedy}")
        if names.count(name) > 1:
            raise ValueError(f"Expected --methods to name each method once (got '{name}' twice).")
    return names


def split_settings(pairs: dict[str, Any], methods: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Part settings of all methods from those of one, as in `gas.ratio`.

    Raises:
        ValueError: the name before the dot is none of the methods, the setting must be the same for all, or it is the
            method itself.

    >>> split_settings({"lr": 0.1, "top.rank": 8}, ["top", "full"])
    ({'lr': 0.1}, {'top': {'rank': 8}, 'full': {}})
    """
    shared: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for key, value in pairs.items():
        method, dot, setting = key.partition(".")
        if key == "method":
            raise ValueError(f"Expected the methods as --methods (got --set method={value}); leave it out.")
        if not dot:
            shared[key] = value
        elif method in own and setting in SHARED:
            raise ValueError(
                f"Expected --set method.key=value to leave alone what all methods share (got '{key}'); a method has no "
                f"{', '.join(SHARED[:-1])} or {SHARED[-1]} of its own."
            )
        elif method in own:
            own[method][setting] = value
        else:
            raise ValueError(
                f"Expected --set to be key=value or method.key=value (got '{key}'); the methods compared are "
                f"{', '.join(methods)}."
            )
    return shared, own


def config_of(method: str, seed: int, *, base: dict[str, Any], own: dict[str, Any]) -> Config:
    """Return the settings of one method and seed: what all share, and what the method alone was given."""
    return make_config(base, own, {"method": method, "seed": seed})
