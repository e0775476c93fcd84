"""Estimate what a model needs before it is allocated: sizes that no memory can hold are refused in one sentence.

>>> from topoff.training.config import make_config
>>> data = Data(x=torch.ones(3, 5), edge_index=torch.tensor([[0], [1]]))
>>> def build(**sizes):
...     return nn.Linear(sizes["hidden"], sizes["hidden"])
>>> check_sizes(build, make_config({"dataset": "x", "hidden": 10**9}), data, free=2**34)
Traceback (most recent call last):
ValueError: Expected a model that fits into memory (got hidden 1,000,000,000, which needs about 3.5 EiB for its \
parameters; 16.0 GiB are free); lower hidden.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import nn
from torch_geometric.data import Data

from topoff.forward.copies import undrawn
from topoff.machine.memory import free_memory, readable
from topoff.training.config import Config
from topoff.training.cost import memory_of

WIDTHS = ("hidden", "heads", "out_heads")  # settings that a model's width grows with
HARMLESS = 2**28  # bytes that are not worth an estimate
LAYER = 2**14  # bytes of Python's own objects for a layer, at least
FEW = 3  # layers of which models are built to see what one more costs
IMMENSE = 2**40  # a width beyond which tensors cannot even be described


def check_sizes(build: Callable[..., nn.Module], config: Config, data: Data, *, free: int | None = None) -> None:
    """Refuse a model whose parameters alone do not fit into memory; `build` makes it of other sizes, without memory.

    Raises:
        ValueError: with what it needs, what is free, and which setting to lower.
    """
    width = config.hidden * config.heads * config.out_heads
    if (12 * width + data.num_features) * width * 4 * config.layers < HARMLESS and config.layers * LAYER < HARMLESS:
        return
    free = (free_memory() or 0) if free is None else free
    need = _parameters(build, config) * data.x.element_size() + config.layers * LAYER
    if free and need > free:
        largest = max(("layers", *WIDTHS), key=lambda name: getattr(config, name))
        came = f"{largest} {getattr(config, largest):,}, which needs about {readable(need)} for its parameters"
        raise ValueError(
            f"Expected a model that fits into memory (got {came}; {readable(free)} are free); lower {largest}."
        )


def warn_of_memory(config: Config, data: Data, model: nn.Module) -> None:
    """Warn where training is estimated to need more memory than there is."""
    need, free = memory_of(config, data, model), free_memory()
    if free is not None and need > free:
        warnings.warn(
            f"training is estimated to need {readable(need)} of memory, and {readable(free)} are free: choose a "
            f"smaller ratio, hidden or number of layers.",
            stacklevel=2,
        )


def _parameters(build: Callable[..., nn.Module], config: Config) -> int:
    """Count the parameters of a model from small numbers of its layers, on a device without memory.

    0 where that cannot be told: some models of users' own cannot be built there.
    """
    if max(getattr(config, name) for name in WIDTHS) > IMMENSE:
        return IMMENSE**2
    counts: list[int] = []
    for layers in range(1, min(FEW, config.layers) + 1):
        try:
            with undrawn(), torch.device("meta"):
                model = build(hidden=config.hidden, layers=layers)
        except RuntimeError as error:
            return IMMENSE**2 if "overflow" in str(error).lower() else 0
        except Exception:  # of a model that cannot be built there
            return 0
        counts.append(sum(parameter.numel() for parameter in model.parameters()))
    more = counts[-1] - counts[-2] if len(counts) == FEW else 0
    return counts[-1] + more * (config.layers - len(counts))
