"""What is learnt from a graph's labels: the loss, the score, and predictions in the user's own units.

>>> import torch
>>> task = task_of(torch.tensor([0, 2, 1]), train_mask=torch.tensor([True, True, False]))
>>> task.kind, task.outputs, task.metric
('classes', 3, 'accuracy')
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data

from topoff.tasks.metrics import LOWER_IS_BETTER, METRICS, metric_for, score

METRICS_OF = {
    "classes": ("accuracy",),
    "binary": ("roc_auc", "accuracy"),
    "multilabel": ("micro_f1", "roc_auc"),
    "regression": ("r2", "rmse", "mae"),
}
CLASS_WEIGHTS = ("none", "balanced")
Loss = Callable[[Tensor, Tensor], Tensor]  # of outputs and labels, summed over the nodes


@dataclass(frozen=True)
class Task:
    """Hold what a model is trained for."""

    kind: str  # a key of METRICS_OF; "binary" is two classes, scored by ROC-AUC
    outputs: int  # columns of the model's output
    metric: str
    weight: Tensor | None = None  # (outputs,) of the classes in the loss
    center: float = 0.0  # mean and standard deviation of the training targets: regression is learnt in these units
    scale: float = 1.0

    def batch_loss(self, out: Tensor, batch: Data) -> Tensor:
        """Return the mean loss of the training nodes among a batch's targets; `out` is (targets, outputs).

        It is cross-entropy, logistic, or squares of standardised targets. Where a batch has a `loss_weight`, it is the
        sum of the nodes' losses times these; class weights count in it as they do in the mean over the whole graph,
        relative to the mean weight, 1.
        """
        rows = batch.train_mask[: len(out)].nonzero().view(-1)  # by number: several times as fast in the backward pass
        out, y = out.index_select(0, rows), batch.y.index_select(0, rows)
        node_weight: Tensor | None = batch.loss_weight.index_select(0, rows) if "loss_weight" in batch else None
        reduction = "mean" if node_weight is None else "none"
        weight = None if self.weight is None else self.weight.to(out.device, out.dtype)
        if self.kind == "regression":
            target = (y.view(-1).to(out.dtype) - self.center) / self.scale
            losses = F.mse_loss(out.view(-1), target, reduction=reduction)
        elif self.kind == "multilabel":
            losses = F.binary_cross_entropy_with_logits(out, y.to(out.dtype), pos_weight=weight, reduction=reduction)
        else:
            losses = F.cross_entropy(out, y, weight=weight, reduction=reduction)
        if node_weight is None:
            return losses
        losses = losses.mean(dim=1) if losses.dim() > 1 else losses
        return (losses * node_weight).sum()

    def batch_weight(self, batch: Data) -> float:
        """Return what a batch counts beside others, so that their weighted mean loss is that of all their nodes.

        That is its training nodes, by the weights of their classes; 1 where losses are weighted already, and 0 of a
        batch without targets.
        """
        size: int | None = batch.get("batch_size")
        if size == 0:
            return 0.0
        rows = batch.train_mask[:size].nonzero().view(-1)
        if "loss_weight" in batch:
            return float(len(rows) > 0)
        if self.weight is None or self.kind in ("multilabel", "regression"):
            return float(len(rows))
        return float(self.weight.cpu().double()[batch.y.index_select(0, rows).cpu()].sum())

    def predictions(self, out: Tensor) -> Tensor:
        """Return outputs in the units of the labels: targets (n,) for regression, else the logits as they are."""
        return out.view(-1) * self.scale + self.center if self.kind == "regression" else out

    def probabilities(self, out: Tensor) -> Tensor | None:
        """Return (n, classes) probabilities; none for regression."""
        if self.kind == "regression":
            return None
        return out.sigmoid() if self.kind == "multilabel" else out.softmax(dim=1)

    def score(self, out: Tensor, y: Tensor, *, masks: Mapping[str, Tensor]) -> dict[str, float]:
        """Score outputs on pooled predictions, per mask; NaN for an empty one."""
        found = self.predictions(out)
        if self.kind == "classes" and self.outputs == 1:  # of the one class, not the logit of the second of two
            found = F.pad(found.reshape(-1, 1), (0, 1), value=-math.inf)
        return score(found, y, masks=masks, metric=self.metric)

    def better(self, new: float, old: float | None) -> bool:
        """Whether a score is better than another; any is better than none."""
        if old is None or math.isnan(old):
            return True
        return new < old if self.metric in LOWER_IS_BETTER else new > old


def task_of(y: Tensor, *, train_mask: Tensor, metric: str = "auto", class_weight: str = "none") -> Task:
    """Find the task in the labels: integers are classes (two: binary), (n, c) of 0/1 multi-label, floats regression.

    Raises:
        ValueError: the metric does not exist or does not suit the labels, or class weights are asked for where there
            are no classes.
    """
    if class_weight not in CLASS_WEIGHTS:
        raise ValueError(f"Expected class_weight to be one of {', '.join(CLASS_WEIGHTS)} (got '{class_weight}').")
    if metric != "auto" and metric not in METRICS:
        raise ValueError(f"Expected metric to be 'auto' or one of {', '.join(METRICS)} (got '{metric}').")
    kind, outputs = _kind(y)
    if metric == "auto":
        metric = "roc_auc" if kind == "binary" else metric_for(y)
    if metric not in METRICS_OF[kind]:  # said before the first epoch, not after it
        suitable = f"{', '.join(METRICS_OF[kind])}, which suit the labels ({kind})"
        raise ValueError(f"Expected metric to be 'auto' or one of {suitable} (got '{metric}').")
    if kind == "regression":
        if class_weight != "none":
            raise ValueError("Expected class_weight to be 'none' for a regression target (got 'balanced').")
        known = y[train_mask].double()
        scale = float(known.std()) if len(known) > 1 else 0.0
        return Task(kind, outputs, metric, center=float(known.mean()), scale=scale or 1.0)
    _warn_of_one_class(y[train_mask])
    weight = _balanced(y[train_mask], kind=kind, outputs=outputs) if class_weight == "balanced" else None
    return Task(kind, outputs, metric, weight=weight)


def _kind(y: Tensor) -> tuple[str, int]:
    """Return the kind of labels and the number of outputs."""
    if y.dim() == 2:
        return "multilabel", y.size(1)
    if y.is_floating_point():
        return "regression", 1
    classes = int(y.max()) + 1
    return ("binary", 2) if classes == 2 else ("classes", classes)


def _warn_of_one_class(y: Tensor) -> None:
    """Say where there is nothing to tell apart: every model is perfect on these nodes, and has learnt nothing."""
    if len(y) > 1 and bool((y == y[0]).all()):
        what = "the same labels" if y.dim() == 2 else "one class only"
        warnings.warn(
            f"The training nodes have {what}, so that there is nothing to learn: label nodes of other classes, too.",
            stacklevel=3,
        )


def _balanced(y: Tensor, *, kind: str, outputs: int) -> Tensor:
    """Weigh classes by n / (classes x count), labels by negatives / positives; what never occurs weighs 1."""
    if kind == "multilabel":
        positive = y.double().sum(dim=0)
        occurs = (positive > 0) & (positive < len(y))
        return torch.where(occurs, (len(y) - positive) / positive.clamp(min=1), 1.0).float()
    count = torch.bincount(y, minlength=outputs).double()
    present = int((count > 0).sum())
    return torch.where(count > 0, len(y) / (present * count.clamp(min=1)), 1.0).float()


def default_loss(y: Tensor) -> Loss:
    """Choose the loss by the labels: cross-entropy for classes, logistic for multi-label, squares for regression."""
    if not torch.is_floating_point(y):
        return lambda out, target: F.cross_entropy(out, target, reduction="sum")
    if y.dim() == 2:
        return lambda out, target: F.binary_cross_entropy_with_logits(out, target, reduction="sum")
    return lambda out, target: F.mse_loss(out.view_as(target), target, reduction="sum")
