"""The page of a comparison: table, curves, costs, settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader

from topoff.experiments.columns import (
    COLUMNS,
    ERRORS,
    about_targets,
    best_of,
    cell,
    gap,
    length_of,
    marked,
    time_to,
    written,
)
from topoff.experiments.table import PAGE, SETTINGS, TABLE, Finished, read_finished
from topoff.experiments.targets import SHARES
from topoff.report.comparison_plots import MethodCurve, draw_comparison, look_of
from topoff.report.page import number, part_of, plain
from topoff.report.read import finite
from topoff.training.config import parse_config
from topoff.training.run_folder import RunFolder


def timed_curve(name: str, runs: Sequence[Finished], *, place: int, scale: float) -> MethodCurve | None:
    """Return the mean validation score of a method's seeds over the time, from the latest first evaluation on.

    Seeds are evaluated at moments of their own: between them their scores are interpolated.
    """
    found = [
        np.array([(row.train_seconds, row.passed, row.val) for row in run.epochs if finite(row.val)], dtype=float)
        for run in runs
    ]
    if not found or not all(map(len, found)):
        return None
    for run, rows in zip(runs, found, strict=True):
        rows[:, 0] += run.result.preprocess_seconds or 0.0
    start, end = max(rows[0, 0] for rows in found), min(rows[-1, 0] for rows in found)
    moments = np.linspace(start, max(start, end), max(map(len, found)))
    drawn = np.array([[np.interp(moments, rows[:, 0], rows[:, key]) for key in (1, 2)] for rows in found])
    spread = drawn[:, 1].std(axis=0, ddof=1) * scale if len(runs) > 1 else np.zeros(len(moments))
    return MethodCurve(name, place, drawn[:, 0].mean(axis=0), moments, drawn[:, 1].mean(axis=0) * scale, spread)


def curve_of(name: str, runs: Sequence[Finished], *, place: int, scale: float) -> MethodCurve | None:
    """Return the mean validation score of a method's seeds over the epochs that all of them evaluated."""
    rows = [[row for row in run.epochs if finite(row.val) and finite(row.train_seconds)] for run in runs]
    points = [{row.epoch: (row.val, row.train_seconds) for row in found} for found in rows]
    epochs = sorted(set.intersection(*map(set, points))) if points else []
    if not epochs:
        return None
    values = np.array([[found[epoch] for epoch in epochs] for found in points]) * (scale, 1.0)  # (seeds, epochs, 2)
    before = np.array([run.result.preprocess_seconds or 0.0 for run in runs])
    spread = values[..., 0].std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(epochs))
    seconds = (values[..., 1] + before[:, None]).mean(axis=0)
    return MethodCurve(name, place, np.array(epochs, dtype=float), seconds, values[..., 0].mean(axis=0), spread)


def build_page(top: Path) -> str:
    """Build the HTML page of a comparison from its folder; the same files give the same text.

    Raises:
        FileNotFoundError, ValueError: there is no table, or a file cannot be read.
    """
    table = RunFolder(top).read_json(TABLE)
    rows, metric = table["methods"], table["metric"] or "score"
    scale = 1.0 if metric in ERRORS else 100.0
    places = {name: place for place, name in enumerate(rows)}
    draw = curve_of if table.get("seconds") is None else timed_curve
    curves = [
        draw(name, read_finished(top, name, table["seeds"]), place=places[name], scale=scale)
        for name in sorted(rows, key=lambda name: name == "top")  # drawn last: above the others
    ]
    drawn = [curve for curve in curves if curve]
    costs = {name: (row.get("epoch_seconds"), row.get("train_peak_rss_mb")) for name, row in rows.items()}
    label = metric.replace("_", " ") + ("" if scale == 1 else ", %")
    target = table["target"] * scale if finite(table["target"]) else math.nan
    plots = draw_comparison(drawn, costs=costs, label=label, target=target)
    path = top / SETTINGS
    shared = parse_config(path.read_bytes(), origin=str(path)) if path.is_file() else {}
    page = Environment(loader=PackageLoader("topoff.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.filters.update(number=number, plain=plain, part_of=part_of, written=written)
    text: str = page.get_template("compare.html.j2").render(
        table=table,
        columns=COLUMNS,
        plots=plots,
        metric=metric,
        regression=metric in ERRORS,
        cell=lambda row, column: cell(row, column, metric=metric),
        best={column.key: best_of(rows, column, metric=metric) for column in COLUMNS},
        looks={name: look_of(name, place) for name, place in places.items()},
        drawn={curve.name for curve in drawn},
        marked=marked,
        length=length_of(table),
        shares=SHARES,
        targets=about_targets(table) if table.get("seconds") is not None else "",
        time_to=time_to,
        gap=lambda row: gap(row, metric=metric),
        settings={key: value for key, value in shared.items() if key not in ("method", "seed")},
    )
    return text.encode(errors="replace").decode()


def write_page(top: Path) -> Path:
    """Write the page of a comparison in one step; return where it is."""
    RunFolder(top).write(PAGE, build_page(top))
    return top / PAGE
