"""Cells: what they measure, on a small stand-in, and what they do not do twice."""

from pathlib import Path
from typing import Any

import pytest

from topoff.batching import node_sets
from topoff.experiments import cells
from topoff.experiments.cells import run_cell

SMALL: dict[str, Any] = {"preset": "arxiv", "scale": 0.003}
SIZES: dict[str, Any] = {"model": "gcn", "hidden": 8, "layers": 2, "epochs": 6, "seed": 0}


def test_clusters_are_cut_once_for_all_sizes_of_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    cut = node_sets.partition

    def counting(*given: Any, **settings: Any) -> Any:
        """Note that the graph is cut."""
        calls.append(settings["parts"])
        return cut(*given, **settings)

    monkeypatch.setattr(node_sets, "partition", counting)
    found = run_cell("invariance", {**SMALL, **SIZES, "parts": 20, "each": [4, 10]}, str(tmp_path))
    assert calls == [20]
    assert set(found) == {"4", "10", "linear"}
    for batching in (found["4"], found["10"]):
        assert set(batching) == {"cluster", "gas", "gas-aged", "top", "top-refreshed"}
        assert all("relative_error" in method and "gradient_error" not in method for method in batching.values())
    assert found["10"]["cluster"]["relative_error"] < found["4"]["cluster"]["relative_error"]


def test_compensations_are_measured_at_the_same_weights(tmp_path: Path) -> None:
    old: dict[str, Any] = {"refresh": "every=100", "rank": 8}
    tops = {"old": old, "random": {"refresh": "never", "rank": 8}, "nothing": {**old, "rank": 0, "offset": False}}
    found = run_cell(
        "compensations", {**SMALL, **SIZES, "sampler": "kaminpar", "ratio": 0.25, "tops": tops}, str(tmp_path)
    )
    assert list(found) == list(tops)
    assert found["old"]["relative_error"] < found["random"]["relative_error"] < found["nothing"]["relative_error"]
    assert found["old"]["gradient_error"] < found["nothing"]["gradient_error"]


def test_a_training_tells_what_its_batches_missed(tmp_path: Path) -> None:
    train = {"hidden": 8, "layers": 2, "epochs": 2, "eval_every": 1, "ratio": 0.25}
    found = {
        method: run_cell("training", {**SMALL, "train": {**train, "method": method}}, str(tmp_path))
        for method in ("top", "drop")
    }
    assert 0 < found["top"]["error"] < found["drop"]["error"] < 2
    assert found["drop"]["fidelity"] is not None


def test_pna_has_linear_layers_where_its_first_one_would_be_too_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**SMALL, **SIZES, "model": "pna", "parts": 20, "each": [10]}
    narrow = run_cell("invariance", settings, str(tmp_path))
    monkeypatch.setattr(cells, "WIDEST", 100)  # the graph has 128 features
    wide = run_cell("invariance", settings, str(tmp_path))
    assert (narrow["linear"], wide["linear"]) == (False, True)
    for found in (narrow, wide):
        assert found["10"]["top-refreshed"]["relative_error"] < found["10"]["cluster"]["relative_error"]


def test_batches_can_be_as_large_as_those_of_another_method(tmp_path: Path) -> None:
    train = {"hidden": 8, "layers": 2, "epochs": 1, "train_only": True, "batches": "random", "method": "top"}
    few = {"method": "labor", "fanout": 2, "ratio": 0.05, "train_only": False, "batches": None}
    steps = [
        run_cell("training", {**SMALL, "train": train, "as_large_as": {**few, **more}}, str(tmp_path))["steps"]
        for more in ({}, {"fanout": 20}, {"ratio": 0.2})
    ]
    assert steps[0] > steps[1]
    assert steps[0] > steps[2]


@pytest.mark.parametrize("sampler", ["saint-walk", "shadow"])
def test_sets_that_leave_nodes_out_are_compared_on_those_that_they_hold(tmp_path: Path, sampler: str) -> None:
    settings = {**SMALL, **SIZES, "sampler": sampler, "ratio": 0.1}
    found = run_cell("invariance", settings, str(tmp_path))
    assert set(found[sampler]) == {"cluster", "top", "top-refreshed"}, found
    for method in found[sampler].values():
        assert 0 < method["relative_error"] < 2
        assert abs(method["accuracy_degradation"]) < 1
