"""What the paper prints stands beside ours, cell by cell: `printed.txt` has its Tables 1 and 3 to 8, row by row."""

from pathlib import Path

import pytest

from topoff.experiments.catalogue import STUDIES
from topoff.experiments.study import Scope
from topoff.experiments.table2 import FORMULAS
from topoff.experiments.table3 import AVERAGE, PRINTED

ROWS = [line.split(" | ") for line in (Path(__file__).parent / "printed.txt").read_text().splitlines()]
# leading cells that name a row
KEYS = {"table1": 1, "table3": 3, "table4": 1, "table5": 2, "table6": 1, "table7": 1, "table8": 3}
NAMES = {"TOP": "TOP, never refreshed"}
QUICK = Scope(quick=True, stand_in=True, scale=0.01)


def bracketed(cell: str) -> str:
    """Return what stands in the last brackets of a cell; nothing where there are none."""
    return cell.rpartition("(")[2].removesuffix(")") if cell.endswith(")") else ""


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("scope", [Scope(), QUICK], ids=["whole", "quick"])
def test_every_printed_number_stands_in_its_row_and_column(name: str, scope: Scope) -> None:
    sheet = STUDIES[name].sheet(scope, lambda cell: {"failed": "not measured"})
    count, printed = KEYS[name], [row[1:] for row in ROWS if row[0] == name]
    ours = {tuple(cell.split(" (stand-in")[0] for cell in row[:count]): row[count:] for row in sheet.rows}
    assert printed
    for row in printed:
        names = [NAMES.get(each, each) if name in ("table3", "table8") else each for each in row[:count]]
        cells = ours[tuple(names)][: len(row) - count]
        said = ["" if each == "---" and name == "table8" else each.replace("---", "-") for each in row[count:]]
        assert [bracketed(cell) for cell in cells] == said, (name, names)


def test_columns_are_those_of_the_paper_in_its_order() -> None:
    def columns(name: str) -> tuple[str, ...]:
        """Return the columns of a table."""
        return STUDIES[name].sheet(Scope(), lambda cell: {"failed": "not measured"}).columns

    assert columns("table1") == ("graph", "classes", "nodes", "edges", "average degree", "train/val/test")
    shares = [f"{share} %" for share in (10, 20, 30, 40, 50)]
    lost = [f"lost, {share}" for share in shares]
    assert columns("table3") == ("graph", "GNN", "method", *(f"error, {share}" for share in shares), *lost)
    seconds, memory = ([f"{what}, {name}" for name in ("Full-batch", "GAS", "TOP")] for what in ("s per epoch", "MB"))
    sizes = ("model & graph", "|B| / |V|", "|B|")
    assert columns("table4") == (*sizes, *seconds, "GAS / TOP", *memory, "GAS / TOP, memory")
    assert columns("table5")[2:6] == ("pre-processing, s", "training, s", "total, s", "memory, MB")
    assert columns("table6") == ("method", "ogbn-arxiv", "Flickr", "ogbn-products", "ogbn-papers100M")
    assert columns("table7")[:4] == ("graph", "CLUSTER", "GAS", "TOP, never refreshed")
    assert columns("table8") == ("graph", "GNN", "method", "Random", "SAINT", "SHADOW", "METIS")


def test_the_formulas_of_table_2_stand_below_it() -> None:
    notes = STUDIES["table2"].sheet(QUICK, lambda cell: {"failed": "not measured"}).notes
    assert [note.split(":")[0] for note in notes[: len(FORMULAS)]] == [name for name, *_ in FORMULAS]
    assert "time O(L (deg_max |B| d + |B| (d^2 + k^2))), memory O(L |B| d), neighbourhood compensation: yes" in notes[3]
    assert "memory O(deg_max L |B| d)" in notes[2]
    assert "compensation: no" in notes[1]


def test_printed_averages_are_those_of_the_printed_cells() -> None:
    """The paper's last rows are the means of its eleven settings: a slip of ours in one of 330 figures would show."""
    for method, average in AVERAGE.items():
        for kind in (0, 1):
            for column in range(5):
                cells = [float(row[method][kind][column]) for row in PRINTED.values()]
                assert sum(cells) / len(cells) == pytest.approx(float(average[kind][column]), abs=0.011)
