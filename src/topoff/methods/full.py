"""Full-batch gradient descent: the whole graph is the only batch, on the fast operator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.position import Position
from topoff.forward.call import Learner, evaluating, plain
from topoff.forward.room import graph_for
from topoff.forward.subgraph import Subgraph, for_many_steps, whole_graph
from topoff.forward.trial import check_same_convs, make_plan, recheck


class Full(Learner):
    """Take one step per epoch, on all training nodes at once.

    >>> import torch
    >>> from torch_geometric.nn import GCN
    >>> from topoff import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> method = Full(GCN(3, 4, num_layers=2, out_channels=2), data)
    >>> method.prepare()
    >>> [tuple(method.forward(batch).shape) for batch in method.batches()]
    [(20, 2)]
    """

    settings: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: nn.Module, data: Data, *, seed: int = 0, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        self.position = Position()

    def __len__(self) -> int:
        """Count the steps of an epoch: one."""
        return 1

    def prepare(self) -> None:
        """Build the operators."""
        self.graph = graph_for(plain(self.model), self.data, memory=self.memory)
        self.plan = make_plan(self.model, self.graph, call=self.call).in_batch_only()
        self.handler, self._whole = Subgraph(self.plan.convs), for_many_steps(whole_graph(self.graph, self.plan))

    def batches(self) -> Iterator[Data]:
        """Yield the whole graph, once; nothing where the step of this epoch was taken before the state was saved."""
        self.position.begin_epoch()
        for _ in self.position.walk([0]):
            yield self.placed(self._whole)

    def cover(self) -> list[Data]:
        """Return the whole graph."""
        return [self._whole]

    def exact(self) -> tuple[Tensor, bool]:
        """Return the output of all nodes in eval mode; nothing is refreshed."""
        check_same_convs(self.model, self.plan)
        recheck(self.model, self.graph, self.plan, call=self.call, seed=1 + self.position.epoch)
        with evaluating(self.model):
            return self.forward(self.placed(self._whole)), False

    def state(self) -> dict[str, Any]:
        """Return the position."""
        return self.position.state_dict()

    def weights(self) -> dict[str, Tensor]:
        """Return what the state depends on besides the model: nothing."""
        return {}

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on; a state of version 0.1.0 says only whether the step of its epoch was taken."""
        self.prepare()
        self.position.load_state_dict({"epoch": 0, "position": int(state["taken"])} if "taken" in state else state)
