"""Figure 5: memory of training against depth, and convergence, TOP beside neighbour sampling and LABOR.

>>> [cell.settings["train"]["layers"] for cell in cells(Scope(quick=True))]
[2, 4, 2, 4, 2, 4]
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from topoff.experiments.paper_graphs import Source, is_there, source
from topoff.experiments.paper_runs import NAMES
from topoff.experiments.study import Cell, Results, Scope, Sheet, Study, add_legend, failed, percent

METHODS = ("ns", "labor", "top")
DEPTHS = (2, 3, 4, 5, 6, 7)  # as in the paper


def place(scope: Scope) -> Source:
    """Return the graph: products, or where neither it nor a stand-in is wanted, the one that ships."""
    name = "ogbn-products" if scope.stand_in or is_there("ogbn-products", scope.root) else "wordnet"
    return source(name, scope)


def depths(scope: Scope) -> tuple[int, ...]:
    """Return the depths to try."""
    return DEPTHS[:3:2] if scope.quick else DEPTHS


def cell(method: str, layers: int, scope: Scope) -> Cell:
    """Return the training of a method at a depth: SAGE, fan-out 10, as the comparison of the paper."""
    train = {
        "method": method,
        "model": "sage",
        "layers": layers,
        "hidden": 64 if scope.quick else 256,
        "seed": scope.seed,
    }
    train |= {"epochs": 6 if scope.quick else 10, "lr": 0.003, "eval_every": 1 if scope.quick else 2, "dropout": 0.5}
    own: dict[str, Any] = {"train": {**train, "fanout": 10}}
    if method == "top":
        labor = {"method": "labor", "fanout": 10, "train_only": False, "batches": None}
        own = {"train": {**train, "train_only": True, "batches": "random"}, "as_large_as": labor}
    return Cell("training", {**place(scope).settings, **own}, weight=2.0 * layers)


def cells(scope: Scope) -> list[Cell]:
    """List what is trained."""
    return [cell(method, layers, scope) for method in METHODS for layers in depths(scope)]


def sheet(scope: Scope, results: Results) -> Sheet:
    """Write memory, seconds and scores by depth."""
    rows = []
    for method in METHODS:
        for layers in depths(scope):
            found = results(cell(method, layers, scope))
            words = [failed(found) or "", "", "", ""]
            if not failed(found):
                memory = found["train_peak_rss_mb"] or found["peak_rss_mb"]
                steps = found["steps"] / max(1, found["epochs"])
                words = [f"{memory:.0f}", f"{steps:.0f}", f"{found['epoch_seconds']:.3f}", percent(found["test"])]
            rows.append([NAMES[method], str(layers), *words])
    note = f"{place(scope).label}; resident memory of the process before the first exact evaluation, graph included."
    return Sheet(("method", "layers", "MB", "steps per epoch", "s per epoch", "test"), rows, [note])


def draw(scope: Scope, results: Results) -> Figure:
    """Draw memory against depth, and the score against seconds at the middle depth."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    memory, score = figure.subplots(1, 2)
    middle = depths(scope)[len(depths(scope)) // 2]
    for method in METHODS:
        found = [(layers, results(cell(method, layers, scope))) for layers in depths(scope)]
        good = [
            (layers, each["train_peak_rss_mb"] or each["peak_rss_mb"]) for layers, each in found if not failed(each)
        ]
        if good:
            memory.plot(*zip(*good, strict=True), "o-", label=NAMES[method])
        one = results(cell(method, middle, scope))
        if not failed(one):
            points = [(row[0], 100 * row[2]) for row in one["curve"] if row[2] is not None]
            score.plot(*zip(*points, strict=True), label=NAMES[method])
    memory.set(xlabel="layers", ylabel="MB", ylim=(0, None))
    score.set(xlabel="seconds", ylabel="test score, %", title=f"{middle} layers")
    add_legend(memory)
    return figure


FIGURE5 = Study(
    "figure5",
    "Figure 5: memory against depth, and convergence, beside NS and LABOR",
    "SAGE; TOP draws its batches uniformly among the training nodes, as the paper does there. As in the paper its "
    "batches follow LABOR's memory: as many rows as a batch of LABOR is expected to have on average over its layers "
    "(counted without joint sampling), at most all training nodes, which is then one step per epoch. The paper says "
    "that TOP is more than 2x as fast as both on products, Reddit and arxiv (A800).",
    cells,
    sheet,
    draw,
)
