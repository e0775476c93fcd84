"""The loop: schedules, best weights, early stopping, exact scores, and runs that end in the same bits."""

import copy
import dataclasses
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

import topoff.compensation.basis
import topoff.compensation.passes
import topoff.training.loop
import topoff.training.state
from graphs import communities
from topoff.methods.registry import METHODS
from topoff.methods.top import Top
from topoff.models.by_name import make_model
from topoff.tasks.task import Task
from topoff.training.build import device_of, learning_rate, make_optimizer, make_setup
from topoff.training.checkpoints import CHECKPOINT, trained_weights
from topoff.training.config import Config, make_config
from topoff.training.listener import Listener
from topoff.training.loop import Training
from topoff.training.records import Epoch
from topoff.training.run_folder import RunFolder
from topoff.training.state import generator_state, set_generator_state, versions

pytestmark = pytest.mark.filterwarnings("ignore:The compensation misses")
SETTINGS: dict[str, Any] = {
    "dataset": "graph",
    "batches": "random",
    "ratio": 1 / 3,
    "rank": 6,
    "refresh": "every=2",
    "layers": 2,
    "hidden": 8,
    "dropout": 0.3,
    "epochs": 4,
    "eval_every": 2,
    "lr": 0.05,
    "average": False,
    "checkpoint_seconds": 1000.0,
}


BASE, NOW = make_config(SETTINGS), versions()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep nothing between tests, and look the versions up once."""
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(topoff.training.state, "versions", lambda: NOW)


def settings(**changes: Any) -> Config:
    return dataclasses.replace(BASE, **changes)


def graph(task: str = "classes") -> Data:
    """Return 60 nodes with labels of some kind."""
    data = communities(60, groups=3, dtype=torch.float32)
    if task == "regression":
        data.y = 1000 + 50 * data.x.sum(dim=1) + 10 * data.y
    if task == "multilabel":
        data.y = torch.stack([data.y == 0, data.y > 0], dim=1).float()
    if task == "binary":
        data.y = (data.y > 0).long()
    return data


def training(place: Path, data: Data | None = None, *, listener: Listener | None = None, **changes: Any) -> Training:
    folder = RunFolder(place)
    folder.path.mkdir(parents=True, exist_ok=True)
    return Training(make_setup(settings(**changes), data or graph()), folder=folder, listener=listener)


def trained(place: Path, data: Data | None = None, **changes: Any) -> Training:
    made = training(place, data, **changes)
    made.run()
    return made


def weights(made: Training) -> dict[str, Tensor]:
    return made.model.state_dict()


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    """Whether two groups of tensors have equal bits."""
    return one.keys() == two.keys() and all(torch.equal(value, two[name]) for name, value in one.items())


def records(made: Training) -> list[dict[str, Any]]:
    """Return the metrics of a run without its times."""
    found = lines(made)
    return [{key: value for key, value in record.items() if not key.endswith("seconds")} for record in found]


def lines(made: Training) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl."""
    return [json.loads(line) for line in (made.folder.path / "metrics.jsonl").read_text().splitlines()]


def standing(made: Training) -> dict[str, Any]:
    """Return all that must not depend on interruptions: where the run stands, without times."""
    clock = {"seconds", "train_seconds", "preprocess_seconds", "evaluation_seconds", "peak", "train_peak"}
    clock |= {"stepped_at", "evaluated_at", "refresh_seconds"}
    progress = {key: value for key, value in dataclasses.asdict(made.progress).items() if key not in clock}
    return {"progress": progress, "records": records(made), "method": made.method.state()}


def assert_same_run(one: Training, two: Training) -> None:
    assert standing(one) == standing(two)
    assert same(weights(one), weights(two))
    assert same(one.best_weights, two.best_weights)
    first, second = (made.optimizer.state_dict()["state"] for made in (one, two))
    assert first.keys() == second.keys()
    assert all(same(first[number], second[number]) for number in first)
    assert same(one.method.weights(), two.method.weights())
    assert same(one.average.tensors(), two.average.tensors())


