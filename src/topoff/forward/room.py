"""The whole graph as a model needs it: in the model's type, and with a place for matrices that do not fit in memory.

>>> data = Data(x=torch.ones(4, 3).half(), edge_index=torch.tensor([[0], [1]]))
>>> graph = graph_for(nn.Linear(3, 2), data, memory=1.0)
>>> graph.dtype, graph.shelf is None
(torch.float32, True)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data

from topoff.graph.graph import Graph
from topoff.graph.operators import full_type
from topoff.machine.memory import free_memory
from topoff.machine.shelf import READ, Shelf

HELD = 3  # matrices of all nodes, as wide as the widest layer, that exact inference holds at once, or more
SMALL = 32  # matrices of so small a share of the memory lie in it


def graph_for(model: nn.Module, data: Data, *, memory: float | None = None) -> Graph:
    """Prepare a graph for a model; `memory` is in GiB, by default what is free."""
    return Graph(data, dtype=type_for(model, data.x), shelf=_shelf_for(model, data, memory=memory))


def type_for(model: nn.Module, x: Tensor) -> torch.dtype:
    """Return the type in which batches have the features: their own, or the model's where they are kept in half of it.

    >>> type_for(nn.Linear(3, 2).half(), torch.ones(1).half()), type_for(nn.Linear(3, 2), torch.ones(1).double())
    (torch.float16, torch.float64)
    """
    half = full_type(x.dtype) != x.dtype
    wide = half and all(parameter.dtype != x.dtype for parameter in model.parameters())
    return next((each.dtype for each in model.parameters() if wide and each.is_floating_point()), x.dtype)


def _shelf_for(model: nn.Module, data: Data, *, memory: float | None) -> Shelf | None:
    """Return where matrices of all nodes lie; None where those of exact inference fit in half of the memory.

    With a model on another device than the CPU there is no shelf.
    """
    free = free_memory() if memory is None else int(memory * 2**30)
    if free is None or next(model.parameters(), data.x).device.type != "cpu":
        return None
    widths = [parameter.size(0) for parameter in model.parameters() if not is_lazy(parameter) and parameter.dim() == 2]
    need = HELD * int(data.num_nodes or 0) * max([data.x.size(-1), *widths]) * full_type(data.x.dtype).itemsize
    return Shelf(free // SMALL, block=int(READ * free)) if need > free // 2 else None
