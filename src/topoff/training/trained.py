"""Use a trained run: its model on its own graph or on another one, exactly or in compensated batches."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.partition import affordable
from topoff.batching.ratio import usual_ratio
from topoff.batching.stored import STORED, stored_parts
from topoff.compensation.fidelity import fidelity_of
from topoff.compensation.top import TOP
from topoff.data.check import row_normalized, standardized
from topoff.data.encoding import check_encoding
from topoff.data.layout import SPLITS
from topoff.data.load import load
from topoff.forward.predict import predict
from topoff.graph.operators import full_type
from topoff.machine.json_objects import checksum
from topoff.machine.memory import peak_memory
from topoff.models.by_name import MODELS
from topoff.tasks.task import METRICS_OF, Task, task_of
from topoff.training.build import class_names, device_of, model_for
from topoff.training.checkpoints import trained_weights
from topoff.training.config import Config, make_config
from topoff.training.defaults import choose
from topoff.training.records import Result, seal_of
from topoff.training.run_folder import RunFolder
from topoff.training.state import data_hash, load_weights
from topoff.training.trust import refuse_foreign

# what `choose` may choose
CHOSEN = (
    *("batches", "ratio", "train_only", "reach", "regroup", "rank", "refresh", "late", "fanout", "mix"),
    *("average", "accumulate", "eval_every"),
)

LARGE = 100_000  # nodes that exact inference takes at a time at most, on another graph than a run was trained on


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
    data_hash: str = ""  # of that graph's content; runs of older versions do not say
    data: Data | None = None  # that graph, where it had to be loaded
    trust: bool = False  # whether files may run code


def open_run(path: str | Path, *, trust: bool = False, model: str | None = None) -> Trained:
    """Read a run; one that was interrupted gives its best weights so far.

    A model of the user's own, "module:Class", is imported only with `trust`, or where `model` names it: that one is
    used, and the weights must fit.

    Raises:
        FileNotFoundError, ValueError: no run, nothing trained yet, several seeds, damaged files, or a file that names
            code without being trusted.
    """
    folder = RunFolder(path).must_exist()
    seeds = sorted(folder.path.glob("seed-*"))
    if seeds:
        raise ValueError(f"Expected the run of one seed (got {path}, which has {len(seeds)}); give {seeds[0]}.")
    config = folder.settings().config
    config = dataclasses.replace(config, model=model or config.model)
    refuse_foreign(config.model, origin=folder.path / "config.toml", named=model, trust=trust)
    weights, known = trained_weights(folder.path)
    encoding = folder.read_json("encoding.json") if (folder.path / "encoding.json").is_file() else None
    if encoding is not None:
        check_encoding(encoding, origin=str(folder.path / "encoding.json"))
    if folder.finished:
        return _finished(folder, config, weights, known, encoding=encoding, trust=trust)
    if known.get("encoding", checksum(encoding)) != checksum(encoding):
        refuse_changed(folder.path / "encoding.json", "the checkpoint")
    data = graph_of(config, encoding=encoding, trust=trust)
    task = task_of(data.y, train_mask=data.train_mask, metric=config.metric)
    sizes, names = (data.num_features, int(data.num_nodes or 0)), class_names(data, task)
    chosen, said = choose(config, data)[0], str(known.get("data", ""))
    return Trained(folder, chosen, task, names, encoding, weights, *sizes, data_hash=said, data=data, trust=trust)


def _finished(
    folder: RunFolder,
    config: Config,
    weights: dict[str, Tensor],
    known: dict[str, Any],
    *,
    encoding: dict[str, Any] | None,
    trust: bool,
) -> Trained:
    """Put a finished run together: its result says what training found out."""
    path, result = folder.path / "result.json", folder.result()
    if known.get("facts", seal_of(result, encoding)) != seal_of(result, encoding):
        refuse_changed(path if encoding is None else f"{path} and encoding.json", "model.safetensors")
    _check(result, path)
    # runs of older versions say here alone what was chosen; what a run began with is in its settings
    open_ones = {what: value for what, value in _choices(result, path) if getattr(config, what, "") is None}
    try:
        config = make_config(vars(config), open_ones)
    except ValueError as error:
        raise ValueError(f"In 'chosen' of {path}: {error}") from error
    task = Task(result.task, result.outputs, result.metric, center=result.center, scale=result.scale)
    sizes = (result.features or 0, result.nodes or 0)
    said = result.data_hash
    return Trained(folder, config, task, result.classes, encoding, weights, *sizes, data_hash=said, trust=trust)


def _choices(result: Result, path: Path) -> Iterator[tuple[str, Any]]:
    """List what a result says was chosen; never the graph or the model, which no training chooses."""
    for choice in result.chosen:
        if not isinstance(choice.get("what"), str) or "value" not in choice:
            raise ValueError(f"Expected 'chosen' in {path} to say what and value (got {choice!r:.60}); train again.")
        if choice["what"] in CHOSEN:
            yield choice["what"], choice["value"]


def _check(result: Result, path: Path) -> None:
    """Refuse a result that no prediction can be made with."""
    metrics = METRICS_OF.get(result.task)
    wrong = {
        f"'task' to be {', '.join(METRICS_OF)}": result.task if metrics is None else None,
        f"'metric' to be {' or '.join(metrics or ())}": result.metric if result.metric not in (metrics or ()) else None,
        "'outputs' to be at least 1": result.outputs if result.outputs < 1 else None,
        "'center' to be finite": None if math.isfinite(result.center) else result.center,
        "'scale' to be finite": None if math.isfinite(result.scale) else result.scale,
        f"'classes' to name {result.outputs} classes": (
            len(result.classes) if result.task != "regression" and len(result.classes) != result.outputs else None
        ),
    }
    for expected, came in wrong.items():
        if came is not None:
            raise ValueError(f"Expected {expected} in {path} (got {came!r}); restore it, or train again.")


def refuse_changed(what: object, where: str) -> NoReturn:
    """Refuse a file that is not as the training left it."""
    raise ValueError(
        f"Expected {what} as the training left it (got another content than its checksum in {where} says); restore it "
        "from a copy, or train again."
    )


def graph_of(
    config: Config, *, encoding: dict[str, Any] | None = None, labels: bool = True, trust: bool = False
) -> Data:
    """Load the graph that settings name, with the features that they ask for; with `trust`, its files may run code."""
    place: dict[str, Any] = {"root": config.root, "split": config.split, "seed": config.seed, "trust": trust}
    data = load(config.dataset, **place, encoding=encoding, labels=labels)
    data = row_normalized(data) if config.row_normalize else data
    return standardized(data) if config.standardize else data


def graph_for(trained: Trained, source: str | None, *, root: str | None, labels: bool) -> Data:
    """Load the run's own graph, or another one with features made in the same way."""
    if source is None and root is None:
        if trained.data is not None:
            return trained.data
        return graph_of(trained.config, encoding=trained.encoding, trust=trained.trust)
    changed = make_config(vars(trained.config), {"dataset": source, "root": root})
    graph = graph_of(changed, encoding=trained.encoding, labels=labels, trust=trained.trust)
    if labels and any(graph.get(name) is None for name in ("y", "train_mask", "val_mask", "test_mask")):
        raise ValueError(
            f"Expected {changed.dataset} to have labels to score against (got none); use `topoff predict`."
        )
    return graph


