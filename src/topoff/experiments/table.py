"""Sum up a comparison from the folders of its runs: a table, as plain values for JSON.

runs/<name>/<method>/seed-<s>/   ordinary runs
runs/<name>/compare.toml         the settings that all share; the first line is the command
runs/<name>/compare.json         the table
runs/<name>/compare.html         the page
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topoff.experiments.jobs import Failure, read_measured
from topoff.experiments.others import MANY
from topoff.experiments.paired import paired
from topoff.experiments.targets import SHARES, USUAL, Reference, check_target, default_target, reference_of
from topoff.methods.registry import METHODS
from topoff.report.page import plain
from topoff.report.read import finite
from topoff.tasks.metrics import LOWER_IS_BETTER
from topoff.training.records import Epoch, Result, Spread, summarize
from topoff.training.run_folder import RunFolder

if TYPE_CHECKING:
    from topoff.experiments.tune import Tuned

TABLE, PAGE, SETTINGS = "compare.json", "compare.html", "compare.toml"
RECORDED = ("test", "val", "train", "best_epoch", "epochs", "steps", "epoch_seconds", "preprocess_seconds",
            "train_peak_rss_mb", "peak_rss_mb")  # of a run's result  # fmt: skip
GRAPH = ("stand_in", "nodes", "edges", "features", "versions", "machine")  # what all runs share


Goal = Mapping[int, float | None] | float | None  # a score, or one for every seed


@dataclass(frozen=True)
class Finished:
    """Hold what one run left."""

    seed: int
    result: Result
    epochs: list[Epoch]
    measured: dict[str, Any] = field(default_factory=dict)  # gradient error and load


def time_to_target(run: Finished, target: Goal, *, metric: str) -> tuple[float, float] | None:
    """Return the epochs and the seconds after which a run first reached the target; None where it never did."""
    goal = target.get(run.seed) if isinstance(target, Mapping) else target
    if goal is None:
        return None
    for row in run.epochs:
        if finite(row.val) and (row.val <= goal if metric in LOWER_IS_BETTER else row.val >= goal):
            return row.passed, (run.result.preprocess_seconds or 0.0) + (row.train_seconds or 0.0)
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
    runs: Sequence[Finished],
    *,
    target: Goal,
    metric: str,
    failures: Mapping[int, Failure] | None = None,
    targets: Mapping[str, Goal] | None = None,
    censored: bool = False,
) -> dict[str, Any]:
    """Return the row of a method: means over its seeds as plain numbers, beside them `<name>_std` where there are many.

    A method without a finished run has nothing but its error; one with some has those and the error. The time to the
    target of a method that does not reach it with all seeds is unknown, or, where runs are `censored` by the clock, the
    mean over those that do; `target_reached` counts them. `targets` are more of them, by name: `seconds_to` has the
    means over the seeds that reach each, `reached` counts those.
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
        partial = censored and key.endswith("_to_target")
        spread = _mean_known([values[key] for values in rows]) if partial else Spread.over([v[key] for v in rows])
        row |= {key: spread.mean, f"{key}_std": spread.std} if len(rows) > 1 else {key: value}
    reached = sum(values["epochs_to_target"] is not None for values in rows)
    row["target_reached"] = None if target is None else reached
    row |= _times_to(runs, targets or {}, metric=metric)
    row["seeds"] = [run.seed for run in runs]
    row["load"] = [run.measured.get("load") for run in runs]
    row["chosen"] = {str(choice.get("what")): choice.get("value") for choice in runs[0].result.chosen}
    notes = [run.measured.get("note") for run in runs] + _shared_machine(runs)
    notes += [f"seed {seed}: {why}" for seed, why in reasons.items() if seed not in lost]
    row["notes"] = list(dict.fromkeys(note for note in notes if note))
    return row | ({"error": error} if error else {})


def _mean_known(values: Sequence[float | None]) -> Spread:
    """Return mean and deviation of those that are known."""
    known = [value for value in values if value is not None]
    return Spread.over(known) if known else Spread(None, None)


def _times_to(runs: Sequence[Finished], targets: Mapping[str, Goal], *, metric: str) -> dict[str, Any]:
    """Return the mean seconds to every target over the seeds that reach it, and how many do."""
    found: dict[str, list[float]] = {}
    for name, target in targets.items():
        times = [time_to_target(run, target, metric=metric) for run in runs]
        found[name] = [time[1] for time in times if time is not None]
    reached = {name: len(times) for name, times in found.items()}
    return {"seconds_to": {name: _mean_known(times).mean for name, times in found.items()}, "reached": reached}


