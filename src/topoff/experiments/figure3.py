"""Figures 3 and 6 to 9: convergence against seconds and epochs; METIS, random batches, heterophilous graphs.

>>> [cell.settings["train"]["method"] for cell in FIGURE9.cells(Scope(quick=True, stand_in=True))]
['cluster', 'gas', 'top']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from topoff.experiments.paper_graphs import HETEROPHILOUS, is_there
from topoff.experiments.paper_runs import (
    GAT_ARXIV,
    GCN_ARXIV,
    GCN_REDDIT,
    GCNII_REDDIT,
    GCNII_YELP,
    JK_PRODUCTS,
    NAMES,
    SAGE_ARXIV,
    Setting,
    at_hand,
    draw_curves,
    label,
    run,
)
from topoff.experiments.study import Cell, Results, Scope, Sheet, Study, failed, percent

SUBGRAPHS = ("full", "cluster", "gas", "saint-walk", "top")
NOTES = [
    "TOP is topoff's default: refreshed, with an offset, the first layer's messages known. Scores are accuracies, of "
    "Yelp micro-F1, of minesweeper and tolokers ROC AUC; seconds include preparation and refreshes, not evaluation.",
]
Panels = list[tuple[str, dict[str, Cell]]]


def _panels(settings: Sequence[Setting], methods: Sequence[str], **more: Any) -> Callable[[Scope], Panels]:
    """Return what lists the panels of a figure: their titles, and a cell for every method."""

    def listed(scope: Scope) -> Panels:
        """List them; in quick mode the first one."""
        found = at_hand(settings, scope)[: 1 if scope.quick else None]
        return [(label(each, scope), {name: run(each, name, scope, **more) for name in methods}) for each in found]

    return listed


def _heterophilous(scope: Scope) -> Panels:
    """List the panels of Figure 8: graphs under --root."""
    names = [name for name in HETEROPHILOUS if is_there(name, scope.root)][: 1 if scope.quick else None]
    settings = [Setting(name, "GCN", None, "gcn") for name in names]
    return _panels(settings, ("cluster", "gas", "top"), ratio=0.5)(scope)


def _study(name: str, title: str, about: str, panels: Callable[[Scope], Panels], *, against: str) -> Study:
    """Make the study of a figure with panels of curves."""

    def cells(scope: Scope) -> list[Cell]:
        """List the trainings."""
        return [cell for _, methods in panels(scope) for cell in methods.values()]

    def sheet(scope: Scope, results: Results) -> Sheet:
        """Write where the curves end."""
        rows = []
        for title, methods in panels(scope):
            for method, cell in methods.items():
                found = results(cell)
                words = [failed(found) or "", "", ""]
                if not failed(found):
                    seconds = found["preprocess_seconds"] + found["epoch_seconds"] * found["epochs"]
                    words = [percent(found["test"]), f"{seconds:.1f}", str(found["epochs"])]
                rows.append([title, NAMES.get(method, method), *words])
        notes = NOTES if rows else []
        return Sheet(("panel", "method", "test at the best validation score", "seconds", "epochs"), rows, notes)

    def draw(scope: Scope, results: Results) -> Figure:
        """Draw the curves."""
        return draw_curves(panels(scope), results, against=against)

    return Study(name, title, about, cells, sheet, draw)


_ALL = (GCN_ARXIV, GCN_REDDIT, GCNII_REDDIT, GCNII_YELP, JK_PRODUCTS)
FIGURE3 = _study(
    "figure3",
    "Figure 3: convergence against seconds",
    "Test scores of subgraph sampling against seconds, pre-processing and refreshes included. The paper's batches are "
    "50 % of ogbn-arxiv and Reddit, 12.5 % of Yelp and 4 % of ogbn-products.",
    _panels(_ALL, SUBGRAPHS),
    against="seconds",
)
FIGURE6 = _study(
    "figure6",
    "Figure 6: convergence against epochs",
    "The runs of Figure 3 against epochs; one of the full batch is one step.",
    _panels(_ALL, SUBGRAPHS),
    against="epochs",
)
FIGURE7 = _study(
    "figure7",
    "Figure 7: convergence on GCN, GAT and SAGE",
    "Subgraph sampling and IBMB on three models.",
    _panels((GCN_ARXIV, GAT_ARXIV, SAGE_ARXIV), ("cluster", "gas", "saint-walk", "ibmb", "top")),
    against="seconds",
)
FIGURE8 = _study(
    "figure8",
    "Figure 8: convergence on heterophilous graphs",
    "GCN on the graphs of Table 7, batches of half the graph.",
    _heterophilous,
    against="seconds",
)
FIGURE9 = _study(
    "figure9",
    "Figure 9: convergence with random batches",
    "Batches of uniformly drawn nodes instead of clusters.",
    _panels((GCN_ARXIV, GCNII_REDDIT), ("cluster", "gas", "top"), batches="random", parts=None),
    against="seconds",
)
