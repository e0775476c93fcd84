"""Ablations beyond the paper: one setting of TOP varied at a time, to see which default it supports.

>>> [study.name for study in ABLATIONS][:3]
['ablation-estimator', 'ablation-rank', 'ablation-inits']
>>> [value.label for value in values(RANK, Scope(quick=True))]
['0', '16', '64 = d']
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from topoff.experiments.paper_graphs import Source, is_there, source
from topoff.experiments.study import Cell, Found, Results, Scope, Sheet, Study, add_legend, failed, percent
from topoff.experiments.theory_record import new_panels

GRAPHS = ("PubMed", "Computers", "tolokers", "minesweeper", "wordnet")
HIDDEN, LAYERS, RATIO = 64, 3, 0.1  # ratio: of the batches that are measured
EPOCHS, QUICK_EPOCHS = 40, 6  # of trainings in batches
FULL_EPOCHS, QUICK_FULL_EPOCHS = 100, 20  # of the full-batch trainings whose batches are measured
OFF: dict[str, Any] = {"offset": False}
OLD = {"refresh": "every=100"}  # what is measured has a basis of some steps ago, as it is


@dataclass(frozen=True)
class Value:
    """Name one value of an ablation: the settings in which it differs from the others."""

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    default: bool = False  # whether this is what topoff does where the user says nothing


@dataclass(frozen=True)
class Ablation:
    """Describe what is varied, and how it is looked at."""

    name: str
    title: str
    about: str
    values: tuple[Value, ...]
    common: dict[str, Any] = field(default_factory=dict)  # settings of all values
    measured: bool = False  # batches of a model that was trained full-batch are compared with the whole graph
    trained: bool = True  # a model is trained in such batches
    ordered: bool = False  # whether the values are numbers, drawn as a line


def default(label: str) -> Value:
    """Return the value that is topoff's default: nothing is said."""
    return Value(label, default=True)


def varied(key: str, *found: Any) -> tuple[Value, ...]:
    """Return values of one setting."""
    return tuple(Value(str(each), {key: each}) for each in found)


ESTIMATOR = Ablation(
    "estimator",
    "how the compensation is estimated",
    "Ridge regression on a wide basis, with and without its offset, the paper's Eq. 12, and the released code.",
    (default("ridge"), Value("ridge, no offset", OFF), *varied("estimator", "released", "paper")),
    measured=True,
)
RANK = Ablation(
    "rank",
    "rank k of the compensation",
    "The paper has k = d, the hidden size. Rank 0 is the offset alone: exact embeddings as old as the refresh.",
    (*varied("rank", 0, 4), default("16"), *varied("rank", 32), Value(f"{HIDDEN} = d", {"rank": HIDDEN})),
    measured=True,
    ordered=True,
)
INITS = Ablation(
    "inits",
    "number N of networks behind a basis that is never refreshed",
    "Random initialisations, as in the paper. Where a basis is refreshed, it comes from the current weights alone.",
    (*varied("inits", 1), default("2"), *varied("inits", 4, 8)),
    common={"refresh": "never"},
    measured=True,
    ordered=True,
)
ANCHORS = Ablation(
    "anchors",
    "number S of nodes of a batch that are read",
    "The paper's estimators read S nodes of a batch; ridge regression reads all. Without offset, k = 64. S is an "
    "argument of TOP and no setting of a run, so nothing is trained.",
    (
        Value("paper, S = k", {"estimator": "paper"}),
        Value("paper, S = 2 k", {"estimator": "paper", "anchors": 128}),
        Value("paper, S = 4 k", {"estimator": "paper", "anchors": 256}),
        Value("released, S = 2 k", {"estimator": "released", "anchors": 128}),
        Value("released, all", {"estimator": "released"}),
        default("ridge, all"),
    ),
    common=OFF,
    measured=True,
    trained=False,
)
FIRST_LAYER = Ablation(
    "first-layer",
    "exact first layer",
    "A X is known, so the first layer is exact. drop leaves out all outside a batch, drop-ax all but the features. "
    "TOP without it is not varied: exact inference records no raw features, which basis and offset would need.",
    (*varied("method", "drop", "drop-ax"), default("top")),
)
OFFSET = Ablation(
    "offset",
    "what is compensated",
    "Only what has changed since the last refresh (offset, rank 16), all messages from outside as in the paper (no "
    "offset; rank 64 where none is given), or nothing but what they were at the refresh (rank 0).",
    (
        default("offset"),
        Value("no offset", OFF),
        Value("no offset, 16", OFF | {"rank": 16}),
        Value("rank 0", {"rank": 0}),
    ),
    measured=True,
)
REFRESH = Ablation(
    "refresh",
    "when the basis is estimated anew",
    "Never, every so many epochs, or as often as it pays (auto). Never has no offset and rank 64.",
    (*varied("refresh", "never", "every=20"), default("auto"), *varied("refresh", "every=5", "every=1")),
)
SHARE = Ablation(
    "ratio",
    "share of the nodes per batch",
    "The default is chosen from the graph: 400 to 3,000 nodes and at least 64 labels per batch.",
    (default("chosen"), *varied("ratio", 0.01, 0.03, 0.1, 0.3, 1.0)),
)
DEPTH = Ablation(
    "depth",
    "number of layers",
    "Errors of the halo pass through every further layer; GCN with residual connections.",
    (*varied("layers", 2), default("3"), *varied("layers", 4, 6, 8, 10)),
    ordered=True,
)
NORM = Ablation(
    "norm",
    "normalisation after each conv",
    "Batch norm sees the batch alone in training, and running means in evaluation.",
    (default("layer"), *varied("norm", "none", "batch")),
)
TRAIN_ONLY = Ablation(
    "train-only",
    "which nodes are batched",
    "All nodes, or the training nodes alone with all others compensated (train_only).",
    (default("all"), Value("train_only", {"train_only": True})),
)
TABLE = (ESTIMATOR, RANK, INITS, ANCHORS, FIRST_LAYER, OFFSET, REFRESH, SHARE, DEPTH, NORM, TRAIN_ONLY)


