"""What all methods share that sample messages layer by layer: targets, blocks, and the outputs of every node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.blocks import Layered, allows_trimming, trial_batch
from topoff.forward.call import evaluating
from topoff.forward.intercept import ConvCall
from topoff.forward.neighbours import Block, Chosen, Ints, neighbors_of
from topoff.forward.plan import Plan
from topoff.graph.graph import Chain, Graph
from topoff.graph.operators import Operator
from topoff.methods.base import MiniBatches


class KnownFeatures(Layered):
    """Know the propagations that read only the raw features: A X is computed once, and no neighbour is needed."""

    def __init__(self, plan: Plan, graph: Graph) -> None:
        super().__init__(plan.convs)
        self.plan, self.graph = plan, graph
        self.known: set[int] = set()  # steps of linear convs that read only the raw features, as far as they were met
        self._first = 0  # step of the running conv
        self._raw = False  # it reads the features as they are, not a dropped-out copy

    def convolve(self, call: ConvCall) -> Any:
        """Run a conv, and note which of its propagations see only the features."""
        self._first, self._raw = self.step, call.x is self.batch.x
        if call.conv.path == "linear":
            hops = self.plan.known_hops.get(call.conv.name) or (0,)
            self.known.update(range(self.step, self.step + hops[call.number % len(hops)]))
        return super().convolve(call)

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return A X where the step reads the features, or that plus the own row's difference from X where the model
        drops some of it out; the sampled messages elsewhere; (sources, d) -> (targets, d)."""
        if step not in self.known:
            return super().aggregate(step, operator, h)
        block: Block = self.batch.blocks.steps[step]
        nodes: Tensor = self.batch.n_id[: block.sources]
        chain = (operator,) * (step - self._first)
        whole = self._features((*chain, operator), nodes[: block.targets])
        return whole if self._raw else block.matrices[operator] @ (h - self._features(chain, nodes)) + whole

    def _features(self, chain: Chain, nodes: Tensor) -> Tensor:
        """Return some rows of the features after a chain of operators, a copy: some convs write into it."""
        return self.graph.propagated(chain).index_select(0, nodes.cpu()).to(nodes.device)


class SampledLayers(MiniBatches):
    """Draw the messages of every layer for a batch of training nodes; a method says which.

    An epoch visits every training node once, in `round(1 / ratio)` batches.

    Args (and those of `MiniBatches`):
        exact_first: propagations of linear convs that read the raw features are not sampled: A X is computed once, and
            a batch needs one hop of neighbours less. FastGCN's and VR-GCN's authors do so; here every method does.
            After 6 CPU seconds on Computers (GCN 3 x 128, ratio 0.05, two seeds) with and without it: neighbour
            sampling 41.5 and 39.6 % of the validation nodes, LABOR-0 44.3 and 38.4 %, LADIES 81.8 and 78.5 %.
    """

    by_targets = True
    handler: KnownFeatures

    def __init__(self, model: nn.Module, data: Data, *, exact_first: bool = True, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        self.exact_first = exact_first

    @abstractmethod
    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages that arrive at some nodes in a step (0 is the first propagation)."""

    def drawn(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages of a step, none where the features are known."""
        if step in self.handler.known:
            return Chosen(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))
        return self.choose(nodes, step, rng)

    def begin(self) -> None:
        """Sort the neighbours; see whether rows can be dropped on the way, and which steps read only the features."""
        self.neighbors = neighbors_of(self.graph, self.plan)
        self.handler.trims = allows_trimming(self.model, self.neighbors, self.plan)
        self.nodes_per_step = max(1, round(self.ratio * self.graph.num_nodes))  # that layer samplers draw
        batch = self.placed(trial_batch(self.neighbors, depth=self.plan.depth))
        with evaluating(self.model), self.handler.on(batch):
            self._run(self.model, batch)

    @property
    def sampled_plan(self) -> Plan:
        """The plan by which messages are sampled: one that knows nothing beforehand without `exact_first`."""
        return self.plan if self.exact_first else replace(self.plan, known_hops={})

    def stand_in(self) -> KnownFeatures:
        """Return what stands in for the model's message passing."""
        return KnownFeatures(self.sampled_plan, self.graph)

    def batch(self, epoch: int, number: int) -> Data:
        """Return the blocks of some training nodes."""
        return self._sampled(self.targets(epoch, number), self.rng(epoch, number, 3))

    def cover(self) -> Iterator[Data]:
        """Yield the blocks of all nodes."""
        pieces = np.array_split(np.arange(self.graph.num_nodes), len(self))
        return (self._sampled(piece, self.rng(self.position.epoch, number, 4)) for number, piece in enumerate(pieces))

    def _sampled(self, targets: Ints, rng: np.random.Generator) -> Data:
        choose = partial(self.drawn, rng=rng)
        return self.neighbors.batch(targets, depth=self.plan.depth, choose=choose)
