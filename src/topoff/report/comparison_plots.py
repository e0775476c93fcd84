"""Plots of several methods side by side, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from topoff.report.plots import FAINT, GREEN, as_label, as_svg, as_tick, choose_unit, new_axes, styled, write_ticks
from topoff.report.read import finite

PALETTE = ("#c2543c", "#4f7fc4", "#b0791a", "#8a63c9", "#2f9488", "#c04f8f", "#7a8a2c", "#8b7266")  # on light and dark
DASHES = ("solid", "dashed", "dotted")
HIGHLIGHT = "top"


@dataclass(frozen=True)
class Look:
    """Say how a method is drawn, in plots and in their legend."""

    color: str
    dashes: str  # solid, dashed or dotted
    width: float


@dataclass(frozen=True)
class MethodCurve:
    """Hold the mean score of a method's seeds at every evaluation."""

    name: str
    place: int  # of the method in the comparison: its look
    epochs: np.ndarray[Any, Any]  # (evaluations,)
    seconds: np.ndarray[Any, Any]  # (evaluations,) of pre-processing and training
    mean: np.ndarray[Any, Any]  # (evaluations,)
    std: np.ndarray[Any, Any]  # (evaluations,)


def look_of(name: str, place: int) -> Look:
    """Choose a look: TOP's own, else a colour, and dashes once all colours are taken.

    >>> look_of("gas", 1).dashes, look_of("gas", 9).dashes, look_of("top", 3).width
    ('solid', 'dashed', 2.8)
    """
    if name == HIGHLIGHT:
        return Look("var(--green)", "solid", 2.8)
    return Look(PALETTE[place % len(PALETTE)], DASHES[place // len(PALETTE) % len(DASHES)], 1.4)


def draw_comparison(
    curves: Sequence[MethodCurve], *, costs: Mapping[str, tuple[Any, Any]], label: str, target: float
) -> dict[str, Any]:
    """Draw the curves of several methods, and what they cost; None for what there is nothing to draw of.

    Args:
        curves: in the order in which they are drawn; the legend is the page's.
        costs: seconds per epoch and peak memory of training in MB by method, in the order of their looks.
        label: of the score.
        target: score that is marked; NaN for none.
    """
    with styled():
        return {
            "score_seconds": _draw_methods(curves, against="seconds", label=label, target=target),
            "score_epochs": _draw_methods(curves, against="epochs", label=label, target=target),
            "costs": _draw_costs(costs),
        }


def _draw_methods(curves: Sequence[MethodCurve], *, against: str, label: str, target: float) -> Markup | None:
    """Draw the score of every method against seconds or epochs: the mean, and a light band of the deviation."""
    if not curves:
        return None
    axes = new_axes(4.9, 3.4)
    spans = [getattr(curve, against) for curve in curves]
    least, most = min(float(x[x > 0].min(initial=math.inf)) for x in spans), max(float(x.max()) for x in spans)
    stretch, unit = choose_unit(most, "seconds") if against == "seconds" else (1, "")
    for curve, x in zip(curves, spans, strict=True):
        color, look = _drawn_color(curve.name, curve.place), look_of(curve.name, curve.place)
        if curve.std.any():
            low, high = curve.mean - curve.std, curve.mean + curve.std
            axes.fill_between(x * stretch, low, high, color=color, alpha=0.12, linewidth=0)
        marker = "o" if len(x) <= 10 else ""
        style: dict[str, Any] = {"linestyle": look.dashes, "linewidth": look.width, "marker": marker, "markersize": 3}
        axes.plot(x * stretch, curve.mean, color=color, **style)
    if math.isfinite(target):
        axes.axhline(target, color=FAINT, linewidth=1, linestyle=":")
    if against == "epochs":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    elif most > 30 * least:
        _stretch(axes)
    said = "; ".join(f"{curve.name} up to {as_tick(round(float(curve.mean.max()), 2))}" for curve in curves)
    x, words = "epoch" if against == "epochs" else f"pre-processing and training, {unit}", f"against {against}: {said}"
    return as_svg(axes, f"methods-{against}", x=x, y=f"validation {label}", label=f"Validation {label} {words}")


def _drawn_color(name: str, place: int) -> str:
    return GREEN if name == HIGHLIGHT else PALETTE[place % len(PALETTE)]


def _stretch(axes: Axes) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at a few of its ticks."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    write_ticks(axes)
    axes.minorticks_off()


def _draw_costs(costs: Mapping[str, tuple[Any, Any]]) -> Markup | None:
    """Draw the seconds per epoch of every method against the peak memory of its training, each with its name."""
    known = [(name, place, *cost) for place, (name, cost) in enumerate(costs.items()) if all(map(finite, cost))]
    if not known:
        return None
    axes = new_axes(6.4, 3.8)
    axes.grid(axis="x", color=FAINT, alpha=0.25, linewidth=0.6)
    slowest, largest = max(row[2] for row in known), max(row[3] for row in known)
    (per_second, unit), (per_mb, size) = choose_unit(slowest, "seconds"), choose_unit(largest, "memory")
    for name, place, seconds, memory in known:
        color, style = _drawn_color(name, place), "o" if name == HIGHLIGHT else "osD"[place // len(PALETTE) % 3]
        axes.plot(seconds * per_second, memory * per_mb, style, color=color, markersize=8 if name == HIGHLIGHT else 5)
    if slowest > 30 * min(row[2] for row in known) > 0:
        _stretch(axes)
    axes.margins(x=0.16, y=0.12)
    _name_points(axes, [(name, seconds * per_second, memory * per_mb) for name, _, seconds, memory in known])
    x, y = f"per epoch, {unit}", f"peak memory of training, {size}"
    said = "; ".join(f"{n} {as_tick(round(s * per_second, 2))} {unit}, {as_tick(round(m * per_mb, 2))} {size}"
                     for n, _, s, m in known)  # fmt: skip
    return as_svg(axes, "costs", x=x, y=y, label=f"Seconds per epoch and peak memory of training: {said}")


def _name_points(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Write a name beside each point, moved up where it would lie on another one."""
    assert isinstance(axes.figure, Figure)
    axes.figure.draw_without_rendering()  # places are known after the layout
    places = {name: axes.transData.transform((x, y)) * 72 / axes.figure.dpi for name, x, y in points}
    taken = [(across - 4, across + 4, up - 3) for across, up in places.values()]  # left, right, height, in points
    for name, x, y in sorted(points, key=lambda point: point[2]):
        text = as_label(name)
        across, up = places[name]
        left, right, shift = across + 6, across + 6 + 5 * len(text), -3.0
        while any(left < end and right > start and abs(up + shift - height) < 9 for start, end, height in taken):
            shift += 3.0
        taken.append((left, right, up + shift))
        arrow = {"arrowstyle": "-", "color": FAINT, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
        look: dict[str, Any] = {"fontweight": "bold" if name == HIGHLIGHT else "normal", "fontsize": 8}
        look["arrowprops"] = arrow if shift > 6 else None
        axes.annotate(text, (x, y), xytext=(6, shift), textcoords="offset points", **look)
