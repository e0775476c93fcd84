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
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.pagerank import Ints, Scopes, at_least, cached_pagerank, personalized_pagerank
from topoff.batching.samplers import spans
from topoff.batching.scopes import k_hop
from topoff.forward.subgraph import closed
from topoff.graph.graph import Graph
from topoff.methods.base import MiniBatches, heard, rows_of

AT_ONCE = 1024  # targets of a batch of `cover`: their subgraphs are in memory together
SCORED = ("graph", "scopes")  # where the scores of a model come from
CANDIDATES = 1 << 22  # edges that are looked at together when subgraphs are cut out


class Shadow(MiniBatches):
    """Run the bare model on the sampled k-hop subgraph of every training node; subgraphs are drawn anew every epoch.

    Args (and those of `MiniBatches`; a batch holds all subgraphs of its targets: keep `ratio` small):
        fanout: neighbours of a node that are drawn in each hop, at most; the authors take 10 to 20.
        hops: radius of a subgraph, whatever the depth of the model; the authors take 2.
        scored: where `exact` runs the model: on the whole "graph", as for every other method, or for every node in its
            own scope, as the authors do ("scopes"). The whole graph is the default, because a run's scores, `evaluate`
            and `predict` say the same of every method's model, and all scopes of a graph take several times as long.

    >>> from torch_geometric.nn import GCN
    >>> from topoff.data.load import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> shadow = Shadow(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, hops=2)
    >>> shadow.prepare()
    >>> [(batch.batch_size, batch.num_nodes) for batch in shadow.batches()]  # a target hears two others of the ring
    [(6, 18), (6, 18)]
    """

    by_targets = True
    settings: ClassVar[tuple[str, ...]] = ("ratio", "fanout", "hops")
    any_model: ClassVar[bool] = True

    def __init__(
        self, model: nn.Module, data: Data, *, fanout: int = 10, hops: int = 2, scored: str = "graph", **shared: Any
    ) -> None:
        super().__init__(model, data, **shared)
        at_least(1, fanout=fanout, hops=hops)
        if scored not in SCORED:
            raise ValueError(
                f"Expected 'scored' to be one of {', '.join(SCORED)} (got '{scored}'); choose one of them."
            )
        self.fanout, self.hops, self.scored = fanout, hops, scored

    def begin(self) -> None:
        """Sort the neighbours."""
        self.offsets, self.ids = heard(self.plan, self.graph)
        self._subgraphs = Subgraphs(self.graph)

    def batch(self, epoch: int, number: int) -> Data:
        """Return the subgraphs of some training nodes."""
        scopes = self.scopes(self.targets(epoch, number), rng=self.rng(epoch, number, 3))
        return closed(self._subgraphs.union(scopes), self.plan)

    def cover(self) -> Iterator[Data]:
        """Yield the subgraphs of all nodes, of at most 1024 at a time."""
        count = self.graph.num_nodes
        pieces = np.array_split(np.arange(count), max(len(self), math.ceil(count / AT_ONCE)))
        for number, piece in enumerate(pieces):
            scopes = self.scopes_of_piece(piece, rng=self.rng(self.position.epoch, number, 4))
            yield closed(self._subgraphs.union(scopes), self.plan)

    def exact(self) -> tuple[Tensor, bool]:
        """Return the outputs of all nodes on the whole graph, or each in its scope; nothing is refreshed."""
        return (self.outputs(), False) if self.scored == "scopes" else super().exact()

    def scopes(self, targets: Ints, *, rng: np.random.Generator) -> Scopes:
        """Choose the scopes of some training nodes."""
        return k_hop(self.offsets, self.ids, targets, hops=self.hops, fanout=self.fanout, rng=rng)

    def scopes_of_piece(self, targets: Ints, *, rng: np.random.Generator) -> Scopes:
        """Choose the scopes of any nodes; `cover` asks for all of them, piece by piece."""
        return self.scopes(targets, rng=rng)


class ShadowPpr(Shadow):
    """Run the bare model on the nodes of largest personalised PageRank around every training node.

    These subgraphs are fixed: those of the training nodes are found once and kept on disk, the others when they are
    first asked for. `fanout` counts the nodes of a subgraph, the target included; the authors take 150 to 200, which
    takes six times as long to find.
    """

    settings: ClassVar[tuple[str, ...]] = ("ratio", "fanout")
    alpha = 0.15  # chance that a walk ends

    def __init__(self, model: nn.Module, data: Data, *, fanout: int = 32, **shared: Any) -> None:
        super().__init__(model, data, fanout=fanout, **shared)

    def begin(self) -> None:
        """Find the subgraphs of the training nodes."""
        super().begin()
        self._tell("ranking neighbours", 0, 1)
        self._found: dict[int, Scopes] = {}  # of `cover`, by the first node of a piece
        self._ranked = cached_pagerank(self.offsets, self.ids, self.training, alpha=self.alpha, keep=self.fanout)
        self._tell("ranking neighbours", 1, 1)

    def scopes(self, targets: Ints, *, rng: np.random.Generator) -> Scopes:
        """Return the scopes of some training nodes; nothing is drawn."""
        return self._ranked.of(np.searchsorted(self.training, targets))

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
        edges = torch.from_numpy(self._edges(scopes, owner, place))
        batch = rows_of(self.graph, torch.from_numpy(n_id), edges[:2], edges[2])
        batch.batch_size = len(scopes)
        return batch

    def _edges(self, scopes: Scopes, owner: Ints, place: Ints) -> Ints:
        """Return the edges inside the scopes: both ends, numbered by `place`, and the id in the graph; (3, e)."""
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
            found.append(np.stack([place[sort[sender[inside]]], place[receiver[inside]], ids[inside]]))
        return np.concatenate(found, axis=1)
