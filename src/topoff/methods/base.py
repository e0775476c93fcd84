"""What all mini-batch methods share: the order of batches, exact inference, what training sees, and resuming."""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.certificate import BatchReport
from topoff.compensation.compensated import Compensated
from topoff.compensation.loader import Progress
from topoff.data.check import check
from topoff.forward.call import caller, evaluating
from topoff.forward.exact import exact
from topoff.forward.plan import Plan, make_plan
from topoff.graph.graph import Graph
from topoff.methods.protocol import LossOf
from topoff.models.dropout import fast_dropout

Ints = npt.NDArray[np.int64]
PIECE = 1000  # nodes that exact inference takes at a time, at least: every piece costs a thread


class Learner(ABC):
    """Share what every method does, unless it says otherwise."""

    model: nn.Module

    @abstractmethod
    def forward(self, batch: Data) -> Tensor:
        """Return the outputs of a batch's targets; (batch_size, out)."""

    def learn(self, batch: Data, loss_of: LossOf) -> Tensor:
        """Put the gradient of the batch's loss into the parameters; return the loss."""
        loss = loss_of(self.forward(batch), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def parameters(self) -> list[nn.Parameter]:
        """Return what is trained."""
        return list(self.model.parameters())

    def freeze(self) -> None:  # noqa: B027 - most methods have nothing to do here
        """Refresh nothing from now on: training has come to its end."""

    def refreshed_at(self) -> int | None:
        """Return nothing: there is no basis."""
        return None

    def certificate(self) -> float | None:
        """Return nothing: there is no certificate."""
        return None

    def reports(self) -> list[BatchReport]:
        """Return nothing."""
        return []

    def weights(self) -> dict[str, Tensor]:
        """Return what the method has learnt besides the model: nothing."""
        return {}


def check_ratio(ratio: float) -> None:
    """Refuse a share that gives no batches.

    Raises:
        ValueError: it does.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"Expected 'ratio' to be in (0, 1] (got {ratio}); 0.1 gives 10 batches.")


def check_linear(plan: Plan, *, method: str, instead: str) -> None:
    """Refuse a model with a conv whose messages are not its neighbours' rows times fixed weights.

    Raises:
        ValueError: there is one.
    """
    for conv in plan.convs:
        if conv.path == "general":
            raise ValueError(
                f"Expected a model of linear convs for {method}, such as GCN, SAGE or GIN (got {conv}): its messages "
                f"are no fixed weights times rows; use the method {instead} for this model."
            )


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
        seed: of everything that is drawn.
        fast_dropout: see `TOP`.
        progress: told how far the preparation is.
    """

    settings: ClassVar[tuple[str, ...]] = ("ratio",)  # of a run's settings, those that the method reads
    by_targets: ClassVar[bool] = False  # whether an epoch shares out the training nodes
    skips: ClassVar[bool] = True  # whether batches without training nodes are left out

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        ratio: float = 0.1,
        seed: int = 0,
        fast_dropout: bool = False,
        progress: Progress | None = None,
    ) -> None:
        check_ratio(ratio)
        self.model, self.data = model, check(data).cpu()
        self.ratio, self.seed, self.fast_dropout, self.progress = ratio, seed, fast_dropout, progress
        self.epoch = 0
        self._position = 0  # batches of this epoch that were handed out
        self._resumed = False  # the position was loaded
        self._run = caller(model)

    # ---- what a method says

    @abstractmethod
    def batch(self, epoch: int, number: int) -> Data:
        """Return a batch of an epoch, on the CPU."""

    def cover(self) -> Iterator[Data]:
        """Yield batches that show what training sees, each node among the targets where that is possible."""
        return (self.batch(self.epoch, number) for number in range(len(self)))

    @abstractmethod
    def begin(self) -> None:
        """Do what training needs once, after `graph` and `plan` are there."""

    def order(self, epoch: int) -> Ints:
        """Return the order in which the batches of an epoch are taken."""
        return self.rng(epoch, 1).permutation(len(self))

    # ---- the protocol

    def __len__(self) -> int:
        """Count the batches of an epoch; where they share out the training nodes, not more than there are."""
        count = max(1, round(1 / self.ratio))
        return min(count, max(1, int(self.data.train_mask.sum()))) if self.by_targets else count

    def prepare(self) -> None:
        """Look at the model and the graph."""
        self.graph = Graph(self.data)
        self.plan: Plan = make_plan(self.model, self.graph)
        self._compensated = self.handler()
        self.begin()

    def handler(self) -> Compensated:
        """Return what stands in for the model's message passing."""
        return Compensated(self.plan.convs)

    def batches(self) -> Iterator[Data]:
        """Yield what is left of the current epoch, shuffled."""
        if self._position and not self._resumed:
            self.epoch, self._position = self.epoch + 1, 0
        self._resumed = False
        order = self.order(self.epoch)
        while self._position < len(order):
            batch = self.batch(self.epoch, int(order[self._position]))
            self._position += 1
            if not self.skips or bool(batch.train_mask[: batch.batch_size].any()):
                yield self.placed(batch)
        self.epoch, self._position = self.epoch + 1, 0

    def forward(self, batch: Data) -> Tensor:
        """Return the outputs of a batch's targets; (batch_size, out)."""
        with self._compensated.on(batch), self._dropout():
            out: Tensor = self._run(self.model, batch)
        return out[: batch.batch_size]

    def exact(self) -> tuple[Tensor, bool]:
        """Return the exact outputs of all nodes; nothing is refreshed."""
        return exact(self.model, self.graph, self.pieces()), False

    def pieces(self) -> list[Data]:
        """Cut the whole graph into pieces for exact inference."""
        count = min(len(self), max(1, self.graph.num_nodes // PIECE))
        return [self.graph.induced(nodes) for nodes in torch.arange(self.graph.num_nodes).tensor_split(count)]

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the targets of one batch of the current epoch and their outputs, in eval mode."""
        return self._seen(self.batch(self.epoch, number % len(self)))

    def outputs(self) -> Tensor:
        """Return what training sees of every node, in eval mode; NaN for nodes that are never targets."""
        whole: Tensor | None = None
        for batch in self.cover():
            nodes, out = self._seen(batch)
            if whole is None:
                whole = out.new_full((self.graph.num_nodes, *out.shape[1:]), float("nan"))
            whole[nodes] = out
        assert whole is not None
        return whole

    def _seen(self, batch: Data) -> tuple[Tensor, Tensor]:
        with evaluating(self.model):
            return batch.n_id[: batch.batch_size].cpu(), self.forward(self.placed(batch)).cpu()

    def state(self) -> dict[str, Any]:
        """Return the position."""
        return {"epoch": self.epoch, "position": self._position}

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on from a position."""
        self.prepare()
        self.epoch, self._position, self._resumed = state["epoch"], state["position"], True

    # ---- for the methods

    def placed(self, batch: Data) -> Data:
        """Return a batch on the model's device."""
        device = next(self.model.parameters(), self.data.x).device
        return batch if device.type == "cpu" else copy.copy(batch).to(device)  # a batch that is kept stays where it is

    def rng(self, *numbers: int) -> np.random.Generator:
        """Return a generator for a purpose, such as (epoch, number)."""
        return np.random.default_rng([self.seed, *numbers])

    def _dropout(self) -> contextlib.AbstractContextManager[None]:
        return fast_dropout(self.model) if self.fast_dropout else contextlib.nullcontext()
