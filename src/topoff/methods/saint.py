"""GraphSAINT (Zeng, Zhou, Srivastava, Kannan, Prasanna, ICLR 2020): batches are random subgraphs, made unbiased.

A subgraph is induced by nodes that are drawn by node, by edge or by random walk (Algorithm 2). Sampling favours some
nodes and edges; two corrections undo that (Section 3.2). With N subgraphs drawn beforehand, C_v of which hold node v
and C_uv both u and v:

    alpha_uv = C_uv / C_v      a message A[v, u] h_u inside a subgraph is divided by it (Eq. 2)
    lambda_v = C_v / N         the loss of a training node is divided by it (Eq. 3)

so that, over the subgraphs that hold v, the sum of the messages is (A h)_v on average, for given h, and the batch's
loss is on average the mean loss of all training nodes. A is the operator of the whole graph, with its degrees.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.pattern import Ints, Pattern, pattern_of, undirected
from topoff.batching.samplers import Floats, Sampler, count, edge_sampler, node_sampler, walk_sampler
from topoff.forward.subgraph import cut_inside
from topoff.graph.aggregation import Aggregation
from topoff.graph.operators import Operator
from topoff.methods.base import MiniBatches

COVERAGE = 50  # how often a node is drawn beforehand, on average (the authors' default)
UNSEEN = {"clip": 0.1, "once": 1.0}  # how often a node that was not drawn beforehand counts as drawn
LARGEST = 1e4  # what a message is multiplied with, at most (the authors' clip)
ROUNDS = 4  # epochs' worth of subgraphs, at most, that are drawn to show every node once


class Saint(MiniBatches):
    """Train on random subgraphs of about `ratio * n` nodes; a sampler says which. `round(1 / ratio)` make an epoch.

    For linear convs (GCN, SAGE-mean, GIN, GCNII, APPNP ...) both corrections hold, propagation by propagation; after a
    nonlinearity the output is not unbiased, as in the paper. General convs (GAT, PNA, max ...) run on the bare induced
    subgraph, and only the loss is corrected: their weights depend on the neighbours at hand.

    Where this differs from the authors' code: the whole graph is sampled, not the subgraph of the training nodes, so
    that all methods see the same graph; subgraphs that were drawn to be counted are not trained on as well; the node
    sampler takes its probabilities from the paper (`SaintNode`).

    What was never drawn beforehand may turn up later: it counts as drawn once (`unseen="once"`), so that
    1 / alpha_uv = C_v. The authors' code (`unseen="clip"`) takes 10^4, or 0.1 where v was not drawn either, and
    C_v = 0.1: such a message outweighs all others, and the node sampler at small ratios has many of them (worst loss
    of a batch 189,173 instead of 5.7 on a graph of 300 nodes). 1 / alpha_uv is never above 10^4.

    Args (and those of `MiniBatches`):
        budget: nodes, edges or roots that are drawn for a subgraph; None: found by trial, so that `ratio` comes true.
            A sampler cannot exceed the nodes that it reaches, nor 64 draws per node.
        coverage: how often a node is drawn beforehand on average, for the counts.
        unseen: what becomes of nodes and pairs that were not drawn then: "clip" or "once".

    >>> from torch_geometric.nn import GCN
    >>> from topoff.data.load import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> saint = SaintNode(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, budget=6)
    >>> saint.prepare()
    >>> [batch.num_nodes <= 6 and "loss_weight" in batch for batch in saint.batches()]
    [True, True]
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        budget: int | None = None,
        coverage: int = COVERAGE,
        unseen: str = "once",
        **shared: Any,
    ) -> None:
        super().__init__(model, data, **shared)
        self.budget, self.coverage, self.unseen = budget, coverage, unseen

    @abstractmethod
    def make_sampler(self) -> Sampler:
        """Return what draws the nodes of a subgraph."""

    def begin(self) -> None:
        """Find the budget, draw subgraphs, count, and divide the operators and the losses.

        Raises:
            ValueError: a setting is out of range, or the sampler has nothing to draw from.
        """
        if self.coverage < 1:
            raise ValueError(f"Expected 'coverage' to be at least 1 (got {self.coverage}); the authors take 50.")
        if self.unseen not in UNSEEN:
            raise ValueError(f"Expected 'unseen' to be one of {', '.join(UNSEEN)} (got '{self.unseen}').")
        source, target = self.data.edge_index.numpy()
        self.flow = [*self.plan.flows, *(operator.flow for operator in self.plan.operators), "source_to_target"][0]
        backwards = self.flow == "target_to_source"
        self.senders, self.receivers = (target, source) if backwards else (source, target)
        self.pairs = undirected(source, target, num_nodes=self.graph.num_nodes)
        self.sampler = self.make_sampler()
        budget = self.budget
        if budget is None:
            budget = self.sampler.budget(self.ratio, generator=lambda trial: self.rng(trial, 6))
        self.drawn = budget
        nothing = Pattern(np.zeros_like(self.pairs.offsets), self.pairs.ids[:0])
        self.counts = count(self.beforehand(), self.pairs if self.plan.operators else nothing)  # pairs where needed
        lambdas = np.where(self.counts.nodes > 0, self.counts.nodes, UNSEEN[self.unseen]) / self.counts.samples
        training = max(1, int(self.data.train_mask.sum()))
        self.loss_weight = torch.from_numpy(1 / (lambdas * training)).to(self.data.x.dtype)  # (n,)
        self._divided = {operator: self._divide(operator) for operator in self.plan.operators}

    def draw(self, *purpose: int) -> Ints:
        """Draw the nodes of a subgraph, the same ones for the same purpose."""
        return self.sampler.draw(self.drawn, self.rng(*purpose))

    def beforehand(self) -> Iterator[Ints]:
        """Draw the subgraphs that are counted, of `coverage` * n nodes in all."""
        found, wanted, number = 0, self.coverage * self.graph.num_nodes, 0
        while found < wanted:
            nodes = self.draw(number, 5)
            found, number = found + len(nodes), number + 1
            self._tell("sampling subgraphs", min(found, wanted), wanted)
            yield nodes

    def _divide(self, operator: Operator) -> Aggregation:
        """Return A[v, u] / alpha_uv; a node's message to itself stays, since alpha_vv = 1."""
        aggregation = self.graph.aggregation(operator)
        matrix = aggregation.matrix.copy()
        row = np.repeat(np.arange(self.graph.num_nodes), np.diff(matrix.indptr))
        others = row != matrix.indices
        row, column = row[others], matrix.indices[others].astype(np.int64)
        places = self.pairs.positions(np.minimum(row, column), np.maximum(row, column))
        matrix.data[others] *= self._scale(row, places)
        return Aggregation.of(operator, aggregation.dtype, matrix)

    def _scale(self, receiver: Ints, places: Ints) -> Floats:
        """Return 1 / alpha_uv = C_v / C_uv of some pairs and their receivers v, clipped."""
        nodes, pairs = self.counts.nodes[receiver], self.counts.pairs[places]
        scale: Floats = np.maximum(nodes, 1) / np.maximum(pairs, 1)
        if self.unseen == "clip":
            scale = np.where(pairs > 0, scale, np.where(nodes > 0, LARGEST, UNSEEN["clip"]))
        return np.minimum(scale, LARGEST)

    def batch(self, epoch: int, number: int) -> Data:
        """Return a subgraph; all of its nodes are targets."""
        return self.cut(torch.from_numpy(self.draw(epoch, number, 3)))

    def cut(self, nodes: Tensor) -> Data:
        """Return the subgraph that some nodes induce, as a batch with its corrections."""
        batch = cut_inside(self.graph, self.plan.in_batch_only(), nodes, operators=self._divided)
        batch.loss_weight = self.loss_weight[nodes]
        return batch

    def cover(self) -> Iterator[Data]:
        """Yield subgraphs whose targets are the nodes that were not yet shown, until all were or it takes too long."""
        shown, rounds = np.zeros(self.graph.num_nodes, dtype=bool), ROUNDS * len(self)
        for number in range(rounds):
            nodes = self.draw(self.position.epoch, number, 3)
            new = ~shown[nodes]
            if not new.any():
                continue
            batch = self.cut(torch.from_numpy(np.concatenate([nodes[new], nodes[~new]])))
            batch.batch_size = int(new.sum())
            shown[nodes] = True
            yield batch
            if shown.all():
                return


