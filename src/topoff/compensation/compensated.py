"""Make an unmodified PyG model use a batch's compensation, so that its output is the whole graph's at batch cost.

The whole method is one line: `out + spread @ (read @ h)` (Eq. 13), added where the halo's messages would arrive.

>>> import torch
>>> from torch_geometric.nn import GCN
>>> from topoff import TOP, load
>>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
>>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
>>> model = GCN(3, 4, num_layers=2, out_channels=2)
>>> batch = next(iter(TOP(model, data, ratio=0.5, rank=2, batches="random")))
>>> with compensating(model, batch):
...     out = model(batch.x, batch.edge_index)
>>> out.shape
torch.Size([10, 2])
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.factors import Compensation
from topoff.forward.call import plain
from topoff.forward.convs import Conv, describe
from topoff.forward.recompute import bind_in_backward
from topoff.forward.structure import Spot
from topoff.forward.subgraph import Subgraph
from topoff.graph.operators import Operator, multiply


class Compensated(Subgraph):
    """Stand in for a model's message passing with A[B,B], and the compensation of the batch for all outside.

    With offsets messages are added up `before_weights`: those of old embeddings meet the weights of today.
    """

    def __init__(self, convs: list[Conv], *, offset: bool = False) -> None:
        super().__init__(convs)
        self.before_weights = self.by_place = offset

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        """Return A[B,B] h + A[B,C] R h, the second term as spread (read h) on the boundary rows (Eq. 13); (b, d).

        What it missed of the last exact embeddings is added, where that is known: the offset.
        """
        spot: Spot = self.batch.supplement.structure.spots[operator]
        compensation: Compensation | None = self.batch.get("compensation")
        offset = None if compensation is None else compensation.offsets.get((place, operator))
        if compensation is None or spot.boundary.numel() == 0 or (compensation.read.size(0) == 0 and offset is None):
            return super().aggregate(place, operator, h)
        factors = compensation.apart.get(place, compensation)
        within, spread, read = spot.within, factors.spread[operator], factors.read
        columns = h if h.dim() == 2 else h.reshape(len(h), -1)
        given = columns, within, spot.boundary, spread, read, factors.anchors, offset
        out: Tensor = _Compensate.apply(*given)  # type: ignore[no-untyped-call]
        return out if h.dim() == 2 else out.view(h.shape)

    def virtual(self, place: str, flow: str, h: Tensor) -> Tensor:
        """Return R h in the place of the halo's rows of an embedding h (b, d); zeros without compensation; (c, d)."""
        compensation: Compensation | None = self.batch.get("compensation")
        if compensation is None:
            return super().virtual(place, flow, h)
        with torch.autocast(h.device.type, enabled=False):
            factors = compensation.apart.get(place, compensation)
            flat = factors.halo[flow] @ factors.summary(h.reshape(h.size(0), -1))
            if (place, flow) in compensation.offsets:
                flat = flat.add_(compensation.offsets[place, flow])
        return flat.view(-1, *h.shape[1:]).to(h.dtype)


class _Compensate(torch.autograd.Function):
    """One node of the graph for both terms: nothing is copied, and the backward pass is two thin products too.

    In mixed precision both are taken in the compensation's own type; the sum has that of PyG's messages.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        within: Any,
        boundary: Tensor,
        spread: Tensor,
        read: Tensor,
        anchors: Tensor | None,
        offset: Tensor | None,
    ) -> Tensor:
        """Return A[B,B] h + spread (read h) + offset, and keep what the gradient needs."""
        ctx.save_for_backward(within.ids_t, within.offsets_t, within.values_t, boundary, spread, read, anchors)
        rows = h.to(read.dtype)
        out = multiply(within.ids, within.offsets, within.values, rows)
        with torch.autocast(h.device.type, enabled=False):
            summary = read @ (rows if anchors is None else rows[anchors])
            if len(boundary) == len(out):  # in place: a pass over the rows is what this costs
                out = out.addmm_(spread, summary) if offset is None else out.addmm_(spread, summary).add_(offset)
            else:
                extra = spread @ summary if offset is None else torch.addmm(offset, spread, summary)
                out = out.index_add_(0, boundary, extra)
        return out.to(torch.promote_types(within.weighs or h.dtype, h.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient in h, A[B,B]^T grad + read^T (spread^T grad); all else is constant."""
        ids_t, offsets_t, values_t, boundary, spread, read, anchors = ctx.saved_tensors
        rows = grad.to(read.dtype)
        out = multiply(ids_t, offsets_t, values_t, rows)
        with torch.autocast(grad.device.type, enabled=False):
            summary = spread.T @ (rows if len(boundary) == len(rows) else rows.index_select(0, boundary))
            out = out.addmm_(read.T, summary) if anchors is None else out.index_add_(0, anchors, read.T @ summary)
        return out, None, None, None, None, None, None  # autograd gives it h's type


@contextmanager
def compensating(model: nn.Module, batch: Data) -> Iterator[Data]:
    """Let the model see the whole graph through a batch of a `Loader`, inside `with`; for loops of your own.

    It yields what to call the model with: the batch, or one with more rows for a model that reads edges itself.

    Raises:
        ValueError: at the end, where parts of the model that backward computes again were called without the model.
    """
    plan = batch.supplement.plan if "supplement" in batch else None
    bound = {conv.name for conv in plan.convs} if plan else set()
    compensation: Compensation | None = batch.get("compensation")
    convs = [conv for conv in describe(model) if not bound or conv.name in bound]
    handler = Compensated(convs, offset=compensation is not None and bool(compensation.offsets))

    def remember(_: nn.Module, given: Any, out: Any) -> None:
        """Bind the model again where its backward pass needs that."""
        if handler.recomputes:
            bind_in_backward(plain(model), handler, batch, out=out)

    hook = model.register_forward_hook(remember)
    try:
        with handler.on(batch) as seen:
            yield seen
    finally:
        hook.remove()
    if handler.recomputes:
        raise ValueError(
            "Expected the model itself to be called in `with compensating(...)` (got calls of parts of it that "
            "backward computes again, such as checkpointing): call the model, or run its parts under torch.no_grad()."
        )
