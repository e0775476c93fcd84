"""Build the page of a run: one self-contained HTML file, from the files in the run's folder only.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (Path(folder) / "metrics.jsonl").write_text('{"epoch": 1, "seconds": 0.5, "loss": 1.2, "val": 0.8}')
...     page = build_report(Path(folder))
>>> "interrupted after epoch 1" in page, "https://" in page
(True, False)
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import statistics
import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard
from xml.etree import ElementTree

import matplotlib
import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

POINTS = 1200  # of one curve, over all seeds: keeps the page small
NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
CLASSES = 50  # that a confusion matrix can show
SPLITS = {"test": "test", "val": "validation", "train": "training"}
SUMMARISED = (*SPLITS, "epoch_seconds", "preprocess_seconds", "seconds", "peak_rss_mb", "fidelity", "epochs")

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
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Confusion:
    """Hold how often each class was taken for each."""

    counts: np.ndarray[Any, Any]  # (true, predicted)
    names: list[str]

    @property
    def kept(self) -> list[int]:
        """List the classes to draw: all, or the largest of very many."""
        order = np.argsort(-self.counts.sum(1), kind="stable")[:CLASSES]
        return sorted(int(index) for index in order)

    def mistakes(self, most: int = 10) -> list[tuple[str, str, int]]:
        """List the most frequent confusions: true class, predicted class, nodes."""
        wrong = self.counts - np.diag(np.diag(self.counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        places = [divmod(int(index), len(self.names)) for index in order]
        return [
            (self.names[row], self.names[column], int(wrong[row, column]))
            for row, column in places
            if wrong[row, column]
        ]


@dataclass(frozen=True)
class Seed:
    """Hold what one seed left in its folder."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)  # one per epoch
    result: dict[str, Any] | None = None  # none: it was interrupted
    details: dict[str, Any] = field(default_factory=dict)
    confusion: Confusion | None = None
    notes: tuple[str, ...] = ()

    @property
    def last(self) -> dict[str, Any]:
        """Return the result, or the last measurements of an interrupted seed."""
        return self.result or _last(self.rows)

    @property
    def refreshes(self) -> int:
        """Count the refreshes."""
        return sum(bool(row.get("refreshed")) for row in self.rows)

    @property
    def batches(self) -> list[dict[str, Any]]:
        """Number the batches."""
        return [{"batch": index} | row for index, row in enumerate(self.details.get("batches") or [], 1)]


