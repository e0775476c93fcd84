"""What a finished run leaves: its record, details by hand, and the mean over seeds."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphs import communities
from topoff.data.names import Names
from topoff.machine.memory import machine
from topoff.report.read import read_run
from topoff.training.build import make_setup
from topoff.training.checkpoints import trained_weights
from topoff.training.config import make_config
from topoff.training.loop import Training
from topoff.training.records import Spread, summarize
from topoff.training.result import details_of, result_of, write_result
from topoff.training.run_folder import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore:The compensation misses")
SETTINGS: dict[str, Any] = {
    "dataset": "graph",
    "batches": "random",
    "ratio": 0.25,
    "layers": 2,
    "hidden": 8,
    "epochs": 2,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))


def made(place: Path, data: Data | None = None, *, run: bool = True, **changes: Any) -> Training:
    data = communities(60, groups=3, dtype=torch.float32) if data is None else data
    training = Training(make_setup(make_config(SETTINGS, changes), data), folder=RunFolder(place / "run").create())
    if run:
        training.run()
    return training


# the record


def test_the_record_of_a_run(tmp_path: Path) -> None:
    training = made(tmp_path)
    result = result_of(training, command="topoff train graph").json()
    best = training.progress.best
    assert best is not None
    assert {name: result[name] for name in ("train", "val", "test")} == {n: best[n] for n in ("train", "val", "test")}
    assert result["best_epoch"] == best["epoch"]
    assert (result["metric"], result["task"], result["outputs"]) == ("accuracy", "classes", 3)
    assert result["classes"] == ["0", "1", "2"]
    assert (result["epochs"], result["steps"], result["stopped_early"]) == (2, 8, False)
    assert (result["nodes"], result["features"]) == (60, 5)
    assert result["edges"] == training.data.edge_index.size(1)
    assert result["parameters"] == sum(p.numel() for p in training.model.parameters())
    assert (result["model"], result["method"], result["seed"], result["dataset"]) == ("gcn", "top", 0, "graph")
    assert result["command"] == "topoff train graph"
    assert result["date"].endswith("+00:00")
    assert {"python", "topoff", "torch", "torch_geometric"} <= set(result["versions"])
    assert result["fidelity"] == training.progress.fidelity
    assert result["certificate"] >= 0
    assert result["seconds"] >= result["preprocess_seconds"] > 0
    assert 0 < result["epoch_seconds"] <= result["seconds"]
    assert result["peak_rss_mb"] > 1
    assert {"what": "rank", "value": 1, "why": "8 or more nodes per direction"} in result["chosen"]
    assert json.loads(json.dumps(result)) == result


def test_every_key_of_the_record_is_there(tmp_path: Path) -> None:
    keys = "train val test metric task best_epoch epochs steps seconds preprocess_seconds epoch_seconds peak_rss_mb"
    keys += " fidelity certificate parameters dataset nodes edges features model method seed command date versions"
    assert {*keys.split(), "machine", "chosen"} <= set(result_of(made(tmp_path), command="").json())


def test_the_model_keeps_its_last_weights(tmp_path: Path) -> None:
    training = made(tmp_path, epochs=6, lr=0.5, method="full")
    last = {name: value.clone() for name, value in training.model.state_dict().items()}
    result = write_result(training, command="topoff train graph")
    assert (result.best_epoch or 0) < 6
    saved = trained_weights(training.folder.path)[0]
    assert all(torch.equal(value, last[name]) for name, value in training.model.state_dict().items())
    assert not all(torch.equal(value, last[name]) for name, value in saved.items())  # the best ones
    assert training.folder.result() == result


def test_the_output_of_the_last_evaluation_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = made(tmp_path, epochs=1)
    assert training.best_output is not None
    write_result(training, command="")
    kept = (tmp_path / "run" / "details.json").read_text()
    training.best_output = None
    calls, exact = [], training.method.exact
    monkeypatch.setattr(training.method, "exact", lambda: calls.append(1) or exact())
    write_result(training, command="")
    assert calls == [1]
    assert (tmp_path / "run" / "details.json").read_text() == kept
    training.best_output = exact()[0]
    write_result(training, command="")
    assert calls == [1]


def test_the_output_of_other_weights_than_the_best_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = made(tmp_path, run=False)
    monkeypatch.setattr(type(training.task), "better", lambda self, score, best: best is None)
    training.run()
    assert training.progress.best is not None
    assert training.progress.best["epoch"] == 1
    assert training.best_output is None


def test_the_whole_graph_has_no_certificate(tmp_path: Path) -> None:
    assert result_of(made(tmp_path, method="full"), command="").certificate is None


def test_a_run_that_was_not_scored_has_no_scores(tmp_path: Path) -> None:
    training = made(tmp_path, run=False)
    training.method.prepare()
    result = result_of(training, command="")
    assert [result.train, result.val, result.test, result.best_epoch] == [None] * 4


def test_the_machine_is_described_without_its_name() -> None:
    import platform

    found = machine()
    assert set(found) == {"cpu", "cores", "threads", "memory_gb", "system"}
    assert found["threads"] == torch.get_num_threads()
    assert found["memory_gb"] > 0
    assert platform.node() not in found.values()


# details, by hand

# Six nodes, the last four of which are tested.
Y = torch.tensor([0, 1, 0, 0, 1, 2])
OUT = torch.eye(3)[torch.tensor([2, 2, 0, 1, 1, 1])]  # predicted: 2, 2 | 0, 1, 1, 1


def six(y: Tensor, **changes: Any) -> Data:
    mask = torch.tensor([True, False, False, False, False, False])
    val = torch.tensor([False, True, False, False, False, False])
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 2]])
    data = Data(x=torch.randn(6, 2), edge_index=edges, y=y, train_mask=mask, val_mask=val, test_mask=~(mask | val))
    data.update(changes)
    return data


def details(place: Path, data: Data, out: Tensor, **changes: Any) -> dict[str, Any]:
    training = made(place, data, run=False, ratio=1.0, **changes)
    training.method.prepare()
    found = details_of(training, out)
    assert json.loads(json.dumps(found)) == found
    return found


def test_confusion_and_classes_by_hand(tmp_path: Path) -> None:
    found = details(tmp_path, six(Y, names=Names(class_names=["a", "b", "c"])), OUT)
    assert found["classes"] == ["a", "b", "c"]
    assert found["confusion"] == [[1, 1, 0], [0, 1, 0], [0, 1, 0]]  # rows are the truth
    assert found["per_class"] == [
        {"class": "a", "count": 2, "precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3)},
        {"class": "b", "count": 1, "precision": pytest.approx(1 / 3), "recall": 1.0, "f1": 0.5},
        {"class": "c", "count": 1, "precision": 0.0, "recall": 0.0, "f1": 0.0},
    ]
    assert found["degrees"] == {"edges": [0, 1, 2, 4], "counts": [0, 5, 1]}
    assert found["batches"][0]["nodes"] == 6
    assert set(found["batches"][0]) == {"nodes", "boundary", "rank", "condition", "certificate"}


def test_of_very_many_classes_the_largest_are_kept(tmp_path: Path) -> None:
    """6 nodes and 1,200 classes with names: the table has 200 of them, and no pair of classes is lost from the list."""
    y = torch.tensor([0, 1, 1100, 1100, 1199, 3])
    out = torch.zeros(6, 1200).index_put_((torch.arange(6), torch.tensor([0, 1, 1100, 7, 900, 900])), torch.ones(6))
    found = details(tmp_path, six(y, names=Names(class_names=[f"c{number}" for number in range(1200)])), out)
    assert (len(found["confusion"]), len(found["per_class"]), len(found["classes"])) == (200, 1000, 1200)
    place = found["confused"].index(1100)
    assert (found["sizes"][place], found["confusion"][place][place]) == (2, 1)
    assert sum(found["sizes"]) == 4
    assert found["mistakes"] == [[3, 900, 1], [1100, 7, 1], [1199, 900, 1]]
    row = next(row for row in found["per_class"] if row["class"] == "c1100")
    assert (row["count"], row["precision"], row["recall"]) == (2, 1.0, 0.5)
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "details.json").write_text(json.dumps(found))
    (tmp_path / "shown" / "metrics.jsonl").write_text('{"epoch": 1, "loss": 1.0}')
    seen = read_run(tmp_path / "shown").seeds[0].confusion
    assert seen is not None
    assert seen.mistakes()[0] == ("c3", "c900", 1)
    assert (len(seen.kept), seen.classes) == (50, 1200)
    for key, value in (("sizes", [1]), ("mistakes", [[5000, 0, 1]]), ("confused", [0])):
        (tmp_path / "shown" / "details.json").write_text(json.dumps(found | {key: value}))
        with pytest.raises(ValueError, match=r"Expected confused.* in .*details\.json to (be about|have 200)"):
            read_run(tmp_path / "shown")


def test_outputs_that_memory_cannot_take_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topoff.data.archive.free_memory", lambda: 60)
    with pytest.raises(
        ValueError, match=r"3 outputs of 6 nodes to fit into memory, 60 B free \(got 72 B\); merge classes"
    ):
        made(tmp_path, six(Y), run=False)


def test_without_test_nodes_the_validation_nodes_are_shown(tmp_path: Path) -> None:
    none = torch.zeros(6, dtype=torch.bool)
    data = six(Y, test_mask=none)
    found = details(tmp_path, data, OUT)
    assert found["split"] == "val"
    assert sum(map(sum, found["confusion"])) == int(data.val_mask.sum())


def test_labels_by_hand(tmp_path: Path) -> None:
    y = torch.tensor([[1, 0], [0, 1], [1, 1], [1, 0], [0, 0], [0, 0]]).float()
    out = torch.tensor([[1, 1], [1, 1], [2.0, -1], [-1, 3], [-1, -1], [1, -2]])
    found = details(tmp_path, six(y), out)
    assert "confusion" not in found
    assert found["per_class"] == [
        {"class": "0", "count": 2, "precision": 0.5, "recall": 0.5, "f1": 0.5},
        {"class": "1", "count": 1, "precision": 0.0, "recall": 0.0, "f1": 0.0},
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_targets_by_hand(tmp_path: Path, dtype: torch.dtype) -> None:
    y = torch.tensor([10.0, 0.0, 1.0, 2.0, 3.0, 4.0], dtype=dtype)
    found = details(tmp_path, six(y), torch.arange(6.0).view(-1, 1), metric="rmse")
    assert found["scatter"] == [[1, 12], [2, 13], [3, 14], [4, 15]]  # 10 is the mean of the one training node
    assert {"confusion", "per_class"}.isdisjoint(found)


@pytest.mark.parametrize(("points", "shown"), [(1000, 1000), (1001, 501), (1999, 1000), (5000, 1000)])
def test_a_scatter_plot_is_drawn_from_all_of_many_points(tmp_path: Path, points: int, shown: int) -> None:
    n = points + 2
    mask = torch.arange(n)
    data = Data(x=torch.randn(n, 2), edge_index=torch.stack([mask, (mask + 1) % n]), y=mask.float())
    data.update({"train_mask": mask == 0, "val_mask": mask == 1, "test_mask": mask > 1})
    training = made(tmp_path, data, run=False, method="full")
    training.method.prepare()
    scatter = details_of(training, torch.zeros(n, 1))["scatter"]
    assert len(scatter) == shown
    assert scatter[0][0] == 2
    assert scatter[-1][0] > 0.99 * points


# several seeds


def test_mean_and_unbiased_deviation_by_hand() -> None:
    assert Spread.over([1.0, 2.0, 6.0]) == Spread(3.0, pytest.approx(math.sqrt((4 + 1 + 9) / 2)))
    assert Spread.over([0.5]) == Spread(0.5, 0.0)
    assert Spread.over([0.5, None]) == Spread(None, None)


def test_several_seeds_are_summed_up(tmp_path: Path) -> None:
    results = []
    for seed, score in [(3, 0.5), (4, 0.7)]:
        result = result_of(made(tmp_path / str(seed), seed=seed, method="full"), command="one")
        results.append(dataclasses.replace(result, test=score, epochs=2 * seed, fidelity=None))
    found = summarize(results, command="topoff train --seeds 3,4").json()
    assert found["seeds"] == [3, 4]
    assert found["test"] == {"mean": 0.6, "std": pytest.approx(0.1 * math.sqrt(2))}
    assert found["epochs"] == {"mean": 7.0, "std": pytest.approx(math.sqrt(2))}
    assert found["fidelity"] == {"mean": None, "std": None}
    assert found["command"] == "topoff train --seeds 3,4"
    assert found["runs"] == [result.json() for result in results]
    for name in ("train", "val", "epoch_seconds", "preprocess_seconds", "seconds", "peak_rss_mb"):
        assert set(found[name]) == {"mean", "std"}
    for name in ("metric", "task", "dataset", "model", "method", "parameters", "date", "versions", "machine", "chosen"):
        assert found[name] == results[0].json()[name]
    assert json.loads(json.dumps(found)) == found
