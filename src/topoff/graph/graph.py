"""The whole graph, prepared: operators built once, subgraphs and neighbourhoods cut out fast.

>>> import torch
>>> from torch_geometric.data import Data
>>> path = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
>>> graph = Graph(path)
>>> graph.induced(torch.tensor([0, 1])).edge_index.tolist()
[[0, 1], [1, 0]]
>>> graph.neighborhood(torch.tensor([0, 1])).halo
tensor([2])
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.graph.aggregation import Aggregation, aggregation
from topoff.graph.incoming import Incoming, incoming_of
from topoff.graph.operators import Movable, Operator
from topoff.machine.shelf import Shelf

Chain = tuple[Operator, ...]


AROUND = "around"  # a neighbourhood with all edges that touch the batch or its halo, besides those of one flow
APART = "apart"  # the same, in which the nodes beyond the halo are not one, but each its own


@dataclass(frozen=True, repr=False)
class Neighborhood(Movable):
    """Hold the edges about a batch, its nodes numbered first, its halo after them, then what stands for all others.

    Of one flow, these are the edges N(B) -> B. `AROUND`, they are all edges that touch B or C, so that the degrees of
    B and C are those of the graph; their other ends are one node more, or many where they are kept `APART`.
    """

    halo: Tensor  # (c,) global ids of C
    edge_index: Tensor  # (2, e) local ids: batch 0..b-1, halo b..b+c-1, others from b+c; sorted by target
    edge_ids: Tensor  # (e,) their positions in the graph's edge_index
    values: dict[str, Any]  # edge-level attributes, (e, ...)
    features: dict[str, Any]  # rows of the graph's node-level attributes, (c + others, ...): the halo's own, then zeros
    others: int = 0  # rows for nodes beyond the halo


@dataclass(frozen=True)
class Levels:
    """Name the attributes of a graph by what they describe: nodes, edges, or the graph as a whole."""

    node: tuple[str, ...]  # tensors, arrays and lists with one entry per node: a batch has those of its nodes
    edge: tuple[str, ...]  # with one entry per edge
    whole: tuple[str, ...]  # all else: a batch has it as it is


def levels_of(data: Data) -> Levels:
    """Tell the attributes of a graph apart by the number of their entries.

    In a graph with as many nodes as edges, those with "edge" in their name are of edges, as PyG has it.
    """
    n, edges = int(data.num_nodes or 0), data.edge_index.size(1)
    node: list[str] = []
    edge: list[str] = []
    whole: list[str] = []
    for key, value in data.to_dict().items():
        if key in ("edge_index", "num_nodes"):
            continue
        entries = _count(value)
        if entries == n and (n != edges or "edge" not in key):
            node.append(key)
        else:
            (edge if entries == edges else whole).append(key)
    return Levels(tuple(node), tuple(edge), tuple(whole))


def _count(value: Any) -> int | None:
    """Return how many entries an attribute has; none where it is no list of them."""
    if isinstance(value, list | tuple):
        return len(value)
    shape = getattr(value, "shape", None) if isinstance(value, Tensor | np.ndarray) else None
    return int(shape[0]) if shape else None


def entries(value: Any, ids: Tensor) -> Any:
    """Return some entries of a tensor, an array or a list."""
    if isinstance(value, list | tuple):
        return [value[i] for i in ids.tolist()]
    return value[ids.numpy()] if isinstance(value, np.ndarray) else value.index_select(0, ids)  # faster than value[ids]


def joined(value: Any, more: Any) -> Any:
    """Return entries of a tensor, an array or a list with more of them behind.

    >>> joined(["a"], ["b"]), joined(torch.ones(1), torch.zeros(1))
    (['a', 'b'], tensor([1., 0.]))
    """
    if isinstance(value, list | tuple):
        return [*value, *more]
    return np.concatenate([value, more]) if isinstance(value, np.ndarray) else torch.cat([value, more])


class Graph:
    """Prepare a validated `Data` for batching; nothing is built before it is needed."""

    def __init__(self, data: Data, *, dtype: torch.dtype | None = None, shelf: Shelf | None = None) -> None:
        """Note which attributes are of nodes, of edges and of the whole; a batch knows it from its graph.

        `dtype` is the type in which batches have the features, where it is not the graph's own; `shelf`, where matrices
        over all nodes lie that do not fit in memory.
        """
        self.data, self.shelf = data, shelf
        self.dtype: torch.dtype = dtype or data.x.dtype
        self.num_nodes = int(data.num_nodes or 0)
        self.levels: Levels = vars(data).get("_levels") or levels_of(data)
        self.node_level = [key for key in self.levels.node if isinstance(data.get(key), Tensor)]
        self.edge_level = [key for key in self.levels.edge if isinstance(data.get(key), Tensor)]
        self._aggregations: dict[Operator, Aggregation] = {}
        self._constants: dict[Chain, Tensor] = {}
        self._features: Tensor | None = None
        self._incoming: dict[str, Incoming] = {}

    def incoming(self, flow: str = "source_to_target") -> Incoming:
        """Return the edges by receiver, sorted at the first call; all operators share them."""
        if flow not in self._incoming:
            self._incoming[flow] = incoming_of(self.data.edge_index, self.num_nodes, flow=flow)
        return self._incoming[flow]

    def aggregation(self, operator: Operator) -> Aggregation:
        """Return A of an operator, built at the first call."""
        if operator not in self._aggregations:
            incoming = self.incoming(operator.flow)
            self._aggregations[operator] = aggregation(self.data, operator, incoming=incoming, dtype=self.dtype)
        return self._aggregations[operator]

    def features(self, device: torch.device) -> Tensor:
        """Return the features on a device, moved there once; on the CPU in the graph's own type."""
        if self._features is None or self._features.device != device:
            self._features = self.data.x if device.type == "cpu" else self.data.x.to(device, self.dtype)
        return self._features

    def propagated(self, chain: Chain) -> Tensor:
        """Return the features after the operators of a chain: (A,) gives A X, (A, A) gives A A X; (n, f)."""
        if not chain:
            return self.data.x  # type: ignore[no-any-return]
        if chain not in self._constants:
            whole, operand = self.aggregation(chain[-1]), self.propagated(chain[:-1])
            self._constants[chain] = whole.product(operand, dtype=self.dtype, shelf=self.shelf)
        return self._constants[chain]

    def propagated_rows(self, chain: Chain, nodes: Tensor) -> Tensor:
        """Return some rows of the features after the operators of a chain; one operator needs no others; (b, f)."""
        if len(chain) == 1 and chain not in self._constants:
            rows: Tensor = self.aggregation(chain[0]).rows(nodes) @ self.data.x
            return rows.to(self.dtype)
        return self.propagated(chain).index_select(0, nodes)

    def let_go(self) -> None:
        """Let go of the propagated features, unless they are on disk: batches that were cut once have their rows."""
        if self.shelf is None:
            self._constants.clear()

    @cached_property
    def corners(self) -> Tensor:
        """A node without edges, one with a self-loop, one with the most edges, and the last of all."""
        incoming = self.incoming()
        sent = incoming if incoming.is_symmetric else self.incoming("target_to_source")
        degree = torch.from_numpy(incoming.degrees + sent.degrees)
        alone, last = (degree == 0).nonzero().view(-1), torch.tensor([self.num_nodes - 1])
        loops = torch.from_numpy(incoming.loops[:1])
        corners: Tensor = torch.unique(torch.cat([alone[:1], loops, degree.argmax().view(1), last]))
        return corners

    def edges_into(self, nodes: Tensor, *, flow: str = "source_to_target") -> Tensor:
        """Return the positions of the edges whose messages arrive at the nodes, in the graph's own order."""
        incoming = self.incoming(flow)
        edges, _ = incoming.spans(nodes.numpy())
        edges = edges if incoming.order is None else incoming.order[edges]
        return torch.from_numpy(np.sort(edges.astype(np.int64, copy=False)))  # several times as fast as torch's

    def neighbors(self, nodes: Tensor) -> Tensor:
        """Return who sends to the nodes or receives from them, ascending; of a symmetric graph one look suffices."""
        flows = ("source_to_target",) if self.incoming().is_symmetric else ("source_to_target", "target_to_source")
        found = [each.senders[each.spans(nodes.numpy())[0]] for each in map(self.incoming, flows)]
        return torch.from_numpy(np.unique(np.concatenate(found)).astype(np.int64))

    def induced(self, nodes: Tensor, *, edges: bool = True) -> Data:
        """Return the batch as a PyG `Data`: the edges inside it, and the graph's attributes as `fill` cuts them.

        Without `edges` there are none: enough for a model whose messages are all taken from operators.
        """
        edge_ids = self.edges_into(nodes if edges else nodes[:0])
        local, ends = self._numbered(nodes), self._edges(edge_ids)
        source = local.index_select(0, ends[0])
        inside = (source >= 0).nonzero().view(-1)
        target = local.index_select(0, ends[1].index_select(0, inside))
        batch = Data(edge_index=torch.stack([source.index_select(0, inside), target]))
        self.fill(batch, nodes, edge_ids.index_select(0, inside))
        batch.n_id = nodes
        batch.batch_size = batch.num_nodes = nodes.numel()
        return batch

    def fill(self, batch: Data, nodes: Tensor, edge_ids: Tensor) -> Data:
        """Put into a batch its entries of what the graph has per node and per edge, and all else as it is."""
        for keys, kept in ((self.levels.node, nodes), (self.levels.edge, edge_ids)):
            for key in keys:
                if key in self.data:
                    found = entries(self.data[key], kept)
                    batch[key] = found.to(self.dtype) if key == "x" else found
        for key in self.levels.whole:
            if key in self.data:
                batch[key] = self.data[key]
        vars(batch)["_levels"] = self.levels  # a batch of four nodes does not know that four is no number of nodes
        return batch

    def neighborhood(self, nodes: Tensor, *, flow: str = "source_to_target") -> Neighborhood:
        """Return the edges about a batch and its halo C: those of a flow, N(B) -> B, or all that are `AROUND`."""
        around, local = flow in (AROUND, APART), self._numbered(nodes)
        edge_ids = self._touching(nodes) if around else self.edges_into(nodes, flow=flow)
        edges = self._edges(edge_ids)
        halo = torch.unique(edges[local[edges] < 0])
        size = nodes.numel() + halo.numel()
        local[halo] = torch.arange(nodes.numel(), size)
        others = 0
        if around:
            edge_ids = self._touching(torch.cat([nodes, halo]))
            edges = self._edges(edge_ids)
            beyond = torch.unique(edges[local[edges] < 0])
            others = min(1, beyond.numel()) if flow == AROUND else beyond.numel()
            local[beyond] = size if flow == AROUND else torch.arange(size, size + others)
        edges = local[edges]
        if around and self.data.edge_index.size(1) and bool((edges[0] == edges[1]).all()):
            # self-loops, which some convs add, would be as many edges as rows: two nodes more have an edge
            edges = torch.cat([edges, edges.new_tensor([[size + others], [size + others + 1]])], dim=1)
            edge_ids, others = torch.cat([edge_ids, edge_ids.new_zeros(1)]), others + 2
        others += size + others == edge_ids.numel()  # rows and edges must not be taken for each other
        order = edges[1].argsort(stable=True)  # some aggregations want them sorted
        edge_ids = edge_ids[order]
        values = {key: self.data[key][edge_ids] for key in self.edge_level}
        features = {key: _with_zeros(self.data[key][halo], others) for key in self.node_level}
        features |= {"x": features["x"].to(self.dtype)} if "x" in features else {}
        return Neighborhood(halo, edges[:, order], edge_ids, values, features, others)

    def widened(self, batch: Data, near: Neighborhood, *, nodes: Tensor | None = None) -> Data:
        """Return a batch with the rows of its neighbourhood after its own, and with all edges there.

        Its own rows are `nodes` (b,) in this graph, where these are not its `n_id`: of a batch of another graph.
        """
        wide, further = copy.copy(batch), [near.halo, near.halo.new_zeros(near.others)]
        wide.edge_index = near.edge_index
        self.fill(wide, torch.cat([batch.n_id if nodes is None else nodes, *further]), near.edge_ids)
        wide.n_id = torch.cat([batch.n_id, *further])
        wide.num_nodes = wide.n_id.numel()
        for key, rows in near.features.items():  # zeros beyond the halo
            wide[key] = torch.cat([batch[key], rows])
        return wide

    def _touching(self, nodes: Tensor) -> Tensor:
        """Return the positions of the edges that begin or end at some nodes, in the graph's own order."""
        both = [self.edges_into(nodes, flow=flow) for flow in ("source_to_target", "target_to_source")]
        touching: Tensor = torch.unique(torch.cat(both))
        return touching

    def _edges(self, edge_ids: Tensor) -> Tensor:
        """Return some edges; with 64 bits, as PyG wants them."""
        edges: Tensor = self.data.edge_index.index_select(1, edge_ids)
        return edges.long()

    def _numbered(self, nodes: Tensor) -> Tensor:
        """Return (n,) the position of each node in the batch, -1 outside."""
        local = torch.full((self.num_nodes,), -1, dtype=torch.int64)
        local[nodes] = torch.arange(nodes.numel())
        return local


def _with_zeros(rows: Tensor, others: int) -> Tensor:
    """Append rows of zeros."""
    return torch.cat([rows, rows.new_zeros((others, *rows.shape[1:]))]) if others else rows
