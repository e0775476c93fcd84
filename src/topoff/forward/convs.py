"""What each conv of a PyG model needs, and how to stand in for its message passing: the one place that knows PyG.

A conv is *linear* when its messages are the neighbour's row times a fixed weight: then only its `propagate` is
replaced, by one product with the global operator. Every other conv is *general*: its whole forward is replaced, by the
same forward on more rows and more edges. A `Handler` (`intercept`) stands in at both places and leaves no trace behind.

>>> from torch_geometric.nn import GCN, GAT
>>> [(conv.name, conv.path) for conv in describe(GCN(8, 16, num_layers=2))]
[('convs.0', 'linear'), ('convs.1', 'linear')]
>>> [conv.path for conv in describe(GAT(8, 16, num_layers=2))]
['general', 'general']
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch_geometric.nn as gnn
from torch import nn
from torch_geometric.nn import MessagePassing

from topoff.forward.call import plain
from topoff.graph.operators import Operator
from topoff.models.decoupled import Powers

EDGE_VALUES = ("edge_weight", "edge_attr")  # the edge-level attributes of a graph that a conv may be given


@dataclass(frozen=True)
class Conv:
    """Describe one message-passing module of a model."""

    name: str  # as in model.named_modules()
    module: MessagePassing
    path: str  # "linear" or "general"
    operators: dict[str | None, Operator]  # by the edge values that weigh the messages; empty on the general path
    transforms_first: bool  # the weight matrix comes before `propagate` (GCNConv), so its input is seen at the conv
    parameters: tuple[str, ...] = field(default=())  # names of forward's positional parameters

    def __repr__(self) -> str:
        return f"{type(self.module).__name__} '{self.name}'"


def _gcn(conv: Any, *, loops: bool | None = None) -> dict[str, Any]:
    """Return the operator's settings for GCN's normalisation."""
    if not getattr(conv, "normalize", True):
        return {}
    loops = conv.add_self_loops if loops is None else loops
    return {"norm": "gcn", "self_loops": bool(loops), "improved": bool(getattr(conv, "improved", False))}


def _appnp(conv: Any) -> dict[str, Any]:
    """Return those of APPNP; refuse its edge dropout."""
    if conv.dropout > 0:
        raise ValueError(
            f"Expected APPNP without edge dropout (got dropout={conv.dropout}): a batch has one fixed operator; "
            f"set dropout=0 in APPNP and drop features instead."
        )
    return _gcn(conv)


def _cluster(conv: Any) -> dict[str, Any]:
    return {"norm": "cluster", "self_loops": conv.add_self_loops, "diag_lambda": float(conv.diag_lambda)}


def _simple(conv: Any) -> dict[str, Any]:
    return {"self_loops": conv.combine_root == "self_loop"}


# What each linear conv multiplies its operand with: PyG's own arithmetic, read from its sources.
LINEAR: dict[type[MessagePassing], Callable[[Any], dict[str, Any]]] = {
    gnn.GCNConv: _gcn,
    gnn.GCN2Conv: _gcn,
    gnn.SGConv: _gcn,
    gnn.SSGConv: _gcn,
    gnn.MixHopConv: _gcn,
    gnn.TAGConv: lambda conv: _gcn(conv, loops=False),
    gnn.LGConv: lambda conv: _gcn(conv, loops=False),
    gnn.APPNP: _appnp,
    gnn.ClusterGCNConv: _cluster,
    gnn.SimpleConv: _simple,
    gnn.SAGEConv: lambda conv: {},
    gnn.GraphConv: lambda conv: {},
    gnn.GINConv: lambda conv: {},
    gnn.GatedGraphConv: lambda conv: {},
    Powers: _gcn,
}
TRANSFORMS_FIRST = (gnn.GCNConv,)
OVERRIDES = {"forward", "message", "aggregate", "update", "propagate", "message_and_aggregate", "edge_update"}

# Modules whose output at one node depends on all nodes of the batch, with the reason that users are told.
GLOBAL = {
    "GraphNorm": "normalises over all nodes",
    "PairNorm": "normalises over all nodes",
    "InstanceNorm": "normalises over all nodes",
    "MeanSubtractionNorm": "subtracts the mean over all nodes",
    "DiffGroupNorm": "normalises over all nodes",
    "GraphSizeNorm": "divides by the number of nodes",
    "GPSConv": "attends over all nodes",
}
REMEDY = "use a per-node norm such as torch.nn.LayerNorm or LayerNorm(mode='node'), or BatchNorm"


def describe(model: nn.Module) -> list[Conv]:
    """List the convs of a model in the order of its modules.

    Raises:
        ValueError: where a module cannot be batched (a norm over all nodes, edge dropout), with the reason.
    """
    convs = []
    for name, module in plain(model).named_modules():
        _refuse_global(name, module)
        if isinstance(module, MessagePassing):
            convs.append(_describe_one(name, module))
    if not convs:
        raise ValueError(
            f"Expected a model with at least one PyG MessagePassing layer (got {type(plain(model)).__name__} with "
            f"none): a model without message passing needs no compensation, train it with a plain DataLoader."
        )
    return convs


def _refuse_global(name: str, module: nn.Module) -> None:
    """Raise for a layer that mixes all nodes, which no batch can reproduce."""
    kind = type(module).__name__
    graph_mode = isinstance(module, gnn.LayerNorm) and module.mode == "graph"
    reason = "normalises over all nodes with mode='graph'" if graph_mode else None
    if type(module).__module__.startswith("torch_geometric"):
        reason = reason or GLOBAL.get(kind)
    if reason:
        raise ValueError(f"Expected layers that act per node (got {kind} '{name}', which {reason}): {REMEDY}.")


def _describe_one(name: str, module: MessagePassing) -> Conv:
    """Say what one conv needs: its path and, where it is linear, its operators."""
    parameters = tuple(inspect.signature(type(module).forward).parameters)[1:]
    rule = _linear_rule(module)
    if rule is None:
        return Conv(name, module, "general", {}, transforms_first=False, parameters=parameters)
    aggr = {"add": "sum"}.get(str(module.aggr), str(module.aggr))
    settings = {"aggr": aggr, "flow": module.flow, **rule(module)}
    operators = {weight: Operator(**settings, weight=weight) for weight in (None, *EDGE_VALUES)}
    first = isinstance(module, TRANSFORMS_FIRST)
    return Conv(name, module, "linear", operators, transforms_first=first, parameters=parameters)


def _linear_rule(module: MessagePassing) -> Callable[[Any], dict[str, Any]] | None:
    """Return the rule of a linear conv; a subclass that changes the messages has none, nor has max aggregation."""
    if not isinstance(module.aggr, str) or module.aggr not in ("add", "sum", "mean"):
        return None
    for kind in type(module).__mro__:
        if kind in LINEAR:
            return LINEAR[kind]
        generated = vars(kind).get("_jinja_propagate")  # PyG writes it into every class
        if any(name in OVERRIDES and value is not generated for name, value in vars(kind).items()):
            return None
    return None
