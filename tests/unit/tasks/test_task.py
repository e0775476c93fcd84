"""What is learnt from labels: losses and weights by hand, units, the direction of metrics."""

import math

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.tasks.task import METRICS_OF, Task, task_of

ALL = torch.ones(4, dtype=torch.bool)
NONE = torch.zeros(4, dtype=torch.bool)
CLASSES = torch.tensor([0, 2, 1, 2])
BINARY = torch.tensor([0, 1, 1, 1])
LABELS = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
TARGETS = torch.tensor([1.0, 3.0, 5.0, 7.0])


def task(y: Tensor, mask: Tensor = ALL, **options: str) -> Task:
    return task_of(y, train_mask=mask, **options)


def loss(task: Task, out: Tensor, y: Tensor) -> Tensor:
    """Return the loss of a batch of training nodes."""
    return task.batch_loss(out, Data(y=y, train_mask=torch.ones(len(y), dtype=torch.bool)))


# which task it is


@pytest.mark.parametrize(
    ("y", "kind", "outputs", "metric"),
    [
        (CLASSES, "classes", 3, "accuracy"),
        (torch.tensor([0, 2, -1, -1]), "classes", 3, "accuracy"),  # nodes without a label
        (BINARY, "binary", 2, "roc_auc"),
        (LABELS, "multilabel", 2, "micro_f1"),
        (TARGETS, "regression", 1, "r2"),
    ],
    ids=["classes", "unlabelled", "binary", "multilabel", "regression"],
)
def test_labels_say_what_is_learnt(y: Tensor, kind: str, outputs: int, metric: str) -> None:
    found = task(y)
    assert (found.kind, found.outputs, found.metric) == (kind, outputs, metric)


@pytest.mark.parametrize(
    ("y", "metric"),
    [(BINARY, "accuracy"), (LABELS, "roc_auc"), (TARGETS, "rmse"), (TARGETS, "mae"), (CLASSES, "accuracy")],
    ids=str,
)
def test_another_metric_may_be_named(y: Tensor, metric: str) -> None:
    assert task(y, metric=metric).metric == metric


def test_the_one_class_that_there_is_is_always_right() -> None:
    y, everywhere = torch.zeros(3, dtype=torch.long), torch.ones(3, dtype=torch.bool)
    with pytest.warns(UserWarning, match="one class only"):
        one = task_of(y, train_mask=everywhere)
    out = torch.tensor([[-2.0], [0.0], [2.0]])
    assert one.score(out, y, masks={"test": everywhere}) == {"test": 1.0}


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(ValueError, match=r"metric to be 'auto' or one of accuracy, .* \(got 'auc'\)"):
        task(CLASSES, metric="auc")


@pytest.mark.parametrize(
    ("y", "metric", "suitable"),
    [
        (CLASSES, "r2", r"accuracy, which suit the labels \(classes\)"),
        (CLASSES, "roc_auc", r"accuracy, which suit the labels \(classes\)"),
        (BINARY, "micro_f1", r"roc_auc, accuracy, which suit the labels \(binary\)"),
        (LABELS, "accuracy", r"micro_f1, roc_auc, which suit the labels \(multilabel\)"),
        (TARGETS, "accuracy", r"r2, rmse, mae, which suit the labels \(regression\)"),
    ],
    ids=str,
)
def test_a_metric_that_the_labels_do_not_suit_is_refused_before_training(y: Tensor, metric: str, suitable: str) -> None:
    with pytest.raises(ValueError, match=rf"one of {suitable} \(got '{metric}'\)"):
        task(y, metric=metric)


@pytest.mark.parametrize("y", [CLASSES, BINARY, LABELS, TARGETS], ids=["classes", "binary", "multilabel", "regression"])
def test_every_metric_that_suits_can_be_computed(y: Tensor) -> None:
    kind = task(y).kind
    for metric in METRICS_OF[kind]:
        found = task(y, metric=metric)
        scores = found.score(torch.randn(4, found.outputs), y, masks={"train": ALL, "test": NONE})
        assert math.isfinite(scores["train"])
        assert math.isnan(scores["test"])


def test_class_weights_are_named() -> None:
    with pytest.raises(ValueError, match=r"class_weight to be one of none, balanced \(got 'even'\)"):
        task(CLASSES, class_weight="even")


def test_targets_have_no_classes_to_weigh() -> None:
    with pytest.raises(ValueError, match=r"class_weight to be 'none' for a regression target \(got 'balanced'\)"):
        task(TARGETS, class_weight="balanced")


# the loss, by hand


def test_cross_entropy_by_hand() -> None:
    out = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    first = math.log(math.e + math.e**2 + math.e**3) - 3
    assert float(loss(task(CLASSES), out, torch.tensor([2, 0]))) == pytest.approx((first + math.log(3)) / 2)


def test_two_classes_have_two_outputs() -> None:
    out = torch.tensor([[0.0, 2.0]])
    assert float(loss(task(BINARY), out, torch.tensor([1]))) == pytest.approx(math.log(1 + math.e**-2))


def test_the_logistic_loss_by_hand() -> None:
    out, y = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    assert float(loss(task(LABELS), out, y)) == pytest.approx((math.log(2) + math.log(1 + math.e**2)) / 2)


