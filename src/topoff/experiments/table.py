"""Sum up a comparison from the folders of its runs: a table, as plain values for JSON, and one self-contained page.

runs/<name>/<method>/seed-<s>/   ordinary runs
runs/<name>/compare.toml         the settings that all share; the first line is the command
runs/<name>/compare.json         the table
runs/<name>/compare.html         the page
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topoff.data.layout import SPLITS
from topoff.experiments.jobs import MEASURED, Failure, makes_batches, own_model
from topoff.report.page import NOTHING, number, plain
from topoff.report.read import Seed, finite, read_run
from topoff.tasks.metrics import LOWER_IS_BETTER
from topoff.training.result import mean_std, summarise
from topoff.training.run_folder import RunFolder

TABLE, PAGE, SETTINGS = "compare.json", "compare.html", "compare.toml"
SHARE = 0.99  # of the score of the best method's worst seed: the target, where none is given
ERRORS = ("rmse", "mae", "r2")  # scores that are no shares


@dataclass(frozen=True)
class Column:
    """Describe a column of the table."""

    key: str  # of a method's row
    title: str
    kind: str  # score, seconds, memory, share or plain
    better: str  # high, low, score: as the metric has it; or empty: neither
    meaning: str


COLUMNS = (
    Column("test", "test", "score", "score", "Exact score of the test nodes, computed on the whole graph, with the "
           "weights of the best validation score; without validation nodes: at the last weights."),
    Column("val", "validation", "score", "score", "The best exact validation score."),
    Column("train", "training", "score", "score", "Exact score of the training nodes, with the same weights."),
    Column("seconds_to_target", "time to target", "seconds", "low", "Seconds of pre-processing and training, without "
           "evaluation, until an evaluation first found a validation score that reaches the target."),
    Column("epochs_to_target", "epochs to target", "plain", "low", "Epochs until then; an epoch of different methods "
           "may have different numbers of steps."),
    Column("steps", "steps", "plain", "", "Steps of the optimiser in the whole training."),
    Column("epoch_seconds", "per epoch", "seconds", "low", "Seconds of steps and refreshes per epoch, without "
           "evaluation."),
    Column("preprocess_seconds", "pre-processing", "seconds", "low", "Seconds before the first step: partitioning, "
           "embeddings, operators; every run pays for its own, with an empty cache."),
    Column("train_peak_rss_mb", "peak memory, training", "memory", "low", "Peak resident memory of the run's own "
           "process before its first exact evaluation: interpreter, graph, preparation and training."),
    Column("peak_rss_mb", "peak memory, all", "memory", "low", "Peak resident memory of the whole process, exact "
           "evaluation included."),
    Column("relative_error", "output error", "share", "low", "Relative error of the outputs that training sees against "
           "those of the whole graph, in eval mode; 0 % is exact. Over all nodes that are in batches, at the last "
           "weights; one draw of the samples; histories (gas, lmc, vrgcn, graphfm) hold what training with dropout "
           "left there."),
    Column("gradient_error", "grad. error", "share", "low", "Relative error of the gradient of the batches against "
           "that of the whole graph, averaged over one epoch's batches; what sampling noise is left is in it; the same "
           "state as the output error."),
    Column("gradient_cosine", "grad. cosine", "plain", "high", "Cosine of the angle between these two gradients; 1 "
           "is the same direction."),
)  # fmt: skip


# ---- the target


def default_target(scores: Mapping[str, Sequence[float | None]], *, metric: str) -> float | None:
    """Return the target: 99 % of the best validation score of the best method's worst seed; none without scores.

    The best method has the best mean; the target is one that it reaches with all its seeds.

    >>> default_target({"full": [0.7, 0.7], "top": [0.9, 0.8]}, metric="accuracy")
    0.792
    >>> default_target({"full": [2.0], "top": [3.0]}, metric="rmse")
    2.02
    """
    best, worst = (min, max) if metric in LOWER_IS_BETTER else (max, min)
    averages = {method: mean_std(list(values))["mean"] for method, values in scores.items() if values}
    known = {method: mean for method, mean in averages.items() if finite(mean)}
    if not known:
        return None
    leading = best(known, key=lambda method: known[method])
    least = worst(value for value in scores[leading] if value is not None)
    slack = (1 - SHARE) * abs(least)
    return round(least + slack if metric in LOWER_IS_BETTER else least - slack, 12)


def time_to_target(seed: Seed, target: float, *, metric: str) -> tuple[int, float] | None:
    """Return the epoch and the seconds at which a run first reached the target; None where it never did.

    >>> rows = [{"epoch": 1, "val": 0.5, "train_seconds": 1.0}, {"epoch": 2, "val": 0.8, "train_seconds": 2.0}]
    >>> time_to_target(Seed("0", rows=rows, result={"preprocess_seconds": 3.0}), 0.8, metric="accuracy")
    (2, 5.0)
    """
    before = float((seed.result or {}).get("preprocess_seconds") or 0)
    for row in seed.rows:
        value = row.get("val")
        if finite(value) and (value <= target if metric in LOWER_IS_BETTER else value >= target):
            return row["epoch"], before + float(row.get("train_seconds") or 0)
    return None


# ---- the table


@dataclass(frozen=True)
class Finished:
    """Hold what one run left."""

    seed: Seed
    measured: dict[str, Any]  # gradient error and load


def read_finished(top: Path, method: str, seeds: Sequence[int]) -> list[Finished]:
    """Read the finished runs of a method, of these seeds."""
    if not any((top / method).glob("seed-*/result.json")):
        return []
    wanted = {str(seed) for seed in seeds}
    found = []
    for seed in read_run(top / method).seeds:
        if seed.result is not None and seed.name in wanted:
            folder = RunFolder(top / method / f"seed-{seed.name}")
            found.append(Finished(seed, folder.read_json(MEASURED) if (folder.path / MEASURED).is_file() else {}))
    return found


def make_row(
    runs: Sequence[Finished], *, target: float | None, metric: str, failures: Mapping[int, Failure] | None = None
) -> dict[str, Any]:
    """Return the row of a method: means over its seeds as plain numbers, beside them `<name>_std` where there are many.

    A method without a finished run has nothing but its error; one with some has those and the error.
    """
    failures = failures or {}
    finished = {int(run.seed.name) for run in runs}
    lost = {seed: failure.reason for seed, failure in failures.items() if seed not in finished}
    reasons = list(dict.fromkeys(lost.values()))
    error = reasons[0] if len(reasons) == 1 and not runs else "; ".join(f"seed {s}: {why}" for s, why in lost.items())
    if not runs:
        return {"error": error or "not run"}
    rows = [_values(run, target=target, metric=metric) for run in runs]
    row: dict[str, Any] = {}
    for key in rows[0]:
        spread = mean_std([values[key] for values in rows])
        row[key] = spread["mean"] if len(rows) > 1 else rows[0][key]
        row |= {f"{key}_std": spread["std"]} if len(rows) > 1 else {}
    reached = sum(values["epochs_to_target"] is not None for values in rows)
    row["target_reached"] = None if target is None else reached
    row["seeds"] = [int(run.seed.name) for run in runs]
    row["load"] = [run.measured.get("load") for run in runs]
    row["chosen"] = {choice["what"]: choice["value"] for choice in (runs[0].seed.result or {}).get("chosen") or ()}
    notes = [run.measured.get("note") for run in runs]
    notes += [f"seed {seed}: {failures[seed].reason}" for seed in failures if seed in finished]
    row["notes"] = list(dict.fromkeys(note for note in notes if note))
    return row | ({"error": error} if error else {})


def _values(run: Finished, *, target: float | None, metric: str) -> dict[str, Any]:
    """Return the numbers of one run."""
    result = run.seed.result or {}
    reached = None if target is None else time_to_target(run.seed, target, metric=metric)
    keys = (*reversed(SPLITS), "best_epoch", "epochs", "steps", "epoch_seconds", "preprocess_seconds")
    keys += ("train_peak_rss_mb", "peak_rss_mb")
    return {key: result.get(key) for key in keys} | {
        "relative_error": None if result.get("fidelity") is None else 1 - result["fidelity"],
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
    """Sum up the runs in a folder.

    Args:
        top: the folder of the comparison.
        methods: the rows.
        seeds: that count.
        about: what else to record: dataset, model, epochs, command.
        target: validation score whose time is told; `default_target` where it is not given.
        failures: why runs have no result, by method and seed.
        own: the settings that a method does not share with the others, by method.
    """
    runs = {method: read_finished(top, method, seeds) for method in methods}
    results = [run.seed.result for found in runs.values() for run in found if run.seed.result]
    first = results[0] if results else {}
    metric = str(first.get("metric", ""))
    if target is None:
        scores = {name: [(run.seed.result or {})["val"] for run in runs[name]] for name in methods}
        target = default_target({name: scores[name] for name in methods if not own_model(name)}, metric=metric)
    rows = {}
    for method in methods:
        lost = {seed: failure for (name, seed), failure in (failures or {}).items() if name == method}
        rows[method] = make_row(runs[method], target=target, metric=metric, failures=lost)
        if makes_batches(method) and _one_step_per_epoch(rows[method]):
            rows[method]["notes"].append("one step per epoch: all training nodes were in one batch")
        model, settings = own_model(method), dict((own or {}).get(method) or {})
        rows[method] |= {"own_model": model} if model else {}
        rows[method] |= {"own_settings": settings} if settings else {}
    shared = {key: first.get(key) for key in ("nodes", "edges", "features", "versions", "machine")}
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    known = {**about, "seeds": list(seeds), "metric": metric or None, "target": target, "date": date}
    return {"methods": rows, **known, **shared, "notes": differences(runs)}


def _one_step_per_epoch(row: Mapping[str, Any]) -> bool:
    return finite(row.get("steps")) and finite(row.get("epochs")) and 0 < row["steps"] <= row["epochs"]


def differences(runs: Mapping[str, Sequence[Finished]]) -> list[str]:
    """Say in what the runs of a comparison differ that should be alike: the graph, the versions, the machine."""
    found: dict[str, dict[str, list[str]]] = {}  # what -> its value -> the runs that have it
    places = [(f"{method}, seed {run.seed.name}", run.seed.result or {}) for method in runs for run in runs[method]]
    facts = {place: _facts(result) for place, result in places}
    for what in dict.fromkeys(what for known in facts.values() for what in known):
        for place, known in facts.items():
            found.setdefault(what, {}).setdefault(plain(known.get(what)), []).append(place)
    return [
        f"The runs differ in {what}: {'; '.join(f'{value} ({_some(names)})' for value, names in values.items())}."
        for what, values in found.items()
        if len(values) > 1
    ]


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    """List what should be the same for all runs of a comparison."""
    known = {f"the number of {key}": result.get(key) for key in ("nodes", "edges")}
    known |= {f"the version of {name}": version for name, version in (result.get("versions") or {}).items()}
    return known | {f"the machine's {name}": value for name, value in (result.get("machine") or {}).items()}


def _some(names: Sequence[str]) -> str:
    """Name a few of many.

    >>> _some(["a", "b", "c", "d"])
    'a; b and 2 more'
    """
    return "; ".join(names) if len(names) <= 3 else f"{'; '.join(names[:2])} and {len(names) - 2} more"


def write_summaries(top: Path, methods: Sequence[str], seeds: Sequence[int], *, command: str) -> None:
    """Write the mean of each method's seeds beside them, as `topoff train --seeds` does: `topoff report` reads it."""
    for method in methods:
        found = [run.seed.result for run in read_finished(top, method, seeds) if run.seed.result]
        results = [{"train_peak_rss_mb": None} | result for result in found]  # older ones lack it
        if results:
            RunFolder(top / method).write("result.json", summarise(results, command=command))


