"""Ablations: settings that are valid and have an effect, defaults that are topoff's own, sheets and plots of them."""

import inspect
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from topoff import TOP
from topoff.experiments.ablation_table import TABLE
from topoff.experiments.ablations import ABLATIONS, places, values
from topoff.experiments.study import Cell, Scope, Study
from topoff.models.stack import Network
from topoff.training.config import make_config
from topoff.training.defaults import choose, unused

QUICK = Scope(quick=True, stand_in=True, scale=0.01)
NAMES = [
    "estimator",
    "rank",
    "inits",
    "anchors",
    "first-layer",
    "offset",
    "refresh",
    "ratio",
    "depth",
    "norm",
    "train-only",
]
BY_NAME = {study.name.removeprefix("ablation-"): study for study in ABLATIONS}
MEASURED = {"relative_error": 0.0123, "gradient_error": 0.2}
TRAINED = {"error": 0.03, "test": 0.7, "epoch_seconds": 0.5, "preprocess_seconds": 1.5, "train_peak_rss_mb": 400.0}


def marked(name: str) -> str:
    """Return the default's label."""
    (found,) = [value.label for value in TABLE[NAMES.index(name)].values if value.default]
    return found


def results(cell: Cell) -> dict[str, Any]:
    """Answer as if all cells had been measured."""
    return TRAINED if cell.task == "training" else dict.fromkeys(cell.settings["tops"], MEASURED)


def test_there_is_a_study_of_every_setting_with_one_default() -> None:
    assert list(BY_NAME) == NAMES
    assert all(marked(name) for name in NAMES)


@pytest.mark.parametrize("study", ABLATIONS, ids=lambda study: study.name)
@pytest.mark.parametrize("scope", [QUICK, Scope()], ids=["quick", "whole"])
def test_settings_are_known_and_have_an_effect(study: Study, scope: Scope) -> None:
    known = set(inspect.signature(TOP.__init__).parameters)
    for cell in study.cells(scope):
        if cell.task == "training":
            train = cell.settings["train"]
            assert not unused(make_config({"dataset": "x"}, train), train)
        else:
            assert all(set(top) <= known for top in cell.settings["tops"].values())


def test_the_default_is_trained_once_for_most_ablations() -> None:
    plain = [study for name, study in BY_NAME.items() if name not in ("inits", "anchors")]
    keys = [{cell.key for cell in study.cells(QUICK) if cell.task == "training"} for study in plain]
    assert len(set.intersection(*keys)) == 1


def test_the_nodes_that_are_batched_are_varied_by_their_own_ablation_alone() -> None:
    for name, study in BY_NAME.items():
        trains = [cell.settings["train"] for cell in study.cells(QUICK) if cell.task == "training"]
        alone = {train["train_only"] for train in trains if train["method"] == "top"}
        assert alone == {False, True} if name == "train-only" else alone <= {False}, name
        assert {train["batches"] for train in trains if train["method"] == "top"} <= {"kaminpar"}, name


def test_what_is_marked_is_what_topoff_does() -> None:
    data = Data(x=torch.ones(5_000, 1), edge_index=torch.zeros(2, 10, dtype=torch.long))
    config, _ = choose(make_config({"dataset": "x"}), data)
    assert marked("rank") == str(config.rank)
    assert marked("refresh") == config.refresh
    assert marked("depth") == str(config.layers)
    assert marked("estimator") == config.estimator
    assert marked("first-layer") == config.method
    assert marked("norm") == inspect.signature(Network).parameters["norm"].default
    assert marked("train-only") == {False: "all, or those in reach", True: "train_only"}[config.train_only]
    bare = TOP(GCN(1, 2, num_layers=1), data, refresh="never")
    assert marked("inits") == str(bare.inits)
    assert not bare.offset
    assert marked("offset") == ("offset" if TOP(GCN(1, 2, num_layers=1), data).offset else "no offset")


def test_quick_tries_the_ends_and_the_default_on_a_stand_in() -> None:
    for ablation in TABLE:
        found = values(ablation, QUICK)
        assert 2 <= len(found) <= 3
        assert (found[0], found[-1]) == (ablation.values[0], ablation.values[-1])
        assert any(value.default for value in found)
    assert [place.settings for place in places(QUICK)] == [{"preset": "arxiv", "scale": 0.01}]
    assert [place.name for place in places(Scope())] == ["wordnet"]


@pytest.mark.parametrize("study", ABLATIONS, ids=lambda study: study.name)
def test_a_sheet_has_a_row_for_every_value_and_marks_the_default(study: Study) -> None:
    sheet = study.sheet(Scope(), results)
    ablation = TABLE[ABLATIONS.index(study)]
    assert [row[1].split(" (default")[0] for row in sheet.rows] == [value.label for value in ablation.values]
    (default,) = [row[1] for row in sheet.rows if " (default" in row[1]]
    for key, value in ablation.common.items():  # which are no defaults, so that is said
        assert f"{key} = {value}" in default
    assert ("with" in default) == bool(ablation.common)
    assert not any("not measured" in note for note in sheet.notes)
    found = dict(zip(sheet.columns, sheet.rows[0], strict=True))
    assert found.get("error", "1.23 %") == "1.23 %"
    assert found.get("error in training", "3.00 %") == "3.00 %"
    assert found.get("MB in training", "400") == "400"
    assert ("error" in found, "test" in found) == (ablation.measured, ablation.trained)


def test_a_failure_is_a_dash_and_a_note() -> None:
    sheet = BY_NAME["rank"].sheet(QUICK, lambda cell: {"failed": "no room"})
    assert set(sheet.rows[0][2:]) == {"-"}
    assert any("0: not measured: no room" in note for note in sheet.notes)


def test_numbers_are_lines_and_categories_bars() -> None:
    assert BY_NAME["rank"].draw is not None
    assert BY_NAME["norm"].draw is not None
    error, _, _, score = BY_NAME["rank"].draw(QUICK, results).axes
    assert [tuple(line.get_ydata()) for line in error.lines] == [pytest.approx((1.23, 1.23, 1.23))]
    assert [tuple(line.get_ydata()) for line in score.lines] == [pytest.approx((70.0, 70.0, 70.0))]
    assert (error.get_yscale(), score.get_yscale()) == ("log", "linear")
    error, score = BY_NAME["norm"].draw(QUICK, results).axes
    assert [bar.get_height() for bar in error.patches] == pytest.approx([3.0, 3.0])
    assert score.lines[0].get_linestyle() == "None"
