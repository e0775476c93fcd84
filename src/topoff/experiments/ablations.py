"""Ablations beyond the paper: one setting of TOP varied at a time, to see which default it supports.

>>> [study.name for study in ABLATIONS][:3]
['ablation-estimator', 'ablation-rank', 'ablation-inits']
>>> [value.label for value in values(TABLE[1], Scope(quick=True))]
['0', '16', '64 = d']
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from topoff.experiments.ablation_table import HIDDEN, TABLE, Ablation, Value
from topoff.experiments.paper_graphs import Source, is_there, load_of, source
from topoff.experiments.study import Cell, Found, Results, Scope, Sheet, Study, add_legend, failed, percent
from topoff.experiments.theory_record import new_panels

GRAPHS = ("Computers", "tolokers")  # or where none of them is at hand, the graph that ships
LAYERS, RATIO = 3, 0.1  # ratio: of the batches that are measured
EPOCHS, QUICK_EPOCHS = 40, 6  # of trainings in batches
FULL_EPOCHS, QUICK_FULL_EPOCHS = 100, 20  # of the full-batch trainings whose batches are measured
OLD = {"refresh": "every=100"}  # what is measured has a basis of some steps ago, as it is


def places(scope: Scope) -> list[Source]:
    """List the graphs: those that are at hand, or the one that ships; in quick mode a small stand-in."""
    if scope.quick:
        return [source("ogbn-arxiv", dataclasses.replace(scope, root=None, stand_in=True))]
    return [source(name, scope) for name in GRAPHS if is_there(name, scope.root)] or [source("wordnet", scope)]


def values(ablation: Ablation, scope: Scope) -> list[Value]:
    """List the values to try; in quick mode the ends and the default."""
    ends = ablation.values[0], ablation.values[-1]
    return [value for value in ablation.values if not scope.quick or value.default or value in ends]


def training(ablation: Ablation, value: Value, place: Source, scope: Scope) -> Cell:
    """Return the training with a value; that of the default is the same cell in most ablations."""
    train = {"method": "top", "model": "gcn", "layers": LAYERS, "hidden": HIDDEN, "eval_every": 1, "seed": scope.seed}
    train |= {"epochs": QUICK_EPOCHS if scope.quick else EPOCHS, **ablation.common, **value.settings}
    if train["method"] == "top":
        train["late"] = False  # it would follow from other settings, and one is varied at a time
        train.setdefault("train_only", False)  # so would this,
        train.setdefault("batches", "kaminpar")  # and this
    return Cell("training", {**place.settings, "train": train}, weight=load_of(place, "gcn") / 2)


def measuring(ablation: Ablation, place: Source, scope: Scope) -> Cell:
    """Return the cell that compares batches under all values with the whole graph, at the same weights."""
    sizes = {"model": "gcn", "layers": LAYERS, "hidden": HIDDEN, "seed": scope.seed}
    sizes |= {"epochs": QUICK_FULL_EPOCHS if scope.quick else FULL_EPOCHS, "sampler": "kaminpar", "ratio": RATIO}
    tops = {value.label: {**OLD, **ablation.common, **value.settings} for value in values(ablation, scope)}
    return Cell("compensations", {**place.settings, **sizes, "tops": tops}, weight=load_of(place, "gcn"))


def cells(ablation: Ablation, scope: Scope) -> list[Cell]:
    """List what is measured."""
    graphs, tried = places(scope), values(ablation, scope) if ablation.trained else []
    found = [measuring(ablation, place, scope) for place in graphs if ablation.measured]
    return found + [training(ablation, value, place, scope) for place in graphs for value in tried]


@dataclass(frozen=True)
class Column:
    """Describe a number of the sheet."""

    title: str
    key: str
    measured: bool  # of the cell that measures, or of the training
    digits: int = 2
    share: bool = True  # written in per cent, and drawn

    def write(self, value: float | None) -> str:
        """Write the number; a dash where there is none."""
        plain = "-" if value is None else f"{value:.{self.digits}f}"
        return percent(value, digits=self.digits) if self.share else plain


COLUMNS = (
    Column("error", "relative_error", measured=True),
    Column("gradient error", "gradient_error", measured=True, digits=1),
    Column("error in training", "error", measured=False),
    Column("test", "test", measured=False),
    Column("s per epoch", "epoch_seconds", measured=False, digits=3, share=False),
    Column("s of preparation", "preprocess_seconds", measured=False, share=False),
    Column("MB in training", "train_peak_rss_mb", measured=False, digits=0, share=False),
)


@dataclass(frozen=True)
class Row:
    """Hold what was found of one value on one graph; nothing where it was not looked at."""

    place: Source
    value: Value
    at_weights: Found  # of the same weights for all values
    run: Found  # of the value's own training

    def get(self, column: Column) -> float | None:
        """Return the number of a column."""
        found: float | None = (self.at_weights if column.measured else self.run).get(column.key)
        return found


NOTES = {
    "error": "error, gradient error: of batches of a tenth of the nodes (KaMinPar) against the whole graph, at the "
    "weights of one full-batch training, with a basis five steps old (never refreshed: of random networks).",
    "error in training": "error in training: of the outputs that training sees, before a refresh, mean over the "
    "epochs; nodes that are in no batch do not count. test: exact, at the best validation score (accuracy; ROC AUC on "
    "tolokers); one seed.",
}


def rows(ablation: Ablation, scope: Scope, results: Results) -> list[Row]:
    """Gather what was found, graph by graph."""
    found = []
    for place in places(scope):
        measured = results(measuring(ablation, place, scope)) if ablation.measured else {}
        for value in values(ablation, scope):
            at_weights = measured if failed(measured) else measured.get(value.label, {})
            run = results(training(ablation, value, place, scope)) if ablation.trained else {}
            found.append(Row(place, value, at_weights, run))
    return found


def columns(ablation: Ablation) -> list[Column]:
    """List the columns that an ablation has."""
    return [column for column in COLUMNS if (ablation.measured if column.measured else ablation.trained)]


def sheet(ablation: Ablation, scope: Scope, results: Results) -> Sheet:
    """Write errors, scores and costs by graph and value, the default marked."""
    shown, lines, reasons = columns(ablation), list[list[str]](), list[str]()
    for row in rows(ablation, scope, results):
        lines.append([row.place.label, ablation.mark(row.value), *(column.write(row.get(column)) for column in shown)])
        for reason in filter(None, (failed(row.at_weights), failed(row.run))):
            reasons.append(f"{row.place.label}, {row.value.label}: not measured: {reason}")
    notes = [NOTES[column.title] for column in shown if column.title in NOTES]
    return Sheet(("graph", "value", *(column.title for column in shown)), lines, [*notes, *reasons])


def draw(ablation: Ablation, scope: Scope, results: Results) -> Figure:
    """Draw errors and scores by value, a colour per graph: lines for numbers, else bars, or dots for close scores."""
    shown, graphs = [column for column in columns(ablation) if column.share], places(scope)
    found, labels = rows(ablation, scope, results), [value.label for value in values(ablation, scope)]
    figure, panels = new_panels(len(shown))
    for axes, column in zip(panels, shown, strict=True):
        for number, place in enumerate(graphs):
            heights = [row.get(column) for row in found if row.place == place]
            known = [(at, 100 * height) for at, height in enumerate(heights) if height is not None]
            across, up = [at for at, _ in known], [height for _, height in known]
            style: dict[str, Any] = {"label": place.label if known else "", "color": f"C{number}"}
            if ablation.ordered or column.key == "test":
                axes.plot(across, up, "o-" if ablation.ordered else "o", **style)
            else:
                aside = (number - (len(graphs) - 1) / 2) * 0.8 / len(graphs)
                axes.bar([at + aside for at in across], up, 0.8 / len(graphs), **style)
        axes.set_xticks(range(len(labels)), labels, rotation=0 if ablation.ordered else 20, fontsize=7)
        positive = any((row.get(column) or 0) > 0 for row in found)  # or a logarithm has nothing to show
        logarithmic = ablation.ordered and column.key != "test" and positive
        axes.set(ylabel=f"{column.title}, %", yscale="log" if logarithmic else "linear")
    add_legend(panels[0])
    return figure


def _study(ablation: Ablation) -> Study:
    """Make the study of an ablation."""
    made: tuple[Any, ...] = tuple(partial(each, ablation) for each in (cells, sheet, draw))
    return Study(f"ablation-{ablation.name}", f"Ablation: {ablation.title}", ablation.about, *made)


ABLATIONS = tuple(_study(ablation) for ablation in TABLE)
