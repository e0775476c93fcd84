"""Studies: cells that are measured once, sheets, pages, and what stands in for a graph that is not at hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from topoff.batching.drawn_sets import DrawnSets
from topoff.experiments.catalogue import STUDIES, chosen
from topoff.experiments.paper_graphs import is_there, source
from topoff.experiments.reproduction import measure, page, reproduce
from topoff.experiments.study import Cell, Kept, Scope, Sheet, Study, failed, percent
from topoff.experiments.table3 import EACH, FIGURE2, TABLE3, judged, wanted

QUICK = Scope(quick=True, stand_in=True, scale=0.01)


def ring(nodes: int = 40) -> torch.Tensor:
    """Return the edges of a ring, both ways."""
    one = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(-1)])
    return torch.cat([one, one.flip(0)], dim=1)


def test_every_table_and_figure_has_cells_and_a_sheet() -> None:
    for study in STUDIES.values():
        cells = study.cells(QUICK)
        sheet = study.sheet(QUICK, lambda cell: {"failed": "not measured"})
        assert all(len(row) == len(sheet.columns) for row in sheet.rows), study.name
        assert len({cell.key for cell in cells}) == len(cells), study.name
        if study.name not in ("table1", "table7", "figure8"):  # which measure nothing, or have no stand-in
            assert cells, study.name
        if study.draw is not None:
            study.draw(QUICK, lambda cell: {"failed": "not measured"})


def test_table_3_judges_both_rows_of_top_by_what_was_measured() -> None:
    def found(cell: Cell) -> dict[str, Any]:
        """Answer as if GCNII had missed everything at 20 of 200 clusters with the paper's TOP."""
        good = {"relative_error": 0.01, "mean_degradation": 0.002, "certificate": 0.1}
        rivals = {name: {"relative_error": 0.02, "mean_degradation": 0.0} for name in ("cluster", "gas")}
        rows: dict[str, Any] = {str(each): {**rivals, "top": good, "top-refreshed": good} for each in EACH}
        if cell.settings["model"] == "gcnii":
            rows["20"]["top"] = {"relative_error": 0.05, "mean_degradation": 0.01, "certificate": 0.4}
        return rows

    count = len(wanted(QUICK)) * len(EACH)
    notes = [note for note in TABLE3.sheet(QUICK, found).notes if " cells (asked for" in note]
    ours, paper = ([note for note in notes if note.startswith(name)] for name in ("TOP, refreshed", "TOP, never"))
    assert ours
    assert paper
    assert all(f"in {count} of {count} cells" in note and "; not" not in note for note in ours)
    for note in paper:
        assert f"in {count - 1} of {count} cells" in note
        assert "; not: ogbn-arxiv (stand-in, scale 0.01), gcnii, 10 %" in note
    assert not judged(QUICK, lambda cell: {"failed": "not measured"})
    assert TABLE3.sheet(QUICK, lambda cell: {**found(cell), "linear": True}).rows[0][1] == "gcn, linear"


def test_a_model_that_diverged_is_drawn_without_figures() -> None:
    nothing = {name: {"relative_error": None} for name in ("cluster", "gas", "top", "top-refreshed")}
    assert FIGURE2.draw is not None
    FIGURE2.draw(QUICK, lambda cell: {str(each): nothing for each in EACH})


def test_scores_are_drawn_below_the_errors_but_for_those_at_other_weights() -> None:
    row = {name: {"relative_error": 0.5, "mean_degradation": 0.02} for name in ("cluster", "gas", "top-refreshed")}
    assert FIGURE2.draw is not None
    figure = FIGURE2.draw(QUICK, lambda cell: {str(each): row for each in EACH})
    above, below = (
        {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in axes.lines} for axes in figure.axes[:2]
    )
    assert above["GAS"] == above["TOP, refreshed"] == [50] * len(EACH)
    assert below["TOP, refreshed"] == below["CLUSTER"] == [-2] * len(EACH)
    assert all(map(math.isnan, below["GAS"]))
    assert below["full batch"] == [0, 0]


def test_light_cells_come_first_and_none_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    told: list[str] = []
    cells = [Cell("theory", {"name": "nothing", "number": number}, weight=4 - number) for number in range(3)]
    for seconds in (math.inf, 0.0):
        measure(cells, Kept(tmp_path), tell=lambda done, total, name, left: told.append(name), seconds=seconds)
    assert told == [*(cell.key for cell in reversed(cells)), "", ""]


