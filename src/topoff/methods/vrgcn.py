"""VR-GCN: sampled messages with control variates (Chen, Zhu, Song, Stochastic Training of GCNs, ICML 2018)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.neighbours import Block
from topoff.forward.plan import Plan
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator
from topoff.methods.base import check_linear
from topoff.methods.histories import Histories
from topoff.methods.neighbour_sampling import NeighborSampling
from topoff.methods.sampled_layers import KnownFeatures, PrecomputedFirst


class VarianceReduced(PrecomputedFirst, NeighborSampling):
    """Sample only what has changed since a node was last computed (Eq. 5, Algorithm 1): Z = P^ (H - Hbar) + P Hbar.

    P^ are the rows of neighbour sampling, P all of them, Hbar what every node last had at this place of the forward.
    The sampled term vanishes as the weights come to rest, whatever is sampled. Propagations that read the raw features
    need no history and no neighbours, as P X is known: exact where the model takes X as it is; where it drops some of X
    out, a node's own row has its mask and its neighbours have none, which is the same on average.

    For models of linear convs: the others have no P. The paper shows that a fanout of 2 is enough. Differences from the
    authors' code: histories start at zero, a node's own row is always exact, and P X comes before dropout. With dropout
    a history is what the next conv reads, dropout included (the paper's CV); its CVD variant, which runs every layer
    with and without dropout, is not built: train without dropout, or expect the noise of the masks on top.

    >>> import torch
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

    def __init__(self, model: nn.Module, data: Data, *, fanout: int = 2, **shared: Any) -> None:
        super().__init__(model, data, fanout=fanout, **shared)

    def stand_in(self) -> KnownFeatures:
        """Return the model's message passing with control variates."""
        check_linear(self.plan, method="VR-GCN", instead="ns or labor")
        return ControlVariates(self.plan, self.graph, model=self.model, histories=self.histories)


class ControlVariates(KnownFeatures):
    """Estimate the messages of a step from the sampled change and the histories of all neighbours."""

    def __init__(self, plan: Plan, graph: Graph, *, model: nn.Module, histories: Histories) -> None:
        super().__init__(plan, graph)
        self.model, self.histories = model, histories

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return P^ (h - hbar) + P Hbar, and remember h in training; (sources, d) -> (targets, d)."""
        if step in self.known:
            return super().aggregate(step, operator, h)
        block: Block = self.batch.blocks.steps[step]
        nodes: Tensor = self.batch.n_id[: block.sources]
        rows = self.graph.aggregation(operator).rows(nodes[: block.targets]).to(h.device)
        whole = rows @ self.histories.table(str(step), like=h)
        past = self.histories.pull(str(step), nodes, like=h)
        if self.model.training:
            self.histories.push(str(step), nodes, h)
        return block.matrices[operator] @ (h - past) + whole
