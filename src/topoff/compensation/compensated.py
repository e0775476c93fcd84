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

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.estimator import Compensation
from topoff.forward.convs import Conv, describe
from topoff.forward.intercept import Interception, edge_values_of, extended, first_input, without_edges
from topoff.forward.plan import Plan, Spot, Structure
from topoff.graph.operators import Operator, multiply

Collect = Callable[[Conv, int, Tensor], None]


@dataclass(frozen=True)
class Supplement:
    """Hold what a batch carries besides its own rows and edges: enough to stand for the whole graph."""

    plan: Plan
    structure: Structure
    compensation: Compensation | None  # None: the halo is left out

    def __repr__(self) -> str:
        if self.compensation is None:
            return "Supplement(none)"
        return f"Supplement(rank={self.compensation.rank})"

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Supplement:
        """Move to a device (PyG's `Data.to` calls this)."""
        compensation = None if self.compensation is None else self.compensation.to(device)
        return Supplement(self.plan, self.structure.to(device), compensation)


class Compensated:
    """Stand in for a model's message passing with the supplement of the current batch; a `Handler` for its convs.

    A subclass that knows the halo from elsewhere (histories) overrides `aggregate` and `virtual`. Both are told the
    place of the propagation in the forward: the conv, its call and the hop inside it.
    """

    before_weights = False  # `aggregate` takes what a conv reads, before its weight matrix: (A H) W = A (H W)

    def __init__(self, convs: list[Conv]) -> None:
        """Prepare the interception once; batches come later, with `on`."""
        self.batch: Data = Data()
        self.collect: Collect | None = None  # told the (b, d) rows that each conv reads
        self._interception = Interception(convs, self)
        self._operator = Operator()
        self._hop = 0
        self._known = 0  # propagations of the running conv that see only the features
        self._calls: dict[str, int] = {}  # of each conv in this forward
        self._exact = False  # the running conv reads the batch's own features, not a dropped-out copy
        self._aggregated = False  # the running conv was given its aggregated input
        self._conv = ""  # name and call of the running conv

    @contextmanager
    def on(self, batch: Data) -> Iterator[None]:
        """Bind the model to a batch inside `with`."""
        if "supplement" not in batch:
            raise ValueError(
                "Expected a batch of a TOP or Loader (got a Data without its supplement): use `for batch in top`."
            )
        self.batch, self._calls = batch, {}
        with self._interception:
            yield

    def convolve(self, conv: Conv, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a conv on the batch as it would run on the whole graph."""
        supplement: Supplement = self.batch.supplement
        call = self._calls.get(conv.name, 0)
        self._calls[conv.name], self._conv, self._aggregated = call + 1, f"{conv.name}/{call}", False
        self._known = supplement.plan.constant_of(conv, call)
        constant = self._known > 0
        x = first_input(conv, args, kwargs)
        self._hop = 0
        if self.collect and conv.transforms_first and not constant and x is not self.batch.x:
            self.collect(conv, 0, x)
        if conv.path == "general":
            return self._general(conv, forward, args, kwargs, raw=x if constant else None)
        self._operator = conv.operators[edge_values_of(conv, self.batch, args, kwargs)]
        if self._operator not in supplement.structure.spots:
            raise ValueError(
                f"Expected {conv} to weigh its edges in training as in eval mode (got other edge weights): give it the "
                f"same edge_weight in both."
            )
        self._exact = constant and x is self.batch.x
        given = without_edges(conv, args, kwargs)
        if constant and conv.transforms_first:
            chain = (self._operator,)
            structure = supplement.structure
            given["x"] = structure.constants[chain] if self._exact else torch.cat([x, structure.halo_constant(chain)])
        elif self.before_weights and conv.transforms_first:
            given["x"], self._aggregated = self.aggregate(f"{self._conv}/0", self._operator, x), True
        return forward(**given)

    def _general(
        self, conv: Conv, forward: Callable[..., Any], args: Any, kwargs: Any, *, raw: Tensor | None
    ) -> Tensor:
        """Append virtual rows for the halo (9), (10); they live inside this conv only."""
        supplement: Supplement = self.batch.supplement
        flow = conv.module.flow

        def halo_rows(h: Tensor) -> Tensor:
            """Return the rows (c, d) that stand in for the halo of an embedding h (b, d)."""
            if self.collect and h is not self.batch.x:  # exact inference exchanges the same tensors
                self.collect(conv, self._hop, h)
            place, self._hop = f"{self._conv}/{self._hop}", self._hop + 1
            return self.virtual(place, flow, h)

        around, exact = supplement.structure.around[flow], supplement.plan.exact_features
        return extended(conv, self.batch, around, halo_rows, raw, exact).run(forward, args, kwargs)

    def virtual(self, place: str, flow: str, h: Tensor) -> Tensor:
        """Return what stands in for the halo's rows of an embedding h (b, d): R h, or zeros to leave it out; (c, d)."""
        supplement: Supplement = self.batch.supplement
        if supplement.compensation is None:
            return h.new_zeros((supplement.structure.around[flow].halo.numel(), *h.shape[1:]))
        compensation = supplement.compensation
        flat = compensation.halo[flow] @ compensation.summary(h.reshape(h.size(0), -1))
        return flat.view(-1, *h.shape[1:])

    def propagate(self, conv: Conv, operand: Tensor) -> Tensor:
        """Return the aggregated operand, or the known product where the operand is the features."""
        if self._aggregated:
            return operand
        structure: Structure = self.batch.supplement.structure
        hop, self._hop = self._hop, self._hop + 1
        spot = structure.spots[self._operator]
        if hop < self._known:
            chain = (self._operator,) * (hop + 1)
            if self._exact:
                # a copy: some convs (GCN2Conv) write into what they are given
                return operand if conv.transforms_first else structure.constants[chain].clone()
            if conv.transforms_first:
                return spot.within @ operand[: len(structure.nodes)] + operand[len(structure.nodes) :]
            return spot.within @ operand + structure.halo_constant(chain)
        if self.collect and not conv.transforms_first and operand is not self.batch.x:
            self.collect(conv, hop, operand)
        return self.aggregate(f"{self._conv}/{hop}", self._operator, operand)

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        """Return A[B,B] h + A[B,C] R h; (b, d)."""
        supplement: Supplement = self.batch.supplement
        return compensate(supplement.structure.spots[operator], supplement.compensation, h, operator=operator)


def compensate(spot: Spot, compensation: Compensation | None, h: Tensor, *, operator: Operator) -> Tensor:
    """Return A[B,B] h + spread (read h), the second term on the boundary rows (Eq. 13); differentiable in h."""
    if compensation is None or compensation.read.size(0) == 0 or spot.boundary.numel() == 0:
        return spot.within @ h
    spread = compensation.spread[operator]
    out: Tensor = _Compensate.apply(  # type: ignore[no-untyped-call]
        h, *spot.within.tensors, spot.boundary, spread, compensation.read, compensation.anchors
    )
    return out


class _Compensate(torch.autograd.Function):
    """One node of the graph for both terms: nothing is copied, and the backward pass is two thin products too."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, ids: Tensor, offsets: Tensor, values: Tensor, ids_t: Tensor, offsets_t: Tensor,
        values_t: Tensor, boundary: Tensor, spread: Tensor, read: Tensor, anchors: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Return A[B,B] h + spread (read h), and keep what the gradient needs."""
        ctx.save_for_backward(ids_t, offsets_t, values_t, boundary, spread, read, anchors)
        out = multiply(ids, offsets, values, h)
        extra = spread @ (read @ (h if anchors is None else h[anchors]))
        return out.add_(extra) if len(boundary) == len(out) else out.index_add_(0, boundary, extra)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient in h, A[B,B]^T grad + read^T (spread^T grad); all else is constant."""
        ids_t, offsets_t, values_t, boundary, spread, read, anchors = ctx.saved_tensors
        out = multiply(ids_t, offsets_t, values_t, grad)
        extra = read.T @ (spread.T @ (grad if len(boundary) == len(grad) else grad[boundary]))
        out = out.add_(extra) if anchors is None else out.index_add_(0, anchors, extra)
        return (out, *([None] * 10))


@contextmanager
def compensating(model: nn.Module, batch: Data) -> Iterator[None]:
    """Let the model see the whole graph through a batch of a `Loader`, inside `with`; for loops of your own."""
    with Compensated(describe(model)).on(batch):
        yield
