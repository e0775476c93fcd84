"""Methods side by side: what is compared, gradient errors, the table, its target, and the page."""

import json
import math
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities
from runs import MACHINE, make_metrics, make_result, write_json
from topoff.experiments import processes
from topoff.experiments.columns import COLUMNS, best_of, cell
from topoff.experiments.gradients import epoch_gradient, gradient_errors, measure_gradient
from topoff.experiments.jobs import Failure, Job, Watcher, config_of, parse_methods, split_settings
from topoff.experiments.page import build_page, curve_of, write_page
from topoff.experiments.processes import train_job
from topoff.experiments.table import (
    Finished,
    make_row,
    make_table,
    time_to_target,
    write_summaries,
)
from topoff.experiments.targets import default_target
from topoff.machine.memory import free_memory
from topoff.methods.registry import METHODS
from topoff.report.page import NOTHING
from topoff.tasks.task import Task
from topoff.training.build import make_setup
from topoff.training.config import make_config, write_toml
from topoff.training.loop import Training
from topoff.training.records import Epoch, Result
from topoff.training.run_folder import RunFolder
from topoff.training.trained import graph_of

pytestmark = pytest.mark.filterwarnings("ignore:The compensation misses")
SETTINGS: dict[str, Any] = {"dataset": "graph", "batches": "random", "ratio": 0.25, "rank": 8, "refresh": "every=1"}
SETTINGS |= {"layers": 2, "hidden": 8, "dropout": 0.5, "epochs": 2, "eval_every": 1, "lr": 0.02, "device": "cpu"}
NAMES = {column.key: column for column in COLUMNS}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))


# ---- what is compared


def test_methods_are_names_or_all() -> None:
    assert parse_methods("top , full") == ["top", "full"]
    assert parse_methods("all") == list(METHODS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("top,clutser", r"names of methods \(got 'clutser'\); did you mean 'cluster'\?"),
        ("top,qqqqqq", r"\(got 'qqqqqq'\); the methods are top, "),
        ("", r"\(got ''\); the methods are"),
        ("top,full,top", r"each method once \(got 'top' twice\)"),
    ],
)
def test_what_is_no_method_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_methods(text)


def test_a_setting_may_be_of_one_method() -> None:
    shared, own = split_settings({"lr": 0.5, "top.rank": 3, "epochs": 2}, ["full", "top"])
    assert (shared, own) == ({"lr": 0.5, "epochs": 2}, {"full": {}, "top": {"rank": 3}})
    base = {"dataset": "x", "rank": 9, "seed": 7, "method": "drop"}
    made = [config_of(name, 4, base=base, own=own[name]) for name in own]
    assert [(config.method, config.seed, config.rank) for config in made] == [("full", 4, 9), ("top", 4, 3)]


def test_a_setting_of_no_method_is_refused() -> None:
    with pytest.raises(ValueError, match=r"method\.key=value \(got 'gas\.ratio'\); the methods compared are full, top"):
        split_settings({"gas.ratio": 0.1}, ["full", "top"])


