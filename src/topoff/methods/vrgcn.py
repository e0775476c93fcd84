"""VR-GCN: sampled messages with control variates (Chen, Zhu, Song, Stochastic Training of GCNs, ICML 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.aggregation import Operator
from topoff.convs import Conv, evaluating, first_input
from topoff.graph import Chain, Graph
from topoff.histories import Histories
from topoff.layered import Block, Chosen, Ints, Layered, trial_batch
from topoff.methods.ns import NeighbourSampling
from topoff.plan import Plan


class VarianceReduced(NeighbourSampling):
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
    """

    def __init__(self, model: nn.Module, data: Data, *, fanout: int = 2, **shared: Any) -> None:
        super().__init__(model, data, fanout=fanout, **shared)

    def begin(self) -> None:
        """Sort the neighbours, and see which propagations read only the features."""
        super().begin()
        batch = self.placed(trial_batch(self.neighbours, depth=self.plan.depth))
        with evaluating(self.model), self.layered.on(batch):
            self._run(self.model, batch)

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose up to `fanout` neighbours of every node, nobody where the features are known."""
        if step in self.control.known:
            return Chosen(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))
        return super().choose(nodes, step, rng)

    def layers(self) -> Layered:
        """Return the model's message passing with control variates.

        Raises:
            ValueError: for convs of the general path.
        """
        for conv in self.plan.convs:
            if conv.path == "general":
                raise ValueError(
                    f"Expected convs whose messages are the neighbours' rows times fixed weights (got {conv}): control "
                    f"variates need such an operator; use the method 'ns' or 'labor' for this model."
                )
        self.histories = Histories(self.graph.num_nodes)
        self.control = ControlVariates(self.plan, self.graph, histories=self.histories)
        return self.control

    def weights(self) -> dict[str, Tensor]:
        """Return the histories."""
        return dict(self.histories.tables)

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on from a position and its histories."""
        super().restore(state, weights)
        device = next(self.model.parameters(), self.data.x).device
        self.histories.tables.update({place: table.to(device, copy=True) for place, table in weights.items()})


class ControlVariates(Layered):
    """Estimate the messages of a step from the sampled change and the histories of all neighbours."""

    def __init__(self, plan: Plan, graph: Graph, *, histories: Histories) -> None:
        super().__init__(plan.convs)
        self.plan, self.graph, self.histories = plan, graph, histories
        self.known: set[int] = set()  # steps that read only the raw features, as far as they were met
        self._first = 0  # step of the running conv
        self._raw = False  # it reads the features as they are, not a dropped-out copy
        self._training = False
        self._calls: dict[str, int] = {}  # of each conv in this forward

    def convolve(self, conv: Conv, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a conv, and note which of its propagations see only the features."""
        if self._step == 0:
            self._calls = {}
        call = self._calls.get(conv.name, 0)
        self._calls[conv.name], self._first = call + 1, self._step
        self.known.update(range(self._step, self._step + self.plan.constant_of(conv, call)))
        self._raw = first_input(conv, args, kwargs) is self.batch.x
        self._training = conv.module.training
        return super().convolve(conv, forward, args, kwargs)

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return P^ (h - hbar) + P Hbar; (sources, d) -> (targets, d)."""
        block: Block = self.batch.blocks.steps[step]
        nodes: Tensor = self.batch.n_id[: block.sources]
        if step not in self.known:
            past, whole = self._remembered(str(step), operator, h, nodes=nodes, targets=block.targets)
        else:
            chain = (operator,) * (step - self._first)
            whole = self._features((*chain, operator), nodes[: block.targets])
            if self._raw:
                return whole
            past = self._features(chain, nodes)
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

    def _features(self, chain: Chain, nodes: Tensor) -> Tensor:
        """Return some rows of the features after a chain of operators, a copy: some convs write into it."""
        return self.graph.propagated(chain)[nodes.cpu()].to(nodes.device)
