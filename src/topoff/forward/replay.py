"""Exact inference in bounded memory: one batch after the other, again for every propagation, with matrices on disk.

`Lockstep` holds what every sleeping forward needs: a matrix of all nodes per live layer. Here no forward sleeps. Each
pass runs every batch anew, up to the first propagation whose rows are not known yet: these are written to a matrix of
all nodes, and the forward ends there. The next pass reads the halo's rows from it. What a conv has returned is kept on
disk, too, and given back instead of computing it again; what lies between the convs is computed in every pass. The
arithmetic is that of `Lockstep`, batch by batch, so the bits are the same.

>>> import tempfile
>>> from pathlib import Path
>>> import torch
>>> from torch_geometric.nn import GCN
>>> from topoff.forward.exact import exact
>>> from topoff.machine.shelf import Shelf
>>> ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]]))
>>> model, plan = GCN(4, 8, num_layers=3, out_channels=2).eval(), Plan([], (), ())
>>> with tempfile.TemporaryDirectory() as folder:
...     graph = Graph(ring, shelf=Shelf(0, folder=Path(folder)))
...     out = exact(model, graph, [torch.tensor([0, 1]), torch.tensor([2, 3])], plan=plan)
>>> torch.allclose(out, model(ring.x, ring.edge_index), atol=1e-6)
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.forward.convs import Conv
from topoff.forward.extended import is_alias
from topoff.forward.intercept import ConvCall, map_tensors
from topoff.forward.lockstep import Lockstep
from topoff.forward.member import Handed, Member
from topoff.forward.norms import Moments
from topoff.forward.plan import Plan
from topoff.forward.rows import has_rows, raise_other_conv, raise_other_depth, raise_rows
from topoff.forward.runner import Runner
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator
from topoff.machine.shelf import put, take

Called = tuple[str, int]  # a conv, and how often it was called before in this forward
Spot = tuple[str, int, int]  # what such a call hands in: first, second, ...


@dataclass(frozen=True)
class Part:
    """Hold what is known of a batch that is gone."""

    nodes: Tensor  # (b,)
    size: int  # b
    rows: int  # those that its model sees


@dataclass
class Front:
    """Hold what one pass brings: what all batches hand in at the same place, or their outputs."""

    at: Spot | None = None  # None: their ends
    conv: Conv | None = None
    hop: int | None = None
    is_sum: bool = False
    operator: Operator | None = None  # with which the rows are multiplied, where no batch was cut before
    whole: Tensor | None = None  # (n, d) the rows so far
    parts: list[Any] = field(default_factory=list)  # sums, or outputs that are not one tensor
    holders: list[Part] = field(default_factory=list)
    made: dict[Called, Tensor] = field(default_factory=dict)  # (n, d) what convs returned in this pass


class Replay(Lockstep):
    """Run one forward per batch and pass, one after the other."""

    def __init__(
        self,
        convs: list[Conv],
        graph: Graph,
        batches: Sequence[Data] | Sequence[Tensor],
        plan: Plan,
        *,
        device: torch.device,
    ) -> None:
        assert graph.shelf is not None
        super().__init__(convs, graph, batches[:1], plan, device=device)
        self.all, self.shelf, self.device, self.parking = batches, graph.shelf, device, None
        self.shared: dict[Spot, Tensor] = {}  # what was handed in at a place, of all batches
        self.aggregated: list[Tensor] = []  # (n, d) those of them that were multiplied with an operator already
        self.returned: dict[Called, Tensor] = {}  # (n, d) what a conv has returned
        self.unkept: set[Called] = set()  # calls of convs that do more than return rows
        self.now_made: dict[Called, Tensor] = {}  # (b, d) of the batch that is awake

    def run(self, forward: Callable[[Data], Any]) -> Any:
        """Run pass after pass until the batches come to their end; return their outputs in the order of the nodes."""
        self.batches.clear()
        while True:
            front = Front()
            for number in range(len(self.all)):
                self._run_batch(number, forward, front)
            if front.at is None:
                return self._outputs(front)
            if self._finish(front) == self.last is not None:
                return None

    def _run_batch(self, number: int, forward: Callable[[Data], Any], front: Front) -> None:
        """Run one batch to the front."""
        member = Member(self.graph, self.all[number], self.plan, device=self.device)
        member.aggregated = {rows.data_ptr() for rows in self.aggregated}
        member.runner = runner = Runner(member, forward)
        self.now_made = {}
        try:
            at, value = self._advance(runner)
            if number == 0:
                front.at = at
            elif (at is None) != (front.at is None):
                raise_other_depth()
            self._collect(front, value, first=number == 0)
        finally:
            with self.attributes.of(runner):  # what the forward does at its end is its own
                runner.close()
            self.attributes.forget(runner)
            del member.runner

    def _advance(self, runner: Runner) -> tuple[Spot | None, Any]:
        """Run a forward to what nobody has handed in before; return where that is, and what it hands in or returns."""
        counts: dict[Called, int] = {}
        while True:
            value = self._step(runner)
            if runner.done:
                return None, value
            call = value.conv.name, self.calls[value.conv.name]
            at = (*call, counts.get(call, 0))
            if at not in self.shared:
                return at, value
            counts[call] = at[2] + 1
            runner.batch.shared = self.shared[at]

    def _collect(self, front: Front, value: Any, *, first: bool) -> None:
        """Take over what a batch hands in, or its output."""
        batch = self.awake
        holder = Part(batch.nodes, batch.size, batch.rows)
        of = "the output"
        if isinstance(value, Handed) and front.at is not None:
            if first:
                front.conv, front.hop, front.is_sum = value.conv, value.hop, value.is_sum
                front.operator = None if batch.is_cut else value.operator
            elif front.conv is None or (value.conv.name, value.hop) != (front.conv.name, front.hop):
                raise_other_conv(value.conv)
            of = f"what {value.conv} reads"
            value = value.rows
            self._keep_made(front)
        if front.is_sum or not isinstance(value, Tensor):
            front.parts.append(value)
            front.holders.append(holder)
            return
        if not has_rows(value, holder):
            raise_rows(value, of=of, size=batch.size, whole=self.graph.num_nodes)
        if front.whole is None:
            front.whole = self._empty(value)
        put(front.whole, batch.nodes, value[: batch.size])

    def _keep_made(self, front: Front) -> None:
        """Write down what convs have returned for the batch; nobody would read it where the forward is at its end."""
        for called, rows in self.now_made.items():
            if called not in front.made:
                front.made[called] = self._empty(rows)
            put(front.made[called], self.awake.nodes, rows)

    def _outputs(self, front: Front) -> Any:
        """Return the outputs of all batches in the order of the nodes."""
        if front.whole is not None:
            return front.whole
        self.batches = front.holders  # type: ignore[assignment]  # all that is left of them
        return self._gather(front.parts)

    def _empty(self, like: Tensor) -> Tensor:
        """Return an empty matrix for all nodes, of the kind of a batch's rows."""
        return self.shelf.empty((self.graph.num_nodes, *like.shape[1:]), like.dtype)

    def _finish(self, front: Front) -> str:
        """Share what all batches have handed in, and let go of what only convs that are done have read.

        Returns its place.
        """
        assert front.at is not None
        place = f"{front.at[0]}/{front.at[1]}/{front.hop}"
        if front.is_sum:
            moments = Moments.of(front.parts, [part.nodes for part in front.holders], self.graph.num_nodes)
            self.shared[front.at] = moments.means
            if self.moments is not None:
                self.moments[place] = moments
        else:
            assert front.whole is not None
            self.shelf.put_away(front.whole)
            if self.remember and front.hop is not None:
                self.remember(place, front.whole)
            if place == self.last:  # nobody reads on
                return place
            self.shared[front.at] = self._multiplied(front)
        for called, rows in front.made.items():
            if called not in self.unkept:
                self.shelf.put_away(rows)
                self.returned[called] = rows
                for at in [at for at in self.shared if at[:2] == called]:
                    gone = self.shared.pop(at)
                    self.aggregated = [rows for rows in self.aggregated if rows is not gone]
        return place

    def _multiplied(self, front: Front) -> Tensor:
        """Return what the batches read next: the rows, or at once the product with all of them, column by column.

        Batch by batch every one would read rows all over a matrix that is larger than memory.
        """
        assert front.whole is not None
        if front.operator is None:
            return front.whole
        rows, front.whole = front.whole, None
        whole = self.graph.aggregation(front.operator)
        dtype = rows.dtype if whole.weighs is None else torch.promote_types(whole.weighs, rows.dtype)
        product = whole.product(rows, dtype=dtype, shelf=self.shelf)
        self.shelf.put_away(product)
        self.aggregated.append(product)
        return product

    def convolve(self, call: ConvCall) -> Any:
        """Give back what a conv has returned in an earlier pass, or run it."""
        called = call.conv.name, call.number
        if called in self.returned:
            return take(self.returned[called], self.awake.nodes)
        if call.conv.path == "norm" or self.plan.wide or called in self.unkept:
            return super().convolve(call)
        inputs = _versions(call)
        before = [(vars(module), dict(vars(module))) for module in call.conv.module.modules()]
        out = super().convolve(call)
        plain = isinstance(out, Tensor) and out.dim() > 0 and out.size(0) == self.awake.size
        if plain and _versions(call) == inputs and not _is_given(out, call) and not _has_changed(before):
            self.now_made[called] = out.clone()  # the model may write into it
        else:
            self.unkept.add(called)
        return out


def _versions(call: ConvCall) -> list[int]:
    """Count how often what a conv is given was written to."""
    found: list[int] = []
    map_tensors((call.args, call.kwargs), lambda given: found.append(0 if given.is_inference() else given._version))
    return found


def _is_given(out: Tensor, call: ConvCall) -> bool:
    """Whether a conv returns what it was given."""
    found: list[bool] = []
    map_tensors((call.args, call.kwargs), lambda given: found.append(is_alias(given, out)))
    return any(found)


def _has_changed(before: list[tuple[dict[str, Any], dict[str, Any]]]) -> bool:
    """Whether a conv has noted something on itself, which the model may read."""
    return any(now.keys() != then.keys() or any(now[key] is not then[key] for key in then) for now, then in before)