# the same bits


@pytest.mark.parametrize("method", ["top", "full"])
def test_a_seed_is_a_run(tmp_path: Path, method: str) -> None:
    first = trained(tmp_path / "1", method=method)
    torch.manual_seed(99)  # what happened before does not matter
    second = trained(tmp_path / "2", method=method)
    assert_same_run(first, second)
    other = trained(tmp_path / "3", method=method, seed=1)
    assert not same(weights(first), weights(other))


class Stopping(Listener):
    """Ask for a stop after a step of the whole run (a number), or after the evaluation of an epoch ("e2")."""

    def __init__(self, at: int | str) -> None:
        self.at, self.run = at, None

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        self._stop_at(self.run.progress.steps)

    def evaluated(self, epoch: Epoch) -> None:
        self._stop_at(f"e{epoch.epoch}")

    def _stop_at(self, moment: int | str) -> None:
        self.run.stop = self.run.stop or moment == self.at


def interrupted(place: Path, stops: Iterable[int | str], **changes: Any) -> Training:
    """Train with a stop at each of some moments, in a new `Training` every time, then to the end."""
    for moment in stops:
        listener = Stopping(moment)
        listener.run = training(place, listener=listener, **changes)
        with pytest.raises(KeyboardInterrupt):
            listener.run.run()
    torch.manual_seed(77)  # a new process has another generator
    return trained(place, **changes)


# Three batches make an epoch, so that the evaluation after the second one lies between step 6 and "e2".
VARIANTS: list[dict[str, Any]] = [
    {"refresh": "never"},
    {"refresh": "never", "regroup": True},
    {"refresh": "every=2"},
    {"refresh": "every=2", "regroup": True},
    {"refresh": "auto", "eval_every": 1},
    {"refresh": "auto", "eval_every": 2, "late": True},
    {"refresh": "auto", "regroup": True, "batches": "kaminpar", "parts": 9},
    {"train_only": True, "rank": 3},
    {"train_only": True, "rank": 3, "model": "gcnii-jk"},
    {"optimizer": "adamw", "weight_decay": 0.1, "schedule": "cosine", "estimator": "released"},
    {"optimizer": "sgd", "schedule": "cosine", "warmup": 1, "clip": 0.1, "norm": "batch"},
    {"model": "gat", "heads": 2, "refresh": "every=3"},
    {"average": True, "refresh": "auto", "eval_every": 1, "norm": "batch"},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_interrupted_and_resumed_is_uninterrupted(
    tmp_path: Path, variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topoff.compensation.basis, "SCARCE", 1.0)  # with train_only batches hold few of the nodes
    whole = trained(tmp_path / "whole", **variant)
    broken = interrupted(tmp_path / "broken", [1, 6, "e2", 11], **variant)
    assert whole.progress.steps == 12
    assert_same_run(whole, broken)


def test_stopped_once_at_any_moment_and_resumed_is_uninterrupted(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole")
    for moment in (2, 3, "e1", 6, "e2", 12, "e4"):
        assert_same_run(whole, interrupted(tmp_path / f"stopped at {moment}", [moment]))


@pytest.mark.parametrize("variant", [{}, {"optimizer": "sgd"}, {"optimizer": "adamw", "schedule": "cosine"}], ids=str)
def test_the_whole_graph_interrupted_and_resumed_is_uninterrupted(tmp_path: Path, variant: dict[str, Any]) -> None:
    whole = trained(tmp_path / "whole", method="full", **variant)
    broken = interrupted(tmp_path / "broken", [1, "e1", 2, "e2", 4], method="full", **variant)
    assert whole.progress.steps == 4
    assert_same_run(whole, broken)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("top", "full")])
def test_every_method_interrupted_and_resumed_is_uninterrupted(tmp_path: Path, method: str) -> None:
    changes = {"method": method, "epochs": 2, "clip": 1.0, "average": method in ("gas", "lmc")}
    whole = trained(tmp_path / "whole", **changes)
    assert_same_run(whole, interrupted(tmp_path / "broken", [1, "e1", 4], **changes))


