"""Table 7: errors on heterophilous graphs, batches of half the graph (Appendix, heterophilous graphs).

>>> sheet(Scope(), lambda cell: {}).rows[1]
['minesweeper', '- (54.53 %)', '- (19.68 %)', '- (3.12 %)', 'not measured: its files are not under --root', '']
"""

from __future__ import annotations

from topoff.experiments.paper_graphs import HETEROPHILOUS, is_there, load_of, source
from topoff.experiments.study import Cell, Found, Results, Scope, Sheet, Study, failed, percent
from topoff.experiments.table3 import ABOUT_ROWS

PRINTED = {  # CLUSTER, GAS, TOP, in per cent; the paper names tolokers, and prints no row of it
    "amazon-ratings": ("4.14", "1.36", "1.02"),
    "minesweeper": ("54.53", "19.68", "3.12"),
    "questions": ("20.25", "9.54", "4.90"),
    "roman-empire": ("5.42", "1.65", "0.88"),
}
HALF = 100  # of 200 clusters


def names(scope: Scope) -> list[str]:
    """List the graphs that are at hand."""
    return [name for name in HETEROPHILOUS if is_there(name, scope.root)]


def cell(name: str, scope: Scope) -> Cell:
    """Return the cell of a graph."""
    sizes = {"hidden": 64, "layers": 3, "epochs": 30 if scope.quick else 100, "each": [HALF], "seed": scope.seed}
    place = source(name, scope)
    return Cell("invariance", {**place.settings, "model": "gcn", **sizes}, weight=load_of(place, "gcn") / 2)


def cells(scope: Scope) -> list[Cell]:
    """List what is measured."""
    return [cell(name, scope) for name in names(scope)]


def sheet(scope: Scope, results: Results) -> Sheet:
    """Write the errors, and the printed ones in brackets."""
    rows = []
    for name in HETEROPHILOUS:
        printed = PRINTED.get(name)
        words = [f" ({value} %)" for value in printed] if printed else ["", "", ""]
        missing: Found = {"failed": "its files are not under --root"}
        found = results(cell(name, scope)) if name in names(scope) else missing
        if reason := failed(found):
            rows.append([name, *(f"-{word}" for word in words), f"not measured: {reason}", ""])
            continue
        errors = {method: row.get("relative_error") for method, row in found[str(HALF)].items()}
        cells = [f"{percent(errors.get(m))}{w}" for m, w in zip(("cluster", "gas", "top"), words, strict=True)]
        rows.append([name, *cells, percent(errors.get("top-refreshed")), percent(errors.get("gas-aged"))])
    columns = ("graph", "CLUSTER", "GAS", "TOP, never refreshed", "TOP, refreshed", "GAS, same age")
    return Sheet(columns, rows, [*ABOUT_ROWS, "The paper names tolokers, and prints no row of it."])


TABLE7 = Study(
    "table7",
    "Table 7: approximation errors on heterophilous graphs",
    "GCN 3 x 64, trained full-batch; batches of 100 of 200 METIS clusters. Printed figures stand in brackets.",
    cells,
    sheet,
)
