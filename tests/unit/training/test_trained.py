"""A trained run on its own graph and on others: exact outputs, scores, and predictions by the user's own names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import topoff.training.trained as room
from graphs import communities
from topoff.data.load import load
from topoff.data.names import Names
from topoff.tasks.task import Task
from topoff.training.build import class_names, make_setup
from topoff.training.config import make_config, write_toml
from topoff.training.loop import Training
from topoff.training.predictions import prediction_table, write_predictions
from topoff.training.result import result_of
from topoff.training.run_folder import RunFolder
from topoff.training.trained import Trained, evaluate, graph_of, model_of, open_run, outputs

pytestmark = pytest.mark.filterwarnings("ignore:The compensation misses")
SETTINGS: dict[str, Any] = {"batches": "random", "ratio": 0.25, "rank": 6, "layers": 2, "hidden": 8, "epochs": 2}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))


def graph_file(path: Path, data: Data, **more: Any) -> Path:
    arrays = {name: value.numpy() for name, value in data.to_dict().items()}
    np.savez(path, **arrays, **more)
    return path


def labeled(kind: str = "classes", n: int = 60, **options: Any) -> Data:
    data = communities(n, groups=3, **({"dtype": torch.float32} | options))
    if kind == "multilabel":
        data.y = torch.stack([data.y == 0, data.y > 0], dim=1).float()
    if kind == "regression":
        data.y = 1000 + 50 * data.x.sum(dim=1)
    return data


def trained(place: Path, data: Data | None = None, *, finish: bool = True, **changes: Any) -> tuple[Training, Trained]:
    """Train on a graph in a file, leave what the command line leaves, and open it."""
    place.mkdir(exist_ok=True)
    more = changes.pop("more", {})
    file = graph_file(place / "graph.npz", labeled() if data is None else data, **more)
    config = make_config(SETTINGS, {"dataset": str(file)}, changes)
    graph = graph_of(config)
    folder = RunFolder(place / "run").create()
    folder.write("config.toml", write_toml(config, command="topoff train graph.npz"))
    training = Training(make_setup(config, graph), folder=folder)
    training.run()
    if finish:
        folder.save_model(training.best_weights)
        folder.write("result.json", result_of(training, command="topoff train graph.npz").json())
    return training, open_run(folder.path)


def best(training: Training) -> torch.nn.Module:
    model = training.model
    model.load_state_dict(training.best_weights)
    return model.eval()


# opening


def test_a_finished_run_is_opened(tmp_path: Path) -> None:
    training, run = trained(tmp_path, more={"class_names": np.array(["red", "green", "blue"])})
    assert run.config.rank == 6
    assert (run.task.kind, run.task.metric, run.task.outputs) == ("classes", "accuracy", 3)
    assert run.classes == ["red", "green", "blue"]
    assert run.encoding is None
    assert run.features == 5
    assert all(torch.equal(value, training.best_weights[name]) for name, value in run.weights.items())


def test_an_unfinished_run_gives_its_best_weights_so_far(tmp_path: Path) -> None:
    training, run = trained(tmp_path, finish=False)
    assert run.classes == ["0", "1", "2"]
    assert run.features == 5
    assert all(torch.equal(value, training.best_weights[name]) for name, value in run.weights.items())
    data = graph_of(run.config)
    assert torch.allclose(outputs(run, data), best(training)(data.x, data.edge_index), atol=1e-5)


def test_how_tables_were_encoded_is_read_back(tmp_path: Path) -> None:
    _, run = trained(tmp_path)
    encoding = {"id": "id", "columns": [], "left_out": [], "label": None}
    run.folder.write("encoding.json", encoding)
    assert open_run(run.folder.path).encoding == encoding
    run.folder.write("encoding.json", {"columns": []})
    with pytest.raises(ValueError, match=r"run/encoding\.json to be that of an earlier read \(got columns\); .* train"):
        open_run(run.folder.path)


def test_targets_keep_their_units(tmp_path: Path) -> None:
    training, run = trained(tmp_path, labeled("regression"))
    task = training.task
    assert (run.task.center, run.task.scale) == (task.center, task.scale)
    assert run.task.center > 900
    assert run.classes == []


def test_the_features_of_a_node_are_divided_by_their_sum(tmp_path: Path) -> None:
    data = labeled()
    data.x = (5 * data.x).abs().floor() + 1
    data.x[3] = 0
    _, run = trained(tmp_path, data, row_normalize=True)
    graph = graph_of(run.config)  # as `topoff evaluate` and `predict` load it
    assert torch.allclose(graph.x, data.x / data.x.sum(dim=1, keepdim=True).clamp(min=1))


def test_negative_features_are_no_counts(tmp_path: Path) -> None:
    file = graph_file(tmp_path / "graph.npz", labeled())
    with pytest.raises(ValueError, match=r"Expected features that are not negative for row_normalize \(got -.*leave"):
        graph_of(make_config({"dataset": str(file), "row_normalize": True}))


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="to be the folder of a run"):
        open_run(tmp_path)


def test_a_run_that_has_nothing_yet_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path).write("config.toml", 'dataset = "wordnet"\n')
    with pytest.raises(
        FileNotFoundError, match=r"a trained model in .* \(got no model.safetensors and no checkpoint\)"
    ):
        open_run(tmp_path)


def test_a_run_of_several_seeds_is_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path).write("config.toml", 'dataset = "wordnet"\n')
    for seed in (3, 4):
        (tmp_path / f"seed-{seed}").mkdir()
    with pytest.raises(ValueError, match=r"the run of one seed \(got .*, which has 2\); give .*seed-3\."):
        open_run(tmp_path)


# outputs


@pytest.mark.parametrize("method", ["top", "full"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_exact_outputs_are_those_of_the_plain_model(tmp_path: Path, method: str, dtype: torch.dtype) -> None:
    data = labeled(dtype=dtype)
    training, run = trained(tmp_path, data, method=method, norm="batch", dropout=0.5)
    out = outputs(run, graph_of(run.config))
    assert out.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12  # weights are not rounded on the way
    assert torch.allclose(out, best(training)(data.x, data.edge_index), atol=tolerance, rtol=tolerance)


def test_another_graph_is_predicted_without_labels(tmp_path: Path) -> None:
    training, run = trained(tmp_path)
    other = labeled(n=40, seed=5)
    bare = Data(x=other.x, edge_index=other.edge_index)
    assert torch.allclose(outputs(run, bare), best(training)(other.x, other.edge_index), atol=1e-5)


def test_compensated_outputs_need_no_labels(tmp_path: Path) -> None:
    data = labeled()
    _, run = trained(tmp_path, data)
    bare = Data(x=data.x, edge_index=data.edge_index)
    assert (outputs(run, bare, compensated=True) - outputs(run, bare)).abs().max() < 1


def test_more_class_names_than_classes_are_cut(tmp_path: Path) -> None:
    training, _ = trained(tmp_path, more={"class_names": np.array(["a", "b", "c", "d"])})
    assert class_names(training.data, training.task) == ["a", "b", "c"]


def test_a_graph_with_fewer_nodes_than_the_run_had_batches_is_predicted(tmp_path: Path) -> None:
    training, run = trained(tmp_path, ratio=0.1, rank=2)
    other = Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0, 1], [1, 2]]))
    assert torch.allclose(outputs(run, other), best(training)(other.x, other.edge_index), atol=1e-5)


@pytest.mark.parametrize("finish", [True, False])
def test_a_graph_with_other_features_is_refused(tmp_path: Path, *, finish: bool) -> None:
    _, run = trained(tmp_path, finish=finish)
    expected = r"the graph to have 5 features, as the run was trained on \(got 4\); give a graph with the same columns"
    with pytest.raises(ValueError, match=expected):
        outputs(run, labeled(features=4))


def test_weights_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    training, run = trained(tmp_path)
    del run.weights[next(iter(run.weights))]
    with pytest.raises(ValueError, match=r"weights in .* to fit the model 'gcn' \(got .*Missing key.*; restore"):
        outputs(run, training.data)


def test_degree_statistics_are_those_of_the_graph_that_was_learnt_from(tmp_path: Path) -> None:
    training, run = trained(tmp_path, model="pna", dropout=0.0)
    other = labeled(n=40, degree=12.0, seed=9)
    model = model_of(run, other).eval()
    expected = best(training)(other.x, other.edge_index)
    assert torch.allclose(model(other.x, other.edge_index), expected, atol=1e-5)
    assert torch.allclose(outputs(run, other), expected, atol=1e-4)
    untrained = make_untrained(run, other)
    untrained.load_state_dict({k: v for k, v in run.weights.items() if "avg_deg" not in k}, strict=False)
    assert not torch.allclose(untrained.eval()(other.x, other.edge_index), expected, atol=1e-3)  # it does matter


def make_untrained(run: Trained, data: Data) -> torch.nn.Module:
    from topoff.training.build import model_for

    return model_for(run.config, data, outputs=run.task.outputs)


def test_compensated_outputs_lie_near_the_exact_ones(tmp_path: Path) -> None:
    _, run = trained(tmp_path, rank=12)
    data = graph_of(run.config)
    exact, seen = outputs(run, data), outputs(run, data, compensated=True)
    assert not torch.equal(exact, seen)
    assert float((exact - seen).norm() / exact.norm()) < 0.5


@pytest.mark.parametrize(("compensated", "named"), [(True, "kaminpar"), (False, "random")])
def test_training_nodes_that_were_dealt_at_random_do_not_say_how_all_nodes_are_compensated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, compensated: bool, named: str
) -> None:
    _, run = trained(tmp_path, batches="random", train_only=True, ratio=0.5)
    seen: list[str] = []

    def spied(*args: Any, batches: str, **settings: Any) -> Any:
        """Note the batches."""
        seen.append(batches)
        return real(*args, batches=batches, **settings)

    name = "TOP" if compensated else "predict"
    real = getattr(room, name)
    monkeypatch.setattr(room, name, spied)
    outputs(run, graph_of(run.config), compensated=compensated)
    assert seen == [named]


def test_the_whole_graph_has_no_compensated_outputs(tmp_path: Path) -> None:
    _, run = trained(tmp_path, method="full")
    with pytest.raises(ValueError, match=r"a run of method top for compensated outputs \(got full\); leave it out"):
        outputs(run, graph_of(run.config), compensated=True)


# scores


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_scores_are_those_of_the_training(tmp_path: Path, kind: str) -> None:
    training, run = trained(tmp_path, labeled(kind))
    assert training.progress.best is not None
    found = evaluate(run, graph_of(run.config))
    for name in ("train", "val", "test"):
        assert found[name] == pytest.approx(training.progress.best[name], abs=1e-5)
    assert found["metric"] == training.task.metric
    assert found["exact"] is True
    assert found["nodes"] == 60
    assert found["peak_rss_mb"] > 1
    assert "compensated" not in found


def test_compensated_scores_stand_beside_the_exact_ones(tmp_path: Path) -> None:
    _, run = trained(tmp_path, train_only=True, rank=3)
    found = evaluate(run, graph_of(run.config), compensated=True)["compensated"]
    assert set(found) == {"train", "val", "test", "fidelity"}
    assert all(0 <= found[name] <= 1 for name in ("train", "val", "test"))
    assert found["fidelity"] < 1


def test_what_was_one_batch_of_few_nodes_is_more_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, run = trained(tmp_path, reach=0, ratio=1.0, rank=3)
    data = graph_of(run.config)
    monkeypatch.setattr("topoff.training.trained.usual_ratio", lambda nodes, *, labels: (0.25, f"{nodes} {labels}"))
    assert evaluate(run, data, compensated=True)["compensated"]["fidelity"] < 1
    _, run = trained(tmp_path / "all", ratio=1.0, rank=3)
    assert evaluate(run, data, compensated=True)["compensated"]["fidelity"] == pytest.approx(1)  # all in one


# predictions


def run_of(task: Task, classes: list[str]) -> Trained:
    return Trained(RunFolder("nowhere"), make_config({"dataset": "a"}), task, classes, None, {}, 1, 3)


def graph(names: Names | None = None) -> Data:
    data = Data(x=torch.zeros(3, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    if names is not None:
        data.names = names
    return data


OUT = torch.tensor([[0.0, np.log(3.0)], [5.0, -5.0], [1.0, 1.0]])


def test_classes_by_name_with_their_probabilities() -> None:
    run = run_of(Task("binary", 2, "roc_auc"), ["no", "yes"])
    table = prediction_table(run, graph(Names(node_ids=["ann", "bob", "eve"])), OUT)
    assert list(table) == ["node", "prediction", "p_no", "p_yes"]
    assert table["node"].to_pylist() == ["ann", "bob", "eve"]
    assert table["prediction"] == ["yes", "no", "no"]
    assert table["p_no"].tolist() == pytest.approx([0.25, 1 / (1 + np.exp(-10)), 0.5])
    assert (table["p_no"] + table["p_yes"]).tolist() == pytest.approx([1, 1, 1])


def test_several_labels_are_joined() -> None:
    run = run_of(Task("multilabel", 2, "micro_f1"), ["a", "b"])
    table = prediction_table(run, graph(), torch.cat([OUT[:2], torch.tensor([[0.1, 0.2]])]))
    assert table["node"].to_pylist() == [0, 1, 2]
    assert table["prediction"] == ["b", "a", "a;b"]  # more likely than not
    assert table["p_b"].tolist() == pytest.approx([0.75, 1 / (1 + np.exp(5)), 1 / (1 + np.exp(-0.2))])


def test_targets_are_in_their_own_units() -> None:
    run = run_of(Task("regression", 1, "r2", center=100.0, scale=10.0), [])
    table = prediction_table(run, graph(Names(node_ids=[7, 8, 9])), torch.tensor([[0.0], [1.0], [-2.0]]))
    assert list(table) == ["node", "prediction"]
    assert table["node"].to_pylist() == [7, 8, 9]
    assert table["prediction"].tolist() == [100, 110, 80]


def test_classes_have_the_users_names_or_numbers() -> None:
    assert class_names(graph(Names(class_names=["x", "y"])), Task("binary", 2, "roc_auc")) == ["x", "y"]
    assert class_names(graph(Names()), Task("classes", 3, "accuracy")) == ["0", "1", "2"]
    assert class_names(graph(), Task("multilabel", 2, "micro_f1")) == ["0", "1"]
    assert class_names(graph(Names(class_names=["x", "y"])), Task("regression", 1, "r2")) == []


@pytest.mark.parametrize("kind", ["classes", "multilabel", "regression"])
def test_a_run_predicts_by_the_users_own_ids(tmp_path: Path, kind: str) -> None:
    ids, names = np.array([f"node {number}" for number in range(60)]), np.array(["red", "green", "blue"])
    more = {"node_ids": ids} | ({"class_names": names[: 2 + (kind == "classes")]} if kind != "regression" else {})
    _, run = trained(tmp_path, labeled(kind), more=more)
    data = load(run.config.dataset)
    table = prediction_table(run, data, outputs(run, data))
    assert table["node"].to_pylist() == ids.tolist()
    if kind == "regression":
        assert abs(float(table["prediction"].mean()) - float(data.y.mean())) < 3 * run.task.scale
    else:
        assert {label for joined in table["prediction"] for label in joined.split(";")} <= {*names.tolist(), ""}


# files


def read_parquet(path: Path) -> dict[str, Any]:
    return pq.read_table(path).to_pydict()


def read_csv(path: Path) -> dict[str, Any]:
    return pc.read_csv(path, convert_options=pc.ConvertOptions(strings_can_be_null=False)).to_pydict()


def read_npz(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        found = {name: arrays[name].tolist() for name in ("node", "prediction")}
        if "probability" in arrays:
            names = [f"p_{name}" for name in arrays["class_names"].tolist()]
            found |= dict(zip(names, arrays["probability"].T.tolist(), strict=True))
    return found


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {".parquet": read_parquet, ".csv": read_csv, ".npz": read_npz}
TABLES: dict[str, tuple[Task, list[str], Tensor]] = {
    "classes": (Task("binary", 2, "roc_auc"), ['no, "never"', "yes/ü"], OUT),
    "multilabel": (Task("multilabel", 2, "micro_f1"), ["a", "p_b"], OUT - 1.5),
    "regression": (Task("regression", 1, "r2", center=100.0, scale=10.0), [], OUT[:, 1:]),
}


@pytest.mark.parametrize("ending", READERS)
@pytest.mark.parametrize("kind", TABLES)
def test_predictions_are_read_back_equal(tmp_path: Path, kind: str, ending: str) -> None:
    task, names, out = TABLES[kind]
    table = prediction_table(run_of(task, names), graph(Names(node_ids=["ann", "b,ob", "ève"])), out.double())
    path = tmp_path / "deep" / f"predictions{ending}"
    write_predictions(table, path)
    expected = {name: column if isinstance(column, list) else column.tolist() for name, column in table.items()}
    assert READERS[ending](path) == expected
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["predictions.txt", "predictions", "predictions.CSV"])
def test_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"--out to end in .parquet, .csv or .npz \(got '.*{name}'\)"):
        write_predictions({"node": [0], "prediction": [1.0]}, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", READERS)
def test_a_broken_write_leaves_the_old_file(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"predictions{ending}"
    write_predictions({"node": [0], "prediction": [1.0]}, path)
    before = path.read_bytes()

    def killed(_: Path, __: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(OSError, match="No space left"):
        write_predictions({"node": [1], "prediction": [2.0]}, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