def test_nothing_is_refreshed_at_the_end(tmp_path: Path) -> None:
    made = trained(tmp_path, refresh="every=1", eval_every=1, epochs=3)
    assert [epoch.refreshed for epoch in made.folder.metrics()] == [True, True, False]


# averaged weights


@pytest.mark.parametrize("method", ["top", "full", "gas", "cluster"])
def test_averages_are_scored_and_training_knows_nothing_of_it(tmp_path: Path, method: str) -> None:
    plain = trained(tmp_path / "plain", method=method, eval_every=1)
    made = trained(tmp_path / "averaged", method=method, eval_every=1, average=True)
    assert same(weights(plain), weights(made))
    for key in ("loss", "lr", "refreshed", "certificate"):
        assert [line.get(key) for line in lines(plain)] == [line.get(key) for line in lines(made)]
    assert not same(plain.best_weights, made.best_weights)
    assert lines(plain)[-1]["fidelity"] == lines(made)[-1]["fidelity"]  # of the weights that train
    model, data = made.model, made.data
    model.load_state_dict(made.best_weights)
    masks = {name: data[f"{name}_mask"] for name in ("train", "val", "test")}
    scores = made.task.score(model.eval()(data.x, data.edge_index).detach(), data.y, masks=masks)
    assert made.progress.best is not None
    assert scores == pytest.approx({name: made.progress.best[name] for name in scores})


def test_the_best_average_is_kept_with_all_its_steps(tmp_path: Path) -> None:
    made = training(tmp_path, method="full", average=True, epochs=5, eval_every=5)
    path = list[dict[str, Tensor]]()
    made.optimizer.register_step_post_hook(lambda *_: path.append(copy.deepcopy(weights(made))))
    made.run()
    mean = {name: torch.zeros_like(each) for name, each in path[0].items()}
    for number, each in enumerate(path, 1):
        share = 17 / (16 + number)
        mean = {name: (1 - share) * mean[name] + share * each[name] for name in mean}
    assert all(torch.allclose(made.best_weights[name], mean[name], atol=1e-6) for name in mean)


def test_memory_of_training_is_that_before_the_first_evaluation(tmp_path: Path) -> None:
    progress = trained(tmp_path).progress
    assert 0 < progress.train_peak <= progress.peak


def test_a_run_without_any_checkpoint_begins_anew(tmp_path: Path) -> None:
    class Killed(Listener):
        def stepped(self, epoch: int, share: float, loss: float) -> None:
            if epoch == 2:
                raise SystemExit

    with pytest.raises(SystemExit):
        training(tmp_path / "broken", listener=Killed()).run()
    assert len(RunFolder(tmp_path / "broken").metrics()) == 1
    assert_same_run(trained(tmp_path / "whole"), trained(tmp_path / "broken"))


def test_a_run_killed_after_a_line_and_before_its_checkpoint_writes_the_line_once(tmp_path: Path) -> None:
    class Killed(Listener):
        def evaluated(self, epoch: Epoch) -> None:
            if epoch.epoch == 2:
                raise SystemExit

    changes = {"checkpoint_seconds": 0.0}
    with pytest.raises(SystemExit):
        training(tmp_path / "broken", listener=Killed(), **changes).run()
    assert_same_run(trained(tmp_path / "whole", **changes), trained(tmp_path / "broken", **changes))


def test_a_finished_run_stays_as_it_is(tmp_path: Path) -> None:
    first = trained(tmp_path)
    again = trained(tmp_path)
    assert_same_run(first, again)
    assert again.progress.preprocess_seconds == first.progress.preprocess_seconds


