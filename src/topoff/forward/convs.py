"""What each layer of a PyG model needs, and how to stand in for its message passing: the one place that knows PyG.

A conv is *linear* when its messages are the neighbour's row times a fixed weight: then only its `propagate` is
replaced, by one product with the global operator. Every other conv is *general*: its whole forward is replaced, by the
same forward on more rows and more edges. A *norm* over all nodes needs their sums. A `Handler` (`intercept`) stands in
for each of them and leaves no trace behind.

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
from topoff.forward.refusals import refuse_global
from topoff.graph.operators import Operator
from topoff.models.decoupled import Powers

EDGE_VALUES = ("edge_weight", "edge_attr")  # the edge-level attributes of a graph that a conv may be given


@dataclass(frozen=True)
class Conv:
    """Describe one module of a model that reads more than the row of a node."""

    name: str  # as in model.named_modules()
    module: nn.Module
    path: str  # "linear" or "general"; of norms "norm" (over all nodes) or "batch" (over the batch, in training)
    operators: dict[str | None, Operator] = field(default_factory=dict)  # of a linear conv, by its edge values
    transforms_first: bool = False  # the weight matrix comes before `propagate` (GCNConv): see its input at the conv
    parameters: tuple[str, ...] = ()  # names of forward's positional parameters
    local: bool = False  # known to read nothing of the graph but the edges that bring messages to a node
    normalizes: bool = False  # a linear conv normalises the edges that it is given, unless `normalize` is False

    def __repr__(self) -> str:
        return f"{type(self.module).__name__} '{self.name}'"


def _gcn(conv: Any, *, loops: bool | None = None) -> dict[str, Any]:
    """Return the operator's settings for GCN's normalisation."""
    if not getattr(conv, "normalize", True):
        return {}
    loops = conv.add_self_loops if loops is None else loops
    return {"norm": "gcn", "self_loops": bool(loops), "improved": bool(getattr(conv, "improved", False))}


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
    gnn.APPNP: _gcn,
    gnn.ClusterGCNConv: _cluster,
    gnn.SimpleConv: _simple,
    gnn.SAGEConv: lambda conv: {},
    gnn.GraphConv: lambda conv: {},
    gnn.GINConv: lambda conv: {},
    gnn.GatedGraphConv: lambda conv: {},
    Powers: _gcn,
}
TRANSFORMS_FIRST = (gnn.GCNConv,)
NORMALIZING = (gnn.GCNConv, gnn.GCN2Conv, gnn.TAGConv, gnn.LGConv, gnn.APPNP)
OVERRIDES = {"forward", "message", "aggregate", "update", "propagate", "message_and_aggregate", "edge_update"}

# General convs whose sources were read: a node's output depends on the rows and values of its incoming edges alone.
# Any other conv is watched while it runs (see `watch`), and gets more edges where it computes with them itself.
LOCAL: set[type[MessagePassing]] = {
    *(gnn.SAGEConv, gnn.GraphConv, gnn.GINConv, gnn.GINEConv, gnn.GatedGraphConv, gnn.GENConv, gnn.GeneralConv),
    *(gnn.GATConv, gnn.GATv2Conv, gnn.TransformerConv, gnn.AGNNConv, gnn.FeaStConv, gnn.SuperGATConv, gnn.HEATConv),
    *(gnn.PNAConv, gnn.NNConv, gnn.ResGatedGraphConv, gnn.CGConv, gnn.GMMConv, gnn.EdgeConv, gnn.LEConv, gnn.MFConv),
    *(gnn.RGCNConv, gnn.FastRGCNConv, gnn.RGATConv, gnn.FiLMConv, gnn.WLConvContinuous, gnn.SimpleConv),
    *(gnn.PointNetConv, gnn.PointTransformerConv, gnn.PointGNNConv, gnn.PPFConv),
}
ALL_NODES = ("GraphNorm", "PairNorm", "InstanceNorm", "MeanSubtractionNorm", "GraphSizeNorm")  # norms over all nodes


def describe(model: nn.Module) -> list[Conv]:
    """List the convs of a model in the order of its modules, and its norms over nodes.

    Raises:
        ValueError: where a module cannot be batched (attention over all nodes, pooling), with the reason.
    """
    found = []
    for name, module in plain(model).named_modules():
        refuse_global(name, module)
        if isinstance(module, MessagePassing):
            found.append(_describe_one(name, module))
        elif _is_norm(module):
            found.append(Conv(name, module, "norm", parameters=_parameters(module)))
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            found.append(Conv(name, module, "batch", parameters=_parameters(module)))
    if not any(isinstance(conv.module, MessagePassing) for conv in found):
        raise ValueError(
            f"Expected a model with at least one PyG MessagePassing layer (got {type(plain(model)).__name__} with "
            f"none): write a layer that sums over neighbours in another way as a MessagePassing; a model that reads no "
            f"neighbours needs no topoff."
        )
    return found


def _is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm over all nodes: one of PyG's, or a batch norm without running statistics."""
    if isinstance(module, gnn.LayerNorm):
        return bool(module.mode == "graph")
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
        return True  # in eval mode
    return type(module).__module__.startswith("torch_geometric.") and type(module).__name__ in ALL_NODES