def has_changed(trained: Trained, data: Data) -> bool | None:
    """Whether a run's own graph is another one than it was trained on, with a warning; None where no file says so."""
    if not trained.data_hash:
        return None
    now = data_hash(data)
    if now == trained.data_hash:
        return False
    warnings.warn(
        f"{trained.config.dataset} is not the graph that {trained.folder.path} was trained on (content {now[:8]} "
        f"instead of {trained.data_hash[:8]}): its files have changed since; restore them, or train again.",
        stacklevel=2,
    )
    return True


def model_of(run: Trained, data: Data) -> nn.Module:
    """Build the run's model with its weights, for a graph with the features that it was trained on."""
    if data.num_features != run.features:
        raise ValueError(
            f"Expected the graph to have {run.features} features, as the run was trained on (got {data.num_features}); "
            "give a graph with the same columns."
        )
    origin = run.folder.path
    if run.config.model in MODELS:  # sizes that a file claims cost nothing until they are known to fit
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            empty = model_for(run.config, data, outputs=run.task.outputs)
            load_weights(empty, run.weights, origin=origin, name=run.config.model)
    model = model_for(run.config, data, outputs=run.task.outputs)
    device = device_of("cpu" if run.config.device == "cpu" else "auto")  # the run may come from another machine
    model = model.to(device, full_type(data.x.dtype))  # before loading: float64 weights would be rounded
    load_weights(model, run.weights, origin=origin, name=run.config.model)
    return model


def outputs(run: Trained, data: Data, *, compensated: bool = False) -> Tensor:
    """Return the model's output for every node: exact, or as compensated batches give it; (n, outputs).

    They are compensated as the paper does: an offset at the final weights would make them exact, whatever they miss.
    """
    config, model, nodes = run.config, model_of(run, data), max(1, int(data.num_nodes or 0))
    given = config.ratio or 1.0
    if config.train_only or config.reach is not None:  # it was one of fewer nodes
        given = min(given, usual_ratio(nodes, labels=nodes)[0])
    ratio = max(given, 1 / nodes)  # another graph may be smaller
    if nodes > run.nodes:  # or too large for batches of that many of its nodes
        ratio = min(ratio, max(LARGE, ratio * run.nodes) / nodes)
    name: str = config.batches or "random"
    few = compensated and config.train_only and name == "random"  # training nodes alone, with an offset, were so
    if few or (name == STORED and stored_parts(data) is None):  # another graph lies in another order
        name, _ = affordable(data.edge_index.size(1), nodes)
    batches: dict[str, Any] = {"ratio": ratio, "batches": name}
    if not compensated:
        out: Tensor = predict(model, data, **batches, seed=config.seed).cpu()
        return out
    if config.method != "top":
        raise ValueError(f"Expected a run of method top for compensated outputs (got {config.method}); leave it out.")
    settings = {name: getattr(config, name) for name in ("parts", "rank", "estimator", "seed")}
    return TOP(model, data, **batches, **settings, inits=1, offset=False).outputs()


def evaluate(run: Trained, data: Data, *, compensated: bool = False) -> dict[str, Any]:
    """Score a run on a graph with labels: exactly, and where asked for, in compensated batches beside it."""
    exact = outputs(run, data)
    masks = {name: data[f"{name}_mask"] for name in SPLITS}
    result: dict[str, Any] = {**run.task.score(exact, data.y, masks=masks), "metric": run.task.metric, "exact": True}
    if compensated:
        seen = outputs(run, data, compensated=True)
        known = ~seen.isnan().any(dim=1)  # of overlapping sets: nodes in no batch have no output
        scores = run.task.score(seen.nan_to_num(), data.y, masks={name: mask & known for name, mask in masks.items()})
        result["compensated"] = {**scores, "fidelity": fidelity_of(exact, seen)}
    return result | {"nodes": int(data.num_nodes or 0), "peak_rss_mb": round(peak_memory() / 2**20, 1)}
