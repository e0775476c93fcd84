"""What all methods share that sample messages layer by layer: targets, blocks, and the outputs of every node."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from topoff.forward.blocks import Layered, allows_trimming, trial_batch
from topoff.forward.call import evaluating
from topoff.forward.convs import Conv
from topoff.forward.intercept import first_input
from topoff.forward.neighbours import Block, Chosen, Ints, neighbours_of
from topoff.forward.plan import Plan
from topoff.graph.graph import Chain, Graph
from topoff.graph.operators import Operator
from topoff.methods.base import MiniBatches


class SampledLayers(MiniBatches):
    """Draw the messages of every layer for a batch of training nodes; a method says which.

    An epoch visits every training node once, in `round(1 / ratio)` batches.
    """

    by_targets: ClassVar[bool] = True

    @abstractmethod
    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages that arrive at some nodes in a step (0 is the first propagation)."""

    def drawn(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages of a step."""
        return self.choose(nodes, step, rng)

    def begin(self) -> None:
        """Sort the neighbours, and see whether rows can be dropped on the way."""
        self.neighbours = neighbours_of(self.graph, self.plan)
        self.layered = self.layers()
        self.layered.trims = allows_trimming(self.model, self.neighbours, self.plan)
        self._ordered_for = -1  # epoch of the targets at hand
        self._training = self.data.train_mask.nonzero().view(-1).numpy()

    def layers(self) -> Layered:
        """Return what stands in for the model's message passing."""
        return Layered(self.plan.convs)

    def batch(self, epoch: int, number: int) -> Data:
        """Return the blocks of some training nodes."""
        if self._ordered_for != epoch:
            order = self.rng(epoch, 2).permutation(self._training)
            self._ordered_for, self._targets = epoch, np.array_split(order, len(self))
        return self._sampled(self._targets[number], self.rng(epoch, number, 3))

    def cover(self) -> Iterator[Data]:
        """Yield the blocks of all nodes."""
        pieces = np.array_split(np.arange(self.graph.num_nodes), len(self))
        return (self._sampled(piece, self.rng(self.epoch, number, 4)) for number, piece in enumerate(pieces))

    def _sampled(self, targets: Ints, rng: np.random.Generator) -> Data:
        def choose(nodes: Ints, step: int) -> Chosen:
            """Choose with this batch's generator."""
            return self.drawn(nodes, step, rng)

        return self.neighbours.batch(targets, depth=self.plan.depth, choose=choose)

    def forward(self, batch: Data) -> Tensor:
        """Return the outputs of a batch's targets; (batch_size, out)."""
        with self.layered.on(batch), self._dropout():
            out: Any = self._run(self.model, batch)
        return out[: batch.batch_size]  # type: ignore[no-any-return]


class KnownFeatures(Layered):
    """Know the propagations that read only the raw features: A X is computed once, and no neighbour is needed."""

    def __init__(self, plan: Plan, graph: Graph) -> None:
        super().__init__(plan.convs)
        self.plan, self.graph = plan, graph
        self.known: set[int] = set()  # steps of linear convs that read only the raw features, as far as they were met
        self._first = 0  # step of the running conv
        self._raw = False  # it reads the features as they are, not a dropped-out copy
        self._calls: dict[str, int] = {}  # of each conv in this forward

    def convolve(self, conv: Conv, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a conv, and note which of its propagations see only the features."""
        if self._step == 0:
            self._calls = {}
        call = self._calls.get(conv.name, 0)
        self._calls[conv.name], self._first = call + 1, self._step
        if conv.path == "linear":
            self.known.update(range(self._step, self._step + self.plan.constant_of(conv, call)))
        self._raw = first_input(conv, args, kwargs) is self.batch.x
        return super().convolve(conv, forward, args, kwargs)

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
        return self.graph.propagated(chain)[nodes.cpu()].to(nodes.device)


class PrecomputedFirst(SampledLayers):
    """Draw messages where embeddings are read; those of the raw features are known."""

    features: KnownFeatures

    def begin(self) -> None:
        """Sort the neighbours, and see which propagations read only the features."""
        super().begin()
        batch = self.placed(trial_batch(self.neighbours, depth=self.plan.depth))
        with evaluating(self.model), self.layered.on(batch):
            self._run(self.model, batch)

    def layers(self) -> KnownFeatures:
        """Return what stands in for the model's message passing."""
        self.features = KnownFeatures(self.plan, self.graph)
        return self.features

    def drawn(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages of a step, none where the features are known."""
        if step in self.features.known:
            return Chosen(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))
        return self.choose(nodes, step, rng)
