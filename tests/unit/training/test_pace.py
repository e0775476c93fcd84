"""Runs by seconds: they end with their time, follow their schedule through it, and can be resumed and repeated."""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import topoff.training.loop
import topoff.training.scoring
import topoff.training.state
from graphs import communities
from topoff.methods.registry import METHODS
from topoff.training.build import learning_rate, make_setup
from topoff.training.config import EPOCHS, make_config
from topoff.training.listener import Listener
from topoff.training.loop import Training
from topoff.training.pace import EVALUATIONS, BySeconds, Repeated
from topoff.training.records import Epoch
from topoff.training.result import write_result
from topoff.training.run_folder import PACE, RunFolder
from topoff.training.state import RunState, versions

pytestmark = pytest.mark.filterwarnings("ignore:The compensation misses")
SETTINGS: dict[str, Any] = {"dataset": "graph", "batches": "random", "ratio": 0.25, "rank": 6, "refresh": "every=2"}
SETTINGS |= {"layers": 2, "hidden": 8, "dropout": 0.3, "lr": 0.05, "schedule": "linear", "checkpoint_seconds": 1000.0}
NOW = versions()


class Clock:
    """Let a hundredth of a second pass whenever somebody looks at the clock."""

    def __init__(self, tick: float = 0.01) -> None:
        self._moments = itertools.count()
        self.tick = tick

    def perf_counter(self) -> float:
        return next(self._moments) * self.tick

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture(autouse=True)
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Keep nothing between tests, look the versions up once, and tell the time by counting."""
    made = Clock()
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(topoff.training.state, "versions", lambda: NOW)
    for module in (topoff.training.loop, topoff.training.scoring):
        monkeypatch.setattr(module, "time", made)
    return made


def training(place: Path, *, listener: Listener | None = None, **changes: Any) -> Training:
    folder = RunFolder(place)
    folder.path.mkdir(parents=True, exist_ok=True)
    data = communities(60, groups=3, dtype=torch.float32)
    config = make_config(SETTINGS, {"seconds": 0.4}, changes)
    return Training(make_setup(config, data), folder=folder, listener=listener)


def trained(place: Path, **changes: Any) -> Training:
    made = training(place, **changes)
    made.run()
    return made


def lines(made: Training) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (made.folder.path / "metrics.jsonl").read_text().splitlines()]


def untimed(made: Training) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if not key.endswith("seconds")} for line in lines(made)]


def same(one: Training, two: Training) -> bool:
    """Whether two runs ended in the same bits: weights, best weights, scores."""
    pairs = [(one.model.state_dict(), two.model.state_dict()), (one.best_weights, two.best_weights)]
    equal = all(a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a) for a, b in pairs)
    return equal and untimed(one) == untimed(two) and one.progress.steps == two.progress.steps


# ---- settings


def test_the_later_of_epochs_and_seconds_counts() -> None:
    by_file, by_flag = {"dataset": "x", "epochs": 500}, {"seconds": 40}
    config = make_config(by_file, by_flag)
    assert (config.epochs, config.seconds) == (None, 40.0)
    again = make_config(vars(config), {"epochs": 3})
    assert (again.epochs, again.seconds) == (3, None)
    assert make_config({"dataset": "x"}).epochs == EPOCHS
    with pytest.raises(
        ValueError, match=r"^Expected epochs or seconds, not both \(got 3 epochs and 4 seconds\); leave"
    ):
        make_config({"dataset": "x", "epochs": 3, "seconds": 4})
    with pytest.raises(ValueError, match="Expected 'seconds' to be greater than 0"):
        make_config({"dataset": "x", "seconds": 0})


def test_the_schedule_runs_over_the_seconds() -> None:
    config = make_config({"dataset": "x", "lr": 1.0, "seconds": 0.5, "schedule": "step"})
    assert [learning_rate(config, done) for done in (0, 0.2, 0.25, 0.375, 0.5)] == pytest.approx(
        [1, 1, 0.1, 0.01, 0.01]
    )
    short = dataclasses.replace(config, warmup=3, schedule="constant")
    assert [learning_rate(short, done) for done in (0, 0.5)] == pytest.approx([0.25, 0.375])
    assert learning_rate(dataclasses.replace(short, seconds=3.0), 3.0) == 1.0


# ---- the run


@pytest.mark.parametrize("method", ["top", "full", "ns"])
def test_a_run_ends_with_its_time(tmp_path: Path, method: str) -> None:
    made = trained(tmp_path, method=method)
    progress, found = made.progress, lines(made)
    assert 0.4 <= progress.spent < 0.6
    assert progress.steps == len(made.pace.rates)  # type: ignore[attr-defined]
    spent = [progress.preprocess_seconds + line["train_seconds"] for line in found]
    assert spent == sorted(spent)
    assert [line["lr"] for line in found] == sorted((line["lr"] for line in found), reverse=True)
    assert found[-1]["val"] is not None
    assert found[-1]["lr"] < 0.1 * SETTINGS["lr"]
    assert 4 <= sum("val" in line for line in found) <= EVALUATIONS + 1
    assert made.method.frozen


def test_a_rate_is_that_of_its_moment(tmp_path: Path) -> None:
    rates = trained(tmp_path).pace.rates  # type: ignore[attr-defined]
    steps = [before - after for before, after in itertools.pairwise(rates)]
    assert all(step > 0 for step in steps)
    assert max(rates) < SETTINGS["lr"]  # the preparation has its share


def test_a_run_may_end_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    ends = {}
    for seconds in (0.30, 0.32, 0.34):
        made = trained(tmp_path / str(seconds), seconds=seconds)
        last, rows = made.progress, made.folder.metrics()
        ends[made.progress.loss_count] = rows[-1].share
        assert (rows[-1].epoch, rows[-1].evaluated) == (last.current, True)
        assert rows[-1].passed == made.progress.epoch + made.part
        assert [row.place for row in rows] == sorted(row.place for row in rows)
    assert len(ends) > 1
    assert all(share == (count / 4 or 1) for count, share in ends.items())


def test_long_epochs_are_evaluated_in_their_middle(tmp_path: Path) -> None:
    made = trained(tmp_path, ratio=0.05, method="cluster", seconds=0.6)
    shares = [row.share for row in made.folder.metrics() if row.evaluated]
    assert sum(share < 1 for share in shares) > 3
    assert sum(row.refreshed for row in made.folder.metrics()) == 0


def test_evaluations_take_no_longer_than_training(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exact evaluation that takes as long as many steps is made less often."""
    exact = METHODS["full"].exact  # type: ignore[attr-defined]

    def slow(method: Any) -> Any:
        for _ in range(20):
            clock.perf_counter()
        return exact(method)

    monkeypatch.setattr(METHODS["full"], "exact", slow)
    made = trained(tmp_path, method="full")
    evaluations = sum(row.evaluated for row in made.folder.metrics())
    assert 2 <= evaluations <= 5
    assert made.progress.seconds - made.progress.train_seconds < 0.4 + 0.8  # the first, and two forwards at the end


