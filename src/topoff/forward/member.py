"""One batch among those that run in step: what it is called with, what it hands in, and what it needs of the graph."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.forward.convs import Conv
from topoff.forward.intercept import ConvCall
from topoff.forward.plan import Plan
from topoff.forward.runner import Runner
from topoff.forward.structure import Structure
from topoff.graph.graph import Graph, Neighborhood
from topoff.graph.operators import Operator, Sparse


@dataclass(frozen=True)
class Handed:
    """Hold what a batch hands in: rows for the halos of the others, or its part of a sum."""

    conv: Conv
    hop: int | None  # the propagation; None where nobody is told of it
    rows: Tensor
    is_sum: bool = False


class Member:
    """Hold what one batch needs while all run in step."""

    def __init__(self, graph: Graph, batch: Data, plan: Plan, *, device: torch.device) -> None:
        """Take the batch, or what a wide model is called with instead, to the model's device."""
        self.graph, self.device = graph, device
        self.nodes: Tensor = batch.n_id.cpu()
        self.size = self.nodes.numel()
        self.shared: Tensor | None = None  # the (n, d) matrix of the current exchange
        self.now: ConvCall | None = None  # the conv that is running
        self.calls: dict[str, int] = {}  # of every conv so far
        self._operators: dict[Operator, Sparse] = {}
        supplement = batch.get("supplement")  # of a batch that is at hand: it was cut already
        self._structure: Structure | None = supplement.structure.to(device) if supplement else None
        self._around: dict[str, Neighborhood] = dict(self._structure.around) if self._structure else {}
        wide = supplement.wide if supplement else None
        if plan.wide and wide is None:
            wide = graph.widened(batch, self.neighborhood(plan.around))
        self.data = batch if wide is None else wide
        self.data = self.data if self.data.x.device == device else self.data.to(device)
        self.rows = int(self.data.num_nodes or 0)
        self.runner: Runner

    def exchange(self, call: ConvCall, rows: Tensor, *, record: bool = True) -> Tensor:
        """Hand in this batch's rows, sleep until all have, and return the (n, d) matrix of them."""
        whole = self.hand_in(Handed(call.conv, call.hop if record else None, rows))
        call.hop += record
        return whole

    def hand_in(self, handed: Handed) -> Tensor:
        """Hand something in, sleep until all batches have, and return what was made of it."""
        self.runner.hand_in(handed)
        whole, self.shared = self.shared, None
        assert whole is not None
        return whole

    def product(self, operator: Operator, own: Tensor, rows: Tensor) -> Tensor:
        """Return A[B, :] H from the batch's own rows and those of all nodes (n, d); (b, d)."""
        if self._structure and operator in self._structure.spots:
            return self._structure.spots[operator].product(own[: self.size], rows)
        if operator not in self._operators:  # cut at the first call
            self._operators[operator] = self.graph.aggregation(operator).rows(self.nodes).to(self.device)
        return self._operators[operator] @ rows

    def known(self, operator: Operator, rows: Tensor) -> Tensor | None:
        """Return A[B, :] X where the rows are the raw features and it is at hand; (b, f)."""
        if self._structure is None or rows is not self.data.x:
            return None
        return self._structure.constants.get((operator,))

    def neighborhood(self, flow: str) -> Neighborhood:
        """Return the edges about the batch, cut at the first call."""
        if flow not in self._around:
            self._around[flow] = self.graph.neighborhood(self.nodes, flow=flow).to(self.device)
        return self._around[flow]
