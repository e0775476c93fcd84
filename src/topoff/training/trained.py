"""Use a trained run: its model on its own graph or on another one, exactly or in compensated batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.top import TOP
from topoff.data.check import row_normalized
from topoff.data.encoding import check_encoding
from topoff.data.layout import SPLITS
from topoff.data.load import load
from topoff.forward.predict import predict
from topoff.machine.memory import peak_memory
from topoff.tasks.task import Task, task_of
from topoff.training.build import class_names, device_of, model_for
from topoff.training.config import Config, make_config
from topoff.training.defaults import LARGE, choose
from topoff.training.loop import fidelity_of
from topoff.training.run_folder import RunFolder


@dataclass(frozen=True)
class Trained:
    """Hold what a run leaves for later: settings, task, names and weights."""

    folder: RunFolder
    config: Config  # nothing is left open
    task: Task
    classes: list[str]
    encoding: dict[str, Any] | None
    weights: dict[str, Tensor]
    features: int  # columns of x that the model takes
    nodes: int  # of the graph that it was trained on
    data: Data | None = None  # that graph, where it had to be loaded


def open_run(path: str | Path) -> Trained:
    """Read a run; one that was interrupted gives its best weights so far.

    Raises:
        FileNotFoundError, ValueError: no run, nothing trained yet, several seeds, or damaged files.
    """
    folder = RunFolder(path).must_exist()
    seeds = sorted(folder.path.glob("seed-*"))
    if seeds:
        raise ValueError(f"Expected the run of one seed (got {path}, which has {len(seeds)}); give {seeds[0]}.")
    config = folder.settings().config
    weights = folder.load_model()
    encoding = folder.read_json("encoding.json") if (folder.path / "encoding.json").is_file() else None
    if encoding is not None:
        check_encoding(encoding, origin=str(folder.path / "encoding.json"))
    if folder.finished:
        result = folder.result()
        # runs of older versions say here alone what was chosen
        config = make_config(vars(config), {choice["what"]: choice["value"] for choice in result.chosen})
        task = Task(result.task, result.outputs, result.metric, center=result.center, scale=result.scale)
        sizes = (result.features or 0, result.nodes or 0)
        return Trained(folder, config, task, result.classes, encoding, weights, *sizes)
    data = graph_of(config, encoding=encoding)
    task = task_of(data.y, train_mask=data.train_mask, metric=config.metric)
    sizes, names = (data.num_features, int(data.num_nodes or 0)), class_names(data, task)
    return Trained(folder, choose(config, data)[0], task, names, encoding, weights, *sizes, data)


def graph_of(config: Config, *, encoding: dict[str, Any] | None = None, labels: bool = True) -> Data:
    """Load the graph that settings name, with the features that they ask for."""
    place: dict[str, Any] = {"root": config.root, "split": config.split, "seed": config.seed}
    data = load(config.dataset, **place, encoding=encoding, labels=labels)
    return row_normalized(data) if config.row_normalize else data


def graph_for(trained: Trained, source: str | None, *, root: str | None, labels: bool) -> Data:
    """Load the run's own graph, or another one with features made in the same way."""
    if source is None and root is None:
        return graph_of(trained.config, encoding=trained.encoding) if trained.data is None else trained.data
    changed = make_config(vars(trained.config), {"dataset": source, "root": root})
    graph = graph_of(changed, encoding=trained.encoding, labels=labels)
    if labels and any(graph.get(name) is None for name in ("y", "train_mask", "val_mask", "test_mask")):
        raise ValueError(
            f"Expected {changed.dataset} to have labels to score against (got none); use `topoff predict`."
        )
    return graph


def model_of(run: Trained, data: Data) -> nn.Module:
    """Build the run's model with its weights, for a graph with the features that it was trained on."""
    if data.num_features != run.features:
        raise ValueError(
            f"Expected the graph to have {run.features} features, as the run was trained on (got {data.num_features}); "
            "give a graph with the same columns."
        )
    model = model_for(run.config, data, outputs=run.task.outputs)
    device = device_of("cpu" if run.config.device == "cpu" else "auto")  # the run may come from another machine
    model = model.to(device, data.x.dtype)  # before loading: float64 weights would be rounded
    try:
        model.load_state_dict(run.weights)
    except RuntimeError as error:
        raise ValueError(
            f"Expected the weights in {run.folder.path} to fit the model '{run.config.model}' "
            f"(got {' '.join(str(error).split())}); restore the model's code as it was, or train again."
        ) from error
    return model


def outputs(run: Trained, data: Data, *, compensated: bool = False) -> Tensor:
    """Return the model's output for every node: exact, or as compensated batches give it; (n, outputs)."""
    config, model, nodes = run.config, model_of(run, data), max(1, int(data.num_nodes or 0))
    ratio = max(config.ratio or 1.0, 1 / nodes)  # another graph may be smaller
    if nodes > run.nodes:  # or too large for batches of that many of its nodes
        ratio = min(ratio, max(LARGE, ratio * run.nodes) / nodes)
    batches: dict[str, Any] = {"ratio": ratio, "batches": config.batches or "random"}
    if not compensated:
        out: Tensor = predict(model, data, **batches, seed=config.seed).cpu()
        return out
    if config.method != "top":
        raise ValueError(f"Expected a run of method top for compensated outputs (got {config.method}); leave it out.")
    settings = {name: getattr(config, name) for name in ("parts", "rank", "estimator", "seed")}
    return TOP(model, data, **batches, **settings, inits=1, refresh="every=1").outputs()


def evaluate(run: Trained, data: Data, *, compensated: bool = False) -> dict[str, Any]:
    """Score a run on a graph with labels: exactly, and where asked for, in compensated batches beside it."""
    exact = outputs(run, data)
    masks = {name: data[f"{name}_mask"] for name in SPLITS}
    result: dict[str, Any] = {**run.task.score(exact, data.y, masks=masks), "metric": run.task.metric, "exact": True}
    if compensated:
        seen = outputs(run, data, compensated=True)
        known = ~seen.isnan().any(dim=1)  # with train_only, nodes in no batch have no output
        scores = run.task.score(seen.nan_to_num(), data.y, masks={name: mask & known for name, mask in masks.items()})
        result["compensated"] = {**scores, "fidelity": fidelity_of(exact, seen)}
    return result | {"nodes": int(data.num_nodes or 0), "peak_rss_mb": round(peak_memory() / 2**20, 1)}
