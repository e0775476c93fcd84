"""Promises, what they are measured on, and when they count as met."""

import math
from pathlib import Path

import pytest

from topoff.cli.bench import CASES
from topoff.experiments import bench as room
from topoff.experiments.bench import Bench, Promise, Trained
from topoff.experiments.jobs import Failure, Job, Watcher
from topoff.training.records import Epoch, Result
from topoff.training.run_folder import RunFolder


def trained(**values: float) -> Trained:
    """Return a training of which only some numbers matter."""
    usual = dict.fromkeys(("epoch", "bare", "preparation", "evaluation", "train_peak", "peak", "fidelity"), 1.0)
    return Trained(**{**usual, "gradient_error": None, **values})


def written(folder: Path) -> RunFolder:
    """Write the files of a run of four epochs: the third one was refreshed, the second and the last evaluated."""
    run = RunFolder(folder).create()
    lines = [(1, 1.0, 1.0), (2, 1.8, 2.8), (3, 4.0, 5.0), (4, 4.9, 6.7)]
    for number, steps, seconds in lines:
        more = {"val": 0.5, "evaluated": True} if number in (2, 4) else {}
        run.append(Epoch(number, 0.1, 0.01, number == 3, train_seconds=steps, seconds=seconds, **more))
    found = Result(epoch_seconds=1.225, preprocess_seconds=2.0, peak_rss_mb=300.0, train_peak_rss_mb=200.0)
    run.write("result.json", found.json() | {"fidelity": 0.99})
    run.write("measured.json", {"gradient_error": 0.05, "load": [0.1, 0.2]})
    return run


@pytest.mark.parametrize(
    ("promise", "met"),
    [
        (Promise("a", 1.09, at_most=1.0), True),
        (Promise("a", 1.11, at_most=1.0), False),
        (Promise("a", 7.3, at_least=8.0), True),
        (Promise("a", 7.1, at_least=8.0), False),
        (Promise("a", math.nan, at_most=1.0), False),
        (Promise("a", 0.969, at_least=0.97, margin=0), False),
        (Promise("a", 5.0), None),
    ],
)
def test_a_promise_is_met_within_a_tenth_and_never_by_no_number(promise: Promise, *, met: bool | None) -> None:
    assert promise.met is met
    assert promise.json()["met"] is met


def test_a_run_is_read_with_epochs_apart_from_refreshes_and_evaluations(tmp_path: Path) -> None:
    found = Trained.of(written(tmp_path / "run"))
    assert found.bare == pytest.approx(0.8)
    assert found.evaluation == pytest.approx(0.8)
    assert (found.epoch, found.preparation, found.fidelity, found.gradient_error) == (1.225, 2.0, 0.99, 0.05)
    assert (found.peak, found.train_peak) == (300 * 2**20, 200 * 2**20)


def test_of_several_runs_the_least_time_and_the_most_memory_count() -> None:
    one, other = trained(epoch=2.0, peak=10.0, gradient_error=0.1), trained(epoch=3.0, peak=20.0, fidelity=0.5)
    best = Trained.best([one, other])
    assert (best.epoch, best.peak, best.fidelity, best.gradient_error) == (2.0, 20.0, 0.5, 0.1)


def test_a_training_that_fails_is_said_and_one_that_is_finished_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Path] = []

    def train(job: Job, *, watcher: Watcher) -> Failure | None:
        """Write a run at the first call, fail at the second."""
        begun.append(job.folder)
        if len(begun) == 2:
            return Failure("out of memory")
        written(job.folder)
        return None

    monkeypatch.setattr(room, "train_apart", train)
    said: list[str] = []
    measuring = Bench(tmp_path, scale=0.1, repeats=1, watcher=Watcher(), say=said.append)
    first = measuring.train("top", tmp_path / "graph", epochs=4)
    assert measuring.train("top", tmp_path / "graph", epochs=4) == first
    assert len(begun) == 1
    assert said == ["top on graph, run 1 of 1"]
    with pytest.raises(ValueError, match=r"Expected gas to train on .* \(got: out of memory\)"):
        measuring.train("gas", tmp_path / "graph", epochs=4)


def test_the_cases_are_those_that_the_command_line_names(tmp_path: Path) -> None:
    assert tuple(Bench(tmp_path, scale=1.0, repeats=1, watcher=Watcher(), say=print).cases()) == CASES


def test_the_smaller_graph_has_its_size_unless_products_is_tiny(tmp_path: Path) -> None:
    scales = [Bench(tmp_path, scale=s, repeats=1, watcher=Watcher(), say=print).smaller for s in (1.0, 0.1, 0.01)]
    assert scales == pytest.approx([1.0, 1.0, 0.1])
