"""Estimate the peak memory of a run before it begins: the graph, what batches keep, and what is computed at once.

>>> from topoff.training.config import make_config
>>> data = Data(x=torch.ones(1000, 16), edge_index=torch.zeros(2, 100, dtype=torch.long))
>>> config = make_config({"dataset": "x", "ratio": 0.1, "rank": 16})
>>> held = Held(batches=10, batched=1000, messages=100, active=1e6)
>>> peak_of(config, data, nn.Linear(16, 32), held=held) > INTERPRETER
True
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data

from topoff.forward.lockstep import LARGE
from topoff.forward.parking import LIMIT
from topoff.training.config import Config

INTERPRETER = 450 * 2**20  # bytes of Python, torch and PyG before anything is loaded
ACTIVE = 10  # matrices of a layer's rows that a step holds: outputs, gradients, what backward needs
ACTIVE_CUT = 8  # the same for batches that are cut anew, which are let go of as they are used
MESSAGE = 5  # copies of a message that a general conv holds: what is read, weighed, and their gradients
ASLEEP = 3  # such matrices that a batch of exact inference holds while others run
HISTORIES = ("gas", "lmc", "graphfm-ob", "graphfm-ib", "vrgcn")  # keep what the layers of all nodes last were
AROUND = ("gas", "lmc", "graphfm-ob")  # of these, those whose batches read all nodes around them
CUT_ANEW = ("ns", "labor", "labor-star", "graphfm-ib", "vrgcn", "fastgcn", "ladies", "adapt", "shadow", "shadow-ppr")
ENTRY = 24  # bytes of a message in an operator that is cut: column and value, inside also of its transpose, and edges
PARTITION = 16  # bytes per edge while the graph is merged for the partitioner
WEIGHED = 16  # bytes per edge of an operator with a value for each: column, value in float64, and on the way there


@dataclass(frozen=True)
class Held:
    """Count what batches hold, over all of them."""

    batches: int
    batched: int  # nodes that are in batches
    messages: float  # that arrive at them from inside
    active: float  # bytes of the layers of one batch
    summed: float = 0.0  # messages of one batch that a general conv makes, over all layers


def peak_of(config: Config, data: Data, model: nn.Module, *, held: Held) -> int:
    """Estimate the peak memory of training and its exact evaluations, in bytes."""
    known = [parameter for parameter in model.parameters() if not is_lazy(parameter)]
    widths = [parameter.size(0) for parameter in known if parameter.dim() == 2]
    row = int(data.x.element_size()) * max(widths, default=1)  # bytes of a layer's row
    weights = 5 * int(data.x.element_size()) * sum(parameter.numel() for parameter in known)
    step = (ACTIVE_CUT if config.method in CUT_ANEW else ACTIVE) * held.active
    step += MESSAGE * held.summed * row
    if config.method in AROUND:  # rows of the halo, read from histories, and their gradients
        halo = held.batched / held.batches * data.edge_index.size(1) / max(1, int(data.num_nodes or 0))
        step += 4 * row * min(int(data.num_nodes or 0), halo)
    if config.method == "full":
        return int(INTERPRETER + _graph(data) + ENTRY * data.edge_index.size(1) + weights + step)
    cut = config.batches in ("kaminpar", "metis") and held.batches > 1
    least = PARTITION * data.edge_index.size(1) if cut else 0
    peak = max(step, _exact(config, data, row), least)
    return int(INTERPRETER + _graph(data) + weights + _kept(config, data, held, row) + peak)


def _graph(data: Data) -> int:
    """Return the bytes of features and edges, and of the edges by receiver where they are not sorted so themselves."""
    edges = data.edge_index
    again = 0 if edges.dtype == torch.int32 else 8  # a copy of the senders, and their order
    return int(data.x.numel() * data.x.element_size() + edges.numel() * edges.element_size() + again * edges.size(1))


def _exact(config: Config, data: Data, row: int) -> int:
    """Return the bytes of exact inference: the matrix that is exchanged, and what sleeping batches hold."""
    nodes = int(data.num_nodes or 0)
    features = data.x.size(1) * int(data.x.element_size())
    layers = ASLEEP + config.layers * has_jk(config) + config.model.startswith("gcnii")
    asleep = nodes * (row * layers + features)
    return int(nodes * row + (asleep if nodes < LARGE else min(asleep, LIMIT)))


def has_jk(config: Config) -> bool:
    """Whether all layers are held to the end."""
    return config.jk or config.model.endswith("-jk")


def _kept(config: Config, data: Data, held: Held, row: int) -> float:
    """Return the bytes of all batches, where they are cut once, and of what a method remembers."""
    nodes, size = int(data.num_nodes or 0), int(data.x.element_size())
    hidden = max(1, config.layers - 1)
    kept, edges = float(nodes * row * hidden) if config.method in HISTORIES else 0.0, int(data.edge_index.size(1))
    if config.method in CUT_ANEW:
        return kept + WEIGHED * edges
    arriving = held.messages if config.method == "cluster" else held.batched * edges / max(1, nodes)
    kept += ENTRY * arriving * (2 if config.method in AROUND else 1) + 2 * held.batched * int(data.x.size(1)) * size
    if config.method == "top":
        rank = config.rank if isinstance(config.rank, int) else 0
        seen = min(nodes, 2 * held.batched)  # rows of embeddings that an estimate keeps, besides offsets
        kept += hidden * (held.batched + seen) * row + 3 * held.batched * rank * size
    return kept
