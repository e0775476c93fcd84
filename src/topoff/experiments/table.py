"""Sum up a comparison from the folders of its runs: a table, as plain values for JSON.

runs/<name>/<method>/seed-<s>/   ordinary runs
runs/<name>/compare.toml         the settings that all share; the first line is the command
runs/<name>/compare.json         the table
runs/<name>/compare.html         the page
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topoff.experiments.jobs import Failure, read_measured
from topoff.methods.registry import METHODS
from topoff.report.page import plain
from topoff.report.read import finite
from topoff.tasks.metrics import LOWER_IS_BETTER
from topoff.training.records import Epoch, Result, Spread, summarize
from topoff.training.run_folder import RunFolder

TABLE, PAGE, SETTINGS = "compare.json", "compare.html", "compare.toml"
RECORDED = ("test", "val", "train", "best_epoch", "epochs", "steps", "epoch_seconds", "preprocess_seconds",
            "train_peak_rss_mb", "peak_rss_mb")  # of a run's result  # fmt: skip
SHARE = 0.99  # of the score of the best method's worst seed: the target, where none is given


def default_target(scores: Mapping[str, Sequence[float | None]], *, metric: str) -> float | None:
    """Return the target: 99 % of the best validation score of the best method's worst seed; none without scores.

    The best method has the best mean; the target is one that it reaches with all its seeds.

    >>> default_target({"full": [0.7, 0.7], "top": [0.9, 0.8]}, metric="accuracy")
    0.792
    """
    best, worst = (min, max) if metric in LOWER_IS_BETTER else (max, min)
    averages = {method: Spread.over(values).mean for method, values in scores.items() if values}
    known = {method: mean for method, mean in averages.items() if finite(mean)}
    if not known:
        return None
    leading = best(known, key=lambda method: known[method])
    least = worst(value for value in scores[leading] if value is not None)
    slack = (1 - SHARE) * abs(least)
    return round(least + slack if metric in LOWER_IS_BETTER else least - slack, 12)


def check_target(target: float, *, metric: str) -> None:
    """Refuse a target that no run can reach, or that every run has reached.

    Raises:
        ValueError: such a score does not exist.

    >>> check_target(75, metric="accuracy")
    Traceback (most recent call last):
    ValueError: Expected --target to be a score that accuracy can have, 0 to 1 (got 75); write 75 % as 0.75.
    """
    least, most = (-math.inf if metric == "r2" else 0.0), (math.inf if metric in LOWER_IS_BETTER else 1.0)
    if math.isfinite(target) and least <= target <= most:
        return
    range_ = "at least 0" if metric in LOWER_IS_BETTER else "at most 1" if metric == "r2" else "0 to 1"
    share = metric not in (*LOWER_IS_BETTER, "r2") and 1 < target <= 100
    remedy = f"write {target:g} % as {target / 100:g}" if share else "choose such a one"
    raise ValueError(f"Expected --target to be a score that {metric} can have, {range_} (got {target:g}); {remedy}.")


@dataclass(frozen=True)
class Finished:
    """Hold what one run left."""

    seed: int
    result: Result
    epochs: list[Epoch]
    measured: dict[str, Any] = field(default_factory=dict)  # gradient error and load


def time_to_target(run: Finished, target: float, *, metric: str) -> tuple[int, float] | None:
    """Return the epoch and the seconds at which a run first reached the target; None where it never did."""
    for row in run.epochs:
        if finite(row.val) and (row.val <= target if metric in LOWER_IS_BETTER else row.val >= target):
            return row.epoch, (run.result.preprocess_seconds or 0.0) + (row.train_seconds or 0.0)
    return None


def read_finished(top: Path, method: str, seeds: Sequence[int]) -> list[Finished]:
    """Read the finished runs of a method, of these seeds."""
    folders = {seed: RunFolder(top / method / f"seed-{seed}") for seed in sorted(seeds)}
    return [
        Finished(seed, folder.result(), folder.metrics(), read_measured(folder))
        for seed, folder in folders.items()
        if folder.finished
    ]


def make_row(
    runs: Sequence[Finished], *, target: float | None, metric: str, failures: Mapping[int, Failure] | None = None
) -> dict[str, Any]:
    """Return the row of a method: means over its seeds as plain numbers, beside them `<name>_std` where there are many.

    A method without a finished run has nothing but its error; one with some has those and the error.
    """
    reasons = {seed: failure.reason for seed, failure in (failures or {}).items()}
    lost = {seed: why for seed, why in reasons.items() if seed not in {run.seed for run in runs}}
    error = "; ".join(f"seed {seed}: {why}" for seed, why in lost.items())
    if not runs:
        shared = set(lost.values())
        return {"error": shared.pop() if len(shared) == 1 else error or "not run"}
    rows = [_values(run, target=target, metric=metric) for run in runs]
    row: dict[str, Any] = {}
    for key, value in rows[0].items():
        spread = Spread.over([values[key] for values in rows])
        row |= {key: spread.mean, f"{key}_std": spread.std} if len(rows) > 1 else {key: value}
    reached = sum(values["epochs_to_target"] is not None for values in rows)
    row["target_reached"] = None if target is None else reached
    row["seeds"] = [run.seed for run in runs]
    row["load"] = [run.measured.get("load") for run in runs]
    row["chosen"] = {str(choice.get("what")): choice.get("value") for choice in runs[0].result.chosen}
    notes = [run.measured.get("note") for run in runs]
    notes += [f"seed {seed}: {why}" for seed, why in reasons.items() if seed not in lost]
    row["notes"] = list(dict.fromkeys(note for note in notes if note))
    return row | ({"error": error} if error else {})


def _values(run: Finished, *, target: float | None, metric: str) -> dict[str, Any]:
    """Return the numbers of one run."""
    result, reached = run.result, None if target is None else time_to_target(run, target, metric=metric)
    return {key: vars(result)[key] for key in RECORDED} | {
        "relative_error": None if result.fidelity is None else 1 - result.fidelity,
        "gradient_error": run.measured.get("gradient_error"),
        "gradient_cosine": run.measured.get("gradient_cosine"),
        "epochs_to_target": reached[0] if reached else None,
        "seconds_to_target": reached[1] if reached else None,
    }


def make_table(
    top: Path,
    *,
    methods: Sequence[str],
    seeds: Sequence[int],
    about: Mapping[str, Any],
    target: float | None = None,
    failures: Mapping[tuple[str, int], Failure] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Sum up the runs in a folder, a row per method; `about` (dataset, model, epochs, command) is recorded as well.

    `target` is the validation score whose time is told, `default_target` where it is not given; `failures` say why runs
    have no result, by method and seed; `own` are the settings that a method does not share with the others.
    """
    runs = {method: read_finished(top, method, seeds) for method in methods}
    models = {method: getattr(METHODS.get(method), "own_model", None) for method in methods}
    first = next((run.result for found in runs.values() for run in found), None)
    metric = first.metric if first else ""
    if target is not None and metric:
        check_target(target, metric=metric)
    if target is None:
        scores = {name: [run.result.val for run in found] for name, found in runs.items() if not models[name]}
        target = default_target(scores, metric=metric)
    rows = {}
    for method, found in runs.items():
        lost = {seed: failure for (name, seed), failure in (failures or {}).items() if name == method}
        row = rows[method] = make_row(found, target=target, metric=metric, failures=lost)
        sized = "ratio" in getattr(METHODS.get(method), "settings", ())  # its batches have a size that can be set
        if sized and 0 < (row.get("steps") or 0) <= (row.get("epochs") or 0):
            row["notes"].append("one step per epoch: all training nodes were in one batch")
        if models[method]:
            row["own_model"] = models[method]
        if own and own.get(method):
            row["own_settings"] = dict(own[method])
    shared = {key: vars(first)[key] if first else None for key in ("nodes", "edges", "features", "versions", "machine")}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    known = {**about, "seeds": list(seeds), "metric": metric or None, "target": target, "date": date}
    return {"methods": rows, **known, **shared, "notes": differences(runs)}