@pytest.mark.parametrize("name", ["dataset", "root", "split", "metric", "seed", "method", "epochs"])
def test_what_all_methods_share_is_not_set_for_one(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected .* all methods share \(got 'top\.{name}'\); .* of its own\.$"):
        split_settings({f"top.{name}": 1}, ["full", "top"])
    if name != "method":
        assert split_settings({name: 1}, ["top"]) == ({name: 1}, {"top": {}})


def test_methods_are_not_set() -> None:
    with pytest.raises(ValueError, match=r"the methods as --methods \(got --set method=gas\); leave it out"):
        split_settings({"method": "gas"}, ["top"])


# ---- gradients


def graph(**options: Any) -> Data:
    return communities(60, groups=3, **options)


def trained(place: Path, data: Data, **changes: Any) -> Training:
    made = Training(make_setup(make_config(SETTINGS, changes), data), folder=RunFolder(place))
    made.run()
    return made


def test_gradients_of_methods_against_the_whole_graph(tmp_path: Path) -> None:
    found = {
        name: gradient_errors(trained(tmp_path / name, graph(), method=name)) for name in ("full", "top", "cluster")
    }
    assert found["full"][0] < 1e-12
    assert found["full"][1] == pytest.approx(1)
    assert 1e-6 < found["top"][0] < 0.8 * found["cluster"][0]
    assert found["cluster"][1] < found["top"][1] < 1
    assert found["full"].noise == pytest.approx(0, abs=1e-6)
    assert found["top"].error < found["top"].noise  # steps of single batches are noisier than their mean


@pytest.mark.parametrize("class_weight", ["none", "balanced"])
def test_batches_that_miss_nothing_have_no_gradient_error(class_weight: str, tmp_path: Path) -> None:
    data = graph()
    data.edge_index = data.edge_index[:, :0]
    data.train_mask = torch.rand(60, generator=torch.Generator().manual_seed(3)) < 0.3  # batches of unequal weight
    data.val_mask = ~data.train_mask
    data.test_mask = torch.zeros(60, dtype=torch.bool)
    made = trained(tmp_path / "run", data, method="cluster", class_weight=class_weight)
    assert (made.task.weight is not None) == (class_weight == "balanced")
    assert gradient_errors(made)[0] < 1e-10


class Weighing:
    """Hand out two batches that weigh the losses of their targets themselves."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def batches(self) -> Iterator[Data]:
        for scale, count in ((1.0, 1), (3.0, 3)):
            mask = torch.tensor([True] * count + [False] * (3 - count))
            yield Data(scale=scale, train_mask=mask, loss_weight=torch.ones(3), batch_size=3)

    def learn(self, batch: Data, loss_of: object) -> Tensor:
        loss = batch.scale * sum(parameter.sum() for parameter in self.model.parameters())
        loss.backward()
        return loss.detach()


def test_batches_with_weights_of_their_own_count_alike() -> None:
    model = nn.Linear(2, 1)
    found = epoch_gradient(Weighing(model), model, task=Task("classes", 1, "accuracy"))
    assert torch.equal(found.mean, torch.full((3,), 2.0, dtype=torch.float64))
    assert found.square == pytest.approx((3 * 1 + 3 * 9) / 2)
    assert model.weight.grad is None


def test_a_gradient_of_zero_has_no_relative_error(tmp_path: Path) -> None:
    data = communities(64, groups=2)
    data.train_mask = torch.arange(64) % 2 == 0  # sixteen of each class
    data.val_mask, data.test_mask = ~data.train_mask, torch.zeros(64, dtype=torch.bool)
    made = trained(tmp_path / "run", data, method="full")
    for parameter in made.model.parameters():
        torch.nn.init.zeros_(parameter)
    assert all(map(math.isnan, gradient_errors(made)))


def test_the_gradient_is_left_out_where_the_whole_graph_may_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trained(tmp_path / "run", graph(), method="cluster")
    free = free_memory()
    assert free is None or free > 2**20
    monkeypatch.setattr("topoff.experiments.gradients.free_memory", lambda: 2**20)
    found = measure_gradient(made)
    assert found["gradient_error"] is None
    assert found["note"].startswith("no gradient error: the whole graph would take about ")


# ---- one run


def stored(tmp_path: Path) -> str:
    data = graph(dtype=torch.float32)
    arrays = {key: value.numpy() for key, value in data.to_dict().items()}
    np.savez(tmp_path / "graph.npz", **arrays)
    return str(tmp_path / "graph.npz")


def test_a_run_is_finished_step_by_step(tmp_path: Path) -> None:
    config = make_config(SETTINGS, {"dataset": stored(tmp_path), "method": "cluster"})
    job, more = (Job(config, tmp_path / "run", "topoff compare", gradients=wanted) for wanted in (False, True))
    train_job(job, watcher=Watcher())
    result, folder = (tmp_path / "run" / "result.json").read_bytes(), RunFolder(tmp_path / "run")
    assert folder.read_json("measured.json").keys() == {"load", "busy"}
    assert job.finished
    assert not more.finished
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    train_job(more, watcher=Watcher())  # nothing is trained again: the gradient is measured at the last weights
    assert (tmp_path / "run" / "result.json").read_bytes() == result
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights
    assert more.finished
    assert len(folder.metrics()) == 2
    found = folder.read_json("measured.json")
    again = trained(tmp_path / "run", graph_of(config), method="cluster", dataset=config.dataset)
    assert found["gradient_error"] == pytest.approx(gradient_errors(again)[0])


def test_the_gradient_is_that_of_the_last_weights(tmp_path: Path) -> None:
    config = make_config(SETTINGS, {"dataset": stored(tmp_path), "method": "cluster", "epochs": 5, "lr": 0.3})
    steps = {"one": (True,), "two": (False, True)}
    for name, wishes in steps.items():
        for wanted in wishes:
            job = Job(config, tmp_path / name, "topoff compare", gradients=wanted)
            train_job(job, watcher=Watcher())
    result, found, later = (
        RunFolder(tmp_path / name).read_json(file)
        for name, file in (("one", "result.json"), ("one", "measured.json"), ("two", "measured.json"))
    )
    assert result["best_epoch"] < result["epochs"]
    assert found["gradient_error"] == pytest.approx(later["gradient_error"])


def teller() -> processes._Teller:
    """Make a teller to which nobody listens."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    made = processes._Teller(sender)
    made.receiver = receiver  # type: ignore[attr-defined]  # open as long as it lives
    return made


def test_a_loss_that_is_not_finite_is_no_refusal(tmp_path: Path) -> None:
    config = make_config(SETTINGS, {"dataset": stored(tmp_path), "method": "cluster", "lr": 1e36, "dropout": 0})
    job, told = Job(config, tmp_path / "run", "", gradients=False), teller()
    assert not told.has_stepped
    with pytest.raises(ValueError, match=r"to stay finite \(got \w+ in epoch 1\)") as failed:
        train_job(job, watcher=told)
    assert not RunFolder(job.folder).metrics()  # it came to no end of an epoch
    assert processes._last_word(failed.value, job.folder, teller=told) == ("failed", str(failed.value), False)
    told._training = None  # as if it had not taken a step
    assert processes._last_word(failed.value, job.folder, teller=told) == ("failed", str(failed.value), True)
    RunFolder(job.folder).append(Epoch(1))
    assert processes._last_word(failed.value, job.folder, teller=told) == ("failed", str(failed.value), False)


class Stopping(processes._Teller):
    """Wish to stop after the second step."""

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        if self.has_stepped and self._training.progress.steps == 2:
            self.stop()


def test_a_wish_to_stop_saves_and_a_second_one_does_not_wait(tmp_path: Path) -> None:
    config = make_config(SETTINGS, {"dataset": stored(tmp_path), "method": "cluster"})
    job, told = Job(config, tmp_path / "run", ""), teller()
    with pytest.raises(SystemExit, match="143"):
        told.stop()  # nothing to save yet
    told.__class__ = Stopping
    with pytest.raises(KeyboardInterrupt):
        train_job(job, watcher=told)
    checkpoint = RunFolder(job.folder).load()
    assert checkpoint is not None
    assert checkpoint.state["progress"]["steps"] == 2
    with pytest.raises(SystemExit, match="143"):
        told.stop()


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"dataset": "nowhere.npz"}, "nowhere.npz"), ({"model": "gcm"}, "'gcm'"), ({"metric": "r2"}, "r2")],
)
def test_what_no_method_can_use_is_told_apart(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = make_config(SETTINGS, {"dataset": stored(tmp_path)}, changes)
    told = teller()
    with pytest.raises((ValueError, OSError), match=message) as failed:
        train_job(Job(config, tmp_path / "run", ""), watcher=told)
    assert processes._last_word(failed.value, tmp_path / "run", teller=told) == ("unusable", str(failed.value))


def test_what_a_process_says_reaches_the_watcher(tmp_path: Path) -> None:
    heard: list[tuple[Any, ...]] = []

    class Noting(Watcher):
        """Note what it hears."""

        def knows(self, metric: str, epochs: int) -> None:
            heard.append(("knows", metric, epochs))

        def preparing(self, what: str, done: int, total: int) -> None:
            heard.append(("preparing", what, done, total))

        def stepped(self, epoch: int, share: float, loss: float) -> None:
            heard.append(("stepped", epoch, share, loss))

        def evaluated(self, epoch: Epoch) -> None:
            heard.append(("evaluated", epoch))

        def warned(self, text: str) -> None:
            heard.append(("warned", text))

    said: list[tuple[Any, ...]] = [("knows", "accuracy", 2), ("preparing", "a", 1, 2), ("stepped", 1, 0.5, 2.0)]
    said += [("evaluated", Epoch(1, loss=0.5)), ("warned", "careful")]
    receiver, sender = multiprocessing.Pipe(duplex=False)
    for word in [*said, ("done",)]:
        sender.send(word)
    assert processes._listen(receiver, multiprocessing.current_process(), watcher=Noting()) is None
    assert heard == said
    sender.send(("failed", "no", True))
    assert processes._listen(receiver, multiprocessing.current_process(), watcher=Noting()) == Failure(
        "no", refused=True
    )


# ---- the target


def test_the_target_is_a_little_below_the_worst_seed_of_the_best() -> None:
    scores = {"a": [0.85, 0.85], "b": [None, None], "c": [0.8, 1.0], "d": []}
    assert default_target(scores, metric="accuracy") == pytest.approx(0.792)
    assert default_target({"a": [2.0, 1.0], "b": [1.9, 1.9]}, metric="mae") == pytest.approx(2.02)
    assert default_target({"a": [-1.0], "b": [-2.0]}, metric="r2") == pytest.approx(-1.01)
    assert default_target({"a": [None]}, metric="accuracy") is None
    assert default_target({"a": [0.5, None]}, metric="accuracy") is None


def seed(*scores: float | None, number: int = 0, **result: Any) -> Finished:
    """Make a run with an evaluation per epoch, of which each trains for two seconds."""
    rows = [{"epoch": epoch, "val": value, "train_seconds": 2.0 * epoch, "seconds": 9.0 * epoch}
            for epoch, value in enumerate(scores, 1)]  # fmt: skip
    found = make_result([row | {"test": row["val"], "train": row["val"], "fidelity": 0.75} for row in rows])
    found |= {"preprocess_seconds": 5.0, "val": max(value or 0 for value in scores)} | result
    measured = {"gradient_error": 0.25, "gradient_cosine": 0.5, "gradient_noise": 2.0}
    return Finished(number, Result.of(found), [Epoch.of(row) for row in rows], measured)


def test_the_time_to_the_target_counts_preprocessing_and_training_only() -> None:
    run = seed(0.2, None, 0.6, 0.5, 0.7)
    assert time_to_target(run, 0.6, metric="accuracy") == (3, 11.0)
    assert time_to_target(run, 0.61, metric="accuracy") == (5, 15.0)
    assert time_to_target(run, 0.71, metric="accuracy") is None
    assert time_to_target(run, 0.5, metric="rmse") == (1, 7.0)


# ---- the table


def test_a_row_of_one_seed_has_plain_numbers() -> None:
    row = make_row([seed(0.2, 0.6)], target=0.5, metric="accuracy")
    wanted = {"relative_error": 0.25, "gradient_error": 0.25, "gradient_cosine": 0.5, "peak_rss_mb": 1536.0}
    wanted |= {"gradient_noise": 2.0}
    wanted |= {"epoch_seconds": 0.42, "preprocess_seconds": 5.0, "epochs_to_target": 2, "seconds_to_target": 9.0}
    assert {key: row[key] for key in wanted} == wanted
    assert (row["test"], row["target_reached"], row["seeds"]) == (0.6, 1, [0])
    assert not any(key.endswith("_std") for key in row)
    assert "error" not in row


def test_a_row_of_several_seeds_has_means_and_deviations() -> None:
    row = make_row([seed(0.2, 0.6), seed(0.8, number=1)], target=0.5, metric="accuracy")
    assert row["test"] == pytest.approx(0.7)
    assert row["test_std"] == pytest.approx(0.2 / 2**0.5)
    assert (row["epochs_to_target"], row["seconds_to_target"]) == (1.5, 8.0)
    late = make_row([seed(0.2, 0.6), seed(0.8, number=1)], target=0.7, metric="accuracy")
    assert (late["epochs_to_target"], late["seconds_to_target"], late["target_reached"]) == (None, None, 1)
    assert cell(late, NAMES["seconds_to_target"], metric="accuracy") == "1 of 2 seeds"


def test_a_method_that_refuses_is_a_row_with_the_reason() -> None:
    no = Failure("Expected linear convs (got GAT).", refused=True)
    assert make_row([], target=None, metric="accuracy", failures={0: no, 1: no}) == {"error": no.reason}
    both = make_row([], target=None, metric="accuracy", failures={0: no, 1: Failure("out of memory")})
    assert both == {"error": "seed 0: Expected linear convs (got GAT).; seed 1: out of memory"}
    assert make_row([], target=None, metric="accuracy") == {"error": "not run"}


def test_a_seed_that_failed_is_named_beside_those_that_did_not() -> None:
    row = make_row(
        [seed(0.5)], target=None, metric="accuracy", failures={0: Failure("no gradient"), 1: Failure("gone")}
    )
    assert (row["seeds"], row["error"], row["notes"]) == ([0], "seed 1: gone", ["seed 0: no gradient"])
    assert row["epochs_to_target"] is None


def test_without_a_target_its_columns_are_empty() -> None:
    row = make_row([seed(None)], target=None, metric="accuracy")
    assert row["target_reached"] is None
    for key in ("seconds_to_target", "epochs_to_target"):
        assert cell(row, NAMES[key], metric="accuracy") == NOTHING
    assert "without validation nodes: at the last weights" in NAMES["test"].meaning


def test_a_row_has_both_peaks_the_steps_and_what_was_chosen() -> None:
    row = make_row([seed(0.5, train_peak_rss_mb=512.0, steps=7)], target=None, metric="accuracy")
    assert (row["train_peak_rss_mb"], row["peak_rss_mb"], row["steps"]) == (512.0, 1536.0, 7)
    assert cell(row, NAMES["train_peak_rss_mb"], metric="accuracy") == "512\xa0MB"
    assert cell(row, NAMES["steps"], metric="accuracy") == "7"
    assert row["chosen"] == {"rank": 64}
    older = make_row([seed(0.5)], target=None, metric="accuracy")
    assert older["train_peak_rss_mb"] is None
    assert cell(older, NAMES["train_peak_rss_mb"], metric="accuracy") == NOTHING


def test_cells_are_in_units_for_people() -> None:
    row = make_row([seed(0.2, 0.6), seed(0.8, number=1)], target=0.9, metric="accuracy")
    texts = {key: cell(row, column, metric="accuracy").replace("\xa0", " ") for key, column in NAMES.items()}
    assert texts["test"] == "70.00 ± 14.14 %"
    assert texts["steps"] == "15.0 ± 7.1"
    assert cell(row | {"steps_std": 0.0}, NAMES["steps"], metric="accuracy") == "15"
    assert texts["epoch_seconds"] == "420 ± 0 ms"
    assert texts["peak_rss_mb"] == "1.50 ± 0.00 GB"
    assert texts["relative_error"] == "25.00 ± 0.00 %"
    assert texts["seconds_to_target"] == texts["epochs_to_target"] == "never"
    assert cell(row, NAMES["test"], metric="rmse") == "0.700 ± 0.141"
    assert cell({"error": "no"}, NAMES["test"], metric="accuracy") == NOTHING


def test_the_best_of_a_column() -> None:
    rows = {"a": {"test": 0.5, "epoch_seconds": 2.0}, "b": {"test": 0.7, "epoch_seconds": 2.0}, "c": {"error": ""}}
    assert best_of(rows, NAMES["test"], metric="accuracy") == {"b"}
    assert best_of(rows, NAMES["test"], metric="rmse") == {"a"}
    assert best_of(rows, NAMES["epoch_seconds"], metric="accuracy") == {"a", "b"}
    assert best_of({"b": rows["b"]}, NAMES["test"], metric="accuracy") == set()
    assert best_of({"a": {"steps": 1}, "b": {"steps": 2}}, NAMES["steps"], metric="accuracy") == set()


def test_the_only_one_to_reach_the_target_is_the_best() -> None:
    first, never = {"epochs_to_target": 3, "target_reached": 1}, {"epochs_to_target": None, "target_reached": 0}
    assert best_of({"a": first, "b": never}, NAMES["epochs_to_target"], metric="accuracy") == {"a"}
    assert best_of({"a": first, "b": {"error": "no"}}, NAMES["epochs_to_target"], metric="accuracy") == set()
    untold = {"test": None, "target_reached": 0}
    assert best_of({"a": first | {"test": 0.5}, "b": untold}, NAMES["test"], metric="accuracy") == set()


def test_what_reads_the_same_is_as_good() -> None:
    rows = {"a": {"test": 0.70001, "test_std": 0.1}, "b": {"test": 0.70002, "test_std": 0.2}, "c": {"test": 0.6999}}
    assert best_of(rows, NAMES["test"], metric="accuracy") == {"a", "b"}
    assert best_of(rows, NAMES["test"], metric="rmse") == {"a", "b", "c"}  # 0.700 each


def test_a_model_of_its_own_is_not_the_best() -> None:
    rows = {"a": {"test": 0.5}, "b": {"test": 0.6}, "sgc": {"test": 0.9, "own_model": "sgc"}}
    assert best_of(rows, NAMES["test"], metric="accuracy") == {"b"}
    assert best_of({key: rows[key] for key in ("a", "sgc")}, NAMES["test"], metric="accuracy") == set()


def test_a_curve_is_the_mean_over_the_epochs_of_all_seeds() -> None:
    runs = [seed(0.2, 0.6, None, 0.7), seed(0.4, 0.8, 0.9, number=1)]
    curve = curve_of("gas", runs, place=1, scale=100)
    assert curve is not None
    assert curve.epochs.tolist() == [1, 2]
    assert curve.seconds.tolist() == [7, 9]
    assert curve.mean == pytest.approx([30, 70])
    assert curve.std == pytest.approx([200**0.5, 200**0.5])
    assert curve_of("gas", [], place=1, scale=100) is None
    assert curve_of("gas", [seed(None)], place=1, scale=100) is None


# ---- the folder and its page

METHODS_SHOWN = ["full", "cluster", "labor", "top", *(f"method-{number}" for number in range(16))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder of a comparison of twenty methods with two seeds; one of them refused."""
    top = tmp_path_factory.mktemp("comparison")
    for place, method in enumerate(METHODS_SHOWN):
        for number in range(2) if method != "labor" else ():
            rows = [row | {"train_seconds": row["seconds"] / 2} for row in make_metrics(10, seed=100 * place + number)]
            run = top / method / f"seed-{number}"
            result = make_result(rows, seed=number) | {"method": method, "train_peak_rss_mb": 900.0 + place}
            write_json(run / "result.json", result)
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            write_json(run / "measured.json", {"load": [0.5, 1.25], "gradient_error": 0.1, "gradient_cosine": 0.9})
    about = {"dataset": "<b>words</b>", "model": "gcn", "epochs": 10, "command": "topoff compare 'a & b'", "out": "x"}
    failures = {("labor", number): Failure("Expected <linear> convs.", refused=True) for number in range(2)}
    own = {"cluster": {"parts": 33}, "top": {}}
    table = make_table(top, methods=METHODS_SHOWN, seeds=[0, 1], about=about, failures=failures, own=own)
    RunFolder(top).write("compare.json", table)
    RunFolder(top).write("compare.toml", write_toml(make_config({"dataset": "x", "lr": 0.0125}), command="topoff"))
    return top


def test_the_table_of_a_folder(folder: Path) -> None:
    table = RunFolder(folder).read_json("compare.json")
    assert list(table["methods"]) == METHODS_SHOWN
    assert (table["seeds"], table["metric"], table["dataset"]) == ([0, 1], "accuracy", "<b>words</b>")
    best = max((name for name in METHODS_SHOWN if name != "labor"), key=lambda name: table["methods"][name]["val"])
    worst = min(RunFolder(folder / best / f"seed-{number}").read_json("result.json")["val"] for number in range(2))
    assert worst < table["methods"][best]["val"]
    assert table["target"] == pytest.approx(0.99 * worst)
    assert table["methods"][best]["target_reached"] == 2
    assert table["notes"] == []
    assert [name for name, row in table["methods"].items() if "own_settings" in row] == ["cluster"]
    assert table["methods"]["cluster"]["own_settings"] == {"parts": 33}
    assert table["methods"]["labor"] == {"error": "Expected <linear> convs."}
    assert table["methods"]["top"]["load"] == [[0.5, 1.25], [0.5, 1.25]]
    one = make_table(folder, methods=["top", "gone"], seeds=[1], about={}, target=0.5)
    assert one["target"] == 0.5
    assert one["methods"]["top"]["seeds"] == [1]
    assert one["methods"]["gone"] == {"error": "not run"}


def stored_run(top: Path, method: str, **changes: Any) -> None:
    """Write a finished run of one seed, which ends in a validation score of 0.5."""
    rows = [{"epoch": epoch, "val": epoch / 10, "train_seconds": epoch, "seconds": epoch} for epoch in range(1, 6)]
    write_json(top / method / "seed-0" / "result.json", make_result(rows) | {"method": method} | changes)
    (top / method / "seed-0" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_model_of_its_own_does_not_set_the_target(tmp_path: Path) -> None:
    stored_run(tmp_path, "sgc", val=0.9)
    stored_run(tmp_path, "full")
    table = make_table(tmp_path, methods=["sgc", "full"], seeds=[0], about={})
    assert table["target"] == pytest.approx(0.99 * 0.5)
    assert table["methods"]["sgc"]["own_model"] == "sgc"
    assert make_table(tmp_path, methods=["sgc"], seeds=[0], about={})["target"] is None


def test_runs_of_different_graphs_versions_and_machines_are_told(tmp_path: Path) -> None:
    stored_run(tmp_path, "full")
    stored_run(tmp_path, "top", edges=12, versions={"topoff": "0.1.0", "torch": "9"}, machine=MACHINE | {"threads": 1})
    table = make_table(tmp_path, methods=["full", "top"], seeds=[0], about={"dataset": "x", "model": "y", "epochs": 5})
    assert table["notes"] == [
        "The runs differ in the number of edges: 738180 (full, seed 0); 12 (top, seed 0).",
        "The runs differ in the version of torch: 2.6.0 (full, seed 0); 9 (top, seed 0).",
        "The runs differ in the machine's threads: 2 (full, seed 0); 1 (top, seed 0).",
    ]
    RunFolder(tmp_path).write("compare.json", table)
    page = build_page(tmp_path)
    assert "The runs differ in the number of edges: 738180 (full, seed 0); 12 (top, seed 0)." in page


def test_a_method_with_one_batch_says_so(tmp_path: Path) -> None:
    for name, steps in (("full", 5), ("cluster", 5), ("top", 6)):
        stored_run(tmp_path, name, steps=steps)
    rows = make_table(tmp_path, methods=["full", "cluster", "top"], seeds=[0], about={})["methods"]
    note = "one step per epoch: all training nodes were in one batch"
    assert {name: row["notes"] for name, row in rows.items()} == {"full": [], "cluster": [note], "top": []}


def test_the_page_of_a_comparison(folder: Path) -> None:
    page = build_page(folder)
    assert page == build_page(folder)
    assert page.count("<svg") == 3
    assert "did not run: Expected &lt;linear&gt; convs." in page
    assert "&lt;b&gt;words&lt;/b&gt;" in page
    assert "<b>words" not in page
    assert "topoff compare &#39;a &amp; b&#39;" in page
    assert all(f">{column.title}</th>" in page for column in COLUMNS)
    assert page.count('class="best"') >= len(COLUMNS) - 3
    assert ">grad. error</th>" in page
    assert "best validation score of the worst seed of the best method" in page
    assert page.count(">cluster+</th>") == 2
    assert "+ has settings of its own: cluster: parts = 33.</p>" in page
    assert ">rank = 64; given to it alone: parts = 33</td>" in page
    assert '<th scope="row">lr</th><td>0.0125</td>' in page
    assert "full 420 ms, 900 MB" in page  # in the plot of costs: the peak of training
    assert page.count("<li>") == 19  # the legend: one method has no curve
    assert not any(word in page for word in ("http://", "https://", "<script"))
    assert len(page) < 300_000
    assert write_page(folder) == folder / "compare.html"
    assert (folder / "compare.html").read_text() == page


def test_a_comparison_in_which_nothing_ran_has_a_page(tmp_path: Path) -> None:
    table = make_table(tmp_path, methods=["top"], seeds=[0], about={"dataset": "x", "model": "gcn", "epochs": 1})
    assert (table["target"], table["metric"]) == (None, None)
    RunFolder(tmp_path).write("compare.json", table)
    page = build_page(tmp_path)
    assert "did not run: not run" in page
    assert "<svg" not in page


def test_the_summaries_of_methods_are_runs_of_several_seeds(folder: Path) -> None:
    write_summaries(folder, METHODS_SHOWN, [0, 1], command="topoff compare x")
    found = RunFolder(folder / "top").read_json("result.json")
    assert (found["seeds"], found["method"], len(found["runs"])) == ([0, 1], "top", 2)
    assert not (folder / "labor").exists()


def test_a_result_from_before_the_peak_of_training_was_kept_is_summed_up(tmp_path: Path) -> None:
    stored_run(tmp_path, "full")
    write_summaries(tmp_path, ["full"], [0], command="topoff compare x")
    assert RunFolder(tmp_path / "full").read_json("result.json")["train_peak_rss_mb"] == {"mean": None, "std": None}
