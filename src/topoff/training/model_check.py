"""Try a model on a few nodes before anything is written: what it returns must suit the task, and it must learn.

>>> from torch_geometric.nn import GCN
>>> from topoff.tasks.task import task_of
>>> ring = Data(x=torch.rand(6, 3), edge_index=torch.stack([torch.arange(6), torch.arange(6).roll(1)]))
>>> ring.y, ring.train_mask = torch.arange(6) % 3, torch.ones(6, dtype=torch.bool)
>>> task = task_of(ring.y, train_mask=ring.train_mask)
>>> check_model(GCN(3, 4, num_layers=2, out_channels=2), ring, task=task, name="my:Net")
Traceback (most recent call last):
ValueError: Expected my:Net to return one row per node and one column per class, (6, 3) for 6 nodes (got (6, 2)); use \
out_channels as the width of its last layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.arguments import settle
from topoff.forward.call import Call, caller, device_of, evaluating
from topoff.forward.copies import copied, restored, undrawn
from topoff.forward.finite import refuse_not_finite
from topoff.forward.piece import cloned, few_of
from topoff.forward.room import type_for
from topoff.graph.graph import Graph
from topoff.machine.user_code import user_code
from topoff.tasks.task import Task

REMEDY = "correct it there"


def check_model(model: nn.Module, data: Data, *, task: Task, name: str) -> None:
    """Run a copy of a model in both modes on a few nodes, and its gradient; nothing is drawn, nothing is changed.

    Raises:
        ValueError: it raises, with the user's file and line; or its output does not suit the task, is not finite, or
            cannot be learnt from; or an argument of its forward is not in the graph.
    """
    if device_of(model, data.x).type == "meta":  # there nothing can be computed
        return
    with undrawn():
        with user_code(f"{name} to have a forward whose arguments can be told", remedy=REMEDY):
            run = caller(model, arguments=settle(model, data))
        piece = few_of(Graph(data, dtype=type_for(model, data.x))).to(device_of(model, data.x))
        few = f"on {piece.num_nodes} nodes of the graph"
        trial = _copy(model)
        with user_code(f"{name} to run {few}", remedy=REMEDY), evaluating(trial):
            out = run(trial, cloned(piece))
        _check_output(out, piece, task=task, name=name)
        with user_code(f"{name} to run {few}", remedy=REMEDY), evaluating(trial):
            refuse_not_finite(out, run=lambda given: run(trial, cloned(given)), piece=piece, model=trial, name=name)
        _check_learning(trial, run, piece, task=task, name=name, copy=trial is not model)


def _copy(model: nn.Module) -> nn.Module:
    """Return a copy of a model, or itself where it holds what has no copy: locks, open files, generators."""
    try:
        return copied(model)
    except Exception:
        return model


def _check_output(out: Any, piece: Data, *, task: Task, name: str) -> None:
    """Refuse what is no tensor with one row per node and one column per output of the task."""
    rows, columns = int(piece.num_nodes or 0), task.outputs
    what = "class" if task.kind != "regression" else "target"
    expected = f"{name} to return one row per node and one column per {what}, ({rows}, {columns}) for {rows} nodes"
    if not isinstance(out, Tensor):
        got = f"a {type(out).__name__}" if out is not None else "None"
        size = f" of {len(out)}" if isinstance(out, tuple | list | dict) else ""
        raise ValueError(f"Expected {expected} (got {got}{size}); return that one tensor alone.")
    if not torch.is_floating_point(out) or out.layout != torch.strided:
        kind = str(out.dtype) if out.layout == torch.strided else f"a tensor of layout {out.layout}"
        raise ValueError(f"Expected {name} to return dense floating-point numbers (got {kind}); return logits.")
    if out.device != piece.x.device:
        raise ValueError(
            f"Expected {name} to return its output on {piece.x.device} (got {out.device}); leave it there."
        )
    if out.shape == (rows, columns) or (task.kind == "regression" and out.shape == (rows,)):
        return
    if out.dim() == 2 and len(out) == rows:
        remedy = "use out_channels as the width of its last layer"
    else:
        remedy = "return a row for every node, in the order of x"
    raise ValueError(f"Expected {expected} (got {tuple(out.shape)}); {remedy}.")


def _check_learning(trial: nn.Module, run: Call, piece: Data, *, task: Task, name: str, copy: bool) -> None:
    """Refuse a model that has nothing to learn, or fails in training mode or in its backward pass."""
    learnt = [parameter for parameter in trial.parameters() if parameter.requires_grad]
    if not learnt:
        raise ValueError(f"Expected the model to have parameters to train (got none in model '{name}').")
    few = f"in training mode on {piece.num_nodes} nodes of the graph"
    with user_code(f"{name} to run {few}", remedy=REMEDY), torch.enable_grad(), restored(trial, training=True):
        out = run(trial, cloned(piece))
    _check_output(out, piece, task=task, name=f"{name} in training mode")
    with user_code(f"{name} to run {few}", remedy=REMEDY), restored(trial, training=True):
        mode = f"in training mode {name}"
        refuse_not_finite(out, run=lambda given: run(trial, cloned(given)), piece=piece, model=trial, name=mode)
    if not out.requires_grad:
        raise ValueError(
            f"Expected the output of {name} to depend on its parameters (got one without a gradient); look for "
            f"detach(), .data, numpy, torch.no_grad() or torch.inference_mode() in its forward."
        )
    if copy and bool(piece.train_mask.any()):
        with user_code(f"{name} to compute its gradient {few}", remedy=REMEDY):
            task.batch_loss(out, piece).backward()  # type: ignore[no-untyped-call]
