"""Assemble what a run is made of from its settings: task, model, method, optimiser, learning rate, device."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from topoff.data.archive import check_memory
from topoff.forward.call import Progress
from topoff.graph.operators import full_type
from topoff.machine.ranks import Ranks
from topoff.machine.user_code import user_code
from topoff.methods.protocol import Method
from topoff.methods.registry import METHODS, model_of
from topoff.models.by_name import OPTIONS, make_model
from topoff.models.networks import degree_histogram
from topoff.tasks.task import Task, task_of
from topoff.training.config import EPOCHS, Config
from topoff.training.defaults import Choice, choose
from topoff.training.model_check import check_model
from topoff.training.sizes import check_sizes, warn_of_memory


@dataclass(frozen=True)
class Setup:
    """Hold what is about to be trained: settings that leave nothing open, and what follows from them and a graph."""

    config: Config
    choices: list[Choice]  # what was left open, and is set in `config`
    data: Data
    task: Task
    classes: list[str]  # the user's own names of the classes
    model: nn.Module  # initialised, on its device


def make_setup(config: Config, data: Data, *, processes: int = 1) -> Setup:
    """Choose what the settings leave open from the graph, and the number of processes; find the task, build the model.

    Raises:
        ValueError: there is no such metric, model or device, or it does not suit the graph.
    """
    chosen, choices = choose(config, data, processes=processes)
    task = task_of(data.y, train_mask=data.train_mask, metric=config.metric, class_weight=config.class_weight)
    size = int(data.num_nodes or 0) * task.outputs * data.x.element_size()
    remedy = "merge classes, or, if y is a quantity, make it floating point"
    check_memory(size, what=f"{task.outputs:,} outputs of {data.num_nodes:,} nodes", remedy=remedy)
    torch.manual_seed(config.seed)
    name = model_of(chosen.method, chosen.model)

    def sized(**sizes: Any) -> nn.Module:
        """Build the model with other sizes."""
        return model_for(replace(chosen, **sizes), data, outputs=task.outputs)

    check_sizes(sized, chosen, data)
    model = model_for(chosen, data, outputs=task.outputs)
    with user_code(f"{name} to be a whole torch.nn.Module", remedy="call super().__init__() first in its __init__"):
        model = model.to(device_of(config.device), full_type(data.x.dtype))  # a store may hold half of it
    check_model(model, data, task=task, name=name)
    warn_of_memory(chosen, data, model)
    return Setup(chosen, choices, data, task, class_names(data, task), model)


def make_method(setup: Setup, *, progress: Progress | None = None, ranks: Ranks | None = None) -> Method:
    """Build the method of a setup, around its model, for the processes that train together."""
    config, kind = setup.config, METHODS[setup.config.method]
    settings = {name: value for name in kind.settings if (value := getattr(config, name)) is not None}
    shared: dict[str, Any] = {"seed": config.seed, "fast_dropout": config.fast_dropout, "progress": progress}
    together = {"ranks": ranks} if ranks and ranks.size > 1 else {}
    return kind(setup.model, setup.data, **settings, **shared, **together, memory=config.memory)


def batches_per_step(config: Config) -> int:
    """Return how many batches a step has: as many as the settings say, of a method that reads them.

    >>> from topoff.training.config import make_config
    >>> [batches_per_step(make_config({"dataset": "x", "method": method, "accumulate": 2})) for method in ("top", "ns")]
    [2, 1]
    """
    return (config.accumulate or 1) if "accumulate" in METHODS[config.method].settings else 1


def class_names(data: Data, task: Task) -> list[str]:
    """Return the user's own names of the classes, or their numbers; none for regression."""
    if task.kind == "regression":
        return []
    names = getattr(data.get("names"), "class_names", None) or range(task.outputs)
    return [str(name) for name in names[: task.outputs]]


def model_for(config: Config, data: Data, *, outputs: int) -> nn.Module:
    """Build the model that the settings name, for a graph."""
    return make_model(
        model_of(config.method, config.model),
        in_channels=data.num_features,
        out_channels=outputs,
        degrees=degree_histogram(data.edge_index, int(data.num_nodes or 0)),
        **{key: value for key, value in vars(config).items() if key in OPTIONS},
    )


def make_optimizer(config: Config, model: nn.Module, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimiser that the settings name, of the parameters that a method trains of `model`, or for it."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if not parameters:
        raise ValueError(f"Expected the model to have parameters to train (got none in model '{config.model}').")
    groups: list[dict[str, Any]] = [{"params": parameters}]
    if config.outer_decay is not None:
        listed = getattr(model, "outer_parameters", None)
        if listed is None:
            raise ValueError(
                f"Expected {type(model).__name__} to have a method outer_parameters, which lists those that "
                "outer_decay is for (got none); define it, or leave outer_decay out."
            )
        outer = {id(parameter) for parameter in listed()}
        inner, others = [p for p in parameters if id(p) not in outer], [p for p in parameters if id(p) in outer]
        groups = [{"params": inner}, {"params": others, "weight_decay": config.outer_decay}]
    made: torch.optim.Optimizer
    if config.optimizer == "sgd":
        made = torch.optim.SGD(groups, lr=config.lr, momentum=0.9, weight_decay=config.weight_decay)
    else:
        kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
        fused = all(parameter.is_floating_point() for parameter in parameters)  # a third of the time of a step
        made = kind(groups, lr=config.lr, weight_decay=config.weight_decay, fused=fused)
    if config.clip:
        made.register_step_pre_hook(partial(_clip, parameters, config.clip))
    return made


def _clip(parameters: list[nn.Parameter], norm: float, *_: object) -> None:
    """Clip the gradient before a step."""
    nn.utils.clip_grad_norm_(parameters, norm)


def learning_rate(config: Config, done: float) -> float:
    """Return the learning rate after so many epochs, or seconds in a run by those: warm-up, then the schedule.

    >>> from topoff.training.config import make_config
    >>> config = make_config({"dataset": "x", "lr": 1.0, "epochs": 4, "schedule": "linear"})
    >>> [learning_rate(config, epoch) for epoch in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    >>> config = make_config({"dataset": "x", "lr": 1.0, "seconds": 20, "warmup": 4, "schedule": "cosine"})
    >>> [learning_rate(config, seconds) for seconds in (0, 2.5, 4, 12, 20)]
    [0.2, 0.7, 1.0, 0.5, 0.0]
    """
    length = config.seconds or config.epochs or EPOCHS
    if done < config.warmup:
        return config.lr * (done + 1) / (config.warmup + 1)
    share = min(1.0, (done - config.warmup) / (length - config.warmup)) if length > config.warmup else 0.0
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * share)) / 2
    if config.schedule == "linear":
        return config.lr * (1 - share)
    if config.schedule == "step":
        return config.lr * 0.1 ** ((share >= 0.5) + (share >= 0.75))
    return config.lr


def device_of(name: str) -> torch.device:
    """Return the device that a name means."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wrong = f"Expected device to be auto, cpu or a cuda device that is there (got '{name}'"
    if not re.fullmatch(r"cpu|cuda(:[0-9]{1,4})?", name):
        raise ValueError(f"{wrong}); leave it out for auto.")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"{wrong}, but {torch.cuda.device_count()} cuda devices); leave it out for auto.") from error
    return device