def _shared_machine(runs: Sequence[Finished]) -> list[str]:
    """Say of which runs the seconds are those of a machine that worked for others, too."""
    busy = {run.seed: run.measured.get("busy") for run in runs}
    known = {seed: cores for seed, cores in busy.items() if finite(cores) and cores >= MANY}
    if not known:
        return []
    seeds = ", ".join(map(str, known))
    most = max(known.values())
    return [f"seconds were measured beside other work, which kept up to {most:.1f} processors busy (seed {seeds})"]


def _values(run: Finished, *, target: Goal, metric: str) -> dict[str, Any]:
    """Return the numbers of one run."""
    result, reached = run.result, time_to_target(run, target, metric=metric)
    return {key: vars(result)[key] for key in RECORDED} | {
        "relative_error": None if result.fidelity is None else 1 - result.fidelity,
        "gradient_error": run.measured.get("gradient_error"),
        "gradient_cosine": run.measured.get("gradient_cosine"),
        "gradient_noise": run.measured.get("gradient_noise"),
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
    reference: float | None = None,
    failures: Mapping[tuple[str, int], Failure] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    tuned: Mapping[str, Tuned] | None = None,
) -> dict[str, Any]:
    """Sum up the runs in a folder, a row per method; `about` (dataset, model, epochs, command) is recorded as well.

    `target` is the validation score whose time is told; where it is not given, `default_target`, in a comparison by
    seconds 98 % of the `reference`, and this, where it is not given, is `reference_of` the runs. `failures` say why
    runs have no result, by method and seed; `own` are the settings that a method does not share with the others;
    `tuned` is how they were found.
    """
    runs = {method: read_finished(top, method, seeds) for method in methods}
    models = {method: getattr(METHODS.get(method), "own_model", None) for method in methods}
    first = next((run.result for found in runs.values() for run in found), None)
    metric = first.metric if first else ""
    for flag, value in (("--target", target), ("--reference", reference)):
        if value is not None and metric:
            check_target(value, metric=metric, flag=flag)
    scores = {name: [run.result.val for run in found] for name, found in runs.items() if not models[name]}
    base = Reference(reference)
    if reference is None:
        seen = {name: {run.seed: run.result.val for run in runs[name]} for name in scores}
        base = reference_of(seen, metric=metric)
        steps = [run.result.steps for run in runs.get(base.of or "", ())]
        base = dataclasses.replace(base, steps=_mean_known(steps).mean)
    goals = {share: {seed: base.target(share, metric=metric, seed=seed) for seed in seeds} for share in SHARES}
    targets, censored = {share: base.target(share, metric=metric) for share in SHARES}, about.get("seconds") is not None
    goal: Goal = target
    if target is None and censored:
        target, goal = targets[USUAL], goals[USUAL] if base.score is not None else None
    elif target is None:
        target = goal = default_target(scores, metric=metric)
    rows = {}
    sought: dict[str, Any] = {"target": goal, "targets": goals, "censored": censored, "metric": metric}
    tests = {method: {run.seed: run.result.test for run in found} for method, found in runs.items()}
    for method, found in runs.items():
        lost = {seed: failure for (name, seed), failure in (failures or {}).items() if name == method}
        row = rows[method] = make_row(found, **sought, failures=lost)
        if found and method != methods[0]:
            row["paired"] = paired(tests[method], tests[methods[0]], minus=methods[0])
        sized = "ratio" in getattr(METHODS.get(method), "settings", ())  # its batches have a size that can be set
        if sized and 0 < (row.get("steps") or 0) <= (row.get("epochs") or 0):
            row["notes"].append("one step per epoch: all training nodes were in one batch")
        if models[method]:
            row["own_model"] = models[method]
        if own and own.get(method):
            row["own_settings"] = dict(own[method])
        if tuned and method in tuned:
            row["tuned"] = dataclasses.asdict(tuned[method])
    shared = {key: vars(first)[key] if first else None for key in GRAPH}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    known = {**about, "seeds": list(seeds), "metric": metric or None, "target": target, "date": date}
    known |= {"targets": targets, "reference": dataclasses.asdict(base)}
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
