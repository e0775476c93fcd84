"""A small piece of a graph on which a model is tried: real edges, real degrees, every corner that the graph has.

>>> path = Data(x=torch.eye(300), edge_index=torch.stack([torch.arange(299), torch.arange(1, 300)]))
>>> piece = piece_of(Graph(path))
>>> piece.num_nodes < 2 * TRIED, piece.num_edges > 32
(True, True)
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.graph.graph import Graph, entries, joined

TRIED = 128  # nodes of a piece, or a few more
ROUND = 24  # of which each round of the search adds at most so many, so that it is several hops deep
CHUNK = 2**22  # edges that are looked at together
PADDED = 2048  # most rows with which a model is tried for its dependence on the number of nodes


def piece_of(graph: Graph, *, seed: int = 0) -> Data:
    """Return up to `TRIED` nodes about some edges as a graph of its own, by search in both directions."""
    if graph.num_nodes <= TRIED:
        nodes = torch.arange(graph.num_nodes)
    else:
        generator = torch.Generator().manual_seed(seed)
        nodes = graph.corners
        for _ in range(8):
            nodes = _grown(graph, nodes, generator)
    piece = graph.induced(nodes)
    piece.n_id = torch.arange(piece.num_nodes)
    return piece


def few_of(graph: Graph) -> Data:
    """Return a few training nodes and ends of edges as a graph of its own: cheap, with one look at every edge.

    >>> path = Data(x=torch.eye(300), edge_index=torch.stack([torch.arange(299), torch.arange(1, 300)]))
    >>> few_of(Graph(path)).num_nodes < TRIED
    True
    """
    data, n = graph.data, graph.num_nodes
    mask = data.get("train_mask")
    training = torch.arange(n) if mask is None else mask.nonzero().view(-1)
    some = data.edge_index[:, :: max(1, data.edge_index.size(1) // ROUND)][:, :ROUND].long()
    nodes = torch.unique(torch.cat([training[:ROUND], some.reshape(-1), torch.arange(min(2, n))]))
    chosen = torch.zeros(n, dtype=torch.bool)
    chosen[nodes] = True
    inside = _inside(data.edge_index, chosen)
    edges = torch.searchsorted(nodes, data.edge_index[:, inside].long().contiguous())
    few = graph.fill(Data(edge_index=edges, num_nodes=len(nodes)), nodes, inside)
    few.n_id, few.batch_size = nodes, len(nodes)
    return few


def _inside(edge_index: Tensor, chosen: Tensor) -> Tensor:
    """Return the positions of the edges between chosen nodes, looking at some edges at a time."""
    found = [torch.empty(0, dtype=torch.int64)]
    for start in range(0, edge_index.size(1), CHUNK):
        source, target = edge_index[:, start : start + CHUNK]
        begun = chosen.index_select(0, source).nonzero().view(-1)  # few: the other ends of these alone are looked at
        found.append(start + begun[chosen.index_select(0, target.index_select(0, begun))])
    return torch.cat(found)


def _grown(graph: Graph, nodes: Tensor, generator: torch.Generator) -> Tensor:
    """Add the ends of an edge and neighbours of theirs, round by round, until nothing more comes or fits."""
    edges = graph.data.edge_index
    if edges.numel():
        number = torch.randint(edges.size(1), (1,), generator=generator)
        nodes = torch.unique(torch.cat([nodes, edges[:, number].view(-1).long()]))
    while nodes.numel() < TRIED:
        ends = graph.neighbors(nodes)
        fresh = ends[~torch.isin(ends, nodes)]
        if not fresh.numel():
            break
        chosen = torch.randperm(fresh.numel(), generator=generator)[: min(ROUND, TRIED - nodes.numel())]
        nodes = torch.unique(torch.cat([nodes, fresh[chosen]]))
    return nodes


def beside_another(piece: Data, rows: int, *, larger: bool = True) -> Data:
    """Return a piece beside a graph that no edge connects with it, of larger degrees, and features and edge values.

    The other graph is a copy of the piece with a hub, then nodes without edges, up to some number of rows.
    """
    graph, n, edges = Graph(piece), int(piece.num_nodes or 0), piece.edge_index
    spokes = n if edges.size(1) else 0  # their values are taken from other edges
    hub = torch.stack([torch.arange(spokes), torch.zeros(spokes, dtype=torch.int64)]).to(edges)
    both = copy.copy(piece)
    both.edge_index = torch.cat([edges, edges + n, hub + n, hub.flip(0) + n], dim=1)
    ids = torch.arange(edges.size(1) + 2 * spokes) % max(1, edges.size(1))
    for key in graph.levels.edge:
        values = entries(piece[key], ids)
        both[key] = joined(piece[key], _larger(values) if larger else values)
    for key in graph.levels.node:
        both[key] = joined(piece[key], _larger(piece[key]) if larger else piece[key])
    both.n_id, both.num_nodes = torch.cat([piece.n_id, piece.n_id]), 2 * n
    return padded(both, rows)


def padded(piece: Data, rows: int) -> Data:
    """Return a piece with nodes more that have no edges and no features, up to some number of rows."""
    n = int(piece.num_nodes or 0)
    more, longer = max(0, min(rows, PADDED) - n), copy.copy(piece)
    for key in Graph(piece).levels.node:
        rest = entries(piece[key], torch.zeros(more, dtype=torch.int64))
        longer[key] = joined(piece[key], torch.zeros_like(rest) if isinstance(rest, Tensor) else rest)
    longer.n_id, longer.num_nodes = torch.cat([piece.n_id, piece.n_id.new_zeros(more)]), n + more
    return longer


def _larger(values: Any) -> Any:
    """Return larger values, where they are numbers and no ids."""
    if not isinstance(values, Tensor) or not torch.is_floating_point(values) or not len(values):
        return values
    codes = (values == values.round()).all(0, keepdim=True)  # perhaps of categories, which have no larger ones
    return torch.where(codes, values, 3 * values + values.abs().amax(0, keepdim=True))


def cloned(data: Data) -> Data:
    """Return a graph with tensors of its own."""
    own = copy.copy(data)
    for key, value in data:
        if isinstance(value, Tensor):
            own[key] = value.clone()
    return own
