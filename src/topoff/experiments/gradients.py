"""How far a method's gradients are from that of the whole graph: over an epoch, and of a single step."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from topoff.compensation.fidelity import compare_gradients
from topoff.machine.memory import free_memory, readable
from topoff.methods.protocol import Method
from topoff.methods.registry import METHODS
from topoff.tasks.task import Task
from topoff.training.cost import memory_of
from topoff.training.loop import Training


class GradientErrors(NamedTuple):
    """Say how far gradients are from g*, that of the mean training loss; NaN where that is zero."""

    error: float  # ||mean of g_i - g*|| / ||g*||: what an epoch's batches miss, and what sampling noise is left
    cosine: float  # of the angle between these two
    noise: float  # root of the mean of ||g_i - g*||^2, relative to ||g*||: of a single step


@dataclass(frozen=True)
class EpochGradient:
    """Hold the gradients g_i of the batches of an epoch, averaged with weights."""

    mean: Tensor  # (parameters,) of g_i
    square: float  # of ||g_i||^2


def measure_gradient(training: Training) -> dict[str, Any]:
    """Return the gradients' errors; nothing but a note where the whole graph may not fit."""
    config, free = dataclasses.replace(training.config, method="full"), free_memory()
    need = memory_of(config, training.data, training.model)
    if free is not None and need > free / 2:
        note = f"no gradient error: the whole graph would take about {readable(need)} of {readable(free)} free"
        return {"gradient_error": None, "gradient_cosine": None, "gradient_noise": None, "note": note}
    found = gradient_errors(training)
    return {f"gradient_{name}": value for name, value in found._asdict().items()} | {"note": None}


def gradient_errors(training: Training) -> GradientErrors:
    """Compare the gradients of an epoch of a method's batches with that of the whole graph, in eval mode.

    They are weighted by the batches' numbers of training nodes. No step is taken.
    """
    model, task = training.model, training.task
    model.eval()
    seen = epoch_gradient(training.method, model, task=task)
    whole = METHODS["full"](model, training.data, seed=training.config.seed)
    whole.prepare()
    exact = epoch_gradient(whole, model, task=task).mean
    square = seen.square - 2 * float(seen.mean @ exact) + float(exact @ exact)
    norm = float(exact.norm())
    noise = math.sqrt(max(0.0, square)) / norm if norm else math.nan
    return GradientErrors(*compare_gradients(seen.mean, exact), noise)


def epoch_gradient(method: Method, model: nn.Module, *, task: Task) -> EpochGradient:
    """Return the mean sum_i c_i g_i / sum_i c_i over the batches of an epoch, flat and in float64.

    c_i is the number of training nodes among a batch's targets, or what stands for it: the sum of their class weights,
    and 1 where a batch weighs the losses itself, each such batch being an estimate of the whole.

    >>> from topoff.data.load import load
    >>> from topoff.tasks.task import task_of
    >>> from torch_geometric.data import Data
    >>> from torch_geometric.nn import GCNConv
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> full = METHODS["full"](GCNConv(3, 2), data)
    >>> full.prepare()
    >>> found = epoch_gradient(full, full.model, task=task_of(data.y, train_mask=data.train_mask))
    >>> found.mean.shape  # 6 weights, 2 biases
    torch.Size([8])
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    weights = squares = 0.0
    for batch in method.batches():
        weight = task.batch_weight(batch)
        if not weight:  # an empty one
            continue
        model.zero_grad(set_to_none=True)
        method.learn(batch, task.batch_loss)
        flat = [(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().cpu() for p in parameters]
        gradient = torch.cat(flat).double()
        total += weight * gradient
        squares += weight * float(gradient @ gradient)
        weights += weight
    model.zero_grad(set_to_none=True)
    return EpochGradient(total / weights, squares / weights) if weights else EpochGradient(total, 0.0)