def test_early_stopping_survives(tmp_path: Path) -> None:
    changes = {"lr": 1e-9, "patience": 2, "eval_every": 1, "epochs": 9}
    whole = trained(tmp_path / "whole", **changes)
    broken = interrupted(tmp_path / "broken", ["e1", 5, "e2"], **changes)
    assert whole.progress.stopped_early
    assert_same_run(whole, broken)
    assert_same_run(whole, trained(tmp_path / "broken", **changes))  # and is not trained any further


# checkpoints


def test_checkpoints_come_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    monkeypatch.setattr(RunFolder, "save", lambda folder, checkpoint: saved.append(checkpoint.state["progress"]))
    trained(tmp_path / "1", checkpoint_seconds=1000.0)
    assert [progress["epoch"] for progress in saved] == [4]
    saved.clear()
    trained(tmp_path / "2", checkpoint_seconds=0.0)
    assert [progress["steps"] for progress in saved] == [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 10, 11, 12, 12, 12]


def test_a_killed_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(tmp_path / "whole")
    interrupted_at = Stopping(4)
    interrupted_at.run = training(tmp_path / "broken", listener=interrupted_at)
    with pytest.raises(KeyboardInterrupt):
        interrupted_at.run.run()
    before = (tmp_path / "broken" / CHECKPOINT).read_bytes()

    def broken_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    second = training(tmp_path / "broken", checkpoint_seconds=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "keep_metrics", lambda *_, **__: None)
        patch.setattr(os, "fsync", broken_disk)
        with pytest.raises(OSError, match="No space left"):
            second.run()
    assert second.progress.steps == 5
    assert (tmp_path / "broken" / CHECKPOINT).read_bytes() == before
    assert [path.name for path in (tmp_path / "broken" / "checkpoint").iterdir()] == ["latest.safetensors"]
    assert_same_run(whole, trained(tmp_path / "broken"))


def test_a_damaged_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    trained(tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"latest.safetensors to be a whole checkpoint \(got .*\), and there is none"):
        trained(tmp_path)


@pytest.mark.parametrize("name", ["x", "edge_index", "y", "train_mask"])
def test_another_graph_is_refused(tmp_path: Path, name: str) -> None:
    trained(tmp_path, epochs=1)
    other = graph()
    other[name] = other[name].clone()
    if name == "train_mask":
        other[name][other[name].nonzero()[0]] = False
    else:
        other[name][0] = other[name][-1]
    expected = (
        r"the graph that the run began with \(got another one: content \w{8} instead of \w{8}\); restore the data"
    )
    with pytest.raises(ValueError, match=expected):
        trained(tmp_path, other, epochs=1)


def test_other_versions_are_refused_with_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path)
    monkeypatch.setattr(topoff.training.state, "versions", lambda: {**NOW, "torch": "9.9", "numpy": "8.8"})
    expected = rf"the versions .* \(got torch {NOW['torch']} -> 9.9, numpy {NOW['numpy']} -> 8.8\); install those, or"
    with pytest.raises(ValueError, match=expected.replace("+", r"\+")):
        trained(tmp_path)


def test_the_threads_of_the_first_process_are_used_again(tmp_path: Path) -> None:
    trained(tmp_path)
    torch.set_num_threads(2)
    try:
        trained(tmp_path)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)


def test_generators_are_set_as_they_were() -> None:
    state = generator_state()
    first = torch.rand(3)
    set_generator_state(state)
    assert torch.equal(torch.rand(3), first)


# the records


def test_a_line_per_epoch_and_scores_where_they_were_computed(tmp_path: Path) -> None:
    made = trained(tmp_path, epochs=3, eval_every=2)
    found = lines(made)
    assert [record["epoch"] for record in found] == [1, 2, 3]
    assert ["val" in record for record in found] == [False, True, True]  # the last epoch, too
    assert set(found[0]) == {"epoch", "seconds", "train_seconds", "loss", "lr", "refreshed"}
    assert set(found[1]) == {*found[0], "train", "val", "test", "fidelity", "certificate"}
    assert [record["refreshed"] for record in found] == [False, True, False]
    assert 0 <= found[0]["seconds"] <= found[1]["seconds"] <= found[2]["seconds"]
    assert found[1]["certificate"] > 0
    assert found[2]["certificate"] is None
    assert found[1]["fidelity"] <= 1


