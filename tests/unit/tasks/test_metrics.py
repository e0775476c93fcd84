"""Metrics against values computed by hand."""

import math

import pytest
import torch
from torch import Tensor

from topoff.tasks.metrics import accuracy, mae, metric_for, micro_f1, r2, rmse, roc_auc, score

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 5.0], [4.0, 0.0, 1.0]])  # classes 0, 1, 2, 0
NAN = float("nan")


@pytest.mark.parametrize(("y", "expected"), [([0, 1, 2, 0], 1.0), ([0, 1, 2, 1], 0.75), ([1, 0, 0, 2], 0.0)])
def test_accuracy(y: list[int], expected: float) -> None:
    assert accuracy(LOGITS, torch.tensor(y)) == expected
    assert accuracy(LOGITS, torch.tensor(y)[:, None]) == expected  # OGB's (n, 1)


def test_accuracy_of_one_logit() -> None:
    out, y = torch.tensor([-1.0, 2.0, 0.5, -3.0]), torch.tensor([0, 1, 0, 0])
    assert accuracy(out, y) == accuracy(out[:, None], y) == accuracy(out, y.bool()) == 0.75


@pytest.mark.parametrize("y", [torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, -1]), torch.zeros(4)])
def test_accuracy_with_labels_that_are_no_class(y: Tensor) -> None:
    with pytest.raises(ValueError, match=r"'y' to be integer class ids from 0 to 2 \(got torch\.\w+ from .*mask out"):
        accuracy(LOGITS, y)


def test_accuracy_with_multi_label_y() -> None:
    with pytest.raises(ValueError, match=r"'y' to have shape \(n,\) or \(n, 1\) for accuracy \(got \(4, 3\)\)"):
        accuracy(LOGITS, torch.ones(4, 3, dtype=torch.int64))


def test_micro_f1() -> None:
    # predicted 1 0 / 1 1 / 0 0, true 1 1 / 0 1 / 0 1: TP 2, FP 1, FN 2
    out = torch.tensor([[3.0, -1.0], [0.1, 2.0], [-1.0, 0.0]])
    y = torch.tensor([[1, 1], [0, 1], [0, 1]])
    assert micro_f1(out, y) == pytest.approx(4 / 7)
    assert micro_f1(out, y.float()) == pytest.approx(4 / 7)


def test_micro_f1_without_any_label_is_zero() -> None:
    assert micro_f1(torch.full((2, 2), -1.0), torch.zeros(2, 2)) == 0.0


def test_accuracy_and_micro_f1_are_those_of_torchmetrics() -> None:
    from torchmetrics.functional.classification import multiclass_accuracy, multilabel_f1_score  # takes seconds

    generator = torch.Generator().manual_seed(0)
    for rows, classes in ((1, 2), (7, 3), (200, 11)):
        out = torch.randn(rows, classes, generator=generator)
        one = torch.randint(classes, (rows,), generator=generator)
        several = torch.randint(2, (rows, classes), generator=generator)
        theirs = multiclass_accuracy(out.argmax(dim=1), one, num_classes=classes, average="micro")
        assert accuracy(out, one) == pytest.approx(float(theirs))
        theirs = multilabel_f1_score((out > 0).long(), several, num_labels=classes, average="micro")
        assert micro_f1(out, several) == pytest.approx(float(theirs))


def test_micro_f1_with_class_ids() -> None:
    with pytest.raises(ValueError, match=r"same shape \(n, c\) for micro_f1 \(got \(4, 3\) and \(4,\)\)"):
        micro_f1(LOGITS, torch.tensor([0, 1, 2, 0]))


@pytest.mark.parametrize("metric", [micro_f1, roc_auc])
def test_labels_other_than_0_and_1(metric) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"'y' to hold 0 and 1 only \(got values from 0 to 2\)"):
        metric(LOGITS, torch.tensor([[0, 1, 2]] * 4))


