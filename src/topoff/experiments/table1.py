"""Table 1: the sizes of the paper's graphs, beside those that our readers hold the published files to.

>>> sheet(Scope(), lambda cell: {}).rows[2][:4]
['ogbn-arxiv', '40 (40)', '169,343 (169,343)', '1,166,243 (1,157,799)']
"""

from __future__ import annotations

from topoff.data.published import COUNTS, Counts
from topoff.experiments.study import Cell, Results, Scope, Sheet, Study

PRINTED = {  # classes, nodes, edges, average degree, shares of training, validation and test nodes
    "Reddit": ("41", "232,965", "11,606,919", "49.8", "0.660/0.100/0.240"),
    "Yelp": ("50", "716,847", "6,997,410", "9.8", "0.750/0.150/0.100"),
    "ogbn-arxiv": ("40", "169,343", "1,157,799", "6.9", "0.537/0.176/0.287"),
    "ogbn-products": ("47", "2,449,029", "61,859,076", "25.3", "0.100/0.020/0.880"),
    "ogbn-papers100M": ("172", "111,059,956", "1,615,685,872", "14.6", "0.780/0.080/0.140"),
}
FILES = {"Reddit": "Reddit2"}  # GraphSAINT's, as its number of edges shows
NOTES = [
    "Ours are the numbers that published files are checked against when they are read. Reddit and Yelp list every edge "
    "in both directions there, ogbn-arxiv has directed edges; the paper counts edges once.",
    "A node of Yelp has several of 100 labels. The shares of ogbn-papers100M are of its labelled nodes, 1.4 % of all; "
    "those of Yelp are published as shares alone.",
]


def cells(scope: Scope) -> list[Cell]:
    """List what is measured: nothing."""
    return []


def sheet(scope: Scope, results: Results) -> Sheet:
    """Write the sizes, the printed ones in brackets."""
    rows = []
    for name, printed in PRINTED.items():
        ours = _written(COUNTS[FILES.get(name, name)])
        rows.append([name, *(f"{new} ({old})" for new, old in zip(ours, printed, strict=True))])
    return Sheet(("graph", "classes", "nodes", "edges", "average degree", "train/val/test"), rows, NOTES)


def _written(counts: Counts) -> tuple[str, str, str, str, str]:
    """Write the sizes of a graph; a dash where no split is published."""
    assert isinstance(counts.nodes, int)
    edges, labelled = counts.edges[0], sum(counts.split or ())
    shares = "/".join(f"{size / labelled:.3f}" for size in counts.split) if counts.split else "-"
    return str(counts.classes), f"{counts.nodes:,}", f"{edges:,}", f"{edges / counts.nodes:.1f}", shares


TABLE1 = Study(
    "table1",
    "Table 1: statistics of the graphs",
    "Sizes and splits. Printed figures stand in brackets.",
    cells,
    sheet,
)