def test_the_listener_hears_of_every_step_and_every_epoch(tmp_path: Path) -> None:
    class Noting(Listener):
        def __init__(self) -> None:
            self.steps: list[tuple[int, float]] = []
            self.losses: list[float] = []
            self.lines: list[Epoch] = []
            self.stages: set[str] = set()

        def preparing(self, what: str, done: int, total: int) -> None:
            self.stages.add(what)

        def stepped(self, epoch: int, share: float, loss: float) -> None:
            self.steps.append((epoch, share))
            self.losses.append(loss)

        def evaluated(self, epoch: Epoch) -> None:
            self.lines.append(epoch)

    noting = Noting()
    made = training(tmp_path, listener=noting, epochs=2)
    made.run()
    assert [epoch for epoch, _ in noting.steps] == [1, 1, 1, 2, 2, 2]
    assert [share for _, share in noting.steps] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])
    assert noting.stages == {"partitioning", "basic embeddings", "compensating batches"}
    assert noting.lines == made.folder.metrics()
    assert noting.lines[1].loss == pytest.approx(sum(noting.losses[3:]) / 3)


@pytest.mark.parametrize(
    ("method", "task"),
    [("top", "classes"), ("top", "binary"), ("top", "multilabel"), ("top", "regression"), ("full", "classes")],
)
def test_exact_scores_are_those_of_a_plain_full_graph_forward(tmp_path: Path, method: str, task: str) -> None:
    data = graph(task)
    made = trained(tmp_path, data, method=method, epochs=2, norm="batch")
    model = copy.deepcopy(made.model).eval()
    out = model(data.x, data.edge_index).detach()
    masks = {name: data[f"{name}_mask"] for name in ("train", "val", "test")}
    expected = made.task.score(out, data.y, masks=masks)
    last = lines(made)[-1]
    assert {name: last[name] for name in masks} == pytest.approx(expected, abs=1e-5)
    if task == "classes":
        right = (out.argmax(1) == data.y)[data.val_mask].double().mean()
        assert last["val"] == pytest.approx(float(right))


def test_the_whole_graph_is_seen_as_it_is(tmp_path: Path) -> None:
    assert trained(tmp_path, method="full").progress.fidelity == pytest.approx(1.0, abs=1e-6)


def test_the_last_fidelity_is_over_all_batches(tmp_path: Path) -> None:
    made = trained(tmp_path, epochs=1, refresh="never")
    exact, seen = made.method.exact()[0], made.method.outputs()
    assert made.progress.fidelity == pytest.approx(1 - float((exact - seen).norm() / exact.norm()), abs=1e-5)


def test_fidelity_leaves_out_nodes_in_no_batch(tmp_path: Path) -> None:
    made = trained(tmp_path, train_only=True, rank=3, epochs=1)
    assert made.progress.fidelity is not None
    assert math.isfinite(made.progress.fidelity)


# how often the whole graph is run


@pytest.mark.parametrize(
    ("changes", "forwards"),
    [
        ({"refresh": "every=2", "eval_every": 2}, 1 + 2),  # the first basis; evaluations that are refreshes, too
        ({"refresh": "every=1", "eval_every": 1}, 1 + 4),
        ({"refresh": "every=1", "eval_every": 2}, 1 + 2 + 2),  # and one refresh between evaluations
        ({"refresh": "every=2", "eval_every": 1}, 1 + 4),
        ({"refresh": "every=4", "eval_every": 2}, 1 + 2),
        ({"refresh": "every=2", "eval_every": 2, "rank": 0, "offset": False}, 2),  # nothing to estimate
        ({"refresh": "every=1", "eval_every": 4, "rank": 0, "offset": False}, 1),
    ],
    ids=str,
)
def test_an_evaluation_doubles_as_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], forwards: int
) -> None:
    calls = []
    predict, embed = topoff.compensation.passes.exact, topoff.compensation.passes.embed

    def counted_predict(*args: Any, **kwargs: Any) -> Tensor:
        calls.append("exact")
        return predict(*args, **kwargs)

    def counted_embed(*args: Any, **kwargs: Any) -> Tensor:
        calls.append("embed")
        return embed(*args, **kwargs)

    monkeypatch.setattr(topoff.compensation.passes, "exact", counted_predict)
    monkeypatch.setattr(topoff.compensation.passes, "embed", counted_embed)
    trained(tmp_path, **changes)
    assert len(calls) == forwards