def test_roc_auc_binary_in_all_shapes() -> None:
    # positives 0.35, 0.8; negatives 0.1, 0.4: 3 of 4 pairs in order
    out, y = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
    two = torch.stack([torch.zeros(4), out], dim=1)
    for shaped in (out, out[:, None], two, two + 7):
        assert roc_auc(shaped, y) == 0.75
        assert roc_auc(shaped, y[:, None]) == 0.75
    assert roc_auc(out, y.bool()) == roc_auc(out, y.float()) == 0.75


def test_roc_auc_counts_ties_half() -> None:
    assert roc_auc(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([0, 1, 1])) == 0.75
    assert roc_auc(torch.zeros(5), torch.tensor([0, 1, 1, 0, 1])) == 0.5


def test_roc_auc_of_large_logits_is_exact() -> None:
    # a sigmoid in float32 would make ties of these
    assert roc_auc(torch.tensor([20.0, 30.0, 40.0, 100.0]), torch.tensor([1, 0, 1, 1])) == pytest.approx(2 / 3)


def test_roc_auc_multi_label_is_the_mean_over_columns_with_both_classes() -> None:
    out = torch.tensor([[1.0, 5.0, 0.0], [2.0, 4.0, 1.0], [3.0, 3.0, 2.0]])
    y = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 0, 1]])  # column areas: 1 of 2, 1 of 2, one class only
    assert roc_auc(out, y) == 0.5
    y[2, 0] = 1  # column areas: 1, 1 of 2
    assert roc_auc(out, y) == 0.75


@pytest.mark.parametrize("y", [torch.zeros(4), torch.ones(4), torch.tensor([[0, 1]] * 4)])
def test_roc_auc_with_one_class(y: Tensor) -> None:
    out = LOGITS[:, 0] if y.dim() == 1 else LOGITS[:, :2]
    with pytest.raises(ValueError, match=r"'y' to have both classes for roc_auc \(got \d of \d positive\); choose"):
        roc_auc(out, y)


def test_roc_auc_with_several_classes() -> None:
    with pytest.raises(
        ValueError, match=r"'out' to have shape \(n,\), \(n, 1\) or \(n, 2\).*got \(4, 3\) and \(4, 1\)"
    ):
        roc_auc(LOGITS, torch.tensor([0, 1, 1, 0]))


def test_roc_auc_with_infinite_pairs() -> None:
    out = torch.tensor([[math.inf, math.inf], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"NaN in 1 of 2 rows"):
        roc_auc(out, torch.tensor([0, 1]))
    assert roc_auc(torch.tensor([-math.inf, math.inf]), torch.tensor([0, 1])) == 1.0


@pytest.mark.parametrize("metric", [accuracy, micro_f1, roc_auc])
def test_what_every_metric_refuses(metric) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"'y' with as many rows \(got \(4, 3\) and \(3,\)\)"):
        metric(LOGITS, torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match=r"got \(4, 1, 3\) and \(4,\)"):
        metric(LOGITS[:, None], torch.tensor([0, 1, 1, 0]))
    with pytest.raises(ValueError, match="at least one row to score"):
        metric(LOGITS[:0], torch.empty(0, dtype=torch.int64))
    diverged = LOGITS.clone()
    diverged[1:3, 0] = NAN
    with pytest.raises(ValueError, match=r"free of NaN \(got NaN in 2 of 4 rows\); the model has diverged"):
        metric(diverged, torch.tensor([0, 1, 1, 0]))


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (torch.tensor([3, 0]), "accuracy"),
        (torch.tensor([[3], [0]]), "accuracy"),
        (torch.tensor([True, False]), "accuracy"),
        (torch.tensor([[1, 0], [1, 1]]), "micro_f1"),
        (torch.tensor([[1.0, 0.0], [1.0, 1.0]]), "micro_f1"),
        (torch.tensor([0.5, 1.0]), "r2"),
    ],
)
def test_metric_for(y: Tensor, expected: str) -> None:
    assert metric_for(y) == expected


