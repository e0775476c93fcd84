"""Sampled messages, layer by layer: run an unmodified model on blocks of a few chosen edges each.

A batch of target nodes S_L needs sources S_(L-1) for its last propagation, those need S_(L-2), and so on: a sampler
chooses the edges of every step. The sets are nested and each is a prefix of the next, S_L first, so that a node's own
row is always at hand; after a propagation only the rows that are still needed are kept, where the model allows it.

>>> import torch
>>> path = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
>>> neighbours = Neighbours(Graph(path), operators=(Operator(aggr="mean"),))
>>> nodes, block = neighbours.block(np.array([2]), neighbours.all_of(np.array([2])))
>>> nodes, block.sources, block.targets
(array([2, 1]), 2, 1)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.aggregation import Operator, Sparse, to_sparse
from topoff.calling import Call, caller
from topoff.convs import Conv, Interception, edge_values_of, evaluating, first_input, raise_foreign, without_edges
from topoff.graph import Graph
from topoff.plan import Plan
from topoff.sampling import spans

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SLICING = (gnn.GCN2Conv,)  # convs that cut their other arguments to the rows that `propagate` returns
STAND_INS = 32  # edges that a batch shows to the model, so that a model that changes them (DropEdge) is noticed


@dataclass(frozen=True)
class Chosen:
    """Hold the edges that a sampler chose for one step, as positions in `Neighbours.ids`."""

    positions: Ints  # (e,)
    rows: Ints  # (e,) which of the targets each edge arrives at
    scale: Floats  # (e,) what its weight is multiplied with, so that the sum is right on average


@dataclass(frozen=True)
class Block:
    """Hold the messages of one propagation: from the first `sources` nodes of a batch to the first `targets`."""

    sources: int
    targets: int
    matrices: dict[Operator, Sparse]  # (targets, sources), own rows included where the operator has them
    edge_index: Tensor | None = None  # (2, e) for the general path, in the direction of its flow
    values: dict[str, Tensor] = field(default_factory=dict)  # edge-level attributes there, (e, ...)

    def to(self, device: torch.device | str) -> Block:
        """Move to a device."""
        matrices = {operator: matrix.to(device) for operator, matrix in self.matrices.items()}
        edges = None if self.edge_index is None else self.edge_index.to(device)
        return Block(self.sources, self.targets, matrices, edges, {k: v.to(device) for k, v in self.values.items()})


@dataclass(frozen=True)
class Blocks:
    """Hold the steps of a forward, first propagation first."""

    steps: tuple[Block, ...]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Blocks:
        """Move to a device (PyG's `Data.to` calls this)."""
        return Blocks(tuple(step.to(device) for step in self.steps))


class Neighbours:
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
        for key in self.graph.node_level:
            batch[key] = data[key][n_id[:size] if key == "y" or key.endswith("_mask") else n_id]
        for key in self.graph.edge_level:
            batch[key] = data[key][:shown]
        batch.n_id, batch.batch_size, batch.num_nodes = n_id, size, len(nodes)
        batch.blocks = Blocks(steps)
        return batch


def raise_mixed(flow: str) -> NoReturn:
    """Raise for a model whose messages flow both ways."""
    raise ValueError(
        f"Expected all convs of a sampled model to have flow='{flow}' (got another one, too): neighbours are sampled "
        f"in one direction; give all convs one flow, or turn the edges."
    )


def neighbours_of(graph: Graph, plan: Plan) -> Neighbours:
    """Return the neighbours that a model's convs hear.

    Raises:
        ValueError: where convs of the model hear in different directions.
    """
    flow = plan.flows[0] if plan.flows else plan.operators[0].flow
    if len(plan.flows) > 1:
        raise_mixed(flow)
    return Neighbours(graph, operators=plan.operators, flow=flow, general=bool(plan.flows))


class Layered:
    """Stand in for a model's message passing with the blocks of the current batch; a `Handler` for its convs.

    A subclass that estimates the messages in another way (control variates) overrides `aggregate`.
    """

    def __init__(self, convs: list[Conv]) -> None:
        """Prepare the interception once; batches come later, with `on`."""
        self.batch: Data = Data()
        self.trims = True  # rows that no later step needs are dropped after a conv
        self._interception = Interception(convs, self)
        self._step = 0
        self._operator = Operator()
        self._aggregated = False  # the running conv was given its aggregated input
        self._pads = False  # the running conv wants as many rows back from `propagate` as it gave

    @contextmanager
    def on(self, batch: Data) -> Iterator[None]:
        """Bind the model to a batch inside `with`."""
        self.batch, self._step = batch, 0
        with self._interception:
            yield

    def convolve(self, conv: Conv, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a conv on the sampled messages of its step."""
        x = first_input(conv, args, kwargs)
        if conv.path == "general":
            block = self._take()
            out = forward(*self._substituted(conv, block, tuple(args)), **self._substituted(conv, block, kwargs))
            return self._kept(out[: block.targets], len(x))
        self._operator = self._operator_of(conv, args, kwargs)
        given = without_edges(conv, args, kwargs)
        self._aggregated = conv.transforms_first
        self._pads = False
        if self._aggregated:
            given["x"] = self.aggregate(self._step, self._operator, x[: self._ahead().sources])
            self._take()
        elif takes_pairs(conv):
            given["x"] = _pair(given["x"], self._ahead())
        else:
            self._pads = not isinstance(conv.module, SLICING)
        out = forward(**given)
        return self._kept(out[: self._past().targets], len(x))

    def _operator_of(self, conv: Conv, args: Any, kwargs: Any) -> Operator:
        """Return the operator of a linear conv, as it was found when the model was tried."""
        operator = conv.operators[edge_values_of(conv, self.batch, args, kwargs)]
        if operator not in self._ahead().matrices:
            raise ValueError(
                f"Expected {conv} to weigh its edges in training as in eval mode (got other edge weights): give it the "
                f"same edge_weight in both."
            )
        return operator

    def propagate(self, conv: Conv, operand: Tensor) -> Tensor:
        """Multiply with the sampled operator of the step."""
        if self._aggregated:
            return operand
        block, step = self._take(), self._step - 1
        out = self.aggregate(step, self._operator, operand[: block.sources])
        return _padded(out, len(operand)) if self._pads else out

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return the sampled messages of a step; (sources, d) -> (targets, d)."""
        block: Block = self.batch.blocks.steps[step]
        return block.matrices[operator] @ h

    def _ahead(self) -> Block:
        """Return the block of the next propagation."""
        block: Block = self.batch.blocks.steps[self._step]
        return block

    def _past(self) -> Block:
        """Return the block of the last propagation."""
        block: Block = self.batch.blocks.steps[self._step - 1]
        return block

    def _take(self) -> Block:
        block = self._ahead()
        self._step += 1
        return block

    def _kept(self, out: Tensor, rows: int) -> Tensor:
        return out if self.trims else _padded(out, rows)

    def _substituted(self, conv: Conv, block: Block, value: Any) -> Any:
        """Give a general conv the edges and edge values of a block, and the rows that those start from."""
        if isinstance(value, (tuple, list)):
            return type(value)(self._substituted(conv, block, item) for item in value)
        if isinstance(value, dict):
            return {key: self._substituted(conv, block, item) for key, item in value.items()}
        if not isinstance(value, Tensor):
            return value
        for name, rows in block.values.items():
            if value is self.batch[name]:
                return rows
        if not torch.is_floating_point(value) and value.dim() == 2 and value.size(0) == 2:
            if not torch.equal(value, self.batch.edge_index):
                raise_foreign(conv, "edge_index")
            return block.edge_index
        floating = torch.is_floating_point(value) and value.dim() > 0 and len(value) >= block.sources
        return value[: block.sources] if floating else value


def _padded(out: Tensor, rows: int) -> Tensor:
    """Append zero rows."""
    return torch.cat([out, out.new_zeros((rows - len(out), *out.shape[1:]))]) if rows > len(out) else out


def _pair(x: Any, block: Block) -> tuple[Tensor, Tensor | None]:
    """Return the rows of the sources and those of the targets; of a pair, the targets' from its second part."""
    source, target = x if isinstance(x, (tuple, list)) else (x, x)
    return source[: block.sources], None if target is None else target[: block.targets]


def takes_pairs(conv: Conv) -> bool:
    """Whether a conv takes rows of sources and of targets apart, as PyG's bipartite convs do, by its annotation."""
    if getattr(conv.module, "combine_root", None) == "self_loop":  # SimpleConv refuses them then
        return False
    parameters = inspect.signature(type(conv.module).forward).parameters
    return "tuple" in str(parameters[conv.parameters[0]].annotation).lower()


def allows_trimming(model: nn.Module, neighbours: Neighbours, plan: Plan, *, call: Call | None = None) -> bool:
    """Try on a few nodes whether a model works, and says the same, when each conv returns fewer rows.

    A residual `x + conv(x)` does not, unless it is written for that (`x[: len(h)] + h`), nor does one that joins the
    layers (jumping knowledge); the model then gets padded rows, which are computed in vain and which a batch norm
    counts in training.
    """
    batch = trial_batch(neighbours, depth=plan.depth).to(next(model.parameters(), neighbours.graph.data.x).device)
    layered, run = Layered(plan.convs), caller(model, call)

    def outputs() -> Tensor:
        """Run the model on the trial batch."""
        with evaluating(model), layered.on(batch):
            return run(model, batch)[: batch.batch_size]  # type: ignore[no-any-return]

    layered.trims = False
    padded = outputs()
    layered.trims = True
    try:
        trimmed = outputs()
    except (RuntimeError, IndexError, ValueError):  # shapes that do not fit
        return False
    return bool(torch.allclose(padded, trimmed, rtol=1e-3, atol=1e-4))


def trial_batch(neighbours: Neighbours, *, depth: int) -> Data:
    """Return a batch with some neighbours of a few nodes in which every step loses rows, whatever the graph."""
    few, steps = np.random.default_rng(0), []
    ends = np.linspace(0, neighbours.num_nodes - 1, 3).astype(np.int64)
    nodes = np.append(ends, np.argmax(neighbours.degree))
    for _ in range(depth):
        every = neighbours.all_of(nodes)
        keep = few.random(len(every.rows)) < 100 / max(100, len(every.rows))
        nodes, block = neighbours.block(nodes, Chosen(every.positions[keep], every.rows[keep], every.scale[keep]))
        nodes = np.append(nodes, nodes[:2])  # two rows more that nobody hears
        steps.append(replace(block, sources=len(nodes)))
    return neighbours.assembled(nodes, steps=tuple(reversed(steps)))
