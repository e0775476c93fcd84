"""One batch among those that run in step: what it is called with, what it hands in, and what it needs of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
from topoff.machine.shelf import take

KEPT = 2**25  # edges of a graph whose operators are cut once for every batch; of a larger one, at every propagation


@dataclass(frozen=True)
class Handed:
    """Hold what a batch hands in: rows for the halos of the others, or its part of a sum."""

    conv: Conv
    hop: int | None  # the propagation; None where nobody is told of it
    rows: Tensor
    is_sum: bool = False
    operator: Operator | None = None  # with which all rows are multiplied next; None: they are read themselves


class Member:
    """Hold what one batch needs while all run in step."""

    def __init__(self, graph: Graph, batch: Data | Tensor, plan: Plan, *, device: torch.device) -> None:
        """Take a batch to the model's device; of node ids, it is cut when it is first asked for."""
        self.graph, self.plan, self.device = graph, plan, device
        given = None if isinstance(batch, Tensor) else batch
        self.nodes: Tensor = batch if isinstance(batch, Tensor) else batch.n_id.cpu()
        self.size = self.nodes.numel()
        self.shared: Tensor | None = None  # the (n, d) matrix of the current exchange
        self.now: ConvCall | None = None  # the conv that is running
        self.calls: dict[str, int] = {}  # of every conv so far
        self._operators: dict[Operator, Sparse] = {}
        supplement = given.get("supplement") if given is not None else None  # of a batch that was cut already
        self._structure: Structure | None = supplement.structure.to(device) if supplement else None
        self._around: dict[str, Neighborhood] = dict(self._structure.around) if self._structure else {}
        self._given, self._wide = given, supplement.wide if supplement else None
        self.aggregated: set[int] = set()  # addresses of matrices of all nodes that were multiplied already
        self.runner: Runner

    @cached_property
    def data(self) -> Data:
        """What the model is called with: the batch, or what a wide model is called with instead."""
        batch = self._given
        if batch is None:  # without its edges, where nobody reads them
            batch = self.graph.induced(self.nodes, edges=bool(self.plan.flows) or self.plan.wide)
        if self.plan.wide:
            batch = self._wide or self.graph.widened(batch, self.neighborhood(self.plan.around))
        return batch if batch.x.device == self.device else batch.to(self.device)

    @property
    def rows(self) -> int:
        """The rows of the tensors that the model sees."""
        return int(self.data.num_nodes or 0) if self.plan.wide else self.size

    @property
    def is_cut(self) -> bool:
        """Whether the batch's operators, and its rows of A X, are at hand."""
        return self._structure is not None

    def exchange(
        self, call: ConvCall, rows: Tensor, *, record: bool = True, operator: Operator | None = None
    ) -> Tensor:
        """Hand in this batch's rows, sleep until all have, and return the (n, d) matrix of them.

        With an `operator`, `product` is asked for next, and nothing else of the matrix.
        """
        whole = self.hand_in(Handed(call.conv, call.hop if record else None, rows, operator=operator))
        call.hop += record
        return whole

    def hand_in(self, handed: Handed) -> Tensor:
        """Hand something in, sleep until all batches have, and return what was made of it."""
        self.runner.hand_in(handed)
        whole, self.shared = self.shared, None
        assert whole is not None
        return whole

    def let_go(self) -> None:
        """Let go of all that the forward held: freed now, not at some collection."""
        del self.runner
        self.now = self.shared = None
        if self._given is None:
            vars(self).pop("data", None)

    def product(self, operator: Operator, own: Tensor, rows: Tensor) -> Tensor:
        """Return A[B, :] H from the batch's own rows and those of all nodes (n, d); (b, d)."""
        if rows.data_ptr() in self.aggregated:
            return take(rows, self.nodes)
        if self.graph.shelf is not None and rows is self.graph.data.x and not self.is_cut:
            return take(self.graph.propagated((operator,)), self.nodes)
        if self._structure and operator in self._structure.spots:
            return self._structure.spots[operator].product(own[: self.size], rows)
        cut = self._operators.get(operator)
        if cut is None:
            cut = self.graph.aggregation(operator).rows(self.nodes).to(self.device)
            if self.graph.data.edge_index.size(1) <= KEPT:
                self._operators[operator] = cut
        return cut @ rows

    def known(self, operator: Operator, rows: Tensor) -> Tensor | None:
        """Return A[B, :] X where the rows are the raw features and it is at hand; (b, f)."""
        if rows is not self.data.x:
            return None
        if self._structure is None:
            return self.product(operator, rows, self.graph.features(rows.device))
        return self._structure.constants.get((operator,))

    def neighborhood(self, flow: str) -> Neighborhood:
        """Return the edges about the batch, cut at the first call."""
        if flow not in self._around:
            self._around[flow] = self.graph.neighborhood(self.nodes, flow=flow).to(self.device)
        return self._around[flow]