def test_a_cell_is_measured_once_in_a_process_of_its_own(tmp_path: Path) -> None:
    told: list[str] = []
    cells = [
        Cell("theory", {"name": "theory-colors", "quick": True}),
        Cell("training", {"dataset": "nowhere", "train": {}}),
    ]
    for _ in range(2):
        measure(cells, Kept(tmp_path), tell=lambda done, total, name, left: told.append(name))
    assert [name.split("-")[0] for name in told] == ["theory", "training", "", "training", ""]  # a failure is no result
    assert Kept(tmp_path).results(cells[0])["name"] == "theory-colors"
    assert failed(Kept(tmp_path).results(cells[1]))
    assert failed(Kept(tmp_path).results(Cell("theory", {"name": "other"}))) == "not run yet"


def test_a_study_leaves_json_markdown_a_plot_and_a_page(tmp_path: Path) -> None:
    study = STUDIES["theory-colors"]
    found = reproduce([study], QUICK, tmp_path, command="topoff reproduce", tell=lambda *_: None)
    written = json.loads(found[0].read_text())
    assert written["columns"] == ["finding", "measured", "limit", ""]
    assert written["machine"]
    assert written["command"] == "topoff reproduce"
    assert "| finding |" in (tmp_path / "theory-colors.md").read_text()
    text = page(list(STUDIES.values()), tmp_path).read_text()
    assert "<svg" in text
    assert f"cores {written['machine']['cores']}" in text
    assert "https://" not in text
    assert study.title in text


def test_a_name_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match=r"Expected 'all' or names among table1, .* \(got 'table9'\)"):
        chosen("table3,table9")
    assert [study.name for study in chosen("Table 3")] == ["table3"]
    assert len(chosen("all")) == len(STUDIES)


def test_a_graph_is_the_published_one_its_stand_in_or_missing(tmp_path: Path) -> None:
    (tmp_path / "ogbn_arxiv" / "raw").mkdir(parents=True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "graph.npz").touch()
    assert is_there("ogbn-arxiv", str(tmp_path))
    assert not is_there("Reddit", str(tmp_path))
    assert not is_there("Reddit", None)
    scope = Scope(root=str(tmp_path), stand_in=True, scale=0.5)
    assert source("ogbn-arxiv", scope).settings == {"dataset": "ogbn-arxiv", "root": str(tmp_path)}
    assert source("Reddit", scope).settings == {"preset": "reddit", "scale": 0.5}
    for spelling in (f"{tmp_path}/", str(tmp_path / "own" / "..")):
        assert source("ogbn-arxiv", Scope(root=spelling)) == source("ogbn-arxiv", Scope(root=str(tmp_path)))
        assert source("own", Scope(root=spelling)) == source("own", Scope(root=str(tmp_path)))
    assert source("ogbn-papers100M", scope).settings["scale"] == 0.02
    assert source("own", scope).settings["dataset"].endswith("graph.npz")


def test_numbers_that_are_none_are_a_dash() -> None:
    assert [percent(each) for each in (0.5, None, float("nan"))] == ["50.00 %", "-", "-"]
    assert Sheet(("a",), [["1"]], ["note"]).markdown().endswith("- note")


def test_drawn_sets_are_so_many_clusters_each() -> None:
    from torch_geometric.data import Data

    sets = DrawnSets(method="metis", parts=10, each=4, seed=1).fit(Data(edge_index=ring(), num_nodes=40))
    found = sets.of(0)
    assert len(found) == len(sets) == 3
    parts = [set(sets.parts_[nodes].tolist()) for nodes in found]  # type: ignore[index]
    assert [len(each) for each in parts] == [4, 4, 2]
    assert sorted(torch.cat(found).tolist()) == list(range(40))
    with pytest.raises(ValueError, match=r"Expected 'each' to be between 1 and 'parts' \(got 11 and 10\)"):
        DrawnSets(parts=10, each=11)


def test_a_study_may_have_no_plot(tmp_path: Path) -> None:
    study = Study("bare", "Bare", "", lambda scope: [], lambda scope, results: Sheet(("a",), []))
    reproduce([study], QUICK, tmp_path, command="", tell=lambda *_: None)
    assert not (tmp_path / "bare.svg").exists()
