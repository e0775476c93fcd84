"""Run an unmodified model on all batches of a graph in lockstep: what exact inference is made of (see `exact`).

Every batch runs the user's own forward, on a stack of its own of which only one is awake at a time. At each
propagation the batch hands in its rows and sleeps; when all have, the rows are one n x d matrix, and each batch goes on
with true halo rows. What a sleeping batch holds is what its forward still needs: memory is one batch's work plus one
n x d matrix per live layer, with no analysis of liveness and no layer computed twice (see docs/decisions.md).

>>> from torch_geometric.nn import GCN
>>> from topoff.forward.convs import describe
>>> ring = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
>>> model, graph, sets = GCN(4, 8, num_layers=2), Graph(ring), [torch.tensor([0, 1]), torch.tensor([2, 3])]
>>> lockstep = Lockstep(describe(model), graph, sets, Plan([], (), ()), device=torch.device("cpu"))
>>> lockstep.run_model(model, None).shape
torch.Size([4, 8])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import Call, caller, evaluating
from topoff.forward.convs import Conv
from topoff.forward.extended import Extended, is_alias
from topoff.forward.intercept import ConvCall, Handler
from topoff.forward.member import Handed, Member
from topoff.forward.norms import Moments, check_one_graph, is_over_all, normalized, sums_of
from topoff.forward.parking import Parking
from topoff.forward.plan import Plan
from topoff.forward.rows import common, has_rows, raise_other_conv, raise_other_depth, raise_rows
from topoff.forward.runner import Attributes, Runner
from topoff.graph.graph import Graph

LARGE = 10**6  # nodes of a graph from which on sleeping batches may hold more than is to stay in memory

# Told the rows that a propagation reads by their place in the forward, "conv/call/hop", as `Subgraph` names it.
Remember = Callable[[str, Tensor], None]


class Lockstep(Handler):
    """Run one forward per batch, all in step."""

    remember: Remember | None = None
    moments: dict[str, Moments] | None = None
    last: str | None = None

    def __init__(
        self,
        convs: list[Conv],
        graph: Graph,
        batches: Sequence[Data] | Sequence[Tensor],
        plan: Plan,
        *,
        device: torch.device,
    ) -> None:
        self.graph, self.plan, self.parking = graph, plan, None if graph.num_nodes < LARGE else Parking()
        self.batches = [Member(graph, batch, plan, device=device) for batch in batches]
        self.awake = self.batches[0]
        super().__init__([conv for conv in convs if conv.path != "batch"])  # in eval mode a batch norm acts per row

    def run_model(self, model: nn.Module, call: Call | None) -> Any:
        """Run a model in eval mode; return its outputs in the order of the nodes."""
        run = caller(model, call)
        with evaluating(model), self.on(self.awake.data):
            self.attributes = Attributes(model)
            return self.run(lambda batch: run(model, batch))

    @property
    def now(self) -> ConvCall | None:
        """The running conv of the batch that is awake."""
        return self.awake.now

    @now.setter
    def now(self, call: ConvCall | None) -> None:
        self.awake.now = call

    @property
    def calls(self) -> dict[str, int]:
        """The calls of every conv so far, of the batch that is awake."""
        return self.awake.calls

    @calls.setter
    def calls(self, calls: dict[str, int]) -> None:
        self.awake.calls = calls

    def run(self, forward: Callable[[Data], Any]) -> Any:
        """Run all batches to the end and return their outputs in the order of the nodes."""
        runners = [Runner(batch, forward) for batch in self.batches]
        for runner, batch in zip(runners, self.batches, strict=True):
            batch.runner = runner
        try:
            while True:
                handed = [self._step(runner) for runner in runners]
                if all(runner.done for runner in runners):
                    out = self._gather(handed)
                    del handed  # or its parts would live on until the end
                    return out
                if any(runner.done for runner in runners):
                    raise_other_depth()
                place = self._share(handed)
                del handed  # or these rows would live on while the next ones are made
                if place == self.last is not None:
                    return None
        finally:
            for runner in runners:
                with self.parking.ending(runner.batch) if self.parking else nullcontext():  # in the modes it began in
                    runner.close()
                    runner.batch.let_go()
            if self.parking:
                self.parking.close()

    def _step(self, runner: Runner) -> Any:
        self.awake = runner.batch
        with self.attributes.of(runner), self._awake(runner.batch):
            return runner.step()

    def _awake(self, batch: Member) -> AbstractContextManager[None]:
        """Give a batch what is parked of it, inside `with`."""
        return self.parking.awake(batch) if self.parking else nullcontext()

    def _share(self, handed: list[Handed]) -> str:
        """Make one (n, d) matrix of what the batches handed in, or one sum, and give it to all; return the place."""
        first = handed[0]
        if any((other.conv.name, other.hop) != (first.conv.name, first.hop) for other in handed):
            raise_other_conv(first.conv)
        place = f"{first.conv.name}/{self.calls[first.conv.name]}/{first.hop}"
        if first.is_sum:
            moments = self._summed(handed)
            whole = moments.means
            if self.moments is not None:
                self.moments[place] = moments
        else:
            whole = self._gather([each.rows for each in handed], of=f"what {first.conv} reads")
            if self.remember and first.hop is not None:
                self.remember(place, whole)
        for batch in self.batches:
            batch.shared = whole
        return place

    def _summed(self, handed: list[Handed]) -> Moments:
        """Add up what the batches handed in."""
        return Moments.of([each.rows for each in handed], [each.nodes for each in self.batches], self.graph.num_nodes)

    def _gather(self, parts: list[Any], *, of: str = "the output", inner: bool = False) -> Any:
        """Put the rows of all batches into one matrix, in the order of the nodes; in tuples and dicts, all of them."""
        first = parts[0]
        if isinstance(first, dict):
            return {key: self._gather([part[key] for part in parts], of=of, inner=True) for key in first}
        if isinstance(first, (tuple, list)):
            found = [self._gather(list(items), of=of, inner=True) for items in zip(*parts, strict=True)]
            return type(first)(*found) if hasattr(first, "_fields") else type(first)(found)
        whole: Tensor | None = None
        if inner and len(parts) > 1 and all(isinstance(part, Tensor) and is_alias(part, first) for part in parts):
            return first  # one tensor, whatever its number of rows
        for batch, part in zip(self.batches, parts, strict=True):
            if not has_rows(part, batch):
                if inner:
                    return common(parts)
                raise_rows(part, of=of, size=batch.size, whole=self.graph.num_nodes)
            if whole is None:
                whole = part.new_empty((self.graph.num_nodes, *part.shape[1:]))
            with self.parking.reading(batch, part) if self.parking else nullcontext():
                whole[batch.nodes] = part[: batch.size]
        assert whole is not None
        return whole

    def convolve(self, call: ConvCall) -> Any:
        """Run a conv of the batch that is awake on true halo rows."""
        batch, conv, wide = self.awake, call.conv, self.plan.wide
        if conv.path == "norm":
            return self._normalize(call)
        call.known = self.knows(call) if wide else 0
        general = conv.path == "general" or conv.name in self.plan.rewired
        if general or wide:
            near = batch.neighborhood(self.plan.flow_of(conv))
            extended = Extended(
                call, batch.data, batch.size, near, lambda h: batch.exchange(call, h)[near.halo], wide=wide
            )
        if general:
            return self.leave(extended, extended.run()) if wide else extended.run()
        given = call.linear(batch.data)
        if wide:
            given = extended.narrow(given)
        if conv.transforms_first and given["x"].dim() == 2:  # (A H) W = A (H W)
            given["x"], call.aggregated = self._aggregated(call, given["x"])
        out = call.run(given)
        return self.leave(extended, extended.widen(out)) if wide else out

    def _aggregated(self, call: ConvCall, rows: Tensor) -> tuple[Tensor, bool]:
        """Return the rows that a conv with a matrix before its messages reads, and whether they are aggregated already.

        They are where that is known, where they are collected, and where fewer numbers are exchanged.
        """
        batch, told = self.awake, self.remember is not None
        narrows = rows.size(1) > int(call.conv.module.out_channels)  # type: ignore[arg-type]
        if rows is batch.data.x:
            known = batch.known(call.operator, rows) if batch.is_cut or not narrows else None
            return (rows, False) if known is None else (known, True)
        if not told and narrows:
            return rows, False
        whole = batch.exchange(call, rows, record=not call.known, operator=call.operator)
        return batch.product(call.operator, rows, whole), True

    def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
        """Multiply the rows of the global operator with the operand of all batches."""
        batch = self.awake
        if call.aggregated:
            return operand
        if operand is batch.data.x:
            call.hop += 1
            known = batch.known(call.operator, operand)
            if known is not None:
                return known.clone()  # some (GCN2Conv) write into what they are given
            return batch.product(call.operator, operand, self.graph.features(operand.device))
        record = not call.conv.transforms_first and not call.known
        whole = batch.exchange(call, operand, record=record, operator=call.operator)
        return batch.product(call.operator, operand, whole)

    def deep_steps(self, conv: Conv) -> frozenset[int]:
        """Return the propagations of a conv that read another's result: they get true rows of that."""
        return self.plan.deep.get(conv.name, frozenset())

    def knows(self, call: ConvCall) -> int:
        """Whether a conv of a wide model reads rows of the halo that the model has computed from features alone."""
        hops = self.plan.known_hops.get(call.conv.name) or (0,)
        return hops[call.number % len(hops)]

    def leave(self, extended: Extended, out: Any) -> Any:
        """Return the output of a conv in a wide model; nobody reads its rows outside the batch."""
        return out

    def _normalize(self, call: ConvCall) -> Any:
        """Run a norm over all nodes on the sums of all batches."""
        batch = self.awake
        if not is_over_all(call.conv.module):
            return call.forward(*call.args, **call.kwargs)
        check_one_graph(call, batch.rows)
        means = batch.hand_in(Handed(call.conv, 0, sums_of(call.x[: batch.size]), is_sum=True))
        return normalized(call.conv.module, call.x, means, self.graph.num_nodes)