# the best weights


def best_of(place: Path, scores: list[float], *, metric: str = "accuracy", **changes: Any) -> Training:
    """Train an epoch per validation score, which is told to the run instead of its own."""
    data = graph("regression" if metric in ("rmse", "r2") else "classes")
    made = training(place, data, method="full", epochs=len(scores), eval_every=1, metric=metric, **changes)
    told = iter(scores)
    object.__setattr__(made.task, "score", lambda *_, **__: dict.fromkeys(("train", "val", "test"), next(told)))
    kept = []
    keep = made._keep_best

    def noted(found: dict[str, float]) -> None:
        keep(found)
        kept.append(copy.deepcopy(weights(made)))

    made._keep_best = noted
    made.run()
    made.kept = kept
    return made


@pytest.mark.parametrize(
    ("metric", "scores", "best"),
    [
        ("accuracy", [0.1, 0.5, 0.4], 2),
        ("accuracy", [0.5, 0.5, 0.4], 1),  # the first of equals
        ("accuracy", [0.1, 0.2, 0.3], 3),
        ("r2", [-5.0, -1.0, -2.0], 2),
        ("rmse", [3.0, 1.0, 2.0], 2),  # less is better
        ("rmse", [1.0, 2.0, 3.0], 1),
    ],
    ids=str,
)
def test_the_weights_at_the_best_validation_score_are_kept(
    tmp_path: Path, metric: str, scores: list[float], best: int
) -> None:
    made = best_of(tmp_path, scores, metric=metric)
    assert made.progress.best == {"epoch": best, **dict.fromkeys(("train", "val", "test"), scores[best - 1])}
    assert same(made.best_weights, made.kept[best - 1])
    assert best == 3 or not same(made.best_weights, made.kept[2])


@pytest.mark.parametrize(
    ("metric", "scores", "patience", "epochs"),
    [
        ("accuracy", [0.5, 0.4, 0.3, 0.9], 2, 3),
        ("accuracy", [0.5, 0.4, 0.6, 0.5, 0.5, 0.9], 2, 5),  # a better one starts the count anew
        ("accuracy", [0.5, 0.4, 0.3, 0.9], 3, 4),
        ("accuracy", [0.5, 0.4, 0.3, 0.2], 0, 4),  # never
        ("rmse", [3.0, 2.0, 1.0, 0.5], 1, 4),  # it falls, which is good
        ("rmse", [1.0, 2.0, 3.0, 0.5], 2, 3),
    ],
    ids=str,
)
def test_early_stopping_by_patience(
    tmp_path: Path, metric: str, scores: list[float], patience: int, epochs: int
) -> None:
    made = best_of(tmp_path, scores, metric=metric, patience=patience)
    assert made.progress.epoch == epochs == len(made.folder.metrics())
    assert made.progress.stopped_early == (epochs < len(scores))


def test_patience_counts_evaluations_not_epochs(tmp_path: Path) -> None:
    made = trained(tmp_path, lr=1e-9, patience=1, eval_every=2, epochs=8)
    assert made.progress.epoch == 4


def test_without_validation_nodes_the_last_weights_are_kept(tmp_path: Path) -> None:
    data = graph()
    data.test_mask, data.val_mask = data.test_mask | data.val_mask, torch.zeros(60, dtype=torch.bool)
    made = trained(tmp_path, data, patience=1, eval_every=1)
    assert made.progress.epoch == 4
    assert made.progress.best is not None
    assert made.progress.best["epoch"] == 4
    assert same(made.best_weights, weights(made))
    assert made.folder.metrics()[-1].val is None
    assert made.folder.metrics()[-1].test is not None


