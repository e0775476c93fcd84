"""IBMB (Gasteiger, Qian, Guennemann, "Influence-Based Mini-Batching for Graph Neural Networks", LoG 2022).

Batches are fixed: output nodes, here the training nodes, that influence each other are put together, and the nodes of
largest influence (personalised PageRank, alpha 0.25) on them are added as auxiliary nodes, whose own loss does not
count. Two ways (Section 3): node-wise, each output node has its own auxiliary nodes; batch-wise, a graph partition
gives the output nodes of a batch and its auxiliary nodes are found for all of them together. As in the authors' code,
messages inside a batch have the weights of the whole graph (A[B, B] of the global operator); convs without fixed
weights (attention, max) see the induced subgraph alone. Any model can be run.

Batches follow each other by the paper's weighted sampling (Section 4): the next one is drawn with a chance proportional
to the distance of its labels from those of the last one, by the symmetric Kullback-Leibler divergence.

Differences: all epochs start from a random batch, so that an order depends on (seed, epoch) alone; the
smallest groups are merged first, as there, but until there are exactly round(1 / ratio) batches, not as long as they
fit; batch-wise PageRank follows the walk of the formula, where the authors' code multiplies with
D^-1 A and not its transpose, which divides scores by degrees. The authors' graphs are undirected; here influence
follows messages. Edge weights play no role in the choice of nodes. The paper's fixed order by simulated annealing and
its learning-rate schedule are left out.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.batching.pagerank import Floats, Ints, at_least, cached_pagerank
from topoff.batching.scopes import OutputSet, merged, most_influential, united
from topoff.forward.subgraph import cut_inside
from topoff.methods.base import MiniBatches, heard


class InfluenceBatches(MiniBatches):
    """Hold what both ways of IBMB share: fixed batches of output and auxiliary nodes, and their order."""

    by_targets = True
    alpha = 0.25  # chance that a walk ends

    @abstractmethod
    def training_sets(self) -> list[OutputSet]:
        """Return the batches of an epoch: every training node is an output once."""

    @abstractmethod
    def other_sets(self, outputs: Ints) -> list[OutputSet]:
        """Return batches for all other nodes, by the same rule."""

    def begin(self) -> None:
        """Choose the nodes of all batches."""
        self.offsets, self.ids = heard(self.plan, self.graph)
        self._tell("ranking neighbours", 0, 1)
        self.sets = self.training_sets()
        self._tell("ranking neighbours", 1, 1)
        self._distances = label_distances([self.data.y[chosen.nodes[: chosen.outputs]] for chosen in self.sets])
        self._others: list[OutputSet] | None = None
        self._kept: dict[int, Data] = {}

    def batch(self, epoch: int, number: int) -> Data:
        """Return a batch, the same in all epochs: the output nodes first."""
        if number not in self._kept:
            self._kept[number] = self._cut(self.sets[number])
        return self._kept[number]

    def _cut(self, chosen: OutputSet) -> Data:
        """Return the induced subgraph of a batch with the operators' global weights, A[B, B], and no halo."""
        batch = cut_inside(self.graph, self.plan.in_batch_only(), torch.from_numpy(chosen.nodes))
        batch.batch_size = chosen.outputs
        return batch

    def order(self, epoch: int) -> Ints:
        """Return the order of `schedule`."""
        return schedule(self._distances, rng=self.rng(epoch, 1))

    def cover(self) -> Iterator[Data]:
        """Yield the training batches, then such batches for all other nodes."""
        yield from super().cover()
        if self._others is None:
            others = np.flatnonzero(~self.data.train_mask.numpy())
            self._others = self.other_sets(others) if len(others) else []
        yield from map(self._cut, self._others)