@dataclass(frozen=True)
class Run:
    """Hold a run of one or several seeds, and its result (what is known so far of an interrupted one)."""

    seeds: tuple[Seed, ...]
    result: dict[str, Any]
    config: dict[str, Any]
    command: str
    several: bool
    notes: tuple[str, ...]

    @property
    def regression(self) -> bool:
        """Say whether scores are plain numbers; a run without a result is judged by its scores."""
        if "task" in self.result:
            return bool(self.result["task"] == "regression")
        scores = [row.get(split) for seed in self.seeds for row in seed.rows for split in SPLITS]
        return self.metric in ("r2", "rmse", "mae") or any(_finite(value) and not 0 <= value <= 1 for value in scores)

    @property
    def points(self) -> int:
        """Say how many points of a curve are drawn, at most."""
        return max(50, POINTS // len(self.seeds))

    @property
    def epochs(self) -> int:
        """Count the epochs of the longest seed."""
        return max(len(seed.rows) for seed in self.seeds)

    @property
    def broken(self) -> int:
        """Count the epochs whose loss is no finite number."""
        return sum("loss" in row and not _finite(row["loss"]) for seed in self.seeds for row in seed.rows)

    @property
    def metric(self) -> str:
        """Name the score."""
        name = str(self.result.get("metric") or self.config.get("metric") or "score")
        return "score" if name == "auto" else name.replace("_", " ")


def build_report(run: Path) -> str:
    """Build the HTML page of a run; the same files give the same text.

    Args:
        run: the folder of a run of one seed, or of several (with its seed-<s> folders); it may be unfinished.

    Raises:
        ValueError: the folder is no run, or a file in it cannot be read.
    """
    found = _read_run(Path(run))
    page = Environment(loader=PackageLoader("topoff"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page.filters.update(number=_number, plain=_plain, part_of=_part_of, largest=_largest)
    title = str(found.result["dataset"] or Path(run).resolve().name)
    text: str = page.get_template("report.html.j2").render(title=title, run=found, plots=_plots(found))
    return text.encode(errors="replace").decode()  # half a surrogate pair in a name has no place in a file


def write_report(run: Path, *, out: Path | None = None) -> Path:
    """Write the page of a run in one step, and return where it is.

    Args:
        run: as of `build_report`.
        out: the file; report.html in the run's folder where it is not given.

    Raises:
        ValueError: as `build_report`; or `out` is a folder.
    """
    path = Path(run) / "report.html" if out is None else Path(out)
    if path.is_dir():
        raise ValueError(
            f"Expected out to be a file (got the folder {path}); add a name, as in {path / 'report.html'}."
        )
    page = build_report(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(page, encoding="utf-8", newline="\n")
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


# Reading


def _read_run(folder: Path) -> Run:
    """Read all files of a run."""
    inner = sorted(folder.glob("seed-*/"), key=lambda path: (len(path.name), path.name))  # seed-2 before seed-10
    own = _read_seed(folder, name="0")
    if not (own.rows or own.result or own.config or own.notes or inner):
        raise ValueError(
            f"Expected run to be a folder with metrics.jsonl, result.json or seed-<s> folders (got {folder}); "
            "give the folder that 'topoff train' wrote."
        )
    several = bool(inner) or "runs" in (own.result or {})
    if not several:
        return _assembled([own], own, notes=_notes(own, "This run"), several=False)
    seeds = [_read_seed(path, name=path.name.removeprefix("seed-")) for path in inner]
    seeds = seeds or [Seed(str(result.get("seed", "")), result=result) for result in (own.result or {})["runs"]]
    notes = [note for seed in seeds for note in _notes(seed, f"Seed {seed.name}")]
    if own.result is None:
        finished = sum(seed.result is not None for seed in seeds)
        count = f"{finished} of the {len(seeds)} seeds that it began"
        notes.insert(0, f"This run was interrupted, or still goes on: {count} are finished.")
    return _assembled(seeds, own, notes=notes, several=True)


def _assembled(seeds: list[Seed], own: Seed, *, notes: list[str], several: bool) -> Run:
    """Put a run together; where its own result is missing, from what its seeds have."""
    single = [seed.last for seed in seeds if seed.result] or [seed.last for seed in seeds]
    result = own.result or (_summary(single) if several else single[0])
    config = own.config or seeds[0].config
    command = str(result.get("command") or own.command or seeds[0].command)
    named = {key: result.get(key) or config.get(key) or "" for key in ("dataset", "model", "method")}
    return Run(tuple(seeds), result | named, config, command, several, tuple(notes))


def _notes(seed: Seed, who: str) -> list[str]:
    """Say what is missing of a seed."""
    when = f"after epoch {seed.rows[-1]['epoch']}" if seed.rows else "before its first epoch ended"
    missing = f"{who} was interrupted {when}, or still goes on: without result.json, the numbers are the last measured."
    return [*([] if seed.result else [missing]), *seed.notes]


def _last(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Collect the last measurement of everything, in the form of a result."""
    keys = (*SPLITS, "fidelity", "certificate", "seconds")
    found = {key: row[key] for row in rows for key in keys if _finite(row.get(key))}
    if rows:
        found["epochs"] = rows[-1]["epoch"]
        found["epoch_seconds"] = (
            found["seconds"] / found["epochs"] if found.get("seconds") and found["epochs"] else None
        )
    return found


def _summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Give mean and unbiased standard deviation of every number over seeds; the rest is that of the first."""
    found = {
        key: value for key, value in results[0].items() if key not in ("best_epoch", "certificate", "steps", "seed")
    }
    for key in SUMMARISED:
        values = [result[key] for result in results if _finite(result.get(key))]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        found[key] = {"mean": statistics.fmean(values), "std": spread} if values else None
    return found


def _read_seed(folder: Path, *, name: str) -> Seed:
    """Read the files of one seed, each of which may be missing."""
    rows, notes = _read_metrics(folder / "metrics.jsonl")
    config, command = _read_config(folder / "config.toml")
    result, details = (_read_object(folder / file) for file in ("result.json", "details.json"))
    confusion = _confusion(details or {}, path=folder / "details.json")
    return Seed(str((result or {}).get("seed", name)), config, command, rows, result, details or {}, confusion, notes)


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Read one object per line and epoch; a last line that was cut off is dropped, with a note."""
    rows: list[dict[str, Any]] = []
    lines = [(number, line) for number, line in enumerate(_bytes(path).split(b"\n"), 1) if line.strip()]
    for number, line in lines:
        try:
            row = _parse(line, path=path, line=number)
        except ValueError:
            if number < lines[-1][0]:
                raise
            return rows, (f"The last line of {path.parent.name}/{path.name} was cut off and is left out.",)
        epoch = row.get("epoch")
        if not isinstance(epoch, int):
            raise ValueError(f"Expected {path} to give each line an epoch (got {epoch!r} in line {number}); repair it.")
        while rows and rows[-1]["epoch"] >= epoch:  # a resumed run repeats the epochs after its checkpoint
            rows.pop()
        rows.append(row)
    return rows, ()


def _read_object(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no file."""
    return _parse(_bytes(path), path=path) if path.exists() else None


def _parse(text: bytes, *, path: Path, line: int = 1) -> dict[str, Any]:
    """Parse a JSON object that starts in some line of a file."""
    try:
        found = json.loads(text.decode())
    except json.JSONDecodeError as error:
        reason, line = error.msg, line + error.lineno - 1
    except UnicodeDecodeError as error:
        reason, line = "bytes that are not UTF-8", line + text.count(b"\n", 0, error.start)
    else:
        if isinstance(found, dict):
            return found
        reason = f"a {type(found).__name__}"
    raise ValueError(f"Expected {path} to hold a JSON object (got {reason} in line {line}); repair it or run again.")


def _read_config(path: Path) -> tuple[dict[str, Any], str]:
    """Read the settings, and the command from the comment in the first line."""
    try:
        text = _bytes(path).decode()
        config = tomllib.loads(text)
    except ValueError as error:
        raise ValueError(f"Expected {path} to hold TOML (got {error}); repair it or run again.") from error
    return config, text.partition("\n")[0].removeprefix("#").strip() if text.startswith("#") else ""


def _bytes(path: Path) -> bytes:
    """Read a file; nothing where there is none."""
    return path.read_bytes() if path.is_file() else b""


def _confusion(details: dict[str, Any], *, path: Path) -> Confusion | None:
    """Take the confusion matrix out of the details, if there is one."""
    if not details.get("confusion"):
        return None
    try:
        counts = np.array(details["confusion"], dtype=float)
    except (TypeError, ValueError):  # ragged, or no numbers
        counts = np.zeros(0)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not np.isfinite(counts).all():
        came = json.dumps(details["confusion"])[:40]
        raise ValueError(f"Expected confusion in {path} to be a square table of counts (got {came}); run again.")
    if not counts.any():  # there were no test nodes
        return None
    known = details.get("classes") or []
    names = [str(name) for name in (known if len(known) == len(counts) else range(len(counts)))]
    return Confusion(counts, names)


# Words and numbers


def _finite(value: object) -> TypeGuard[float]:
    """Say whether a value is a number that can be shown."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any, kind: str = "plain") -> str:
    r"""Write a number, or a mean and its standard deviation, in units for people.

    >>> _number(0.91234, "share"), _number({"mean": 90, "std": 3}, "seconds"), _number(2048, "memory")
    ('91.23\xa0%', '90.0 ± 3.0\xa0s', '2.00\xa0GB')
    """
    mean, spread = (value.get("mean"), value.get("std")) if isinstance(value, dict) else (value, None)
    if not _finite(mean):
        return NOTHING
    scale, unit = _unit(abs(mean), kind)
    size = abs(mean * scale)
    digits = 2 if kind == "share" else 0 if isinstance(mean, int) and scale == 1 and spread is None else 3
    if digits == 3:  # significant ones
        digits = min(6, max(0, 2 - math.floor(math.log10(size)))) if size > 0 else 0
    text = f"{mean * scale:,.{digits}f}"
    text += f" ± {spread * scale:,.{digits}f}" if _finite(spread) else ""
    return f"{text}\xa0{unit}" if unit else text


def _unit(size: float, kind: str) -> tuple[float, str]:
    """Choose a unit: what to multiply by, and its name."""
    if kind == "seconds":
        steps = [(7200, 1 / 3600, "h"), (120, 1 / 60, "min"), (1, 1, "s"), (0, 1000, "ms")]
        return next((scale, unit) for least, scale, unit in steps if size >= least)
    if kind == "memory":
        return (1 / 1024, "GB") if size >= 1024 else (1, "MB")
    return (100, "%") if kind == "share" else (1, "")


def _plain(value: object) -> str:
    """Write a setting as its TOML would."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return NOTHING if value is None else str(value)


def _label(name: object) -> str:
    """Shorten a name for a plot, and drop what XML cannot hold."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(name))
    return text if len(text) <= 24 else f"{text[:23]}…"


def _part_of(value: Any, most: Any) -> float:
    """Return the length of a bar in per cent of the longest."""
    return round(min(100.0, max(0.0, 100 * value / most)), 1) if _finite(value) and _finite(most) and most > 0 else 0.0


def _largest(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Sort rows by one of their numbers, the largest first, what has none last."""
    return sorted(rows, key=lambda row: -row[key] if _finite(row.get(key)) else math.inf)


# Plots


def _plots(run: Run) -> dict[str, Any]:
    """Draw everything that the files have; None for what they have not."""
    details = run.seeds[0].details
    degrees = details.get("degrees") or {}
    score = _label(run.metric) if run.regression else f"{_label(run.metric)}, %"
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the browser brings its own fonts
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


def _axes(width: float = 4.9, height: float = 2.7) -> Axes:
    """Start a drawing with faint horizontal lines."""
    axes = Figure(figsize=(width, height), layout="constrained").add_subplot()
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=FAINT, alpha=0.25, linewidth=0.6)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    return axes


def _svg(axes: Axes, name: str, *, label: str) -> Markup:
    """Turn a drawing into an element of the page: ids of its own, colours of the theme, nothing external."""
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


def _tick(value: float) -> str:
    """Write the number at a tick.

    >>> _tick(0.5), _tick(2000.0), _tick(1e6), _tick(-0.0)
    ('0.5', '2,000', '1M', '0')
    """
    for least, size, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return f"{value / size:g}{unit}"
    return f"{value:,.6g}".replace("-", MINUS) if value else "0"


def _curves(run: Run, keys: Sequence[str], *, against: str, label: str) -> Markup | None:
    """Draw measurements of all seeds against epochs or seconds."""
    axes, said = _axes(), []
    scale = 100 if label.endswith(", %") else 1
    last = max((row["seconds"] for seed in run.seeds for row in seed.rows if _finite(row.get("seconds"))), default=0)
    stretch, unit = _unit(last, "seconds") if against == "seconds" else (1, "")
    for key in keys:
        name = SPLITS.get(key, key)
        for seed in run.seeds:
            rows = [row for row in seed.rows if _finite(row.get(key)) and _finite(row.get(against))]
            rows = rows[: -1 : math.ceil(len(rows) / run.points) or 1] + rows[-1:]
            if rows:
                points = [(row[against] * stretch, row[key] * scale) for row in rows]
                _line(axes, points, key=key, several=run.several)
                said.append(f"{name} from {_tick(points[0][1])} to {_tick(points[-1][1])}")
        axes.plot([], [], label=name, color=LINES[key][0], linestyle=LINES[key][1], linewidth=LINES[key][2])
    if not said:
        return None
    if len(keys) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(keys), borderaxespad=0, handlelength=2.4)
    if against == "epoch":
        _mark(axes, run, keys=keys)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("epoch" if against == "epoch" else f"time, {unit}")
    axes.set_ylabel(label)
    return _svg(axes, f"{keys[0]}-{against}", label=f"{label} against {against}: {'; '.join(said)}")


def _line(axes: Axes, points: list[tuple[float, float]], *, key: str, several: bool) -> None:
    """Draw one curve: thinner among several, with dots where it is short, logarithmic if the loss falls far."""
    (x, y), (colour, dashes, width) = zip(*points, strict=True), LINES[key]
    few = len(x) == 1 or (len(x) <= 25 and not several)
    look: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.7} if several else {"linewidth": width}
    axes.plot(x, y, color=colour, linestyle=dashes, marker="o" if few else "", markersize=3, **look)
    if key == "loss" and min(y) > 0 and max(y) > 1000 * min(y):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
        axes.minorticks_off()


def _mark(axes: Axes, run: Run, *, keys: Sequence[str]) -> None:
    """Mark the refreshes of the first seed at the lower edge, or the best epoch of a single one."""
    if keys[0] in ("fidelity", "certificate"):
        epochs = [row["epoch"] for row in run.seeds[0].rows if row.get("refreshed")]
        x = [value for epoch in epochs for value in (epoch, epoch, math.nan)]  # one path for all ticks
        width = 0.8 if len(epochs) <= 60 else 0.2
        axes.plot(x, [0, 0.05, 0] * len(epochs), color=INK, linewidth=width, transform=axes.get_xaxis_transform())
        axes.margins(y=0.12)
    elif keys[0] == "train" and not run.several and _finite(run.result.get("best_epoch")):
        axes.axvline(run.result["best_epoch"], color=FAINT, linewidth=1, linestyle=":")


def _draw_confusion(confusion: Confusion | None) -> Markup | None:
    """Draw the share of every true class (row) that is taken for each class (column)."""
    if confusion is None:
        return None
    kept, n = confusion.kept, len(confusion.kept)
    names = [_label(confusion.names[index]) for index in kept]
    share = (100 * confusion.counts / np.maximum(confusion.counts.sum(1, keepdims=True), 1))[np.ix_(kept, kept)]
    side, size = (max(2.0, 0.34 * n), 8) if n <= 20 else (0.16 * n, 6)
    axes = _axes(side + 1.4, side + 1.0)
    axes.grid(visible=False)
    heat = ListedColormap([(*to_rgb(HEAT), level) for level in np.linspace(0, 1, 101) ** 0.7])
    axes.imshow(share, cmap=heat, vmin=0, vmax=100, interpolation="none")
    axes.set_xticks(range(n), names, rotation=90, fontsize=size)
    axes.set_yticks(range(n), names, fontsize=size)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    for row, column in np.argwhere(share > 0) if n <= 20 else ():  # more would not be legible
        colour = "#ffffff" if share[row, column] > 60 else INK
        text = f"{share[row, column]:.0f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=size - 1, color=colour)
    return _svg(axes, "confusion", label=f"Confusion matrix of {n} classes, in per cent of each true class")


def _draw_scatter(pairs: list[list[float]]) -> Markup | None:
    """Draw predictions against true values, with the diagonal."""
    points = np.array([pair for pair in pairs if all(map(_finite, pair))][:1000], dtype=float)
    if not len(points):
        return None
    axes = _axes(4.2, 3.8)
    low, high = points.min(), points.max()
    axes.plot([low, high], [low, high], color=FAINT, linewidth=1, linestyle="--")
    axes.plot(*points.T, color=BLUE, linestyle="", marker="o", markersize=3, markeredgewidth=0, alpha=0.5)
    axes.set_xlabel("true value")
    axes.set_ylabel("predicted value")
    return _svg(axes, "scatter", label=f"{len(points)} predictions against true values from {low:.3g} to {high:.3g}")


def _draw_batches(batches: list[dict[str, Any]]) -> Markup | None:
    """Draw the certificate of every batch."""
    shares = [100 * row["certificate"] if _finite(row.get("certificate")) else math.nan for row in batches]
    if not np.isfinite(shares).any():
        return None
    axes = _axes(5.6, 2.4)
    gaps = [value for share in shares for value in (math.nan, share)]  # one path, however many batches
    edges = [value for index in range(len(shares)) for value in (index + 0.6, index + 0.7)] + [len(shares) + 0.6]
    axes.stairs(gaps, edges, color=ORANGE, fill=True)
    axes.set_xlim(0.4, len(shares) + 0.9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("batch")
    axes.set_ylabel("certificate, %")
    return _svg(
        axes, "batches", label=f"Certificates of {len(shares)} batches, at most {np.nanmax(shares):.3g} per cent"
    )


def _draw_degrees(edges: Sequence[float], counts: Sequence[int]) -> Markup | None:
    """Draw how many nodes have how many edges, both axes logarithmic; isolated nodes are left of 1."""
    if len(edges) != len(counts) + 1 or not any(counts) or not all(map(_finite, edges)) or edges[-1] <= 1:
        return None
    axes = _axes(5.6, 2.6)
    axes.stairs([count or math.nan for count in counts], np.maximum(edges, 0.5), baseline=0.5, color=BLUE, fill=True)
    axes.set_xscale("log")
    axes.set_yscale("log", nonpositive="clip")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.minorticks_off()
    axes.set_xlabel("degree")
    axes.set_ylabel("nodes")
    return _svg(axes, "degrees", label=f"Histogram of the degrees of {sum(counts):,} nodes, up to {edges[-1]:,}")