def places(scope: Scope) -> list[Source]:
    """List the graphs: those that are at hand; in quick mode a small stand-in."""
    if scope.quick:
        return [source("ogbn-arxiv", dataclasses.replace(scope, root=None, stand_in=True))]
    return [source(name, scope) for name in GRAPHS if is_there(name, scope.root)]


def values(ablation: Ablation, scope: Scope) -> list[Value]:
    """List the values to try; in quick mode the ends and the default."""
    ends = ablation.values[0], ablation.values[-1]
    return [value for value in ablation.values if not scope.quick or value.default or value in ends]


def training(ablation: Ablation, value: Value, place: Source, scope: Scope) -> Cell:
    """Return the training with a value; that of the default is the same cell in most ablations."""
    train = {"method": "top", "model": "gcn", "layers": LAYERS, "hidden": HIDDEN, "eval_every": 1, "seed": scope.seed}
    train |= {"epochs": QUICK_EPOCHS if scope.quick else EPOCHS, **ablation.common, **value.settings}
    return Cell("training", {**place.settings, "train": train}, weight=2.0)


def measuring(ablation: Ablation, place: Source, scope: Scope) -> Cell:
    """Return the cell that compares batches under all values with the whole graph, at the same weights."""
    sizes = {"model": "gcn", "layers": LAYERS, "hidden": HIDDEN, "seed": scope.seed}
    sizes |= {"epochs": QUICK_FULL_EPOCHS if scope.quick else FULL_EPOCHS, "sampler": "kaminpar", "ratio": RATIO}
    tops = {value.label: {**OLD, **ablation.common, **value.settings} for value in values(ablation, scope)}
    return Cell("compensations", {**place.settings, **sizes, "tops": tops}, weight=2.0)


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
    "epochs; nodes that are in no batch do not count. test: exact, at the best validation score; one seed.",
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
        label = f"{row.value.label} (default)" if row.value.default else row.value.label
        lines.append([row.place.label, label, *(column.write(row.get(column)) for column in shown)])
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
        axes.set(ylabel=f"{column.title}, %", yscale="log" if ablation.ordered and column.key != "test" else "linear")
    add_legend(panels[0])
    return figure


def _study(ablation: Ablation) -> Study:
    """Make the study of an ablation."""
    made: tuple[Any, ...] = tuple(partial(each, ablation) for each in (cells, sheet, draw))
    return Study(f"ablation-{ablation.name}", f"Ablation: {ablation.title}", ablation.about, *made)


ABLATIONS = tuple(_study(ablation) for ablation in TABLE)
