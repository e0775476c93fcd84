"""Table 2: time of a step against depth, size of the batch, width and rank, measured beside the formula.

>>> [cell.settings["train"]["layers"] for cell in cells(Scope(quick=True))][:3]
[2, 9, 3]
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from topoff.experiments.paper_graphs import source
from topoff.experiments.study import Cell, Found, Results, Scope, Sheet, Study, add_legend, failed

BASE: dict[str, Any] = {"layers": 3, "ratio": 0.05, "hidden": 128, "rank": 64}
VARIED: dict[str, tuple[float, ...]] = {
    "layers": (2, 3, 5, 9),
    "ratio": (0.0125, 0.025, 0.05, 0.1),
    "hidden": (32, 64, 128, 256),
    "rank": (16, 64, 256),
}
WORDS = {"layers": "L", "ratio": "|B|", "hidden": "d", "rank": "k"}
FORMULAS = (  # as printed: time and memory of a step, and whether messages from outside a batch are compensated
    ("Full-batch", "O(L (|E| d + |V| d^2))", "O(L |V| d)", "yes"),
    ("CLUSTER", "O(L (deg_max |B| d + |B| d^2))", "O(L |B| d)", "no"),
    ("GAS and LMC", "O(L (deg_max |B| d + |B| d^2))", "O(deg_max L |B| d)", "yes"),
    ("TOP", "O(L (deg_max |B| d + |B| (d^2 + k^2)))", "O(L |B| d)", "yes"),
)


def cell(scope: Scope, **varied: Any) -> Cell:
    """Return the cell of one size."""
    settings = {**BASE, **varied}
    train = {"method": "top", "model": "gcn", "epochs": 2 if scope.quick else 6, "eval_every": 100, "offset": False}
    train |= {**settings, "refresh": "never", "seed": scope.seed}
    return Cell("training", {**source("wordnet", scope).settings, "train": train})


def cells(scope: Scope) -> list[Cell]:
    """List what is timed."""
    return [cell(scope, **{name: value}) for name, values in VARIED.items() for value in _values(values, scope)]


def _values(values: tuple[float, ...], scope: Scope) -> tuple[float, ...]:
    """Return the sizes to try; in quick mode the ends."""
    return (values[0], values[-1]) if scope.quick else values


def formula(found: Found, settings: dict[str, Any]) -> float:
    """Return the multiplications of a step, up to a factor: L (deg |B| d + |B| (d^2 + 2 k d)).

    Our compensation is two products with k d numbers per row; the paper's second one has k^2.
    """
    rows, degree = settings["ratio"] * found["nodes"], found["edges"] / found["nodes"]
    d, k = settings["hidden"], settings["rank"]
    return float(settings["layers"] * rows * (degree * d + d * d + 2 * k * d))


def printed(found: Found, settings: dict[str, Any]) -> float:
    """Return the same by the paper's formula, L (deg |B| d + |B| (d^2 + k^2)), with the average degree."""
    rows, degree = settings["ratio"] * found["nodes"], found["edges"] / found["nodes"]
    d, k = settings["hidden"], settings["rank"]
    return float(settings["layers"] * rows * (degree * d + d * d + k * k))


def step(found: Found) -> float:
    """Return the seconds of a step."""
    return float(found["epoch_seconds"] * found["epochs"] / found["steps"])


def sheet(scope: Scope, results: Results) -> Sheet:
    """Write how much longer a step takes than at the smallest size, and how much more the formula says."""
    rows = []
    for name, values in VARIED.items():
        sizes = _values(values, scope)
        found = [results(cell(scope, **{name: value})) for value in sizes]
        for value, each in zip(sizes, found, strict=True):
            if failed(each) or failed(found[0]):
                rows.append([WORDS[name], f"{value:g}", "-", "-", failed(each) or "", "", ""])
                continue
            more = step(each) / step(found[0])
            said = formula(each, BASE | {name: value}) / formula(found[0], BASE | {name: sizes[0]})
            paper = printed(each, BASE | {name: value}) / printed(found[0], BASE | {name: sizes[0]})
            took = [f"{1000 * step(each):.2f} ms", f"{more:.2f}", f"{paper:.2f}", f"{said:.2f}"]
            rows.append([WORDS[name], f"{value:g}", *took, f"{each['train_peak_rss_mb']:.0f}"])
    notes = [
        f"{name}: time {time}, memory {memory}, neighbourhood compensation: {whether} (printed)"
        for name, time, memory, whether in FORMULAS
    ]
    columns = (
        "varied",
        "size",
        "step",
        "times the first, measured",
        "by the paper's formula",
        "by ours",
        "MB in training",
    )
    return Sheet(columns, rows, [*notes, *NOTES])


def draw(scope: Scope, results: Results) -> Figure:
    """Draw measured growth against the formula's."""
    figure = Figure(figsize=(4.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name, values in VARIED.items():
        sizes = _values(values, scope)
        found = [results(cell(scope, **{name: value})) for value in sizes]
        if any(failed(each) for each in found):
            continue
        said = [formula(each, BASE | {name: value}) for each, value in zip(found, sizes, strict=True)]
        axes.plot(
            [each / said[0] for each in said], [step(each) / step(found[0]) for each in found], "o-", label=WORDS[name]
        )
    high = axes.get_xlim()[1]
    axes.plot([1, high], [1, high], ":", color="gray", label="as the formula")
    axes.set(xlabel="growth by the formula", ylabel="growth of a step, measured", xscale="log", yscale="log")
    add_legend(axes)
    return figure


NOTES = [
    "By the paper's formula: with d^2 + k^2, and the average degree instead of the largest. By ours: with d^2 + 2 k d, "
    "since our compensation is two products of k d numbers per row. Memory is that of the process, graph and "
    "preparation included.",
]
TABLE2 = Study(
    "table2",
    "Table 2: complexity of a step",
    "GCN on WordNet, TOP without refresh. A step has costs that do not grow (the interpreter, Adam), and small "
    "products run at lower rates than large ones, which keeps growth below the formula's; what no longer fits in the "
    "processor's caches, as many layers, grows faster.",
    cells,
    sheet,
    draw,
)
