"""VR-GCN: sampled messages with control variates (Chen, Zhu, Song, Stochastic Training of GCNs, ICML 2018)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.intercept import ConvCall
from topoff.forward.neighbours import Block
from topoff.forward.plan import Plan
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator
from topoff.methods.base import check_linear
from topoff.methods.histories import Histories
from topoff.methods.neighbour_sampling import NeighbourSampling
from topoff.methods.sampled_layers import KnownFeatures, PrecomputedFirst


class VarianceReduced(PrecomputedFirst, NeighbourSampling):
    """Sample only what has changed since a node was last computed (Eq. 5, Algorithm 1): Z = P^ (H - Hbar) + P Hbar.

    P^ are the rows of neighbour sampling, P all of them, Hbar what every node last had at this place of the forward.
    The sampled term vanishes as the weights come to rest, whatever is sampled. Propagations that read the raw features
    need no history and no neighbours, as P X is known: exact where the model takes X as it is; where it drops some of X
    out, a node's own row has its mask and its neighbours have none, which is the same on average.

    For models of the linear path: attention and other general convs have no P. Differences from the authors' code:
    histories start at zero, a node's own row is always exact, and P X comes before dropout. With dropout a history is
    what the next conv reads, dropout included (the paper's CV); its CVD variant, which runs every layer with and
    without dropout, is not built: train without dropout, or expect the noise of the masks on top.

    Args:
        model: a PyG model of linear convs.
        data: the whole graph.
        fanout: neighbours per receiver and propagation; the paper shows that 2 are enough.
        ratio: share of the training nodes per batch.

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
        """Return the model's message passing with control variates.

        Raises:
            ValueError: for convs of the general path.
        """
        check_linear(self.plan, method="VR-GCN", instead="ns or labor")
        self.histories = Histories(self.graph.num_nodes)
        return ControlVariates(self.plan, self.graph, histories=self.histories)


class ControlVariates(KnownFeatures):
    """Estimate the messages of a step from the sampled change and the histories of all neighbours."""

    def __init__(self, plan: Plan, graph: Graph, *, histories: Histories) -> None:
        super().__init__(plan, graph)
        self.histories = histories
        self._training = False

    def convolve(self, call: ConvCall) -> Any:
        """Run a conv; histories are written in training."""
        self._training = call.conv.module.training
        return super().convolve(call)

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return P^ (h - hbar) + P Hbar; (sources, d) -> (targets, d)."""
        if step in self.known:
            return super().aggregate(step, operator, h)
        block: Block = self.batch.blocks.steps[step]
        nodes: Tensor = self.batch.n_id[: block.sources]
        past, whole = self._remembered(str(step), operator, h, nodes=nodes, targets=block.targets)
        return block.matrices[operator] @ (h - past) + whole

    def _remembered(
        self, place: str, operator: Operator, h: Tensor, *, nodes: Tensor, targets: int
    ) -> tuple[Tensor, Tensor]:
        """Return the sources' histories and P Hbar of the targets, both constant; then remember h, in training."""
        with torch.no_grad():
            rows = self.graph.aggregation(operator).rows(nodes[:targets]).to(h.device)
            whole = rows @ self.histories.table(place, like=h)
            past = self.histories.pull(place, nodes, like=h)
        if self._training:
            self.histories.push(place, nodes, h)
        return past, whole
