"""Exact inference of any unmodified model on the whole graph, batch by batch, in lockstep.

Batches run in lockstep, or where memory does not suffice for that, one after the other from disk.

>>> import torch
>>> from torch_geometric.nn import GCN
>>> from torch_geometric.data import Data
>>> ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]]))
>>> model = GCN(4, 8, num_layers=3, out_channels=2).eval()
>>> graph, plan = Graph(ring), Plan([], (), ())
>>> out = exact(model, graph, [graph.induced(torch.tensor([0, 1])), graph.induced(torch.tensor([2, 3]))], plan=plan)
>>> torch.allclose(out, model(ring.x, ring.edge_index), atol=1e-6)
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import Call, device_of, plain
from topoff.forward.convs import describe
from topoff.forward.foreign import raise_broken
from topoff.forward.lockstep import Lockstep, Remember
from topoff.forward.norms import Moments
from topoff.forward.plan import Plan
from topoff.forward.replay import Replay
from topoff.graph.graph import Graph


def exact(
    model: nn.Module,
    graph: Graph,
    batches: Sequence[Data] | Sequence[Tensor],
    *,
    plan: Plan,
    call: Call | None = None,
    remember: Remember | None = None,
    moments: dict[str, Moments] | None = None,
    last: str | None = None,
    lockstep: Callable[..., Lockstep] | None = None,
) -> Any:
    """Return the model's output for every node, equal to the full-batch forward in eval mode; (n, out).

    Where the model returns several tensors, so does this; where it ends at the `last` place, None.

    Args:
        model: any PyG model; its mode and parameters are left as they are.
        graph: the whole graph.
        batches: node sets that hold every node once, or `graph.induced(nodes)` of them; their size bounds the memory.
        plan: what the model needs, from `make_plan`.
        call: how to call the model on a batch, where its arguments cannot be filled by name.
        remember: told the (n, d) input of every propagation, but for raw features (see `Remember`).
        moments: filled with what norms over all nodes see, by place.
        last: the place whose input is the last that anybody wants; nothing behind it is computed.
        lockstep: what runs the batches; `SharedLockstep` where other processes run others.

    On a graph with a shelf, where matrices over all nodes do not fit in memory, batches run one after the other, again
    for every propagation (see `replay`), to the same bits; with a model on the CPU alone.

    Raises:
        ValueError: for a model that cannot be batched, with the reason.
    """
    model = plain(model)
    device, convs = device_of(model, graph.data.x), describe(model)
    on_disk = graph.shelf is not None and device.type == "cpu"
    steps = (lockstep or (Replay if on_disk else Lockstep))(convs, graph, batches, plan, device=device)
    steps.remember, steps.moments, steps.last = remember, moments, last
    try:
        return steps.run_model(model, call)
    except Exception as error:
        raise_broken(error, steps.awake.size)
