"""VR-GCN: sampled messages with control variates (Chen, Zhu, Song, Stochastic Training of GCNs, ICML 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.blocks import trial_batch
from topoff.forward.copies import restored
from topoff.forward.neighbours import Block
from topoff.forward.plan import Plan
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator
from topoff.methods.base import check_linear
from topoff.methods.histories import Histories
from topoff.methods.neighbour_sampling import NeighborSampling
from topoff.methods.sampled_layers import KnownFeatures
from topoff.models.dropout import WithoutDropout


class VarianceReduced(NeighborSampling):
    """Sample only what has changed since a node was last computed (Eq. 5, Algorithm 1): Z = P^ (H - Hbar) + P Hbar.

    P^ are the rows of neighbour sampling, P all of them, Hbar what every node last had at this place of the forward.
    The sampled term vanishes as the weights come to rest, whatever is sampled. Propagations that read the raw features
    need no history and no neighbours, as P X is known: exact where the model takes X as it is; where it drops some of X
    out, a node's own row has its mask and its neighbours have none, which is the same on average.

    A model with dropout runs every batch twice (CVD, Section 5.3): first without dropout and without a gradient, which
    gives the means mu and the histories, then with dropout. The noise of the masks has mean zero, and is sampled alone:

        Z = P^ (mu - Hbar) + P Hbar + s P^ (h - mu),    s = sqrt(k / d) for the k of d neighbours that were drawn,

    so that it has the variance that dropout has with all neighbours; a node's own noise is not scaled.

    For models of linear convs: the others have no P. The paper shows that a fanout of 2 is enough. Differences from the
    authors' code: a node's own row is always exact; P X comes before dropout; the gradient is that of P^ h, unbiased,
    where theirs has the factor s, too. Histories start at zero, as theirs do.

    Args (and those of `NeighborSampling`):
        dropout_free: whether a first run without dropout gives the means, where there is dropout. Without it histories
            hold what convs read, dropout included (the paper's CV), and the noise of the masks comes on top: steps are
            cheaper, and on Computers (dropout 0.2) the score was ahead after 6 CPU seconds and behind after 16.

    >>> from torch_geometric.nn import GCN
    >>> from topoff.data.load import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> method = VarianceReduced(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5)
    >>> method.prepare()
    >>> outputs = [method.forward(batch) for batch in method.batches()]
    >>> [tuple(table.shape) for table in method.weights().values()]  # the histories of the second layer
    [(20, 4)]
    """

    handler: ControlVariates

    def __init__(
        self, model: nn.Module, data: Data, *, fanout: int = 2, dropout_free: bool = True, **shared: Any
    ) -> None:
        super().__init__(model, data, fanout=fanout, **shared)
        self.dropout_free = dropout_free

    def begin(self) -> None:
        """Sort the neighbours, and see whether the model drops anything out."""
        super().begin()
        if self.dropout_free:
            plain, batch = (
                KnownFeatures(self.sampled_plan, self.graph),
                trial_batch(self.neighbors, depth=self.plan.depth),
            )
            plain.trims, batch = self.handler.trims, self.placed(batch)
            with torch.no_grad(), restored(self.model, training=True), WithoutDropout() as silent, plain.on(batch):
                self._run(self.model, batch)
            self.dropout_free = silent.met

    def stand_in(self) -> ControlVariates:
        """Return the model's message passing with control variates."""
        check_linear(self.plan, method="VR-GCN", instead="ns or labor")
        return ControlVariates(self.sampled_plan, self.graph, model=self.model, histories=self.histories)

    def forward(self, batch: Data) -> Any:
        """Return the outputs of a batch's targets; in training, where there is dropout, after a run without it."""
        handler = self.handler
        handler.means = {}
        if not self.model.training or not self.dropout_free:
            return super().forward(batch)
        nodes = batch.n_id.cpu().numpy()
        degree = self.neighbors.degree[nodes]
        handler.noise = _column(np.sqrt(np.minimum(degree, self.fanout) / np.maximum(degree, 1)), like=batch.x)
        handler.own = {name: _column(weights[nodes], like=batch.x) for name, weights in self.neighbors.own.items()}
        handler.recording = True
        try:
            with torch.no_grad(), restored(self.model, training=True), WithoutDropout():
                super().forward(batch)
        finally:
            handler.recording = False
        return super().forward(batch)


@dataclass(frozen=True)
class Means:
    """Hold what one propagation saw in the run without dropout."""

    read: Tensor  # (sources, d) mu
    heard: Tensor  # (targets, d) P^ (mu - Hbar) + P Hbar


class ControlVariates(KnownFeatures):
    """Estimate the messages of a step from the sampled change and the histories of all neighbours."""

    noise: Tensor  # (rows, 1) sqrt(k / d) of a batch's nodes
    own: dict[Operator, Tensor]  # (rows, 1) A[v, v] of a batch's nodes
    recording = False  # this is the run without dropout

    def __init__(self, plan: Plan, graph: Graph, *, model: nn.Module, histories: Histories) -> None:
        super().__init__(plan, graph)
        self.model, self.histories = model, histories
        self.means: dict[int, Means] = {}  # by step, after a run without dropout

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return P^ (h - hbar) + P Hbar, and remember h in training; (sources, d) -> (targets, d)."""
        if step in self.known:
            return super().aggregate(step, operator, h)
        block: Block = self.batch.blocks.steps[step]
        if step in self.means:
            return self._around_mean(self.means[step], block, operator, h)
        nodes: Tensor = self.batch.n_id[: block.sources]
        rows = self.graph.aggregation(operator).rows(nodes[: block.targets]).to(h.device)
        whole = rows @ self.histories.table(str(step), like=h)
        past = self.histories.pull(str(step), nodes, like=h)
        if self.model.training:
            self.histories.push(str(step), nodes, h)
        out = block.matrices[operator] @ (h - past) + whole
        if self.recording:
            self.means[step] = Means(h, out)
        return out

    def _around_mean(self, mean: Means, block: Block, operator: Operator, h: Tensor) -> Tensor:
        """Return what is heard of the mean and, from the drawn neighbours, the noise of dropout with its true size."""
        noise = h - mean.read
        drawn = block.matrices[operator] @ noise
        with torch.no_grad():
            own = self.own[operator][: block.targets] * noise[: block.targets]
            surplus = (1 - self.noise[: block.targets]) * (drawn - own)
        return mean.heard + drawn - surplus


def _column(numbers: Any, *, like: Tensor) -> Tensor:
    """Return an array as a column; (n,) -> (n, 1)."""
    return torch.from_numpy(numbers).to(like).view(-1, 1)
