"""Full-batch gradient descent: the whole graph is the only batch, on the fast operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.compensation.loader import whole_graph
from topoff.compensation.top import TOP
from topoff.forward.call import evaluating
from topoff.methods.base import Learner


class Full(Learner):
    """Take one step per epoch, on all training nodes at once."""

    settings: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: nn.Module, data: Data, *, seed: int = 0, fast_dropout: bool = False, **_: Any) -> None:
        self.model = model
        # one random batch, nothing to compensate: the wrapper runs the model on the fast operator
        settings: dict[str, Any] = {"batches": "random", "ratio": 1.0, "rank": 0, "refresh": "never", "seed": seed}
        self.top = TOP(model, data, **settings, fast_dropout=fast_dropout)
        self._taken = False  # the step of this epoch
        self._resumed = False  # that was loaded

    def __len__(self) -> int:
        """Count the steps of an epoch: one."""
        return 1

    def prepare(self) -> None:
        """Build the operators."""
        self.top.prepare()
        self._whole = whole_graph(self.top.graph, self.top.plan)

    def batches(self) -> Iterator[Data]:
        """Yield the whole graph, once; nothing where the step of this epoch was taken before the state was saved."""
        if not self._resumed:
            self._taken = True
            yield self.top.placed(self._whole)
        self._taken = self._resumed = False

    def forward(self, batch: Data) -> Tensor:
        """Return the output."""
        return self.top(batch)

    def exact(self) -> tuple[Tensor, bool]:
        """Return the output of all nodes in eval mode."""
        with evaluating(self.model), torch.no_grad():
            return self.top(self.top.placed(self._whole)), False

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Return all nodes and their outputs."""
        return torch.arange(self.top.graph.num_nodes), self.outputs()

    def outputs(self) -> Tensor:
        """Return the exact outputs: that is what training sees."""
        return self.exact()[0].cpu()

    def state(self) -> dict[str, Any]:
        """Return whether the step of this epoch was taken."""
        return {"taken": self._taken}

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on."""
        self.prepare()
        self._taken = self._resumed = bool(state["taken"])
