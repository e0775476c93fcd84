"""shaDow-GNN (Zeng et al., "Decoupling the Depth and Scope of Graph Neural Networks", NeurIPS 2021).

Section 3 and Algorithm 1: every target has a small subgraph of its own, its scope, and a model of any depth runs inside
it; the target's own row is the output ("center" readout). A batch is the disjoint union of its targets' subgraphs, each
normalised inside, so a node may be there many times. Extractors (Section 3.4): sampled k-hop sets, and the nodes of
largest personalised PageRank. Any model can be run. Unlike the authors' code, other readouts than "center" and their
ensembles of extractors are left out, as they are other models; walks follow messages where the graph is directed, and
edge weights play no role in the choice of scopes.

Where a scope holds all nodes within `hops` of the target, the output is that of the whole graph for hops >= depth, if a
layer weighs messages by the receiver alone (SAGE, GIN, GAT); GCN's weights hold the sender's degree too, which is right
inside the scope for hops >= depth + 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data

from topoff.batching.pagerank import Ints, Scopes, at_least, cached_pagerank, personalized_pagerank, senders
from topoff.batching.samplers import spans
from topoff.batching.scopes import k_hop
from topoff.forward.subgraph import closed
from topoff.graph.graph import Graph
from topoff.methods.base import MiniBatches

AT_ONCE = 1024  # targets of a batch of `cover`: their subgraphs are in memory together
CANDIDATES = 1 << 22  # edges that are looked at together when subgraphs are cut out


class Shadow(MiniBatches):
    """Run the bare model on the sampled k-hop subgraph of every training node.

    An epoch visits every training node once, in `round(1 / ratio)` batches, and draws the subgraphs anew.

    Args:
        model: any PyG model.
        data: the whole graph.
        fanout: neighbours of a node that are drawn in each hop, at most; the authors take 10 to 20.
        hops: radius of a subgraph, whatever the depth of the model; the authors take 2.
        ratio: share of the training nodes per batch. A batch holds all subgraphs of its targets: keep it small.
        shared: see `MiniBatches`.

    Raises:
        ValueError: a setting is out of range.

    >>> from torch_geometric.nn import GCN
    >>> from topoff.data.load import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> shadow = Shadow(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, hops=2)
    >>> shadow.prepare()
    >>> [(batch.batch_size, batch.num_nodes) for batch in shadow.batches()]  # a target hears two others of the ring
    [(6, 18), (6, 18)]
    """

    by_targets: ClassVar[bool] = True

    settings: ClassVar[tuple[str, ...]] = ("ratio", "fanout", "hops")

    def __init__(self, model: nn.Module, data: Data, *, fanout: int = 10, hops: int = 2, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        at_least(1, fanout=fanout, hops=hops)
        self.fanout, self.hops = fanout, hops
        self._training: Ints = self.data.train_mask.nonzero().view(-1).numpy()

    def begin(self) -> None:
        """Sort the neighbours."""
        flows = {operator.flow for operator in self.plan.operators} | set(self.plan.flows) or {"source_to_target"}
        self.offsets, self.ids = senders(self.data.edge_index, self.graph.num_nodes, flows=sorted(flows))
        self._subgraphs = Subgraphs(self.graph)

    def batch(self, epoch: int, number: int) -> Data:
        """Return the subgraphs of some training nodes."""
        rows = np.array_split(self.rng(epoch, 2).permutation(len(self._training)), len(self))[number]
        return closed(self._subgraphs.union(self.scopes(rows, rng=self.rng(epoch, number, 3))), self.plan)

    def cover(self) -> Iterator[Data]:
        """Yield the subgraphs of all nodes, of at most 1024 at a time."""
        count = self.graph.num_nodes
        pieces = np.array_split(np.arange(count), max(len(self), math.ceil(count / AT_ONCE)))
        for number, piece in enumerate(pieces):
            scopes = self.scopes_of_piece(piece, rng=self.rng(self.position.epoch, number, 4))
            yield closed(self._subgraphs.union(scopes), self.plan)

    def scopes(self, rows: Ints, *, rng: np.random.Generator) -> Scopes:
        """Choose the scopes of some training nodes, given by their place among these."""
        return self.scopes_of_piece(self._training[rows], rng=rng)

    def scopes_of_piece(self, targets: Ints, *, rng: np.random.Generator) -> Scopes:
        """Choose the scopes of any nodes; `cover` asks for all of them, piece by piece."""
        return k_hop(self.offsets, self.ids, targets, hops=self.hops, fanout=self.fanout, rng=rng)


class ShadowPpr(Shadow):
    """Run the bare model on the nodes of largest personalised PageRank around every training node.

    These subgraphs are fixed: those of the training nodes are found once and kept on disk, the others when they are
    first asked for.

    Args:
        model: any PyG model.
        data: the whole graph.
        fanout: nodes of a subgraph, the target included; the authors take 150 to 200, which takes six times as long to
            find.
        shared: see `Shadow`.
    """

    settings: ClassVar[tuple[str, ...]] = ("ratio", "fanout")
    alpha = 0.15  # chance that a walk ends

    def __init__(self, model: nn.Module, data: Data, *, fanout: int = 32, **shared: Any) -> None:
        super().__init__(model, data, fanout=fanout, **shared)

    def begin(self) -> None:
        """Find the subgraphs of the training nodes."""
        super().begin()
        if self.progress:
            self.progress("ranking neighbours", 0, 1)
        self._found: dict[int, Scopes] = {}  # of `cover`, by the first node of a piece
        self._ranked = cached_pagerank(self.offsets, self.ids, self._training, alpha=self.alpha, keep=self.fanout)
        if self.progress:
            self.progress("ranking neighbours", 1, 1)

    def scopes(self, rows: Ints, *, rng: np.random.Generator) -> Scopes:
        """Return the scopes of some training nodes; nothing is drawn."""
        return self._ranked.of(rows)

    def scopes_of_piece(self, targets: Ints, *, rng: np.random.Generator) -> Scopes:
        """Find the scopes of a piece of the nodes, and keep them; nothing is drawn."""
        first = int(targets[0])
        if first not in self._found:
            ranked = personalized_pagerank(self.offsets, self.ids, targets, alpha=self.alpha, keep=self.fanout)
            self._found[first] = Scopes(ranked.offsets, ranked.ids)
        return self._found[first]


class Subgraphs:
    """Cut the subgraphs that node sets induce out of a graph, side by side."""

    def __init__(self, graph: Graph) -> None:
        """Sort the edges by receiver."""
        self.graph = graph
        self._source, target = graph.data.edge_index.numpy()
        self._order = np.argsort(target, kind="stable")
        self._offsets = np.append(0, np.cumsum(np.bincount(target, minlength=graph.num_nodes)))

    def union(self, scopes: Scopes) -> Data:
        """Return the disjoint union of the subgraphs that the scopes induce: the roots first, each in its own one.

        `n_id` are the global ids, with repetition; every edge keeps its attributes, duplicates and self-loops stay.
        """
        roots = scopes.offsets[:-1]
        owner = scopes.owners()
        place = len(scopes) + np.arange(len(owner)) - owner - 1  # after all roots, without those before it
        place[roots] = np.arange(len(scopes))
        n_id = np.empty_like(scopes.ids)
        n_id[place] = scopes.ids
        nodes, graph = torch.from_numpy(n_id), self.graph
        edge_index, edge_ids = (torch.from_numpy(found) for found in self._edges(scopes, owner, place))
        batch = Data(edge_index=edge_index, num_nodes=len(n_id))
        for key in graph.node_level:
            batch[key] = graph.data[key][nodes]
        for key in graph.edge_level:
            batch[key] = graph.data[key][edge_ids]
        batch.n_id, batch.batch_size = nodes, len(scopes)
        return batch

    def _edges(self, scopes: Scopes, owner: Ints, place: Ints) -> tuple[Ints, Ints]:
        """Return the edges inside the scopes, numbered by `place`, and their ids in the graph; (2, e) and (e,)."""
        n = self.graph.num_nodes
        key = owner * n + scopes.ids
        sort = np.argsort(key)
        known = key[sort]
        arriving = np.cumsum(self._offsets[scopes.ids + 1] - self._offsets[scopes.ids])
        stops = np.searchsorted(arriving, np.arange(CANDIDATES, int(arriving[-1]), CANDIDATES), "right")
        found = []
        for members in np.split(np.arange(len(key)), np.unique(stops)):
            positions, row = spans(self._offsets, scopes.ids[members])
            ids, receiver = self._order[positions], members[row]
            wanted = owner[receiver] * n + self._source[ids]
            sender = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            inside = known[sender] == wanted
            edges = place[sort[sender[inside]]], place[receiver[inside]], ids[inside]
            found.append(np.stack(edges))
        source, target, ids = np.concatenate(found, axis=1)
        return np.stack([source, target]), ids