def _parameters(module: nn.Module) -> tuple[str, ...]:
    return tuple(inspect.signature(type(module).forward).parameters)[1:]


def _describe_one(name: str, module: MessagePassing) -> Conv:
    """Say what one conv needs: its path and, where it is linear, its operators."""
    parameters, known = _parameters(module), _known(module)
    if known is None or not _is_linear(known, module):
        local = known in LOCAL and not _is_hooked(module)
        return Conv(name, module, "general", parameters=parameters, local=local)
    aggr = {"add": "sum"}.get(str(module.aggr), str(module.aggr))
    settings = {"aggr": aggr, "flow": module.flow, **LINEAR[known](module)}
    operators = {weight: Operator(**settings, weight=weight) for weight in (None, *EDGE_VALUES)}
    facts: dict[str, Any] = {"transforms_first": isinstance(module, TRANSFORMS_FIRST), "local": known in LOCAL}
    facts["normalizes"] = isinstance(module, NORMALIZING) and bool(vars(module).get("normalize"))
    return Conv(name, module, "linear", operators, parameters=parameters, **facts)


def _known(module: MessagePassing) -> type[MessagePassing] | None:
    """Return the class that we know whose messages a conv has; a subclass that changes them is unknown."""
    for kind in type(module).__mro__:
        if kind in LINEAR or kind in LOCAL:
            return kind
        generated = vars(kind).get("_jinja_propagate")  # PyG writes it into every class
        if any(name in OVERRIDES and value is not generated for name, value in vars(kind).items()):
            return None
    return None


def _is_linear(known: type[MessagePassing], module: Any) -> bool:
    """Whether the messages of a known conv are fixed multiples of rows; not with max aggregation or edge dropout.

    What GCNConv does before it propagates must be linear, too: its weight matrix may have been replaced.
    """
    if known not in LINEAR or not isinstance(module.aggr, str) or module.aggr not in ("add", "sum", "mean"):
        return False
    if (isinstance(module, gnn.APPNP) and module.dropout > 0) or _is_hooked(module):
        return False
    return not isinstance(module, TRANSFORMS_FIRST) or _is_matrix(module.lin)


def _is_hooked(module: Any) -> bool:
    """Whether a user's function is hooked into the message passing of a conv, or an explainer is."""
    steps = ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    hooks = [getattr(module, f"_{step}_forward{when}_hooks", None) for step in steps for when in ("_pre", "")]
    return any(hooks) or bool(getattr(module, "explain", False))


def _is_matrix(layer: nn.Module) -> bool:
    """Whether a layer multiplies with a matrix and does nothing else."""
    hooked = layer._forward_hooks or layer._forward_pre_hooks
    return isinstance(layer, nn.Linear | gnn.Linear) and layer.bias is None and not hooked
