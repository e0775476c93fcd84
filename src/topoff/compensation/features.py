"""What a basis has of the features, besides embeddings; found once per graph, and held as the basis holds its rows.

Where a conv reads A X, its leading directions join. Where none reads raw features, and batches hold few of the nodes,
the features after every hop do: a network without activations reads these, and what its biases make, which its own
embeddings show. And rows that have received no messages are functions of the features, which they are regressed on.

>>> from topoff.forward.plan import Plan
>>> from torch_geometric.data import Data
>>> path = Graph(Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]])))
>>> features = Features(path, Plan([], (Operator(),), ()), width=3)
>>> [len(features.joining(hops=1)), features.columns(most=2).shape]
[1, torch.Size([3, 3])]
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from topoff.compensation.principal import ROWS, compress, directions, full_precision
from topoff.compensation.sight import Sight
from topoff.forward.plan import Plan
from topoff.graph.graph import Chain, Graph
from topoff.graph.operators import Operator, full_type

SAMPLE_ROWS = 2048  # of the propagated features, evenly spaced, that their leading directions come from
WIDTH = 128  # directions of the features after some hops, where the rank does not say how many


class Features:
    """Find the features of a graph as columns of a basis.

    Args:
        graph: whose features these are.
        plan: which operators a model has, and whether it reads raw features.
        width: directions that are kept; None: where a conv reads A X, all of it.
        sight: what is kept of rows; None: all of them.
    """

    def __init__(self, graph: Graph, plan: Plan, *, width: int | None, sight: Sight | None = None) -> None:
        self.graph, self.plan, self.width, self.sight = graph, plan, width, sight
        self._dtype = full_type(graph.dtype)
        self._joining: dict[int, list[Tensor]] = {}  # by hops
        self._columns: dict[int, Tensor] = {}  # by most: the last one
        if graph.shelf is not None:
            graph.shelf.adopt(graph.data.x)

    def are_of(self, graph: Graph, plan: Plan, sight: Sight | None) -> bool:
        """Whether these are the features of a graph, for a model, as batches see them that were cut no more since."""
        now, then = ([] if each is None else list(map(id, each.structures)) for each in (sight, self.sight))
        return self.graph is graph and self.plan is plan and now == then

    def joining(self, *, hops: int) -> list[Tensor]:
        """Return what joins the embeddings: the features after one to some `hops`; without, A X where it is read."""
        if hops not in self._joining:
            self._joining[hops] = self._smoothed(hops) if hops else self._propagated()
        return self._joining[hops]

    def _propagated(self) -> list[Tensor]:
        return [self._held(leading_features(self.graph, chain, self.width)) for chain in self.plan.chains[:1]]

    def _smoothed(self, hops: int) -> list[Tensor]:
        """Return the leading directions of the features after every hop, of every operator."""
        width, found = self.width or WIDTH, list[Tensor]()
        leading = leading_features(self.graph, (), width)
        for operator in self.plan.operators:
            for rows in smoothed(self.graph, operator, leading, hops=hops):
                found.append(self._held(rows))
                if self.sight is None:  # these are large
                    found = [self._compressed(found, width)]
        return [self._compressed(found, width)] if found else []

    @full_precision()
    def columns(self, *, most: int) -> Tensor:
        """Return X, or its leading directions, at most as many, and a constant; all columns weigh alike.

        Centred and at one scale, or the ridge would shrink some: of years, what lies between them would not count.
        """
        if most not in self._columns:
            x = self.graph.data.x.flatten(1)
            x = x if x.size(1) <= most else leading_features(self.graph, (), most)
            mean, scale = self._statistics(x)
            constant = self._held(torch.ones(len(x), 1, dtype=self._dtype))
            rows = x if self.sight is None else self.sight.of(x)
            found = self._empty((len(rows), x.size(1) + 1))
            for place, part, one in zip(*(torch.split(each, ROWS) for each in (found, rows, constant)), strict=True):
                place[:, :-1] = (part.to(self._dtype) - one * mean) / scale
                place[:, -1:] = one
            self._columns = {most: found}
        return self._columns[most]

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and the standard deviation of every column; 1 for one that is the same everywhere."""
        parts = torch.split(x, ROWS)
        mean = torch.stack([part.sum(0, dtype=torch.float64) for part in parts]).sum(0) / len(x)
        squares = torch.stack([(part.double() - mean).square().sum(0) for part in parts]).sum(0)
        scale = (squares / len(x)).sqrt()
        least = torch.finfo(x.dtype).eps * mean.abs()
        return mean.to(self._dtype), scale.where(scale > least, 1.0).to(self._dtype)

    def _compressed(self, blocks: list[Tensor], width: int) -> Tensor:
        if len(blocks) == 1 and blocks[0].size(1) <= width:
            return blocks[0]
        return compress(blocks, width, empty=None if self.graph.shelf is None else self.graph.shelf.empty)

    def _held(self, rows: Tensor) -> Tensor:
        """Return rows (n, d) as a basis holds them."""
        if self.sight is not None or rows.dtype == self._dtype:
            return rows if self.sight is None else self.sight.of(rows)
        return self.scaled(rows, 1.0)

    def scaled(self, rows: Tensor, scale: float) -> Tensor:
        """Return rows of all nodes, or what batches see of them, times a number; on disk where memory is short."""
        found = self._empty(tuple(rows.shape))
        for place, part in zip(torch.split(found, ROWS), torch.split(rows, ROWS), strict=True):
            torch.mul(part.to(self._dtype), scale, out=place)
        return found

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        shelf = self.graph.shelf
        return torch.empty(shape, dtype=self._dtype) if shelf is None else shelf.empty(shape, self._dtype)


@full_precision()
def leading_features(graph: Graph, chain: Chain, width: int | None) -> Tensor:
    """Return the leading directions of the propagated features, at most `width` of them; (n, width).

    They are A (X V), with V from a sample of the rows of A X, which may be much wider than what is kept. All that is on
    disk is left as it is: features in half precision there would be twice as large in memory.
    """
    x, dtype, shelf = graph.data.x.flatten(1), full_type(graph.dtype), graph.shelf
    if width is None or width >= x.size(1):
        found = graph.propagated(chain).flatten(1)
        return found.to(dtype) if shelf is None else found
    sample = graph.propagated_rows(chain, torch.arange(0, len(x), max(1, len(x) // SAMPLE_ROWS)))
    leading = directions(sample.flatten(1).to(dtype), width)
    shape = len(x), leading.size(1)  # a few nodes have fewer directions
    found = torch.empty(shape, dtype=dtype) if shelf is None else shelf.empty(shape, dtype)
    for place, rows in zip(torch.split(found, ROWS), torch.split(x, ROWS), strict=True):
        torch.mm(rows.to(dtype), leading, out=place)
    for operator in chain:
        found = graph.aggregation(operator).product(found, dtype=dtype, shelf=shelf)
    return found


def smoothed(graph: Graph, operator: Operator, rows: Tensor, *, hops: int) -> Iterator[Tensor]:
    """Yield A H, A A H, ... for rows of all nodes H (n, d), each of norm 1: sums of neighbours grow with every hop."""
    for _ in range(hops):
        rows = graph.aggregation(operator).product(rows, dtype=full_type(graph.dtype), shelf=graph.shelf)
        rows /= float(torch.linalg.vector_norm(rows)) or 1.0
        yield rows
