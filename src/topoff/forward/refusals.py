"""Layers of PyG that no batch can reproduce, each refused by name, with the true reason and what to do instead.

>>> from torch_geometric.nn import GCNConv, GPSConv
>>> refuse_global("conv", GPSConv(8, GCNConv(8, 8), heads=1), running=True)
Traceback (most recent call last):
ValueError: Expected layers that read a node's neighbours (got GPSConv 'conv', which attends over all nodes): use its \
local conv without the attention.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

ATTENTION = ("attends over all nodes", "use the model's local convs without the attention")
HETERO = ("works on several node types", "use a homogeneous model; types of nodes and edges may be its features")
DYNAMIC = ("builds its edges from the rows of all nodes", "build the edges once and use a conv on them")
POOLING = ("pools nodes into fewer ones", "pool outside of the model")
PADDING = (
    "reads the zeros that fill each node's neighbours up to the largest number in the graph",
    "use another aggregation, such as 'softmax' or 'median'",
)
WHOLE_TABLE = ("has a weight for every node of the graph", "use a model whose weights do not depend on the graph")

# By the names of PyG's classes: (what it does, what to do instead).
GLOBAL = {
    "GPSConv": (ATTENTION[0], "use its local conv without the attention"),
    **dict.fromkeys(("SGFormer", "SGFormerAttention", "PolynormerAttention"), ATTENTION),
    **dict.fromkeys(("PerformerAttention", "QFormer"), ATTENTION),
    **dict.fromkeys(("HGTConv", "HANConv", "HeteroConv"), HETERO),
    **dict.fromkeys(("DynamicEdgeConv", "GravNetConv", "XConv"), DYNAMIC),
    **dict.fromkeys(("TopKPooling", "SAGPooling", "ASAPooling", "EdgePooling", "PANPooling", "MemPooling"), POOLING),
    **dict.fromkeys(("ClusterPooling", "GraphUNet"), POOLING),
    **dict.fromkeys(("LINKX", "LightGCN", "SparseLinear"), WHOLE_TABLE),
    **dict.fromkeys(("LSTMAggregation", "GRUAggregation"), PADDING),
    "HypergraphConv": ("passes messages over hyperedges, which are no nodes", "expand the hypergraph to a graph"),
    "WLConv": ("refines integer colours and learns nothing", "use WLConvContinuous, or colour the nodes beforehand"),
    "PANConv": ("weighs paths of several hops at once", "use one conv per hop"),
    "TGNMemory": ("keeps a memory of every node", "train it with PyG's temporal loaders"),
}


@contextmanager
def refusing_global(model: nn.Module) -> Iterator[None]:
    """Refuse layers over all nodes as soon as they run, inside `with`."""
    hooks = [
        module.register_forward_pre_hook(lambda module, _, name=name: refuse_global(name, module, running=True))
        for name, module in model.named_modules()
        if type(module).__name__ in GLOBAL
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def refuse_global(name: str, module: nn.Module, *, running: bool = False) -> None:
    """Raise for a layer of PyG that no batch can reproduce; for attention, only where it is `running`.

    A model may hold attention that it does not use (yet): Polynormer's local stage is welcome.

    Raises:
        ValueError: with what the layer does, and what to do instead.
    """
    kind = type(module).__name__
    if kind in GLOBAL and type(module).__module__.startswith("torch_geometric."):
        reason, remedy = GLOBAL[kind]
        if reason == ATTENTION[0] and not running:
            return
        place = f"{kind} '{name}'" if name else kind
        raise ValueError(f"Expected layers that read a node's neighbours (got {place}, which {reason}): {remedy}.")
