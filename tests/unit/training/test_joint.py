"""A step over several batches, and weights that must be the same everywhere."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities
from processes import together
from shared_work import apart
from topoff.machine.ranks import Ranks
from topoff.methods.top import Top
from topoff.tasks.task import task_of
from topoff.training.build import make_setup
from topoff.training.config import make_config
from topoff.training.joint import JointStep, Norms, check_same_weights, steps_of


def method(**settings: object) -> Top:
    config = make_config({"dataset": "x", "ratio": 0.25, "batches": "random", "dropout": 0.0, "hidden": 4, "epochs": 1})
    model, data = make_setup(config, communities(60)).model, communities(60)
    made = Top(model, data, ratio=0.25, batches="random", rank=2, **settings)
    made.prepare()
    return made


@pytest.mark.filterwarnings("ignore:The compensation misses")
@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_a_joint_gradient_is_that_of_one_loss(weights: str) -> None:
    top = method(accumulate=2)
    task = task_of(top.data.y, train_mask=top.data.train_mask, class_weight=weights)
    batches = next(steps_of(top, 2))
    joint = JointStep(top, task, ranks=Ranks(), seed=0)
    found = joint.gradient(batches, number=0, stop=True)
    gradients = [parameter.grad.clone() for parameter in joint.parameters]
    outs = torch.cat([top(batch)[batch.train_mask] for batch in batches])
    y = torch.cat([batch.y[batch.train_mask] for batch in batches])
    loss = F.cross_entropy(outs, y, weight=double(task.weight))
    assert found.loss == pytest.approx(loss.item())
    assert found.stop
    expected = torch.autograd.grad(loss, joint.parameters)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other)


def double(weight: torch.Tensor | None) -> torch.Tensor | None:
    return None if weight is None else weight.double()


@pytest.mark.filterwarnings("ignore:The compensation misses")
def test_a_step_without_training_nodes_has_no_loss() -> None:
    top = method(accumulate=2)
    task = task_of(top.data.y, train_mask=top.data.train_mask)
    found = JointStep(top, task, ranks=Ranks(), seed=0).gradient([Data(batch_size=0)] * 2, number=0, stop=False)
    assert (found.loss, found.stop) == (None, False)


def test_a_task_weighs_batches_by_what_their_losses_are_divided_by() -> None:
    data = communities(40)
    batch = Data(batch_size=40, y=data.y, train_mask=data.train_mask)
    task = task_of(data.y, train_mask=data.train_mask)
    assert task.batch_weight(batch) == int(data.train_mask.sum())
    heavy = dataclasses.replace(task, weight=torch.tensor([2.0] * task.outputs))
    assert heavy.batch_weight(batch) == 2 * int(data.train_mask.sum())
    batch.loss_weight = torch.ones(40)
    assert task.batch_weight(batch) == 1
    assert task.batch_weight(Data(batch_size=0)) == 0


def test_norms_without_statistics_are_left_alone() -> None:
    norms = Norms(nn.BatchNorm1d(2, track_running_stats=False))
    norms.rewind()
    norms.settle(batches=1)
    assert norms.sums == []


def test_weights_that_differ_are_named() -> None:
    check_same_weights(nn.Linear(2, 2), Ranks())
    for found in together(apart):
        with pytest.raises(ValueError, match=r"Expected the same weights and buffers in all processes \(got others"):
            raise found
