"""Tune every method by the same small grid: learning rate x batch size x one setting of its own, on a seed apart.

>>> from topoff.training.config import make_config
>>> config = make_config({"dataset": "x", "method": "ns", "ratio": 0.1, "fanout": 10, "lr": 0.01})
>>> axes_of(config)
{'lr': [0.01, 0.005, 0.02], 'ratio': [0.1, 0.05], 'fanout': [10, 5]}
>>> len(grid_of(config)), grid_of(config)[0]
(12, {'lr': 0.01, 'ratio': 0.1, 'fanout': 10})
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topoff.experiments.jobs import Job, Watcher
from topoff.experiments.processes import train_all
from topoff.methods.registry import METHODS
from topoff.report.read import finite
from topoff.tasks.metrics import LOWER_IS_BETTER
from topoff.training.config import EPOCHS, LARGEST_SEED, Config, make_config
from topoff.training.run_folder import RunFolder

RATES, SIZES = (1.0, 0.5, 2.0), (1.0, 0.5)  # factors of what a method has by default, which comes first
OWN = ("rank", "mix", "fanout", "walk_length")  # the first of them that a method reads is its own
PART = 3  # a trial has this part of the length of a run
APART = 1000  # from the largest seed that is reported to the one that is tuned on
FOLDER = "tune"


@dataclass(frozen=True)
class Tuned:
    """Say what was tried for a method, and what was best on the validation nodes."""

    seed: int
    grid: dict[str, list[Any]]  # the values of every setting
    chosen: dict[str, Any]
    val: float  # the best validation score
    runs: int  # that came to an end
    seconds: float  # that all of them took, evaluation included


def axes_of(config: Config) -> dict[str, list[Any]]:
    """Return the values to try of each setting, around those of a config that leaves nothing open."""
    read = METHODS[config.method].settings
    own = [key for key in OWN if key in read][:1]
    axes = {"lr": RATES} | dict.fromkeys([key for key in ("ratio", *own) if key in read], SIZES)
    values = {key: [_scaled(getattr(config, key), factor) for factor in factors] for key, factors in axes.items()}
    return {key: list(dict.fromkeys(found)) for key, found in values.items() if None not in found}


def _scaled(value: Any, factor: float) -> Any:
    """Multiply a setting; one that counts stays a number of at least 1, and what is no number is None."""
    if not finite(value):
        return None
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def grid_of(config: Config) -> list[dict[str, Any]]:
    """Return all combinations, that of the config itself first."""
    axes = axes_of(config)
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def seed_apart(seeds: Sequence[int]) -> int:
    """Return a seed that is not reported.

    >>> seed_apart([0, 4]), seed_apart([LARGEST_SEED, 0])
    (1004, 1)
    """
    after = max(seeds) + APART
    return after if after <= LARGEST_SEED else next(seed for seed in itertools.count() if seed not in seeds)


def trial_of(config: Config, *, seed: int) -> Config:
    """Return the settings of a shorter run with a seed of its own.

    >>> trial = trial_of(make_config({"dataset": "x", "seconds": 30}), seed=7)
    >>> trial.seconds, trial.seed
    (10.0, 7)
    """
    if config.seconds is not None:
        return make_config(vars(config), {"seconds": config.seconds / PART, "seed": seed})
    return make_config(vars(config), {"epochs": math.ceil((config.epochs or EPOCHS) / PART), "seed": seed})


def tune(jobs: Sequence[Job], top: Path, *, watcher: Watcher) -> dict[str, Tuned]:
    """Try the grid of every method, whose jobs are given; return what was best, of those that could be trained.

    The first trial of a method has its defaults, which are chosen from the graph; the others are made around them. What
    had finished earlier is not run again.

    Raises:
        ValueError: no method can be trained.
    """
    seed = seed_apart([job.config.seed for job in jobs])
    shared: dict[str, Any] = {"gradients": False, "trial": "tuning: as it is"}
    firsts = [
        replace(job, config=trial_of(job.config, seed=seed), folder=top / FOLDER / name / "0", **shared)
        for name, job in {job.config.method: job for job in jobs}.items()
    ]
    train_all(firsts, watcher=watcher)
    trials = {first.config.method: _trials(first) for first in firsts if RunFolder(first.folder).finished}
    train_all([job for found in trials.values() for job in found[1:]], watcher=watcher)
    best = {method: _best(found) for method, found in trials.items()}
    return {method: tuned for method, tuned in best.items() if tuned is not None}


def _trials(first: Job) -> list[Job]:
    """Return the jobs of a method's grid; the first one has finished."""
    found = [first]
    for number, point in enumerate(grid_of(RunFolder(first.folder).settings().config)[1:], 1):
        words = "tuning: " + ", ".join(f"{key} = {value:g}" for key, value in point.items())
        config, folder = make_config(vars(first.config), point), first.folder.with_name(str(number))
        found.append(replace(first, config=config, folder=folder, trial=words))
    return found


def _best(jobs: Sequence[Job]) -> Tuned | None:
    """Choose the trial with the best validation score, the first of those that are alike; none without a score."""
    config = RunFolder(jobs[0].folder).settings().config
    folders = [RunFolder(job.folder) for job in jobs]
    known = {number: folder.result() for number, folder in enumerate(folders) if folder.finished}
    scored = {number: result.val for number, result in known.items() if finite(result.val)}
    if not scored:
        return None
    lower = next(iter(known.values())).metric in LOWER_IS_BETTER
    best = (min if lower else max)(scored, key=lambda number: scored[number])
    seconds = sum(result.seconds or 0.0 for result in known.values())
    return Tuned(config.seed, axes_of(config), grid_of(config)[best], scored[best], len(known), round(seconds, 1))