@pytest.mark.parametrize("y", [torch.tensor([[0.5, 1.0]]), torch.tensor([[0, 2], [1, 1]]), torch.tensor(1)])
def test_metric_for_other_labels(y: Tensor) -> None:
    with pytest.raises(
        ValueError, match=r"'y' to be integer class ids \(n,\), float targets.*accuracy, micro_f1, roc_auc"
    ):
        metric_for(y)


def masks() -> dict[str, Tensor]:
    train = torch.tensor([True, True, False, False])
    return {"train": train, "val": ~train, "test": torch.zeros(4, dtype=torch.bool)}


def test_score_takes_each_split_and_nan_where_it_is_empty() -> None:
    found = score(LOGITS, torch.tensor([0, 0, 2, 0]), masks=masks())
    assert list(found) == ["train", "val", "test"]
    assert (found["train"], found["val"]) == (0.5, 1.0)
    assert math.isnan(found["test"])


def test_score_takes_the_metric_asked_for() -> None:
    out, y = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
    everything = {"test": torch.ones(4, dtype=torch.bool)}
    assert score(out, y, masks=everything, metric="roc_auc") == {"test": 0.75}
    assert score(out, y, masks=everything) == {"test": 0.5}
    assert score(LOGITS[:, :2] - 0.5, torch.tensor([[1, 1], [0, 1], [1, 0], [1, 0]]), masks=everything) == {"test": 1.0}


def test_score_ignores_what_no_mask_covers() -> None:
    out = LOGITS.clone()
    out[3] = NAN
    assert score(out, torch.tensor([0, 1, 2, -1]), masks={"train": torch.tensor([True] * 3 + [False])}) == {"train": 1}


def test_score_names_the_split_that_fails() -> None:
    y = torch.tensor([0, 1, 1, 1])
    with pytest.raises(ValueError, match=r"In the 'val' split: Expected 'y' to have both classes for roc_auc"):
        score(LOGITS[:, 0], y, masks=masks(), metric="roc_auc")


def test_score_with_an_unknown_metric() -> None:
    with pytest.raises(ValueError, match=r"one of accuracy, .*mae \(got 'acuracy'\); .* 'accuracy'\?"):
        score(LOGITS, torch.tensor([0, 1, 2, 0]), masks=masks(), metric="acuracy")
    with pytest.raises(ValueError, match=r"got 'zzz'\); None chooses one"):
        score(LOGITS, torch.tensor([0, 1, 2, 0]), masks=masks(), metric="zzz")


def test_score_with_rows_that_do_not_match() -> None:
    with pytest.raises(ValueError, match=r"as many rows \(got \(4, 3\) and \(3,\)\)"):
        score(LOGITS, torch.tensor([0, 1, 2]), masks=masks())


@pytest.mark.parametrize("mask", [torch.tensor([0, 1]), torch.ones(3, dtype=torch.bool), torch.ones(4)])
def test_score_with_a_mask_that_is_none(mask: Tensor) -> None:
    with pytest.raises(ValueError, match=r"mask 'test' to be bool of shape \(4,\) \(got torch\.\w+"):
        score(LOGITS, torch.tensor([0, 1, 2, 0]), masks={"test": mask})


def test_regression_errors_by_hand() -> None:
    out, y = torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([1.0, 4.0, 4.0])
    assert r2(out, y) == pytest.approx(1 - 5 / 6)
    assert rmse(out, y) == pytest.approx((5 / 3) ** 0.5)
    assert mae(out, y) == pytest.approx(1.0)
    assert r2(y.mean().expand(3), y) == pytest.approx(0.0)


def test_regression_refuses_several_outputs_and_equal_targets() -> None:
    with pytest.raises(ValueError, match=r"one value per node \(got \(2, 2\) and \(2,\)\); regression has one target"):
        mae(torch.ones(2, 2), torch.ones(2))
    with pytest.raises(ValueError, match=r"'y' to vary for r2 \(got 3 equal targets\); choose the metric 'rmse'"):
        r2(torch.ones(3), torch.ones(3))
