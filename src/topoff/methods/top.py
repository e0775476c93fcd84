"""TOP: compensated mini-batches (Accurate and Scalable Graph Neural Networks via Message Invariance, ICLR 2025)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.certificate import BatchReport
from topoff.compensation.top import TOP
from topoff.forward.call import evaluating
from topoff.methods.base import Learner


class Compensate(Learner):
    """Run `TOP` under the protocol of methods; an exact evaluation refreshes the basis where that is due anyway."""

    settings: ClassVar[tuple[str, ...]] = (
        *("batches", "ratio", "parts", "regroup", "train_only"),
        *("rank", "estimator", "inits", "refresh"),
    )

    def __init__(self, model: nn.Module, data: Data, *, cache: bool = True, **settings: Any) -> None:
        self.model = model
        self.top = TOP(model, data, cache=cache, **settings)
        self.frozen = False

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.top)

    def prepare(self) -> None:
        """Partition, embed, estimate."""
        self.top.prepare()

    def batches(self) -> Iterator[Data]:
        """Yield what is left of the current epoch."""
        return map(self.top.placed, self.top.prepare()) if self.frozen else iter(self.top)

    def forward(self, batch: Data) -> Tensor:
        """Return the compensated output."""
        return self.top(batch)

    def exact(self) -> tuple[Tensor, bool]:
        """Return the exact output; where the basis is due, the same forward gives a new one."""
        due = self.top.refresh_due() and not self.frozen
        return (self.top.refresh() if due else self.top.predict()), due

    def freeze(self) -> None:
        """Keep the basis as it is."""
        self.frozen = True

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the nodes and compensated outputs of one batch."""
        batches = self.top.prepare().batches()
        batch = self.top.placed(batches[number % len(batches)])
        with evaluating(self.model), torch.no_grad():
            return batch.n_id.cpu(), self.top(batch).cpu()

    def outputs(self) -> Tensor:
        """Return the compensated outputs of all nodes."""
        return self.top.compensated_outputs()

    def refreshed_at(self) -> int | None:
        """Return the epoch of the basis, unless it is the first one."""
        state = self.top.state()
        return None if state["first"] else int(state["fitted_at"])

    def certificate(self) -> float | None:
        """Return the certificate of the last refresh, or of the first basis."""
        return self.top.certificate_

    def reports(self) -> list[BatchReport]:
        """Describe the compensation of every batch."""
        return self.top.report()

    def state(self) -> dict[str, Any]:
        """Return the position and the age of the basis."""
        return self.top.state()

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that the basis was estimated from."""
        return self.top.fitted_

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Estimate the same basis again and go on."""
        self.top.restore(state, fitted=weights)


class Drop(Compensate):
    """Run `TOP` at rank 0."""

    settings: ClassVar[tuple[str, ...]] = ("batches", "ratio", "parts", "regroup", "train_only")

    def __init__(self, model: nn.Module, data: Data, **settings: Any) -> None:
        super().__init__(model, data, **settings, rank=0, refresh="never")
