"""What all mini-batch methods share: the order of batches, exact inference, what training sees, and resuming."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.pagerank import senders
from topoff.batching.position import Position
from topoff.batching.ratio import count_batches
from topoff.data.check import check
from topoff.forward.call import Learner, Progress, plain
from topoff.forward.exact import exact
from topoff.forward.intercept import Handler
from topoff.forward.plan import Plan
from topoff.forward.room import graph_for
from topoff.forward.subgraph import Subgraph
from topoff.forward.trial import check_same_convs, make_plan, recheck
from topoff.graph.graph import APART, AROUND, Graph
from topoff.methods.histories import Histories

Ints = npt.NDArray[np.int64]
AT_LEAST = 1000  # nodes that exact inference takes at a time: every piece costs a forward


def rows_of(graph: Graph, nodes: Tensor, edge_index: Tensor, edge_ids: Tensor) -> Data:
    """Return a batch of some nodes, all of them targets, and of edges between them with their ids in the graph."""
    batch = Data(edge_index=edge_index, n_id=nodes, batch_size=len(nodes), num_nodes=len(nodes))
    return graph.fill(batch, nodes, edge_ids)


def check_linear(plan: Plan, *, method: str, instead: str) -> None:
    """Refuse a model with a conv whose messages are not its neighbours' rows times fixed weights."""
    for conv in plan.convs:
        if conv.path == "general":
            raise ValueError(
                f"Expected a model of linear convs for {method}, such as GCN, SAGE or GIN (got {conv}): its messages "
                f"are not fixed multiples of its neighbours' rows; use the method {instead} for this model."
            )


def pieces_of(graph: Graph, *, most: int) -> list[Tensor]:
    """Share out all nodes into pieces for exact inference."""
    count = min(most, max(1, graph.num_nodes // AT_LEAST))
    return list(torch.arange(graph.num_nodes).tensor_split(count))


def heard(plan: Plan, graph: Graph) -> tuple[Ints, Ints]:
    """Return who hears whom, in the directions in which a model's messages flow; see `senders`."""
    flows = {operator.flow for operator in plan.operators} | set(plan.flows) or {"source_to_target"}
    if flows & {AROUND, APART}:
        flows = {"source_to_target", "target_to_source"}
    return senders(graph.data.edge_index, graph.num_nodes, flows=sorted(flows))


class MiniBatches(Learner):
    """Train in batches; a method says what a batch is, and where it differs, how the model runs on one.

    Every batch is a function of (seed, epoch, number): a run that is resumed sees the same ones. `n_id` are its nodes,
    of which the first `batch_size` are its targets: `forward` returns their outputs, and `train_mask` and `y` hold
    at least their rows. `loss_weight`, where a batch has one, weighs the losses of its targets, which are then summed
    instead of averaged.

    Args:
        model: any PyG model; it is called, never changed.
        data: the whole graph.
        ratio: share of the nodes (or of the training nodes) per batch.
        seed: random seed.
        fast_dropout, memory: see `TOP`.
        progress: told how far the preparation is.
    """

    settings: ClassVar[tuple[str, ...]] = ("ratio",)  # of a run's settings, those that the method reads
    by_targets: ClassVar[bool] = False  # whether an epoch shares out the training nodes
    any_model: ClassVar[bool] = False  # whether convs may read more than their neighbours: batches are graphs
    skips: ClassVar[bool] = True  # whether batches without training nodes are left out

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        ratio: float = 0.1,
        seed: int = 0,
        fast_dropout: bool = False,
        memory: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        count_batches(ratio)  # refuses one that is out of range
        check(data)  # with labels
        super().__init__(model, data, fast_dropout=fast_dropout, memory=memory, progress=progress)
        self.ratio, self.seed, self.position = ratio, seed, Position()
        self._split: tuple[int, list[Ints]] = (-1, [])  # an epoch and the training nodes of its batches

    # ---- what a method says

    @abstractmethod
    def batch(self, epoch: int, number: int) -> Data:
        """Return a batch of an epoch, on the CPU."""

    def cover(self) -> Iterator[Data]:
        """Yield batches that show what training sees, each node among the targets where that is possible."""
        return (self.batch(self.position.epoch, number) for number in range(len(self)))

    @abstractmethod
    def begin(self) -> None:
        """Do what training needs once, after `graph` and `plan` are there."""

    def order(self, epoch: int) -> Ints:
        """Return the order in which the batches of an epoch are taken."""
        return self.rng(epoch, 1).permutation(len(self))

    # ---- the protocol

    def __len__(self) -> int:
        """Count the batches of an epoch; where they share out the training nodes, not more than there are."""
        count = count_batches(self.ratio)
        return min(count, max(1, int(self.data.train_mask.sum()))) if self.by_targets else count

    def prepare(self) -> None:
        """Look at the model and the graph."""
        self.graph = graph_for(plain(self.model), self.data, memory=self.memory)
        self.plan: Plan = make_plan(self.model, self.graph)
        if not self.any_model:
            self.plan.check_local()
        self.histories = Histories(self.graph.num_nodes)  # what is remembered from batch to batch: saved and restored
        self.handler = self.stand_in()
        self.begin()

    def stand_in(self) -> Handler:
        """Return what stands in for the model's message passing."""
        return Subgraph(self.plan.convs)

    def batches(self) -> Iterator[Data]:
        """Yield what is left of the current epoch, shuffled."""
        self.position.begin_epoch()
        epoch = self.position.epoch
        for number in self.position.walk(self.order(epoch).tolist()):
            batch = self.batch(epoch, number)
            if not self.skips or bool(batch.train_mask[: batch.batch_size].any()):
                yield self.placed(batch)

    def exact(self) -> tuple[Tensor, bool]:
        """Return the exact outputs of all nodes; nothing is refreshed."""
        return self._whole(), False

    def _whole(self, **told: Any) -> Any:
        """Run the model exactly on all nodes, after a look at whether that still equals its plain forward."""
        check_same_convs(self.model, self.plan)
        recheck(self.model, self.graph, self.plan, seed=1 + self.position.epoch)
        return exact(self.model, self.graph, pieces_of(self.graph, most=len(self)), plan=self.plan, **told)

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the targets of one batch of the current epoch and their outputs, in eval mode."""
        return self._seen(self.batch(self.position.epoch, number % len(self)))

    def state(self) -> dict[str, Any]:
        """Return the position."""
        return self.position.state_dict()

    def weights(self) -> dict[str, Tensor]:
        """Return the histories by place, (n, d) each."""
        return dict(self.histories.tables)

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on from a position, with the histories of that time."""
        self.prepare()
        self.position.load_state_dict(state)
        self.histories.load(weights, device=self.device)

    # ---- for the methods

    def rng(self, *numbers: int) -> np.random.Generator:
        """Return a generator for a purpose, such as (epoch, number)."""
        return np.random.default_rng([self.seed, *numbers])

    def _tell(self, task: str, done: int, count: int) -> None:
        """Say how far the preparation is, where someone listens."""
        if self.progress:
            self.progress(task, done, count)

    @cached_property
    def training(self) -> Ints:
        """The training nodes, ascending."""
        nodes: Ints = self.data.train_mask.nonzero().view(-1).numpy()
        return nodes

    def targets(self, epoch: int, number: int) -> Ints:
        """Return the training nodes of a batch: every epoch shares them out in a new order."""
        if self._split[0] != epoch:
            order = self.rng(epoch, 2).permutation(self.training)
            self._split = epoch, np.array_split(order, len(self))
        return self._split[1][number]