def test_the_best_weights_are_in_the_checkpoint(tmp_path: Path) -> None:
    made = trained(tmp_path)
    assert same(trained_weights(made.folder.path)[0], made.best_weights)


# learning rates


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({}, [1.0] * 8),
        ({"schedule": "linear"}, [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ({"schedule": "step"}, [1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.01, 0.01]),
        ({"schedule": "cosine"}, [(1 + math.cos(math.pi * epoch / 8)) / 2 for epoch in range(8)]),
        ({"warmup": 3}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"warmup": 4, "schedule": "linear"}, [0.2, 0.4, 0.6, 0.8, 1.0, 0.75, 0.5, 0.25]),
        ({"warmup": 9}, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]),  # longer than the run
    ],
    ids=str,
)
def test_learning_rates_by_hand(changes: dict[str, Any], rates: list[float]) -> None:
    config = settings(lr=1.0, epochs=8, **changes)
    assert [learning_rate(config, epoch) for epoch in range(8)] == pytest.approx(rates)


def test_the_schedule_reaches_the_optimizer(tmp_path: Path) -> None:
    seen: list[float] = []

    class Noting(Listener):
        def stepped(self, epoch: int, share: float, loss: float) -> None:
            seen.extend({group["lr"] for group in made.optimizer.param_groups})

    made = training(tmp_path, listener=Noting(), schedule="linear", lr=0.4)
    made.run()
    assert seen == pytest.approx([0.4] * 3 + [0.3] * 3 + [0.2] * 3 + [0.1] * 3)
    assert [record["lr"] for record in records(made)] == pytest.approx([0.4, 0.3, 0.2, 0.1])


# optimisers and steps


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)]
)
def test_the_optimizer_by_its_name(name: str, kind: type[torch.optim.Optimizer]) -> None:
    model = nn.Linear(2, 2)
    optimizer = make_optimizer(settings(optimizer=name, lr=0.3, weight_decay=0.2), model, list(model.parameters()))
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.3, 0.2)
    assert group.get("momentum", 0.9) == 0.9


def test_frozen_parameters_are_not_optimised() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    (group,) = make_optimizer(settings(), model, list(model.parameters())).param_groups
    assert group["params"] == [model.weight]


@pytest.mark.parametrize(
    ("name", "outer"),
    [
        ("gcn", {"convs.1"}),
        ("sage", {"convs.1"}),
        ("gcnii", {"first", "last"}),
        ("gcnii-jk", {"first", "jumps.0", "jumps.1", "jumps.2", "mix", "last"}),
        ("sgc", {"conv"}),
        ("sign", {"last"}),
    ],
)
def test_the_layers_around_the_convs_have_a_decay_of_their_own(name: str, outer: set[str]) -> None:
    model = make_model(name, in_channels=4, hidden=5, out_channels=3, layers=2)
    config = settings(weight_decay=0.2, outer_decay=0.1)
    inner, others = make_optimizer(config, model, list(model.parameters())).param_groups
    assert (inner["weight_decay"], others["weight_decay"], others["lr"]) == (0.2, 0.1, config.lr)
    named = {id(parameter): key for key, parameter in model.named_parameters()}
    assert {named[id(parameter)] for parameter in others["params"]} == {
        key for key in named.values() if key.startswith(tuple(f"{module}." for module in outer))
    }
    assert len(inner["params"]) + len(others["params"]) == len(named)


def test_a_model_that_does_not_say_which_layers_are_outer_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"Expected Linear to have a method outer_parameters.*leave outer_decay out"):
        make_optimizer(settings(outer_decay=0.0), model, list(model.parameters()))


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the model to have parameters to train \(got none in model 'gcn'\)"):
        make_optimizer(settings(), nn.Identity(), [])