class Ibmb(InfluenceBatches):
    """Train on node-wise IBMB batches: the union of each output node's most influential nodes.

    `fanout` counts these, the output node among them; the authors take 16 on ogbn-arxiv.
    """

    settings: ClassVar[tuple[str, ...]] = ("ratio", "fanout")

    def __init__(self, model: nn.Module, data: Data, *, fanout: int = 16, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        at_least(1, fanout=fanout)
        self.fanout = fanout

    def training_sets(self) -> list[OutputSet]:
        """Group the training nodes by their influence on each other."""
        return self._grouped(self.training, batches=len(self))

    def other_sets(self, outputs: Ints) -> list[OutputSet]:
        """Group the other nodes, as many per batch as there are training nodes in one."""
        return self._grouped(outputs, batches=math.ceil(len(outputs) * len(self) / len(self.training)))

    def _grouped(self, outputs: Ints, *, batches: int) -> list[OutputSet]:
        ranked = cached_pagerank(self.offsets, self.ids, outputs, alpha=self.alpha, keep=self.fanout)
        return [united(ranked, rows) for rows in merged(ranked, outputs, batches=min(batches, len(outputs)))]


class IbmbBatch(InfluenceBatches):
    """Train on batch-wise IBMB batches: the training nodes of some parts, and the nodes that influence them most.

    A batch has about ratio * n nodes in all, auxiliary ones included (the authors' `batch_expand_ratio` is 1), and
    that share of the training nodes. `batches` and `parts`: see `NodeSets`.
    """

    settings: ClassVar[tuple[str, ...]] = ("batches", "ratio", "parts")

    def __init__(
        self, model: nn.Module, data: Data, *, batches: str = "kaminpar", parts: int | None = None, **shared: Any
    ) -> None:
        super().__init__(model, data, **shared)
        self.node_sets = NodeSets(method=batches, ratio=self.ratio, parts=parts, seed=self.seed, train_only=True)

    @property
    def budget(self) -> int:
        """Return how many nodes a batch may have."""
        return math.ceil(self.ratio * self.graph.num_nodes)

    def training_sets(self) -> list[OutputSet]:
        """Partition the graph, and add to the training nodes of each batch what influences them."""
        self.node_sets.fit(self.data, cache=True)
        return self._extended([nodes.numpy() for nodes in self.node_sets.of(0)])

    def other_sets(self, outputs: Ints) -> list[OutputSet]:
        """Cut the other nodes of the same parts into pieces as large as a training batch's, or half of the budget."""
        most = max(math.ceil(len(self.training) / len(self)), self.budget // 2)
        groups: list[Ints] = []
        for nodes in self.node_sets.cover():
            some = nodes.numpy()[np.isin(nodes.numpy(), outputs)]
            groups += np.array_split(some, math.ceil(len(some) / most)) if len(some) else []
        return self._extended(groups)

    def _extended(self, groups: list[Ints]) -> list[OutputSet]:
        return most_influential(self.offsets, self.ids, groups, budget=self.budget, alpha=self.alpha)


def label_distances(labels: list[torch.Tensor]) -> Floats:
    """Return the symmetric KL divergence between the labels of batches, with one more of each class; (K, K).

    Targets of a regression have no classes: all distances are equal.

    >>> label_distances([torch.tensor([0, 0]), torch.tensor([1, 1]), torch.tensor([0, 0])]).round(2).tolist()
    [[0.0, 1.1, 0.0], [1.1, 0.0, 1.1], [0.0, 1.1, 0.0]]
    """
    if labels[0].dim() == 1 and labels[0].is_floating_point():
        return np.ones((len(labels), len(labels)))
    if labels[0].dim() == 1:
        classes = 1 + max(0, *(int(label.max()) for label in labels))
        counts = torch.stack([torch.bincount(label[label >= 0], minlength=classes) for label in labels])
    else:
        counts = torch.stack([(label > 0).sum(0) for label in labels])
    share = counts.double().numpy() + 1
    share /= share.sum(axis=1, keepdims=True)
    cross = share @ np.log(share).T
    own = np.diag(cross)
    distances: Floats = np.maximum(own[:, None] + own - cross - cross.T, 0.0)
    return distances


def schedule(distances: Floats, *, rng: np.random.Generator) -> Ints:
    """Draw an order of batches: the first at random, each next one by its distance from the last one; (K,).

    >>> schedule(np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), rng=np.random.default_rng(0))
    array([2, 1, 0])
    """
    left = np.ones(len(distances), dtype=bool)
    order = [int(rng.integers(len(distances)))]
    for _ in range(len(distances) - 1):
        left[order[-1]] = False
        chance = (distances[order[-1]] + 1e-5) * left  # equal labels are possible too
        order.append(int(rng.choice(len(chance), p=chance / chance.sum())))
    return np.array(order)
