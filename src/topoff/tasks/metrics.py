"""Score pooled predictions: accuracy, micro-F1 (multi-label), ROC-AUC, regression errors; one number per split.

Pooled means: all predictions of a split in one tensor, never an average over batches. Every metric takes outputs and
labels of the same nodes, and refuses NaN, no rows, and shapes or labels that it cannot score.

>>> import torch
>>> out = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
>>> round(accuracy(out, torch.tensor([0, 1, 1])), 4)
0.6667
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def accuracy(out: Tensor, y: Tensor) -> float:
    """Count the fraction of nodes whose largest output is their class.

    Args:
        out: (n, c) logits, or (n,) / (n, 1) logits of class 1 of two.
        y: (n,) or (n, 1) integer class ids, each with a column in `out`.
    """
    _check_rows(out, y)
    if y.dim() != 1 and tuple(y.shape[1:]) != (1,):
        raise ValueError(
            f"Expected 'y' to have shape (n,) or (n, 1) for accuracy (got {tuple(y.shape)}); "
            "for several labels per node use 'micro_f1' or 'roc_auc'."
        )
    y = y.reshape(-1).to(out.device)
    single = out.dim() == 1 or out.size(1) == 1
    classes = 2 if single else out.size(1)
    if y.is_floating_point() or int(y.min()) < 0 or int(y.max()) >= classes:
        raise ValueError(
            f"Expected 'y' to be integer class ids from 0 to {classes - 1} (got {y.dtype} from {y.min().item()} to "
            f"{y.max().item()}); mask out nodes without a label, or give the model an output per class."
        )
    predicted = (out.reshape(-1) > 0).long() if single else out.argmax(dim=1)
    return int((predicted == y.long()).sum()) / len(y)


def micro_f1(out: Tensor, y: Tensor) -> float:
    """Compute the F1 score pooled over nodes and labels: 2 TP / (2 TP + FP + FN), a label predicted where logit > 0.

    It is 0 where no label is set and none is predicted.

    Args:
        out: (n, c) logits.
        y: (n, c) labels, 0 or 1.
    """
    _check_rows(out, y)
    if out.dim() != 2 or out.shape != y.shape:
        raise ValueError(
            f"Expected 'out' and 'y' to have the same shape (n, c) for micro_f1 (got {tuple(out.shape)} and "
            f"{tuple(y.shape)}); for one class id per node use 'accuracy'."
        )
    _check_binary(y)
    predicted, true = out > 0, y.to(out.device) == 1
    hits, marks = int((predicted & true).sum()), int(predicted.sum()) + int(true.sum())
    return 2 * hits / marks if marks else 0.0


def roc_auc(out: Tensor, y: Tensor) -> float:
    """Compute the area under the ROC curve: how often a positive node scores above a negative one, ties half.

    Multi-label: the mean over the columns with both classes, as OGB computes it; one at least must have both.

    Args:
        out: (n,), (n, 1) or (n, 2) logits with binary `y`; (n, c) logits with multi-label `y`.
        y: (n,) or (n, 1) labels 0 or 1; (n, c) labels 0 or 1.
    """
    _check_rows(out, y)
    _check_binary(y)
    y = y.to(out.device).reshape(len(y), -1)
    scores = out.reshape(len(out), -1)
    if y.size(1) == 1 and scores.size(1) == 2:
        scores = scores[:, 1:] - scores[:, :1]
        _check_rows(scores, y)  # infinity - infinity
    if scores.shape != y.shape:
        raise ValueError(
            f"Expected 'out' to have shape (n,), (n, 1) or (n, 2) with binary 'y', or the shape of multi-label 'y' "
            f"for roc_auc (got {tuple(out.shape)} and {tuple(y.shape)}); for several classes per node use 'accuracy'."
        )
    positives = y.sum(dim=0)
    both = ((positives > 0) & (positives < len(y))).nonzero().flatten().tolist()
    if not both:
        raise ValueError(
            f"Expected 'y' to have both classes for roc_auc (got {int(positives.sum())} of {y.numel()} positive); "
            "choose a split with both classes, or the metric 'accuracy'."
        )
    some = max(1, TOGETHER // len(y))  # columns that are ranked in one go
    chunks = [both[first : first + some] for first in range(0, len(both), some)]
    return sum(area for chunk in chunks for area in _areas(scores[:, chunk], y[:, chunk] == 1)) / len(both)


def r2(out: Tensor, y: Tensor) -> float:
    """Compute the coefficient of determination: 1 - sum (y - out)^2 / sum (y - mean y)^2; 1 is perfect.

    Predictions and targets, here and below, are (n,) or (n, 1).
    """
    error, target = _errors(out, y)
    spread = float((target - target.mean()).square().sum())
    if spread == 0:
        raise ValueError(
            f"Expected 'y' to vary for r2 (got {len(target)} equal targets); choose the metric 'rmse' or 'mae'."
        )
    return 1 - float(error.square().sum()) / spread


def rmse(out: Tensor, y: Tensor) -> float:
    """Compute the root of the mean squared error; 0 is perfect."""
    return math.sqrt(float(_errors(out, y)[0].square().mean()))


def mae(out: Tensor, y: Tensor) -> float:
    """Compute the mean absolute error; 0 is perfect."""
    return float(_errors(out, y)[0].abs().mean())


TOGETHER = 1 << 22  # entries whose ranks are taken at once
METRICS: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    metric.__name__: metric for metric in (accuracy, micro_f1, roc_auc, r2, rmse, mae)
}
LOWER_IS_BETTER = frozenset({"rmse", "mae"})


def metric_for(y: Tensor) -> str:
    """Choose the metric: "accuracy" for class ids, "micro_f1" for (n, c) labels of 0 and 1, "r2" for targets."""
    if y.dim() == 2 and y.size(1) > 1 and bool(((y == 0) | (y == 1)).all()):
        return "micro_f1"
    if y.dim() == 1 or (y.dim() == 2 and y.size(1) == 1):
        return "r2" if y.is_floating_point() else "accuracy"
    raise ValueError(
        f"Expected 'y' to be integer class ids (n,), float targets (n,) or 0/1 labels (n, c) (got {y.dtype}, "
        f"{tuple(y.shape)}); convert it, or name a metric: {', '.join(METRICS)}."
    )


def score(out: Tensor, y: Tensor, *, masks: Mapping[str, Tensor], metric: str | None = None) -> dict[str, float]:
    """Score each split on its pooled predictions.

    Args:
        out: (n, ...) predictions of all nodes.
        y: (n, ...) labels of all nodes.
        masks: bool masks (n,) by name, e.g. {"train": ..., "val": ..., "test": ...}.
        metric: a name in `METRICS`; None takes `metric_for(y)`.

    Returns:
        One number per mask, under its name; NaN for a mask without nodes, so that every key is there.

    Raises:
        ValueError: the metric is unknown, a mask is no bool mask (n,), or the metric refuses a split, which is named.
    """
    name = metric_for(y) if metric is None else metric
    if name not in METRICS:
        near = difflib.get_close_matches(str(name), METRICS, n=1, cutoff=0.4)
        remedy = f"did you mean {near[0]!r}?" if near else "None chooses one from the labels."
        raise ValueError(f"Expected 'metric' to be one of {', '.join(METRICS)} (got {name!r}); {remedy}")
    _check_lengths(out, y)
    return {key: _score_one(out, y, mask=mask, key=key, metric=name) for key, mask in masks.items()}


def _score_one(out: Tensor, y: Tensor, *, mask: Tensor, key: str, metric: str) -> float:
    """Score one split; name it in the error where the metric refuses."""
    if mask.dtype != torch.bool or tuple(mask.shape) != (len(out),):
        raise ValueError(
            f"Expected mask {key!r} to be bool of shape ({len(out)},) (got {mask.dtype}, {tuple(mask.shape)}); "
            "pass one True or False per node."
        )
    if not bool(mask.any()):
        return float("nan")
    try:
        return METRICS[metric](out[mask.to(out.device)], y[mask.to(y.device)])
    except ValueError as error:
        raise ValueError(f"In the {key!r} split: {error}") from error


def _errors(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return out - y and y as float64 (n,)."""
    _check_rows(out, y)
    if out.numel() != len(out) or y.numel() != len(y):
        raise ValueError(
            f"Expected 'out' and 'y' to have one value per node (got {tuple(out.shape)} and {tuple(y.shape)}); "
            "regression has one target, give the model one output."
        )
    target = y.to(out.device).reshape(-1).double()
    return out.reshape(-1).double() - target, target


