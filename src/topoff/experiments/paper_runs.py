"""The trainings behind Tables 4 to 6 and Figures 3 to 9: which graph, model and method, with the paper's settings.

>>> run(GCN_ARXIV, "gas", Scope(quick=True, stand_in=True)).settings["train"]["epochs"]
20
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from topoff.experiments.paper_graphs import is_there, source
from topoff.experiments.study import Cell, Results, Scope, add_legend, failed

QUICK_EPOCHS = 20
EPOCHS = 100  # where no config of the paper is known
NAMES = {
    "full": "Full-batch",
    "cluster": "CLUSTER",
    "gas": "GAS",
    "saint-walk": "GraphSAINT",
    "top": "TOP",
    "ns": "NS",
    "labor": "LABOR",
}


@dataclass(frozen=True)
class Setting:
    """Name a graph and a model of the paper."""

    graph: str
    gnn: str  # as the paper calls it
    config: str | None  # that ships with topoff
    model: str
    train_only: bool = False  # of TOP: validation and test nodes are compensated

    @property
    def title(self) -> str:
        """Its name in tables."""
        return f"{self.gnn} & {self.graph}"


GCN_ARXIV = Setting("ogbn-arxiv", "GCN", "gcn-arxiv", "gcn")
SAGE_ARXIV = Setting("ogbn-arxiv", "SAGE", None, "sage")
GAT_ARXIV = Setting("ogbn-arxiv", "GAT", None, "gat")
GCN_REDDIT = Setting("Reddit", "GCN", "gcn-reddit", "gcn")
GCNII_REDDIT = Setting("Reddit", "GCNII", "gcnii-reddit", "gcnii")
GCNII_YELP = Setting("Yelp", "GCNII", "gcnii-yelp", "gcnii")
JK_PRODUCTS = Setting("ogbn-products", "GCNII+JK", "gcnii-jk-products", "gcnii-jk", train_only=True)
JK_PAPERS = Setting("ogbn-papers100M", "GCNII+JK", None, "gcnii-jk", train_only=True)
SETTINGS = (GCN_ARXIV, SAGE_ARXIV, GAT_ARXIV, GCN_REDDIT, GCNII_REDDIT, GCNII_YELP, JK_PRODUCTS, JK_PAPERS)


def at_hand(settings: Sequence[Setting], scope: Scope) -> list[Setting]:
    """Return the settings whose graphs are there, or stood in for."""
    return [each for each in settings if is_there(each.graph, scope.root) or scope.stand_in]


def run(setting: Setting, method: str, scope: Scope, **more: Any) -> Cell:
    """Return the cell of a training with a method, the paper's settings where they ship, `more` of others."""
    own: dict[str, Any] = {"method": method, "seed": scope.seed, "model": setting.model}
    if setting.config is None:
        own |= {"epochs": EPOCHS, "layers": 3, "hidden": 256 if setting.model != "gat" else 64}
    if scope.quick:
        own |= {"epochs": QUICK_EPOCHS, "hidden": 64, "eval_every": 2}
        own |= {"parts": None, "ratio": 0.25} if setting.config else {"ratio": 0.25}
    if setting.config == "gcnii-jk-products":
        own["edge_dropout"] = 0.0  # which histories cannot serve: all methods do without
    if method in ("top", "cluster"):
        own["train_only"] = setting.train_only  # as in the paper, whatever topoff would choose
        own |= {} if setting.config else {"batches": "kaminpar"}
    settings = {**source(setting.graph, scope).settings, "config": setting.config, "train": {**own, **more}}
    return Cell("training", settings, weight=3.0)


def label(setting: Setting, scope: Scope) -> str:
    """Name a setting in a table, with the stand-in where there is one."""
    return f"{setting.gnn} & {source(setting.graph, scope).label}"


def draw_curves(panels: Sequence[tuple[str, dict[str, Cell]]], results: Results, *, against: str) -> Figure:
    """Draw test scores against seconds or epochs, a panel for every setting, a line for every method."""
    across = max(1, min(3, len(panels)))
    down = max(1, -(-len(panels) // across))
    figure = Figure(figsize=(3.6 * across, 2.8 * down), layout="constrained")
    for number, (title, cells) in enumerate(panels, 1):
        axes = figure.add_subplot(down, across, number)
        for method, cell in cells.items():
            found = results(cell)
            if failed(found):
                continue
            column = 0 if against == "seconds" else 1
            points = [(row[column], 100 * row[2]) for row in found["curve"] if row[2] is not None]
            width = 2.2 if method == "top" else 1.2
            axes.plot(
                *zip(*points, strict=True), "-", label=NAMES.get(method, method), linewidth=width
            ) if points else 0
        axes.set(title=title, xlabel=against, ylabel="test score, %")
        axes.title.set_fontsize(9)
        if number == 1:
            add_legend(axes)
    return figure
