"""Pass every propagation, forwards and backwards, through a product with rows of the halo: the two runs of LMC."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.forward.convs import Conv
from topoff.forward.subgraph import Subgraph
from topoff.graph.operators import Movable, Operator, Sparse, multiply
from topoff.methods.histories import Histories

Rows = dict[str, Tensor]  # by place in the forward: rows of the halo, (c, d)


@dataclass(frozen=True, repr=False)
class Patch(Movable):
    """Hold one operator around a batch, the batch's rows first, and the share of up-to-date rows in its halo's."""

    around: Sparse  # A[N[B], N[B]]
    size: int  # b
    received: int  # entries of A[B, N[B]]
    sent: int  # entries of A[N[B], B]
    fresh: Tensor  # (c, 1) beta of the embeddings
    fresh_back: Tensor  # (c, 1) beta of the gradients

    def times(self, rows: Tensor, *, back: bool, batch_only: bool) -> Tensor:
        """Return A[N[B], N[B]] h, or going back A[N[B], N[B]]^T G; of it the rows of B alone, `batch_only`."""
        ids, offsets, values = self.around.tensors[3:] if back else self.around.tensors[:3]
        if batch_only:
            end = self.sent if back else self.received
            ids, offsets, values = ids[:end], offsets[: self.size + 1], values[:end]
        product = multiply(ids, offsets, values, rows)
        return product.to(torch.promote_types(self.around.weighs or rows.dtype, rows.dtype))


@dataclass(frozen=True, repr=False)
class Vicinity(Movable):
    """Hold what a batch knows of its halo."""

    nodes: Tensor  # (b,) global ids of B
    halo: Tensor  # (c,) global ids of C
    patches: dict[Operator, Patch]
    rows: Data | None  # N[B] as a batch of its own, the batch's nodes first; None where nothing up to date is mixed in


def table_of(place: str, *, back: bool) -> str:
    """Name the history of a propagation, of what it reads (h) or of its gradient (G)."""
    return f"{'gradients' if back else 'embeddings'}/{place}"


class Exchange(Subgraph):
    """Pass every propagation through `product`, in both directions: forward with h, backward with G."""

    before_weights = True
    recomputable: ClassVar[bool] = False  # histories would be pushed twice

    def __init__(self, convs: list[Conv], histories: Histories) -> None:
        super().__init__(convs)
        self.histories = histories  # of h, and of G
        self.halo_rows: tuple[Rows, Rows] = {}, {}  # h^_C and G^_C
        self.probes: list[Tensor] = []  # one per propagation: to differentiate towards them reaches every G
        self.vicinity: Vicinity | None = None  # of the batch that is run

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        """Return the product with h."""
        self.probes.append(torch.zeros((), requires_grad=True))
        given = h, self.probes[-1], self, place, self.vicinity, operator
        return _Both.apply(*given)  # type: ignore[no-untyped-call, no-any-return]

    @abstractmethod
    def product(self, place: str, vicinity: Vicinity, patch: Patch, rows: Tensor, *, back: bool) -> Tensor:
        """Multiply rows of h with A, or rows of G with A^T."""


class _Both(torch.autograd.Function):
    """Hand a propagation and its gradient to an exchange."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, probe: Tensor, run: Exchange, place: str, vicinity: Vicinity, operator: Operator
    ) -> Tensor:
        """Return the product with h."""
        ctx.run, ctx.place, ctx.vicinity, ctx.patch = run, place, vicinity, vicinity.patches[operator]
        return run.product(place, vicinity, ctx.patch, h.detach(), back=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the product with G."""
        return ctx.run.product(ctx.place, ctx.vicinity, ctx.patch, grad, back=True), None, None, None, None, None


class Around(Exchange):
    """Run the model on N[B], and note what the halo's rows come to."""

    def product(self, place: str, vicinity: Vicinity, patch: Patch, rows: Tensor, *, back: bool) -> Tensor:
        """Mix the halo's rows with their history, and multiply; the gradient goes to h_C as if it were h^_C."""
        beta = patch.fresh_back if back else patch.fresh
        stale = self.histories.pull(table_of(place, back=back), vicinity.halo, like=rows)
        self.halo_rows[back][place] = mixed = stale + beta * (rows[patch.size :] - stale)
        return patch.times(torch.cat([rows[: patch.size], mixed]), back=back, batch_only=False)


class Inside(Exchange):
    """Run the model on B with the halo's rows given; from the histories where nothing is given."""

    keeps = False  # whether the histories learn from this run

    def product(self, place: str, vicinity: Vicinity, patch: Patch, rows: Tensor, *, back: bool) -> Tensor:
        """Append the halo's rows to the batch's, and multiply; push the batch's."""
        halo = self.halo_rows[back].get(place)
        if halo is None:
            halo = self.histories.pull(table_of(place, back=back), vicinity.halo, like=rows)
        if self.keeps:
            self.histories.push(table_of(place, back=back), vicinity.nodes, rows)
        return patch.times(torch.cat([rows, halo]), back=back, batch_only=True)
