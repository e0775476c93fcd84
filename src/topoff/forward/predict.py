"""Exact prediction for every node of a graph, without any training around it."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.data.check import check_graph
from topoff.forward.arguments import settle
from topoff.forward.call import Call, in_precision, plain
from topoff.forward.exact import exact
from topoff.forward.room import graph_for
from topoff.forward.trial import make_plan
from topoff.machine.notices import notify


def predict(
    model: nn.Module,
    data: Data,
    *,
    ratio: float = 0.1,
    batches: str = "kaminpar",
    seed: int = 0,
    memory: float | None = None,
    call: Call | None = None,
) -> Any:
    """Return the model's exact output for every node of a graph, batch by batch, without TOP; (n, out).

    `memory` are the GiB that may be taken, by default what is free; beyond, matrices over all nodes lie on disk.

    >>> import torch
    >>> from torch_geometric.nn import GCN
    >>> graph = Data(x=torch.rand(4, 3), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
    >>> predict(GCN(3, 8, num_layers=2, out_channels=2), graph, ratio=0.5, batches="random").shape
    torch.Size([4, 2])
    """
    data = in_precision(model, data, check_graph(data))
    if call is None:
        notify(settle(plain(model), data).line)
    sets = NodeSets(method=batches, ratio=ratio, seed=seed).fit(data)
    graph = graph_for(plain(model), data, memory=memory)
    plan = make_plan(model, graph, call=call)
    return exact(model, graph, sets.cover(), plan=plan, call=call)