def test_gradients_are_clipped(tmp_path: Path) -> None:
    norms = []

    class Noting(Listener):
        def stepped(self, epoch: int, share: float, loss: float) -> None:
            gradients = [parameter.grad for parameter in made.model.parameters()]
            norms.append(float(torch.cat([g.view(-1) for g in gradients if g is not None]).norm()))

    made = training(tmp_path, listener=Noting(), clip=0.01, epochs=1)
    made.run()
    assert norms == pytest.approx([0.01] * 3, rel=1e-3)


def test_a_loss_that_is_not_finite_stops_the_run_with_a_remedy(tmp_path: Path) -> None:
    made = training(tmp_path, checkpoint_seconds=0.0)
    for parameter in made.model.parameters():
        parameter.data.fill_(math.nan)
    made.method.prepare = lambda: None  # exact embeddings of such a model are refused even before
    made.method.batches = lambda: iter([made.method.graph.induced(torch.arange(60))])
    made.method.forward = lambda batch: made.model(batch.x, batch.edge_index)
    made.method.graph = topoff.graph.graph.Graph(made.data)
    with pytest.raises(
        ValueError, match=r"the loss to stay finite \(got nan in epoch 1\); lower --lr, or set --clip 1.0"
    ):
        made.run()
    assert not (tmp_path / CHECKPOINT).exists()


def test_the_loss_falls(tmp_path: Path) -> None:
    losses = [record["loss"] for record in records(trained(tmp_path, epochs=8, dropout=0.0))]
    assert losses[-1] < 0.5 * losses[0]


def test_regression_learns_targets_far_from_nought(tmp_path: Path) -> None:
    made = trained(tmp_path, graph("regression"), method="full", epochs=30, dropout=0.0, eval_every=30)
    assert made.folder.metrics()[-1].train > 0.8  # r2 in the units of the targets


def test_training_runs_in_training_mode(tmp_path: Path) -> None:
    modes = []

    class Noting(Listener):
        def stepped(self, epoch: int, share: float, loss: float) -> None:
            modes.append(made.model.training)
            made.model.eval()

    made = training(tmp_path, listener=Noting(), epochs=1)
    made.run()
    assert modes == [True] * 3


# devices and records


def test_devices_by_name() -> None:
    assert device_of("cpu") == torch.device("cpu")
    assert device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:99", ""])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"device to be auto, cpu or a cuda device that is there \(got '{name}'.*\); leave it"
    ):
        device_of(name)


def test_the_state_is_plain_json(tmp_path: Path) -> None:
    made = trained(tmp_path, refresh="auto")
    found = made.folder.load()
    assert found is not None
    assert json.loads(json.dumps(found.state)) == found.state
    assert found.state["method"]["refreshing"]["automatic"] is True
    assert set(found.tensors) == {"model", "best", "fitted", "optimizer", "generator"}


def test_refreshes_between_evaluations_are_noted(tmp_path: Path) -> None:
    made = trained(tmp_path, refresh="every=2", eval_every=6, epochs=6)
    assert [record["refreshed"] for record in records(made)] == [False, False, True, False, True, False]


def test_fidelity_at_an_early_stop_is_over_all_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Task, "better", lambda self, new, old: old is None)
    counted: list[int] = []
    whole = Top.outputs
    monkeypatch.setattr(Top, "outputs", lambda self: counted.append(1) or whole(self))
    made = trained(tmp_path, patience=2, eval_every=1, epochs=9)
    assert made.progress.epoch == 3
    assert len(counted) == 1


def test_the_models_own_norm_unless_asked_for(tmp_path: Path) -> None:
    names = {change: training(tmp_path / change, model="gcnii", **options).model for change, options in
             {"own": {}, "layer": {"norm": "layer"}}.items()}  # fmt: skip
    assert not any("norm" in name for name, _ in names["own"].named_parameters())
    assert any("norm" in name for name, _ in names["layer"].named_parameters())
