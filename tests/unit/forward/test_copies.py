"""Copies of a model to try things on, and what leaves the model itself as it was."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from topoff.forward.copies import copied, perturb, restored, undrawn


def draw() -> tuple[float, float, float]:
    return float(torch.rand(1)), random.random(), float(np.random.rand())  # noqa: NPY002 - as users do


def fail() -> None:
    with undrawn():
        draw()
        raise ArithmeticError("no")


def test_what_is_drawn_inside_is_drawn_again() -> None:
    with undrawn():
        first = draw()
    with pytest.raises(ArithmeticError, match="no"):
        fail()
    assert draw() == first


def test_a_copy_has_weights_and_kept_results_of_its_own() -> None:
    layer = nn.Linear(2, 2)
    layer.kept = layer(torch.ones(1, 2))
    other = copied(layer)
    assert torch.equal(other.weight, layer.weight)
    assert other.weight is not layer.weight
    assert torch.equal(other.kept, layer.kept)
    assert other.kept.is_leaf, "without its history"
    assert not layer.kept.is_leaf


def test_modes_and_buffers_are_restored() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())
    before = [buffer.clone() for buffer in model.buffers()]
    with restored(model, training=True):
        assert all(module.training for module in model.modules())
        model(torch.rand(4, 2))
        assert not torch.equal(model[1].running_mean, before[3])
    assert [module.training for module in model] == [True, False]
    assert all(torch.equal(buffer, was) for buffer, was in zip(model.buffers(), before, strict=True))
    with restored(model, training=False):
        assert not any(module.training for module in model.modules())
    assert model.training


def test_perturbed_weights_move_by_their_size_and_the_same_every_time() -> None:
    first, second = nn.Linear(20, 20), nn.Linear(20, 20)
    for layer in (first, second):
        nn.init.constant_(layer.weight, 100.0)
        nn.init.zeros_(layer.bias)
        layer.ids = nn.Parameter(torch.arange(3), requires_grad=False)
        perturb(layer)
    assert torch.equal(first.weight, second.weight)
    assert 10 < (first.weight - 100).abs().mean() < 60
    assert first.bias.all()
    assert first.ids.tolist() == [0, 1, 2]