def differences(runs: Mapping[str, Sequence[Finished]]) -> list[str]:
    """Say in what the runs of a comparison differ that should be alike: the graph, the versions, the machine."""
    found: dict[str, dict[str, list[str]]] = {}  # what -> its value -> the runs that have it
    facts = {f"{method}, seed {run.seed}": _facts(run.result) for method in runs for run in runs[method]}
    for what in dict.fromkeys(what for known in facts.values() for what in known):
        for place, known in facts.items():
            found.setdefault(what, {}).setdefault(plain(known.get(what)), []).append(place)
    return [
        f"The runs differ in {what}: {'; '.join(f'{value} ({_some(names)})' for value, names in values.items())}."
        for what, values in found.items()
        if len(values) > 1
    ]


def _facts(result: Result) -> dict[str, Any]:
    """List what should be the same for all runs of a comparison."""
    known: dict[str, Any] = {"the number of nodes": result.nodes, "the number of edges": result.edges}
    known |= {f"the version of {name}": version for name, version in result.versions.items()}
    return known | {f"the machine's {name}": value for name, value in result.machine.items()}


def _some(names: Sequence[str]) -> str:
    """Name a few of many.

    >>> _some(["a", "b", "c", "d"])
    'a; b and 2 more'
    """
    return "; ".join(names) if len(names) <= 3 else f"{'; '.join(names[:2])} and {len(names) - 2} more"


def write_summaries(top: Path, methods: Sequence[str], seeds: Sequence[int], *, command: str) -> None:
    """Write the mean of each method's seeds beside them, as `topoff train --seeds` does: `topoff report` reads it."""
    for method in methods:
        results = [run.result for run in read_finished(top, method, seeds)]
        if results:
            RunFolder(top / method).write("result.json", summarize(results, command=command).json())
