"""Run a model on a batch and on its halo in step, every propagation and its gradient exchanged: a step of LMC.

The batch's rows are run by the model itself. The halo's are run by a `Partner`, a copy that shares its weights and has
no gradient of them, in a thread that is awake only while the batch waits for it. So every row is run once, and a
weight's gradient costs the batch's rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch_geometric.data import Data

from topoff.forward.call import plain
from topoff.forward.convs import Conv
from topoff.forward.copies import copied
from topoff.forward.subgraph import Subgraph
from topoff.graph.operators import Movable, Operator, Sparse, multiply
from topoff.methods.beside import Beside
from topoff.methods.gas import Remembering
from topoff.methods.histories import Histories


@dataclass(frozen=True, repr=False)
class Patch(Movable):
    """Hold one operator around a batch, the batch's rows first, and the share of up-to-date rows in its halo's."""

    around: Sparse  # A[N[B], N[B]]
    size: int  # b
    fresh: Tensor  # (c, 1) beta of the embeddings
    fresh_back: Tensor  # (c, 1) beta of the gradients

    def times(self, rows: Tensor, *, back: bool, halo: bool = False) -> Tensor:
        """Return the rows of B of A[N[B], N[B]] h, or going back of A[N[B], N[B]]^T G; with `halo` those of C."""
        ids, offsets, values = self.around.tensors[3:] if back else self.around.tensors[:3]
        cut = int(offsets[self.size])
        if halo:
            ids, offsets, values = ids[cut:], offsets[self.size :] - offsets[self.size], values[cut:]
        else:
            ids, offsets, values = ids[:cut], offsets[: self.size + 1], values[:cut]
        product = multiply(ids, offsets, values, rows)
        return product.to(torch.promote_types(self.around.weighs or rows.dtype, rows.dtype))


@dataclass(frozen=True, repr=False)
class Vicinity(Movable):
    """Hold what a batch knows of its halo."""

    nodes: Tensor  # (b,) global ids of B
    halo: Tensor  # (c,) global ids of C
    patches: dict[Operator, Patch]
    rows: Data | None  # C as a batch of its own; None where nothing up to date is mixed in


def table_of(place: str, *, back: bool) -> str:
    """Name the history of a propagation, of what it reads (h) or of its gradient (G)."""
    return f"{'gradients' if back else 'embeddings'}/{place}"


class Partner(Subgraph):
    """Run the rows of a batch's halo on a copy of the model, which hands in what each propagation reads."""

    before_weights = True
    recomputable: ClassVar[bool] = False  # what is handed in is exchanged once

    def __init__(self, convs: list[Conv], model: nn.Module) -> None:
        self.model = copied(plain(model)).requires_grad_(requires_grad=False)
        super().__init__([replace(conv, module=self.model.get_submodule(conv.name)) for conv in convs])
        self.runner: Beside | None = None  # while a batch is run
        self.heard: Tensor | None = None  # what its last propagation comes to

    @contextmanager
    def running(self, rows: Data, run: Callable[[nn.Module, Data], Any], *, model: nn.Module) -> Iterator[Beside]:
        """Be ready to run the halo's rows with a model's present weights, inside `with`."""
        self._follow(plain(model), several=rows.num_nodes > 1)
        gradient = torch.is_grad_enabled()

        def forward(data: Data) -> Any:
            """Run the copy, in the thread."""
            with torch.set_grad_enabled(gradient), self.on(data):
                return run(self.model, data)

        self.runner = Beside(SimpleNamespace(data=rows), forward)
        try:
            yield self.runner
        finally:
            self.runner.close()
            self.runner = self.heard = None

    def _follow(self, model: nn.Module, *, several: bool) -> None:
        """Share the model's weights, copy its buffers, and take its mode; one row has no statistics of its own."""
        for mine, parameter in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.data = parameter.data
        for kept, buffer in zip(self.model.buffers(), model.buffers(), strict=True):
            kept.copy_(buffer)
        for copy, module in zip(self.model.modules(), model.modules(), strict=True):
            copy.training = module.training and (several or not isinstance(copy, _BatchNorm))

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        """Hand in the rows h (c, d); return what the halo hears once the batch's rows are there; (c, d)."""
        assert self.runner is not None
        self.runner.hand_in((place, h))
        assert self.heard is not None
        return self.heard


class Inside(Remembering):
    """Run the model on B, with the halo's rows from its partner and from histories, or from histories alone."""

    keeps = False  # whether the histories learn from this run
    answers = False  # the halo's loss counts, so that its gradients are up to date

    def __init__(self, convs: list[Conv], model: nn.Module, *, partner: Partner, histories: Histories) -> None:
        super().__init__(convs, model, histories=histories)
        self.partner = partner

    @property
    def pushes(self) -> bool:
        """Whether what a batch computes is remembered."""
        return self.keeps or self.filling

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        """Return A[B, N[B]] [h; h^_C], and let the partner hear A[C, N[B]] [h; h^_C]; (b, d)."""
        vicinity: Vicinity = self.batch.vicinity
        stale = self.exchange(table_of(place, back=False), h, halo=vicinity.halo)
        given = self, place, vicinity, vicinity.patches[operator]
        if self.partner.runner is None:
            return _Alone.apply(h, stale, *given)  # type: ignore[no-untyped-call, no-any-return]
        there, halo = self.partner.runner.step()
        assert there == place, "a model passes the same convs whatever its rows"
        own, self.partner.heard = _Together.apply(h, halo, stale, *given)  # type: ignore[no-untyped-call]
        return own  # type: ignore[no-any-return]

    def gradients(self, place: str, vicinity: Vicinity, grad: Tensor) -> Tensor:
        """Return the halo's history of a gradient, and push that of the batch; (b, d) -> (c, d)."""
        name = table_of(place, back=True)
        stale = self.histories.pull(name, vicinity.halo, like=grad)
        if self.keeps:
            self.histories.push(name, vicinity.nodes, grad)
        return stale


class _Alone(torch.autograd.Function):
    """Multiply with A and, going back, with A^T; the halo's rows are histories."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, stale: Tensor, run: Inside, place: str, vicinity: Vicinity, patch: Patch
    ) -> Tensor:
        """Return A[B, N[B]] [h; hist(h)_C]."""
        ctx.given = run, place, vicinity, patch
        return patch.times(torch.cat([h, stale]), back=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return A[N[B], B]^T [G; hist(G)_C]."""
        run, place, vicinity, patch = ctx.given
        rows = torch.cat([grad, run.gradients(place, vicinity, grad)])
        return patch.times(rows, back=True), *[None] * 5


class _Together(torch.autograd.Function):
    """Multiply with A and, going back, with A^T; the halo's rows are mixed of histories and of what the partner has."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, halo: Tensor, stale: Tensor, run: Inside, place: str, vicinity: Vicinity, patch: Patch
    ) -> tuple[Tensor, Tensor]:
        """Return the rows of B and of C of A [h; h^_C]."""
        ctx.given = run, place, vicinity, patch
        rows = torch.cat([h, stale.lerp(halo, patch.fresh)])
        return patch.times(rows, back=False), patch.times(rows, back=False, halo=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_halo: Tensor) -> Any:
        """Return the rows of B and of C of A^T [G; G^_C]; the gradient goes to h_C as if it were h^_C."""
        run, place, vicinity, patch = ctx.given
        stale = run.gradients(place, vicinity, grad)
        rows = torch.cat([grad, stale.lerp(grad_halo, patch.fresh_back) if run.answers else stale])
        halo = patch.times(rows, back=True, halo=True) if ctx.needs_input_grad[1] else None
        return patch.times(rows, back=True), halo, *[None] * 5
