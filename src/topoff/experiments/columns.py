"""The columns of a comparison's table: what each means, how a value is written for people, and which one is best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topoff.experiments.targets import SHARES
from topoff.report.page import NOTHING, number, plain
from topoff.report.read import finite
from topoff.tasks.metrics import LOWER_IS_BETTER
from topoff.training.records import Spread

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
    Column("gradient_noise", "step noise", "plain", "low", "Distance of a single step's gradient from that of the "
           "whole graph, relative to it: root mean square over the batches of an epoch."),
)  # fmt: skip


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
    if _is_partial(row, column):
        return f"{number(value, column.kind)} ({row['target_reached']} of {len(row['seeds'])} seeds)"
    if column.key == "steps" and not spread:
        return number(round(value))  # a count, the same for all seeds
    return number(Spread(value, spread) if finite(spread) else value, _kind(column, metric=metric))


def _is_partial(row: Mapping[str, Any], column: Column) -> bool:
    """Whether a time to the target is that of some seeds only: the others were stopped before they reached it."""
    return column.key.endswith("to_target") and (row.get("target_reached") or 0) < len(row.get("seeds", ()))


def _kind(column: Column, *, metric: str) -> str:
    return ("plain" if metric in ERRORS else "share") if column.kind == "score" else column.kind


def best_of(rows: Mapping[str, Mapping[str, Any]], column: Column, *, metric: str) -> set[str]:
    """Return the methods that have the best value of a column, as it is written; none where there is no choice.

    Methods with a model of their own are left out. To be the only one that reached the target is best, too.
    """
    same = {name: row for name, row in rows.items() if "own_model" not in row and not _is_partial(row, column)}
    known = {method: row[column.key] for method, row in same.items() if finite(row.get(column.key))}
    told = [row for row in rows.values() if "own_model" not in row and row.get("target_reached") is not None]
    late = [row for row in told if row.get(column.key) is None or _is_partial(row, column)]
    if not known or not column.better or (len(known) < 2 and not (column.key.endswith("to_target") and late)):
        return set()
    lower = column.better == "low" or (column.better == "score" and metric in LOWER_IS_BETTER)
    best = min(known.values()) if lower else max(known.values())
    texts = {value: number(float(value), _kind(column, metric=metric)) for value in known.values()}
    return {method for method, value in known.items() if texts[value] == texts[best]}


def time_to(row: Mapping[str, Any], share: str) -> str:
    """Write the time to a target; of seeds that the end of the time cut off nothing is known but that they are later.

    >>> row = {"seeds": [0, 1], "seconds_to": {"95": 2.0, "98": None}, "reached": {"95": 1, "98": 0}}
    >>> time_to(row, "95").replace(chr(160), " "), time_to(row, "98")
    ('2.00 s (1 of 2 seeds)', 'never')
    """
    value, reached = row.get("seconds_to", {}).get(share), row.get("reached", {}).get(share, 0)
    if not finite(value):
        return "never" if row.get("seeds") else NOTHING
    some = "" if reached == len(row["seeds"]) else f" ({reached} of {len(row['seeds'])} seeds)"
    return number(value, "seconds") + some


def gap(row: Mapping[str, Any], *, metric: str) -> str:
    """Write how much better or worse a method's test score is than that of the first one, with the interval.

    >>> gap({"paired": {"mean": -0.012, "low": -0.02, "high": -0.004, "seeds": [0, 1]}}, metric="accuracy")
    '-1.20 (-2.00 to -0.40) points, 2 seeds'
    """
    found = row.get("paired")
    if not found:
        return NOTHING
    scale, unit, digits = (1, "", 4) if metric in ERRORS else (100, " points", 2)
    mean, low, high = (f"{scale * found[key]:+.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high}){unit}, {len(found['seeds'])} seeds"


def about_targets(table: Mapping[str, Any]) -> str:
    """Say what the targets of a comparison by seconds are shares of.

    >>> base = {"score": 0.8, "of": "full", "steps": 90.0}
    >>> about_targets({"metric": "accuracy", "reference": base, "seconds": 40.0})
    'Targets are 95, 98 and 99 % of 80.00 %, the best validation score of full after 90 steps (perhaps not converged).'
    """
    base, metric = table["reference"], table["metric"] or "score"
    if not finite(base.get("score")):
        return ""
    score = number(float(base["score"]), "plain" if metric in ERRORS else "share").replace("\xa0", " ")
    whose = "the score that was given as --reference"
    if base["of"]:
        steps = f" after {round(base['steps']):,} steps" if finite(base.get("steps")) else ""
        whose = f"the best validation score of {base['of']}{steps} (perhaps not converged)"
    return f"Targets are {', '.join(SHARES[:-1])} and {SHARES[-1]} % of {score}, {whose}."


def length_of(table: Mapping[str, Any]) -> str:
    """Say how long every method was trained.

    >>> length_of({"epochs": 30, "seconds": None}), length_of({"epochs": None, "seconds": 40.0})
    ('30 epochs', '40 seconds')
    """
    seconds = table.get("seconds")
    return f"{table['epochs']} epochs" if seconds is None else f"{seconds:g} seconds"


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