# ---- for people


def cell(row: Mapping[str, Any], column: Column, *, metric: str) -> str:
    """Write a value of the table in human units, with its standard deviation where there is one.

    >>> cell({"test": 0.7, "test_std": 0.01}, COLUMNS[0], metric="accuracy").replace(chr(160), " ")
    '70.00 ± 1.00 %'
    >>> cell({"seconds_to_target": None, "target_reached": 0, "seeds": [0]}, COLUMNS[3], metric="accuracy")
    'never'
    """
    value, spread = row.get(column.key), row.get(f"{column.key}_std")
    if column.key.endswith("to_target") and value is None and row.get("target_reached") is not None:
        some, all_of_them = row["target_reached"], len(row["seeds"])
        return f"{some} of {all_of_them} seeds" if some else "never"
    if not finite(value):
        return NOTHING
    if column.key == "steps" and not spread:
        return number(round(value))  # a count, the same for all seeds
    return number({"mean": value, "std": spread} if finite(spread) else value, _kind(column, metric=metric))


def _kind(column: Column, *, metric: str) -> str:
    return ("plain" if metric in ERRORS else "share") if column.kind == "score" else column.kind


def best_of(rows: Mapping[str, Mapping[str, Any]], column: Column, *, metric: str) -> set[str]:
    """Return the methods that have the best value of a column, as it is written; none where there is no choice.

    Methods with a model of their own are left out. To be the only one that reached the target is best, too.

    >>> sorted(best_of({"a": {"test": 0.5}, "b": {"test": 0.6}, "c": {"error": "no"}}, COLUMNS[0], metric="accuracy"))
    ['b']
    """
    same = {method: row for method, row in rows.items() if "own_model" not in row}
    known = {method: row[column.key] for method, row in same.items() if finite(row.get(column.key))}
    late = [row for row in same.values() if row.get("target_reached") is not None and row.get(column.key) is None]
    if not known or not column.better or (len(known) < 2 and not (column.key.endswith("to_target") and late)):
        return set()
    lower = column.better == "low" or (column.better == "score" and metric in LOWER_IS_BETTER)
    best = min(known.values()) if lower else max(known.values())
    texts = {method: number(float(value), _kind(column, metric=metric)) for method, value in known.items()}
    return {method for method in known if texts[method] == number(float(best), _kind(column, metric=metric))}


def written(settings: Mapping[str, Any]) -> str:
    """Write settings for people.

    >>> written({"rank": 32, "regroup": True})
    'rank = 32, regroup = true'
    """
    return ", ".join(f"{key} = {plain(value)}" for key, value in settings.items())


def marked(name: str, row: Mapping[str, Any]) -> str:
    """Mark a method that trains a model of its own (*), or has settings of its own (+).

    >>> marked("sgc", {"own_model": "sgc"}), marked("top", {"own_settings": {"rank": 32}})
    ('sgc*', 'top+')
    """
    return name + ("*" if "own_model" in row else "") + ("+" if "own_settings" in row else "")