def _areas(scores: Tensor, positive: Tensor) -> list[float]:
    """Compute the ROC-AUC of every column (n, c) from average ranks (Mann-Whitney), exactly.

    Not torchmetrics: it squashes logits by a sigmoid first, which makes ties of all large float32 logits.
    """
    ordered, order = scores.sort(dim=0)
    place = torch.arange(len(scores), device=scores.device).view(-1, 1).expand_as(scores)
    differs = ordered[1:] != ordered[:-1]  # from the one before
    edge = torch.ones_like(positive[:1])
    first = place.where(torch.cat([edge, differs]), 0).cummax(dim=0).values
    last = place.where(torch.cat([differs, edge]), len(scores)).flip(0).cummin(dim=0).values.flip(0)
    rank = (first + last).double() / 2 + 1  # 1-based, ties averaged
    above = positive.sum(dim=0).double()
    ranks = (rank * positive.gather(0, order)).sum(dim=0)
    areas: list[float] = ((ranks - above * (above + 1) / 2) / (above * (len(scores) - above))).tolist()
    return areas


def _check_lengths(out: Tensor, y: Tensor) -> None:
    """Refuse predictions and labels that do not match row by row."""
    if out.dim() == 0 or out.dim() > 2 or y.dim() == 0 or len(out) != len(y):
        raise ValueError(
            f"Expected 'out' of shape (n,) or (n, c) and 'y' with as many rows (got {tuple(out.shape)} and "
            f"{tuple(y.shape)}); score predictions and labels of the same nodes."
        )


def _check_rows(out: Tensor, y: Tensor) -> None:
    """Refuse rows that do not match, no rows, and NaN."""
    _check_lengths(out, y)
    if len(out) == 0:
        raise ValueError("Expected 'out' to have at least one row to score (got none); choose a split with nodes.")
    bad = int(out.isnan().reshape(len(out), -1).any(dim=1).sum())
    if bad:
        raise ValueError(
            f"Expected 'out' to be free of NaN (got NaN in {bad} of {len(out)} rows); "
            "the model has diverged: lower the learning rate, or check the features for NaN."
        )


def _check_binary(y: Tensor) -> None:
    """Refuse labels other than 0 and 1."""
    if not bool(((y == 0) | (y == 1)).all()):
        raise ValueError(
            f"Expected 'y' to hold 0 and 1 only (got values from {y.min().item()} to {y.max().item()}); "
            "for class ids use 'accuracy', and mask out nodes without a label."
        )
