"""Draw the plots of a run as SVG elements of its page, in the colours of the reader's light or dark theme."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from topoff.report.read import SPLITS, Confusion, Run, finite
from topoff.training.records import Result

MINUS = "\N{MINUS SIGN}"

# Plots are drawn in these colours, which the page replaces by its own: they follow the reader's light or dark theme.
INK, FAINT, BLUE, ORANGE, GREEN = "#000001", "#000002", "#000003", "#000004", "#000005"
THEME = {
    INK: "currentColor",
    FAINT: "var(--faint)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
}
HEAT = "#1f6fb5"  # of the confusion matrix, from transparent to opaque: legible on light and on dark
LINES = {  # colour, dashes and width: never told apart by colour alone
    "train": (BLUE, "-", 1.1),
    "val": (ORANGE, "--", 1.5),
    "test": (GREEN, "-", 2.0),
    "loss": (BLUE, "-", 1.6),
    "fidelity": (GREEN, "-", 1.6),
    "certificate": (ORANGE, "-", 1.6),
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "topoff",
    "text.parse_math": False,  # a class may be called "$"
    "font.size": 9,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), FAINT),
    **dict.fromkeys(("axes.labelcolor", "text.color", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("legend.frameon", "axes.spines.top", "axes.spines.right"), False),
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the page, whatever the user's own is."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser brings its own fonts
        yield


def draw_plots(run: Run) -> dict[str, Any]:
    """Draw everything that the files of a run have; None for what they have not.

    >>> from topoff.report.read import Seed
    >>> from topoff.training.records import Epoch
    >>> one = Seed("0", rows=[Epoch(1, loss=2.0)])
    >>> drawn = draw_plots(Run((one,), result=Result(), config={}, command="", several=False, notes=()))
    >>> [name for name, plot in drawn.items() if plot]
    ['loss_epochs']
    """
    details = run.seeds[0].details
    degrees = details.get("degrees") or {}
    score = as_label(run.metric) if run.regression else f"{as_label(run.metric)}, %"
    with styled():
        return {
            "loss_epochs": _curves(run, ["loss"], against="epoch", label="loss"),
            "loss_seconds": _curves(run, ["loss"], against="seconds", label="loss"),
            "score_epochs": _curves(run, [*reversed(SPLITS)], against="epoch", label=score),
            "score_seconds": _curves(run, [*reversed(SPLITS)], against="seconds", label=score),
            "fidelity": _curves(run, ["fidelity"], against="epoch", label="fidelity, %"),
            "certificate": _curves(run, ["certificate"], against="epoch", label="certificate, %"),
            "confusion": _draw_confusion(run.seeds[0].confusion),
            "scatter": _draw_scatter(details.get("scatter") or []),
            "batches": _draw_batches(details.get("batches") or []),
            "degrees": _draw_degrees(degrees.get("edges") or [], degrees.get("counts") or []),
        }


def new_axes(width: float = 4.9, height: float = 2.7) -> Axes:
    """Start a drawing with faint horizontal lines."""
    axes = Figure(figsize=(width, height), layout="constrained").add_subplot()
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
    write_ticks(axes)
    return axes


def write_ticks(axes: Axes) -> None:
    """Write the numbers at the ticks as the page does; to be called again when a scale has changed."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: as_tick(value))


