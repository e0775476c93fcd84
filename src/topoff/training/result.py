"""What a finished run leaves: its scores in one record, and the details that a report shows."""

from __future__ import annotations

import copy
import datetime
import platform
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from topoff.compensation.top import TOP
from topoff.data.describe import degree_histogram
from topoff.data.layout import SPLITS
from topoff.machine.memory import machine
from topoff.models.networks import in_degrees
from topoff.training.loop import Training
from topoff.training.records import Result, seal_of
from topoff.training.state import versions
from topoff.training.traffic import Cut, rivals_bytes

POINTS = 1000  # of a regression's scatter plot
MOST_CLASSES = 200  # in a table of confusions, which grows with their square
MOST_ROWS = 1000  # classes that are scored one by one: as many as a page shows
MISTAKES = 10  # pairs of classes that are named


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
        epoch_seconds=round(progress.train_seconds / (progress.epoch + training.part or 1), 4),
        peak_rss_mb=round(progress.peak / 2**20, 1),
        train_peak_rss_mb=round(progress.train_peak / 2**20, 1) or None,
        fidelity=progress.fidelity,
        certificate=training.method.certificate_,
        **_traffic(training),
        parameters=sum(parameter.numel() for parameter in training.model.parameters()),
        dataset=config.dataset,
        stand_in=getattr(data.get("names"), "stand_in", None),
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


def _traffic(training: Training) -> dict[str, Any]:
    """Return what passed between processes, and what would with other methods; nothing where there is one."""
    ranks, method, config, data = training.ranks, training.method, training.config, training.data
    if ranks.size == 1 or not ranks.is_first or not isinstance(method, TOP):
        return {}
    steps, refresh = (ranks.counts.get(name, [0, 0]) for name in ("steps", "refresh"))
    sets = method.sets.of(0)
    owner = torch.empty(int(data.num_nodes or 0), dtype=torch.long)
    for number, nodes in enumerate(sets if method.sets.covers else method.sets.cover()):
        owner[nodes] = number % ranks.size
    cut = Cut(data.edge_index, sets, owner, ranks.size)
    sizes = {"layers": config.layers, "hidden": config.hidden, "features": data.num_features}
    others = rivals_bytes(cut, train_mask=data.train_mask, size=data.x.element_size(), **sizes)
    epoch = round(steps[0] / max(1, training.progress.epoch))
    return {
        "processes": ranks.size,
        "bytes_per_epoch": epoch,
        "bytes_per_refresh": round(refresh[0] / refresh[1]) if refresh[1] else None,
        "rivals_bytes_per_epoch": {name: epoch + number for name, number in others.items()},
    }


def details_of(training: Training, out: Tensor) -> dict[str, Any]:
    """Return what a report shows besides scores, from the exact output `out` (n, outputs) of the best weights."""
    data, task = training.data, training.task
    split = next(name for name in ("test", "val", "train") if bool(data[f"{name}_mask"].any()))
    test = data[f"{split}_mask"]
    reports = [asdict(report) for report in training.method.report()]
    degrees = in_degrees(data.edge_index, int(data.num_nodes or 0))
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
        truth, predicted = data.y[test], out[test].argmax(dim=1)
        nodes = (truth[truth == predicted], truth, predicted)
        hits, count, guessed = (torch.bincount(some, minlength=task.outputs) for some in nodes)
        details |= _confusions(truth, predicted, count)
    shown = _largest(count, MOST_ROWS).tolist()
    columns = (column[shown].tolist() for column in (hits, count, guessed))
    rows = zip((training.setup.classes[one] for one in shown), *columns, strict=True)
    return details | {"per_class": [_scores(*row) for row in rows]}


def _largest(count: Tensor, most: int) -> Tensor:
    """Return the ids of the classes with the most nodes, in order: all of them, where there are not too many."""
    return count.argsort(descending=True, stable=True)[:most].sort().values


def _confusions(truth: Tensor, predicted: Tensor, count: Tensor) -> dict[str, Any]:
    """Count how often each class was taken for each (true, predicted); of very many classes, the largest.

    Of these, `confused` has the ids, `sizes` the nodes; `mistakes` are the most frequent confusions of all classes.
    """
    outputs, kept = len(count), _largest(count, MOST_CLASSES)
    place = torch.full((outputs,), -1).index_put_((kept,), torch.arange(len(kept)))
    row, column = place[truth], place[predicted]
    inside = (row >= 0) & (column >= 0)
    pairs = torch.bincount(row[inside] * len(kept) + column[inside], minlength=len(kept) ** 2)
    details: dict[str, Any] = {"confusion": pairs.view(len(kept), len(kept)).tolist()}
    if len(kept) == outputs:
        return details
    wrong = truth != predicted
    found, times = torch.unique(torch.stack([truth[wrong], predicted[wrong]]), dim=1, return_counts=True)
    most = times.argsort(descending=True, stable=True)[:MISTAKES]
    mistakes = torch.cat([found[:, most], times[most].view(1, -1)]).t().tolist()
    return details | {"confused": kept.tolist(), "sizes": count[kept].tolist(), "mistakes": mistakes}


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
    out = training.best_output
    if out is None:
        training.method.freeze()  # what training left is still to be measured
        out = training.method.exact()[0].cpu()
    folder.write("details.json", details_of(training, out))
    folder.write("result.json", result.json())
    model.load_state_dict(last)
    return folder.result()