def test_evaluations_take_a_tenth_of_the_time_for_refreshes_at_most(tmp_path: Path) -> None:
    """The histories of GAS become exact with an evaluation, which then counts as training."""
    made = trained(tmp_path, method="gas", ratio=0.1)
    rows = [row for row in made.folder.metrics() if row.evaluated]
    refreshes = sum(row.refreshed for row in rows)
    assert 1 < refreshes < len(rows) - 2
    assert made.progress.refresh_seconds == pytest.approx(0.01 * refreshes)
    assert made.progress.refresh_seconds < 0.1 * made.progress.spent + 0.01


def test_epochs_between_evaluations_may_be_given(tmp_path: Path) -> None:
    rows = trained(tmp_path, method="full", eval_every=3).folder.metrics()
    assert [row.epoch for row in rows[:-1] if row.evaluated] == list(range(3, len(rows), 3))


def test_a_preparation_that_takes_all_the_time_leaves_one_step_at_the_last_rate(tmp_path: Path) -> None:
    made = trained(tmp_path, method="full", seconds=0.005)
    assert (made.progress.steps, len(made.folder.metrics())) == (1, 1)
    assert made.folder.metrics()[0].lr == 0
    assert write_result(made, command="topoff train").steps == 1


def test_a_run_whose_batches_have_no_training_nodes_ends_too(tmp_path: Path) -> None:
    made = training(tmp_path, method="full")
    made.method.batches = lambda: iter(())  # type: ignore[method-assign]
    made.run()
    assert made.progress.steps == 0
    assert made.folder.metrics()[-1].evaluated


