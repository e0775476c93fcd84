"""Tuning: the same grid for every method, a seed apart, and what is best on the validation nodes."""

from pathlib import Path
from typing import Any

import pytest

import topoff.experiments.tune
from runs import write_json
from topoff.experiments.jobs import Job, Watcher
from topoff.experiments.tune import Tuned, axes_of, grid_of, trial_of, tune
from topoff.training.config import make_config, write_toml
from topoff.training.run_folder import RunFolder


@pytest.mark.parametrize(
    ("method", "axes"),
    [
        ("top", {"lr": [0.01, 0.005, 0.02], "ratio": [0.5, 0.25], "rank": [9, 4]}),
        ("lmc", {"lr": [0.01, 0.005, 0.02], "ratio": [0.5, 0.25], "mix": [0.4, 0.2]}),
        ("labor", {"lr": [0.01, 0.005, 0.02], "ratio": [0.5, 0.25], "fanout": [1]}),
        ("cluster", {"lr": [0.01, 0.005, 0.02], "ratio": [0.5, 0.25]}),
        ("full", {"lr": [0.01, 0.005, 0.02]}),
    ],
)
def test_the_grid_is_made_around_the_defaults(method: str, axes: dict[str, list[Any]]) -> None:
    config = make_config({"dataset": "x", "method": method, "ratio": 0.5, "rank": 9, "fanout": 1, "mix": 0.4})
    assert axes_of(config) == axes
    grid = grid_of(config)
    assert grid[0] == {key: values[0] for key, values in axes.items()}
    assert len({tuple(point.values()) for point in grid}) == len(grid)


def test_a_trial_has_a_third_of_the_epochs_at_least_one() -> None:
    assert [trial_of(make_config({"dataset": "x", "epochs": n}), seed=1).epochs for n in (1, 3, 10)] == [1, 1, 4]


def train(jobs: list[Job], *, watcher: Watcher) -> dict[Any, Any]:
    """Write what training would: the best score at a rate of 0.02 and a ratio of 0.1; twice 0.02 diverges."""
    for job in jobs:
        config = make_config(vars(job.config), {} if job.config.ratio else {"ratio": 0.2, "rank": 8})
        if job.finished or (config.method == "gas" and config.lr > 0.01):
            continue
        RunFolder(job.folder).write("config.toml", write_toml(config, command="x"))
        score = 1 - abs(config.lr - 0.02) - abs((config.ratio or 0) - 0.1)
        write_json(job.folder / "result.json", {"val": score, "metric": "accuracy", "seconds": 2.0})
        write_json(job.folder / "measured.json", {"load": [0, 0]})
        TRIED.append((config.method, job.config.seed, job.config.seconds))
    return {}


TRIED: list[tuple[str, int, float | None]] = []


def test_the_best_on_the_validation_nodes_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topoff.experiments.tune, "train_all", train)
    TRIED.clear()
    jobs = [
        Job(make_config({"dataset": "x", "seconds": 6, "method": method, "seed": seed}), tmp_path / method, "x")
        for method in ("top", "gas") for seed in (0, 3)
    ]  # fmt: skip
    found = tune(jobs, tmp_path, watcher=Watcher())
    grid = {"lr": [0.01, 0.005, 0.02], "ratio": [0.2, 0.1]}
    best = {"lr": 0.02, "ratio": 0.1, "rank": 8}
    assert found["top"] == Tuned(1003, grid | {"rank": [8, 4]}, best, pytest.approx(1.0), 12, 24.0)
    assert found["gas"].chosen == {"lr": 0.01, "ratio": 0.1}
    assert (found["gas"].runs, found["gas"].seconds) == (4, 8.0)
    assert TRIED == [("top", 1003, 2.0), ("gas", 1003, 2.0)] + [("top", 1003, 2.0)] * 11 + [("gas", 1003, 2.0)] * 3
    before = len(TRIED)
    assert tune(jobs, tmp_path, watcher=Watcher()) == found
    assert len(TRIED) == before, "what had finished is not run again"
