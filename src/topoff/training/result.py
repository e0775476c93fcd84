"""What a finished run leaves: its scores in one record, and the details that a report shows."""

from __future__ import annotations

import copy
import datetime
import platform
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from topoff.data.describe import degree_histogram
from topoff.data.layout import SPLITS
from topoff.machine.memory import machine
from topoff.training.loop import Training
from topoff.training.records import Result, seal_of
from topoff.training.state import versions

POINTS = 1000  # of a regression's scatter plot


def result_of(training: Training, *, command: str) -> Result:
    """Return the record of a finished run; seconds are wall-clock, memory is the peak of the process."""
    config, progress, data = training.config, training.progress, training.data
    task = training.task
    best = progress.best or dict.fromkeys(("epoch", *SPLITS))
    return Result(
        **{name: best[name] for name in SPLITS},
        metric=task.metric,
        task=task.kind,
        outputs=task.outputs,
        center=task.center,
        scale=task.scale,
        classes=training.setup.classes,
        best_epoch=best["epoch"],
        epochs=progress.epoch,
        steps=progress.steps,
        seconds=round(progress.seconds + progress.preprocess_seconds, 3),
        preprocess_seconds=round(progress.preprocess_seconds, 3),
        epoch_seconds=round(progress.train_seconds / max(1, progress.epoch), 4),
        peak_rss_mb=round(progress.peak / 2**20, 1),
        train_peak_rss_mb=round(progress.train_peak / 2**20, 1) or None,
        fidelity=progress.fidelity,
        certificate=training.method.certificate_,
        parameters=sum(parameter.numel() for parameter in training.model.parameters()),
        dataset=config.dataset,
        nodes=int(data.num_nodes or 0),
        edges=data.edge_index.size(1),
        features=data.num_features,
        data_hash=training.origin["data"],
        model=config.model,
        method=config.method,
        seed=config.seed,
        stopped_early=progress.stopped_early,
        command=command,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions={"python": platform.python_version(), **versions()},
        machine=machine(),
        chosen=[asdict(choice) for choice in training.setup.choices],
    )


def details_of(training: Training, out: Tensor) -> dict[str, Any]:
    """Return what a report shows besides scores, from the exact output `out` (n, outputs) of the best weights."""
    data, task = training.data, training.task
    split = next(name for name in ("test", "val", "train") if bool(data[f"{name}_mask"].any()))
    test = data[f"{split}_mask"]
    reports = [asdict(report) for report in training.method.report()]
    degrees = torch.bincount(data.edge_index[1], minlength=int(data.num_nodes or 0))
    details: dict[str, Any] = {"split": split, "batches": reports, "degrees": degree_histogram(degrees)}
    if task.kind == "regression":
        truth, predicted = data.y[test].view(-1), task.predictions(out)[test]
        step = max(1, -(-len(truth) // POINTS))  # rounded up: evenly over all of them
        return details | {"scatter": torch.stack([truth, predicted], dim=1)[::step].tolist()}
    details["classes"] = training.setup.classes
    if task.kind == "multilabel":
        predicted, truth = out[test] > 0, data.y[test] > 0.5
        hits, count, guessed = (predicted & truth).sum(0), truth.sum(0), predicted.sum(0)
    else:
        pairs = torch.bincount(data.y[test] * task.outputs + out[test].argmax(dim=1), minlength=task.outputs**2)
        confusion = pairs.view(task.outputs, task.outputs)  # (true, predicted)
        details["confusion"] = confusion.tolist()
        hits, count, guessed = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    rows = zip(training.setup.classes, hits.tolist(), count.tolist(), guessed.tolist(), strict=True)
    return details | {"per_class": [_scores(*row) for row in rows]}


def _scores(name: str, hits: int, count: int, guessed: int) -> dict[str, Any]:
    """Score a class by its hits, its nodes and the nodes that were taken for it; a ratio without cases is 0."""
    precision, recall, f1 = hits / max(1, guessed), hits / max(1, count), 2 * hits / max(1, count + guessed)
    return {"class": name, "count": count, "precision": precision, "recall": recall, "f1": f1}


def write_result(training: Training, *, command: str) -> Result:
    """Write the best weights, the details and the result of a training that has come to its end; return the result.

    The model keeps its last weights; the best ones are in `training.best_weights`.
    """
    folder, model = training.folder, training.model
    result, last = result_of(training, command=command), copy.deepcopy(model.state_dict())
    if training.best_weights:
        model.load_state_dict(training.best_weights)
    encoding = getattr(training.data.get("names"), "encoding", None)
    folder.save_model(model.state_dict(), metadata={"facts": seal_of(result, encoding or None)})
    training.method.freeze()  # what training left is still to be measured
    out, _ = training.method.exact()
    folder.write("details.json", details_of(training, out.cpu()))
    folder.write("result.json", result.json())
    model.load_state_dict(last)
    return folder.result()
