"""Who sends messages to whom, as CSR, and the blocks of chosen messages that sampled batches are made of.

>>> import torch
>>> path = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
>>> neighbors = Neighbors(Graph(path), operators=(Operator(aggr="mean"),))
>>> nodes, block = neighbors.block(np.array([2]), neighbors.all_of(np.array([2])))
>>> nodes, block.sources, block.targets
(array([2, 1]), 2, 1)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.batching.samplers import spans
from topoff.forward.plan import Plan
from topoff.graph.graph import Graph
from topoff.graph.operators import Movable, Operator, Sparse, to_sparse

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
STAND_INS = 32  # edges that a batch shows to the model, so that a model that changes them (DropEdge) is noticed


@dataclass(frozen=True)
class Chosen:
    """Hold the edges that a sampler chose for one step, as positions in `Neighbors.ids`."""

    positions: Ints  # (e,)
    rows: Ints  # (e,) which of the targets each edge arrives at
    scale: Floats  # (e,) what its weight is multiplied with, so that the sum is right on average


@dataclass(frozen=True, repr=False)
class Block(Movable):
    """Hold the messages of one propagation: from the first `sources` nodes of a batch to the first `targets`."""

    sources: int
    targets: int
    matrices: dict[Operator, Sparse]  # (targets, sources), own rows included where the operator has them
    edge_index: Tensor | None = None  # (2, e) for the general path, in the direction of its flow
    values: dict[str, Tensor] = field(default_factory=dict)  # edge-level attributes there, (e, ...)


@dataclass(frozen=True, repr=False)
class Blocks(Movable):
    """Hold the steps of a forward, first propagation first."""

    steps: tuple[Block, ...]


class Neighbors:
    """Hold who sends messages to whom as CSR without self-loops, and each operator's weights beside it.

    Duplicate edges are one neighbour whose weights are summed, as in the operators; the general path gets all of them.

    Args:
        graph: the whole graph.
        operators: of the linear path.
        flow: direction of the messages; one for the whole model.
        general: whether convs of the general path need the edges themselves.

    Raises:
        ValueError: for operators of another flow.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        operators: tuple[Operator, ...],
        flow: str = "source_to_target",
        general: bool = False,
    ) -> None:
        if any(operator.flow != flow for operator in operators):
            raise_mixed(flow)
        self.graph, self.flow, self.num_nodes = graph, flow, graph.num_nodes
        sender, receiver = graph.data.edge_index.numpy()[:: 1 if flow == "source_to_target" else -1]
        others = sender != receiver
        ones = np.ones(int(others.sum()), dtype=np.int8)
        shape = (self.num_nodes, self.num_nodes)
        pattern = sp.coo_array((ones, (receiver[others], sender[others])), shape=shape).tocsr()
        pattern.sort_indices()
        self.offsets: Ints = pattern.indptr.astype(np.int64)  # (n + 1,)
        self.ids: Ints = pattern.indices.astype(np.int64)  # (m,) neighbours, ascending per receiver
        self.degree: Ints = np.diff(self.offsets)  # (n,) distinct neighbours besides the node itself
        self.weights: dict[Operator, Floats] = {}  # (m,) A[v, u] beside `ids`
        self.own: dict[Operator, Floats] = {}  # (n,) A[v, v]
        for operator in operators:
            self.weights[operator], self.own[operator] = self._weights(operator)
        self._edges = self._edges_by_pair(sender, receiver) if general else None
        self._place = np.full(self.num_nodes, -1, dtype=np.int64)  # scratch: the position of a node in a batch

    def _weights(self, operator: Operator) -> tuple[Floats, Floats]:
        """Return an operator's weights of the neighbours and of the nodes themselves."""
        matrix = self.graph.aggregation(operator).matrix.tocsr()
        matrix.sort_indices()
        receiver = np.repeat(np.arange(self.num_nodes), np.diff(matrix.indptr))
        others = receiver != matrix.indices
        found = matrix.data[others]
        assert len(found) == len(self.ids), "an operator has the graph's own edges and self-loops"
        return found, matrix.diagonal()

    def _edges_by_pair(self, sender: Ints, receiver: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the edges sorted by (receiver, sender) with the start of each pair, and those of self-loops."""
        order = np.lexsort((sender, receiver))
        order = order[sender[order] != receiver[order]]
        first = np.ones(len(order), dtype=bool)
        first[1:] = (np.diff(sender[order]) != 0) | (np.diff(receiver[order]) != 0)
        starts = np.append(np.flatnonzero(first), len(order))
        loops = np.flatnonzero(sender == receiver)
        loops = loops[np.argsort(receiver[loops], kind="stable")]
        counts = np.bincount(receiver[loops], minlength=self.num_nodes)
        return order, starts, loops, np.append(0, np.cumsum(counts))

    def all_of(self, nodes: Ints) -> Chosen:
        """Choose every neighbour of some nodes."""
        positions, rows = spans(self.offsets, nodes)
        return Chosen(positions, rows, np.ones(len(positions)))

    def block(self, nodes: Ints, chosen: Chosen) -> tuple[Ints, Block]:
        """Return the sources of one step, `nodes` first, and the block of messages from them to `nodes`."""
        sender = self.ids[chosen.positions]
        self._place[nodes] = np.arange(len(nodes))
        fresh = sender[self._place[sender] < 0]
        self._place[fresh] = np.arange(len(fresh))  # one of several wins: faster than `np.unique`
        new = np.sort(fresh[self._place[fresh] == np.arange(len(fresh))])
        self._place[new] = np.arange(len(nodes), len(nodes) + len(new))
        sources = np.concatenate([nodes, new])
        columns = self._place[sender]
        shape = (len(nodes), len(sources))
        matrices = {operator: self._matrix(operator, nodes, chosen, columns, shape=shape) for operator in self.weights}
        edge_index, values = self._edge_level(nodes, chosen) if self._edges is not None else (None, {})
        self._place[sources] = -1
        return sources, Block(len(sources), len(nodes), matrices, edge_index, values)

    def _matrix(
        self, operator: Operator, nodes: Ints, chosen: Chosen, columns: Ints, *, shape: tuple[int, int]
    ) -> Sparse:
        """Return the chosen part of an operator, own rows included; (targets, sources)."""
        own = self.own[operator][nodes]
        diagonal = np.arange(len(nodes)) if own.any() else np.arange(0)
        data = np.concatenate([self.weights[operator][chosen.positions] * chosen.scale, own[diagonal]])
        rows, ids = np.concatenate([chosen.rows, diagonal]), np.concatenate([columns, diagonal])
        return to_sparse(sp.coo_array((data, (rows, ids)), shape=shape).tocsr(), self.graph.data.x.dtype)

    def _edge_level(self, nodes: Ints, chosen: Chosen) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the edges behind the chosen pairs and the self-loops of the targets, numbered in the batch."""
        assert self._edges is not None
        order, starts, loops, loop_starts = self._edges
        pairs, _ = spans(starts, chosen.positions)
        own, _ = spans(loop_starts, nodes)
        edge_ids = torch.from_numpy(np.concatenate([order[pairs], loops[own]]))
        edges = torch.from_numpy(self._place)[self.graph.data.edge_index[:, edge_ids]]
        return edges, {key: self.graph.data[key][edge_ids] for key in self.graph.edge_level}

    def batch(self, targets: Ints, *, depth: int, choose: Callable[[Ints, int], Chosen]) -> Data:
        """Return a batch: the targets, the blocks that lead to them, and the features at the far end.

        Args:
            targets: nodes whose outputs are wanted; they come first.
            depth: propagations of the model.
            choose: given the receivers of a step and the number of the step (0 is the first propagation), returns the
                edges of that step; it is called from the last step back.
        """
        nodes, steps = targets, []
        for step in reversed(range(depth)):
            nodes, block = self.block(nodes, choose(nodes, step))
            steps.append(block)
        return self.assembled(nodes, steps=tuple(reversed(steps)))

    def assembled(self, nodes: Ints, *, steps: tuple[Block, ...]) -> Data:
        """Return the batch of some blocks, first propagation first; `nodes` are the sources of the first one."""
        size = steps[-1].targets
        n_id, data = torch.from_numpy(nodes), self.graph.data
        shown = min(STAND_INS, data.edge_index.size(1))  # the edges themselves are in the blocks
        batch = Data(edge_index=torch.zeros((2, shown), dtype=torch.int64))
        self.graph.fill(batch, n_id, torch.arange(shown))
        for key in self.graph.node_level:
            if key == "y" or key.endswith("_mask"):
                batch[key] = batch[key][:size]
        batch.n_id, batch.batch_size, batch.num_nodes = n_id, size, len(nodes)
        batch.blocks = Blocks(steps)
        return batch


def raise_mixed(flow: str) -> NoReturn:
    """Raise for a model whose messages flow both ways."""
    raise ValueError(
        f"Expected all convs of a sampled model to have flow='{flow}' (got another one, too): neighbours are sampled "
        f"in one direction; give all convs one flow, or turn the edges."
    )


def neighbors_of(graph: Graph, plan: Plan) -> Neighbors:
    """Return the neighbours that a model's convs hear.

    Raises:
        ValueError: where convs of the model hear in different directions, or more than their neighbours.
    """
    plan.check_local()
    flow = plan.flows[0] if plan.flows else plan.operators[0].flow
    if len(plan.flows) > 1:
        raise_mixed(flow)
    return Neighbors(graph, operators=plan.operators, flow=flow, general=bool(plan.flows))
