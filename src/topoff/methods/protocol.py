"""The protocol of methods: every one prepares, hands out batches and runs the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.certificate import BatchReport
from topoff.forward.call import LossOf


class Method(Protocol):
    """Train a model in some kind of batches."""

    model: nn.Module
    refreshed_at: int | None  # the epoch (from 0) that the last refresh was made for, None before the first one
    frozen: bool  # whether nothing is to be refreshed

    @property
    def certificate_(self) -> float | None:
        """The method's own measure of what its batches miss, where it has one."""

    def __len__(self) -> int:
        """Count the batches of an epoch, those without training nodes included."""

    def prepare(self) -> object:
        """Do once what training needs: partition, embeddings, compensation."""

    def batches(self) -> Iterator[Data]:
        """Yield what is left of the current epoch, then go on to the next one.

        Where a step has several batches, a place in it without one has an empty batch (`batch_size` 0).
        """

    def forward(self, batch: Data) -> Tensor:
        """Return the outputs of the first `batch_size` nodes of a batch, with gradients; (batch_size, out)."""

    def learn(self, batch: Data, loss_of: LossOf) -> Tensor:
        """Put the gradient of the batch's loss into the parameters; return the loss."""

    def parameters(self) -> list[nn.Parameter]:
        """Return what is trained: the model's parameters, and the method's own where it has some."""

    @property
    def due(self) -> bool:
        """Whether `exact` would take the occasion to refresh."""

    def exact(self) -> tuple[Tensor, bool]:
        """Return the exact output of all nodes in eval mode, and whether the method took the occasion to refresh."""

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the nodes of one batch and the outputs that training sees for them, in eval mode."""

    def outputs(self) -> Tensor:
        """Return the outputs that training sees for all nodes, in eval mode; NaN for nodes in no batch."""

    def freeze(self) -> None:
        """Refresh nothing from now on: training has come to its end."""

    def report(self) -> list[BatchReport]:
        """Describe the batches, where there is something to say."""

    def state(self) -> dict[str, Any]:
        """Return where training stands, JSON-able; `weights` and this are all that `restore` needs."""

    def weights(self) -> dict[str, Tensor]:
        """Return the weights, besides the model's current ones, that the state depends on."""

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on from a state, instead of `prepare`."""


class Kind(Protocol):
    """Make a method: its class."""

    settings: tuple[str, ...]  # of a run's settings, those that the method reads

    def __call__(self, *args: Any, **settings: Any) -> Method:
        """Take the model, the graph and the settings; nothing is prepared before `prepare` or `restore`."""
