"""Cluster-GCN (Chiang et al., KDD 2019): batches of clusters, each a graph of its own.

Section 3.1 and Algorithm 1: several clusters make a batch (stochastic multiple partitions, Section 3.2), the edges
between them included, and the adjacency is normalised again inside the batch. The diagonal enhancement of Section 3.3,
A' + lambda diag(A'), belongs to the layer and is needed in inference too: `ClusterGCNConv`, or `--model cluster-gcn`.

The authors merge clusters into new batches every epoch: `regroup=True`. Here they are merged once by default, so that
nodes and classes are balanced (`NodeSets`), which serves the method better at equal seconds: GCN 3 x 128, validation
accuracy of batches merged once and anew, Computers (ratio 0.05) after 8 CPU seconds 88.0 and 86.6 %, after 24 seconds
89.9 and 89.7 %; WordNet after 20 seconds 69.1 and 68.0 % at ratio 0.05, 68.8 and 68.3 % at 0.0125. GAS on
Computers after 24 seconds: 90.2 and 89.4 %. New batches take up to a quarter of the time to cut.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.forward.subgraph import closed, for_many_steps
from topoff.methods.base import MiniBatches


class Cluster(MiniBatches):
    """Run the bare model on the subgraph that a batch induces, on the fast operator; any model.

    >>> import torch
    >>> from torch_geometric.nn import GCN
    >>> from topoff.data.load import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> cluster = Cluster(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, batches="random")
    >>> cluster.prepare()
    >>> [(batch.num_nodes, batch.num_edges) for batch in cluster.batches()]  # 12 of the 20 edges are cut
    [(10, 4), (10, 4)]
    """

    settings: ClassVar[tuple[str, ...]] = ("batches", "ratio", "parts", "regroup", "train_only")
    any_model: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        batches: str | NodeSets = "kaminpar",
        parts: int | None = None,
        regroup: bool = False,
        train_only: bool = False,
        **shared: Any,
    ) -> None:
        super().__init__(model, data, **shared)
        if isinstance(batches, str):
            chosen: dict[str, Any] = {"parts": parts, "regroup": regroup, "train_only": train_only}
            batches = NodeSets(method=batches, ratio=self.ratio, seed=self.seed, **chosen)
        self.sets = batches
        self._cut_for = -1  # epoch of the node sets at hand
        self._kept: dict[int, Data] = {}  # batches that stay as they are, by their number

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.sets)

    def begin(self) -> None:
        """Partition the graph, where that is not done."""
        if self.sets.parts_ is None:
            self.sets.fit(self.data, cache=True)
        if not self.regroups:  # cut now, not in the first epoch
            for number in range(len(self)):
                self.batch(0, number)

    @property
    def regroups(self) -> bool:
        """Whether every epoch has batches of its own: a single one would always be the same."""
        return self.sets.regroup and len(self) > 1

    def batch(self, epoch: int, number: int) -> Data:
        """Return the subgraph of some clusters; one that is not used again in a later epoch is not kept."""
        epoch = epoch if self.regroups else 0
        if self._cut_for != epoch:
            self._cut_for, self._nodes, self._kept = epoch, self.sets.of(epoch), {}
        if number in self._kept:
            return self._kept[number]
        batch = self.cut(self._nodes[number])
        if not self.regroups:
            self._kept[number] = for_many_steps(batch)
        return batch

    def cut(self, nodes: Tensor) -> Data:
        """Cut a batch out of the graph."""
        return closed(self.graph.induced(nodes), self.plan)