def test_patience_stops_a_run_before_its_time(tmp_path: Path) -> None:
    made = trained(tmp_path, lr=1e-9, patience=2)
    assert made.progress.stopped_early
    assert made.progress.spent < 0.4


# ---- resumed and repeated


class Stopping(Listener):
    """Ask for a stop after some steps, or at the n-th line."""

    def __init__(self, *, step: int = 0, line: int = 0) -> None:
        self.step, self.line, self.seen, self.run = step, line, 0, None

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        assert 0 < share <= 1
        self.run.stop = self.run.stop or self.run.progress.steps == self.step

    def evaluated(self, epoch: Epoch) -> None:
        self.seen += 1
        self.run.stop = self.run.stop or self.seen == self.line


@pytest.mark.parametrize(("method", "moment"), [("top", {"line": 2}), ("gas", {"step": 6}), ("full", {"line": 3})])
def test_a_run_is_resumed_with_the_time_that_is_left(tmp_path: Path, method: str, moment: dict[str, int]) -> None:
    listener = Stopping(**moment)
    listener.run = training(tmp_path, listener=listener, method=method)
    with pytest.raises(KeyboardInterrupt):
        listener.run.run()
    before = listener.run.progress
    made = trained(tmp_path, method=method)
    assert made.progress.steps > before.steps
    assert 0.4 <= made.progress.spent < 0.6
    assert len(made.pace.rates) == made.progress.steps  # type: ignore[attr-defined]
    places = [(line["epoch"], line.get("share", 1.0)) for line in lines(made)]
    assert places == sorted(set(places))
    assert repeated(tmp_path, tmp_path / "again", method=method).progress.steps == made.progress.steps


def repeated(old: Path, new: Path, **changes: Any) -> Training:
    """Repeat a run, with another clock."""
    new.mkdir(parents=True, exist_ok=True)
    (new / PACE).write_bytes((old / PACE).read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topoff.training.loop, "time", Clock(0.3))
        torch.manual_seed(99)
        made = trained(new, **changes)
    assert isinstance(made.pace, Repeated)
    return made


@pytest.mark.parametrize("variant", [
    {"method": "top", "schedule": "cosine"}, {"method": "top", "regroup": True, "refresh": "adaptive", "patience": 4},
    {"method": "gas", "norm": "batch"}, {"method": "saint-node"}, {"method": "lmc", "optimizer": "sgd", "clip": 0.1},
], ids=str)  # fmt: skip
def test_a_run_is_repeated_by_steps_to_the_same_bits(tmp_path: Path, variant: dict[str, Any]) -> None:
    made = trained(tmp_path / "one", **variant)
    assert made.progress.steps >= 4
    assert same(made, repeated(tmp_path / "one", tmp_path / "two", **variant))


def test_a_repetition_can_be_interrupted_and_goes_on(tmp_path: Path) -> None:
    made = trained(tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / PACE).write_bytes((tmp_path / "one" / PACE).read_bytes())
    listener = Stopping(step=5)
    listener.run = training(tmp_path / "two", listener=listener)
    with pytest.raises(KeyboardInterrupt):
        listener.run.run()
    assert same(made, trained(tmp_path / "two"))


def test_an_interrupted_run_is_repeated_as_it_came_to_be(tmp_path: Path) -> None:
    listener = Stopping(step=6)
    listener.run = training(tmp_path / "one", listener=listener)
    with pytest.raises(KeyboardInterrupt):
        listener.run.run()
    made = trained(tmp_path / "one")
    assert same(made, repeated(tmp_path / "one", tmp_path / "two"))


def test_a_finished_run_takes_no_more_steps(tmp_path: Path) -> None:
    made, again = trained(tmp_path), trained(tmp_path)
    assert same(made, again)
    first = [batch.n_id.tolist() for batch in made.method.batches()]
    assert [batch.n_id.tolist() for batch in again.method.batches()] == first
    assert len(first) == 4  # a whole epoch, whatever the last one was


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / PACE).write_bytes(b"nothing of the kind")
    with pytest.raises(
        ValueError, match=rf"^Expected {tmp_path / PACE} to be a whole record of a run by seconds \(got"
    ):
        training(tmp_path)
    BySeconds(make_config(SETTINGS, {"seconds": 1})).write(RunFolder(tmp_path))
    assert training(tmp_path).pace.over(RunState())