def as_svg(axes: Axes, name: str, *, x: str, y: str, label: str) -> Markup:
    """Name the axes and turn a drawing into an element of the page: own ids, the theme's colours, nothing external."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    buffer = io.BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    assert isinstance(axes.figure, Figure)  # of its own, never a part of another
    axes.figure.savefig(buffer, format="svg", metadata=nothing)
    root = ElementTree.fromstring(buffer.getvalue())
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for child in element.findall("{*}style"):  # it would restyle the whole page
            element.remove(child)
        values = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update({key: _attribute(key, value, name=name) for key, value in values.items()})
    width, height = root.attrib["viewBox"].split()[2:]
    root.attrib.clear()
    size = f"max-width: {1.5 * float(width):.0f}px"
    root.attrib.update({"viewBox": f"0 0 {width} {height}", "style": size, "role": "img", "aria-label": label})
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _attribute(key: str, value: str, *, name: str) -> str:
    """Rewrite an attribute of a drawing: ids start with the name of the plot, paths are rounded."""
    if key == "id":
        return f"{name}-{value}"
    if key == "d":
        return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.2f}", value.replace("\n", ""))
    value = re.sub(r"^#|(?<=url\()#", f"#{name}-", value)
    if key == "style":
        value = re.sub(r"font-family:[^;]*;?", "", value)
        value = re.sub("|".join(THEME), lambda found: THEME[found[0]], value)
    return value


def as_tick(value: float) -> str:
    """Write the number at a tick.

    >>> as_tick(0.5), as_tick(2000.0), as_tick(1e6), as_tick(-0.0)
    ('0.5', '2,000', '1M', '0')
    """
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / size:g}{unit}"
    return f"{value:,.6g}".replace("-", MINUS) if value else "0"


def _curves(run: Run, keys: Sequence[str], *, against: str, label: str) -> Markup | None:
    """Draw measurements of all seeds against epochs or seconds."""
    axes, said = new_axes(), []
    scale = 100 if label.endswith(", %") else 1
    last = max((row.seconds for seed in run.seeds for row in seed.rows if finite(row.seconds)), default=0)
    stretch, unit = choose_unit(last, "seconds") if against == "seconds" else (1, "")
    for key in keys:
        name = SPLITS.get(key, key)
        for seed in run.seeds:
            lines = [row.line() | {"epoch": row.passed} for row in seed.rows]
            rows = [line for line in lines if finite(line.get(key)) and finite(line.get(against))]
            rows = rows[: -1 : math.ceil(len(rows) / run.points) or 1] + rows[-1:]
            if rows:
                points = [(row[against] * stretch, row[key] * scale) for row in rows]
                _line(axes, points, key=key, several=run.several)
                said.append(f"{name} from {as_tick(points[0][1])} to {as_tick(points[-1][1])}")
        axes.plot([], [], label=name, color=LINES[key][0], linestyle=LINES[key][1], linewidth=LINES[key][2])
    if not said:
        return None
    if len(keys) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(keys), borderaxespad=0, handlelength=2.4)
    if against == "epoch":
        _mark(axes, run, keys=keys)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    x, words = "epoch" if against == "epoch" else f"time, {unit}", f"{label} against {against}: {'; '.join(said)}"
    return as_svg(axes, f"{keys[0]}-{against}", x=x, y=label, label=words)


def _line(axes: Axes, points: list[tuple[float, float]], *, key: str, several: bool) -> None:
    """Draw one curve: thinner among several, with dots where it is short, logarithmic if the loss falls far."""
    (x, y), (color, dashes, width) = zip(*points, strict=True), LINES[key]
    few = len(x) == 1 or (len(x) <= 25 and not several)
    look: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.7} if several else {"linewidth": width}
    axes.plot(x, y, color=color, linestyle=dashes, marker="o" if few else "", markersize=3, **look)
    if key == "loss" and min(y) > 0 and max(y) > 1000 * min(y):
        axes.set_yscale("log")
        write_ticks(axes)
        axes.minorticks_off()


def _mark(axes: Axes, run: Run, *, keys: Sequence[str]) -> None:
    """Mark the refreshes of the first seed at the lower edge, or the best epoch of a single one."""
    if keys[0] in ("fidelity", "certificate"):
        epochs = [row.passed for row in run.seeds[0].rows if row.refreshed]
        x = [value for epoch in epochs for value in (epoch, epoch, math.nan)]  # one path for all ticks
        width = 0.8 if len(epochs) <= 60 else 0.2
        axes.plot(x, [0, 0.05, 0] * len(epochs), color=INK, linewidth=width, transform=axes.get_xaxis_transform())
        axes.margins(y=0.12)
    elif keys[0] == "train" and isinstance(run.result, Result) and finite(run.result.best_epoch):
        axes.axvline(run.result.best_epoch, color=FAINT, linewidth=1, linestyle=":")


def _draw_confusion(confusion: Confusion | None) -> Markup | None:
    """Draw the share of every true class (row) that is taken for each class (column)."""
    if confusion is None:
        return None
    kept, n = confusion.kept, len(confusion.kept)
    names = [as_label(confusion.names[index]) for index in kept]
    share = (100 * confusion.counts / np.maximum(confusion.sizes[:, None], 1))[np.ix_(kept, kept)]
    side, size = (max(2.0, 0.34 * n), 8) if n <= 20 else (0.16 * n, 6)
    axes = new_axes(side + 1.4, side + 1.0)
    axes.grid(visible=False)
    heat = ListedColormap([(*to_rgb(HEAT), level) for level in np.linspace(0, 1, 101) ** 0.7])
    axes.imshow(share, cmap=heat, vmin=0, vmax=100, interpolation="none")
    axes.set_xticks(range(n), names, rotation=90, fontsize=size)
    axes.set_yticks(range(n), names, fontsize=size)
    for row, column in np.argwhere(share > 0) if n <= 20 else ():  # more would not be legible
        color = "#ffffff" if share[row, column] > 60 else INK
        text = f"{share[row, column]:.0f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=size - 1, color=color)
    words = f"Confusion matrix of {n} classes, in per cent of each true class"
    return as_svg(axes, "confusion", x="predicted class", y="true class", label=words)


def _draw_scatter(pairs: list[list[float]]) -> Markup | None:
    """Draw predictions against true values, with the diagonal."""
    points = np.array([pair for pair in pairs if all(map(finite, pair))][:1000], dtype=float)
    if not len(points):
        return None
    axes = new_axes(4.2, 3.8)
    low, high = points.min(), points.max()
    axes.plot([low, high], [low, high], color=FAINT, linewidth=1, linestyle="--")
    axes.plot(*points.T, color=BLUE, linestyle="", marker="o", markersize=3, markeredgewidth=0, alpha=0.5)
    words = f"{len(points)} predictions against true values from {low:.3g} to {high:.3g}"
    return as_svg(axes, "scatter", x="true value", y="predicted value", label=words)


def _draw_batches(batches: list[dict[str, Any]]) -> Markup | None:
    """Draw the certificate of every batch."""
    shares = [100 * row["certificate"] if finite(row.get("certificate")) else math.nan for row in batches]
    if not np.isfinite(shares).any():
        return None
    axes = new_axes(5.6, 2.4)
    gaps = [value for share in shares for value in (math.nan, share)]  # one path, however many batches
    edges = [value for index in range(len(shares)) for value in (index + 0.6, index + 0.7)] + [len(shares) + 0.6]
    axes.stairs(gaps, edges, color=ORANGE, fill=True)
    axes.set_xlim(0.4, len(shares) + 0.9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    words = f"Certificates of {len(shares)} batches, at most {np.nanmax(shares):.3g} per cent"
    return as_svg(axes, "batches", x="batch", y="certificate, %", label=words)


def _draw_degrees(edges: Sequence[float], counts: Sequence[int]) -> Markup | None:
    """Draw how many nodes have how many edges, both axes logarithmic; isolated nodes are left of 1."""
    if len(edges) != len(counts) + 1 or not any(counts) or not all(map(finite, edges)) or edges[-1] <= 1:
        return None
    axes = new_axes(5.6, 2.6)
    axes.stairs([count or math.nan for count in counts], np.maximum(edges, 0.5), baseline=0.5, color=BLUE, fill=True)
    axes.set_xscale("log")
    axes.set_yscale("log", nonpositive="clip")
    write_ticks(axes)
    axes.minorticks_off()
    words = f"Histogram of the degrees of {sum(counts):,} nodes, up to {edges[-1]:,}"
    return as_svg(axes, "degrees", x="degree", y="nodes", label=words)


def choose_unit(size: float, kind: str) -> tuple[float, str]:
    """Choose a unit: what to multiply by, and its name.

    >>> choose_unit(0.25, "seconds"), choose_unit(2048, "memory"), choose_unit(0.5, "share"), choose_unit(7, "plain")
    ((1000, 'ms'), (0.0009765625, 'GB'), (100, '%'), (1, ''))
    """
    if kind == "seconds":
        steps = [(7200, 1 / 3600, "h"), (120, 1 / 60, "min"), (1, 1, "s"), (0, 1000, "ms")]
        return next((scale, unit) for least, scale, unit in steps if size >= least)
    if kind == "memory":
        return (1 / 1024, "GB") if size >= 1024 else (1, "MB")
    return (100, "%") if kind == "share" else (1, "")


def as_label(name: object) -> str:
    """Shorten a name for a plot, and drop what XML cannot hold."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(name))
    return text if len(text) <= 24 else f"{text[:23]}…"
