"""How far the gradient that a method's batches give is from that of the whole graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from topoff.compensation.fidelity import compare_gradients
from topoff.machine.memory import free_memory, readable
from topoff.methods.protocol import Method
from topoff.methods.registry import METHODS
from topoff.tasks.task import Task
from topoff.training.cost import estimate
from topoff.training.loop import Training


def measure_gradient(training: Training) -> dict[str, Any]:
    """Return the gradient's relative error and cosine; nothing but a note where the whole graph may not fit."""
    config, free = dataclasses.replace(training.config, method="full"), free_memory()
    need = estimate(config, training.data, training.model).memory
    if free is not None and need > free / 2:
        note = f"no gradient error: the whole graph would take about {readable(need)} of {readable(free)} free"
        return {"gradient_error": None, "gradient_cosine": None, "note": note}
    error, cosine = gradient_error(training)
    return {"gradient_error": error, "gradient_cosine": cosine, "note": None}


def gradient_error(training: Training) -> tuple[float, float]:
    """Compare the gradient of an epoch of a method's batches with that of the whole graph, in eval mode.

    ||g - g*|| / ||g*|| and the cosine between them: g is the mean of the batches' gradients, weighted by their numbers
    of training nodes, g* the gradient of the mean training loss. No step is taken. Both NaN where g* is zero.
    """
    model, task = training.model, training.task
    model.eval()
    seen = epoch_gradient(training.method, model, task=task)
    whole = METHODS["full"](model, training.data, seed=training.config.seed)
    whole.prepare()
    return compare_gradients(seen, epoch_gradient(whole, model, task=task))


def epoch_gradient(method: Method, model: nn.Module, *, task: Task) -> Tensor:
    """Return sum_i c_i g_i / sum_i c_i over the batches of an epoch, flat and in float64; (parameters,).

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
    >>> epoch_gradient(full, full.model, task=task_of(data.y, train_mask=data.train_mask)).shape  # 6 weights, 2 biases
    torch.Size([8])
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    weights = 0.0
    for batch in method.batches():
        model.zero_grad(set_to_none=True)
        method.learn(batch, task.batch_loss)
        mask = batch.train_mask[: batch.get("batch_size") or None].cpu()
        weight = float(mask.sum())
        if "loss_weight" in batch:
            weight = 1.0
        elif task.weight is not None and task.kind in ("classes", "binary"):
            weight = float(task.weight.cpu().double()[batch.y[: len(mask)].cpu()[mask]].sum())
        flat = [(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().cpu() for p in parameters]
        total += weight * torch.cat(flat).double()
        weights += weight
    model.zero_grad(set_to_none=True)
    return total / weights if weights else total
