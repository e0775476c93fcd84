"""Copies of a user's model to try things on, and what leaves the model itself as it was.

>>> layer = nn.Linear(2, 2)
>>> other = copied(layer)
>>> perturb(other)
>>> bool((layer.weight == other.weight).any())
False
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from topoff.forward.intercept import map_tensors

NOISE = 0.3  # of perturbed weights, relative to their size


@contextmanager
def undrawn() -> Iterator[None]:
    """Leave the random generators of torch, numpy and Python as they were."""
    ours, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002 - what user code draws from
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(ours)
            np.random.set_state(numpys)  # noqa: NPY002


def copied(model: nn.Module) -> nn.Module:
    """Copy a model; results of an earlier forward that it keeps are copied without their history."""
    kept: dict[int, Any] = {}
    for module in model.modules():
        map_tensors(
            list(vars(module).values()),
            lambda tensor: None if tensor.is_leaf else kept.setdefault(id(tensor), tensor.detach().clone()),
        )
    return copy.deepcopy(model, kept)


@contextmanager
def restored(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model into one of its modes, and restore modes and buffers."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for buffer, before in buffers:
            buffer.data.copy_(before)


@contextmanager
def default_type(dtype: torch.dtype | None) -> Iterator[None]:
    """Make new tensors of a floating type, where one is given."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def perturb(model: nn.Module) -> None:
    """Move every weight a little, so that none is zero."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if torch.is_floating_point(parameter):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter)
            parameter.data.add_(noise, alpha=NOISE * (float(parameter.detach().abs().mean()) + 0.1))