def test_squares_are_of_standardized_targets() -> None:
    found = task(TARGETS, torch.tensor([True, True, True, False]))
    assert (found.center, found.scale) == (3.0, 2.0)  # of the training targets 1, 3, 5
    out = torch.tensor([[0.0], [1.0]])
    assert float(loss(found, out, torch.tensor([7.0, 3.0]))) == pytest.approx((2.0**2 + 1.0**2) / 2)


def test_targets_in_double_precision_leave_the_outputs_as_they_are() -> None:
    assert loss(task(TARGETS.double()), torch.zeros(4, 1), TARGETS.double()).dtype == torch.float32


def test_one_column_of_targets_is_as_good_as_none() -> None:
    found = task(TARGETS)
    assert torch.equal(loss(found, torch.zeros(4, 1), TARGETS.view(-1, 1)), loss(found, torch.zeros(4), TARGETS))


@pytest.mark.parametrize("mask", [torch.tensor([True, False, False, False]), ALL], ids=["one", "equal"])
def test_targets_without_spread_are_only_centered(mask: Tensor) -> None:
    found = task(torch.full((4,), 5.0), mask)
    assert (found.center, found.scale) == (5.0, 1.0)


# balanced weights, by hand


def test_rare_classes_weigh_more() -> None:
    found = task(CLASSES, class_weight="balanced")
    assert found.weight is not None
    assert found.weight.tolist() == pytest.approx([4 / (3 * 1), 4 / (3 * 1), 4 / (3 * 2)])
    out, y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 3.0]]), torch.tensor([0, 2])
    losses = [math.log(math.e + 2) - 1, math.log(math.e**3 + 2) - 3]
    expected = (losses[0] * 4 / 3 + losses[1] * 2 / 3) / (4 / 3 + 2 / 3)
    assert float(loss(found, out, y)) == pytest.approx(expected)


def test_only_training_nodes_are_weighed_and_absent_classes_weigh_one() -> None:
    found = task(CLASSES, torch.tensor([True, True, False, True]), class_weight="balanced")
    assert found.weight is not None
    assert found.weight.tolist() == pytest.approx([3 / (2 * 1), 1.0, 3 / (2 * 2)])


def test_labels_are_weighed_by_their_negatives() -> None:
    y = torch.cat([LABELS, torch.zeros(4, 1)], dim=1)
    found = task(y, class_weight="balanced")
    assert found.weight is not None
    assert found.weight.tolist() == pytest.approx([1 / 3, 3.0, 1.0])
    value = loss(found, torch.zeros(1, 3), torch.tensor([[0.0, 1.0, 0.0]]))  # positive labels alone are weighed
    assert float(value) == pytest.approx((1 + 3 + 1) * math.log(2) / 3)


def test_weights_follow_the_dtype_of_the_outputs() -> None:
    found = task(CLASSES, class_weight="balanced")
    assert loss(found, torch.zeros(4, 3, dtype=torch.float64), CLASSES).dtype == torch.float64


# predictions and scores


def test_predictions_and_scores_are_in_the_units_of_the_targets() -> None:
    found = task(TARGETS)
    out = ((TARGETS - found.center) / found.scale).view(-1, 1)
    assert found.predictions(out).tolist() == pytest.approx(TARGETS.tolist())
    assert found.score(out, TARGETS, masks={"train": ALL})["train"] == pytest.approx(1.0)
    off = Task("regression", 1, "rmse", center=found.center, scale=found.scale)
    shifted = out + 2 / found.scale
    assert off.score(shifted, TARGETS, masks={"train": ALL})["train"] == pytest.approx(2.0)


def test_logits_are_predictions_as_they_stand() -> None:
    out = torch.randn(4, 3)
    assert task(CLASSES).predictions(out) is out


def test_probabilities_by_hand() -> None:
    out = torch.tensor([[0.0, math.log(3.0)]])
    assert task(BINARY).probabilities(out).tolist() == [pytest.approx([0.25, 0.75])]  # type: ignore[union-attr]
    assert task(LABELS).probabilities(out).tolist() == [pytest.approx([0.5, 0.75])]  # type: ignore[union-attr]
    assert task(TARGETS).probabilities(out) is None


@pytest.mark.parametrize(
    ("metric", "better"), [("accuracy", 0.9), ("roc_auc", 0.9), ("r2", 0.9), ("rmse", 0.1), ("mae", 0.1)]
)
def test_the_direction_of_a_metric(metric: str, better: float) -> None:
    found = Task("classes", 2, metric)
    assert found.better(better, 0.5)
    assert not found.better(1 - better, 0.5)
    assert not found.better(0.5, 0.5)
    assert found.better(0.5, None)
    assert found.better(0.5, float("nan"))


@pytest.mark.parametrize(
    "y", [torch.zeros(4, dtype=torch.long), torch.tensor([[0.0, 1.0]] * 4)], ids=["class", "labels"]
)
def test_one_class_only_is_warned_of(y: torch.Tensor) -> None:
    with pytest.warns(UserWarning, match="The training nodes have (one class only|the same labels), so that there is"):
        task_of(y, train_mask=torch.tensor([True, True, True, False]))