class SaintNode(Saint):
    """Draw nodes u with P(u) proportional to ||A~[:, u]||^2, with replacement (Algorithm 2, "node sampler").

    A~ is D^-1 (A + I): the paper's D^-1 A with the self-loop that makes every node reachable, also one that sends to
    nobody. The authors' code draws in proportion to the degree.
    """

    def make_sampler(self) -> Sampler:
        """Return the node sampler."""
        adjacency = self.graph.aggregation(Operator(aggr="mean", self_loops=True, flow=self.flow)).matrix
        return node_sampler(adjacency.indices, adjacency.data, num_nodes=self.graph.num_nodes)


class SaintEdge(Saint):
    """Draw edges with p_uv proportional to 1 / deg(u) + 1 / deg(v), with replacement (Algorithm 2, "edge sampler").

    The subgraph is the one that the ends of the edges induce, with all edges between them, as in the paper and in
    the authors' code. Edges have no direction here, and a self-loop is no edge.
    A node without edges is never drawn: where such nodes are for training, the batch's loss lacks their share.
    """

    def make_sampler(self) -> Sampler:
        """Return the edge sampler."""
        return edge_sampler(self.pairs)


class SaintWalk(Saint):
    """Walk `walk_length` steps from uniform roots, and take all visited nodes (Algorithm 2, "random walk sampler").

    In a directed graph walks go against the edges, from a receiver to one that it hears from: these are the nodes
    that the root's output depends on.
    """

    settings: ClassVar[tuple[str, ...]] = ("ratio", "walk_length")

    def __init__(self, model: nn.Module, data: Data, *, walk_length: int = 2, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        self.walk_length = walk_length

    def make_sampler(self) -> Sampler:
        """Return the random walk sampler."""
        heard = pattern_of(self.receivers, self.senders, num_nodes=self.graph.num_nodes)
        return walk_sampler(heard, length=self.walk_length)
