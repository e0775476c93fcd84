"""Node sets that overlap, for compensated batches over any sampler: GraphSAINT, ShaDow, IBMB (Table 8 of the paper).

Compensation does not ask where a batch's nodes come from. `SampledSets` has the interface of `NodeSets`, but
a node may be in several sets or in none: losses are weighted by how often a training node occurs in an epoch.

>>> import torch
>>> from torch_geometric.data import Data
>>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), num_nodes=4)
>>> sets = SampledSets(method="saint-walk", ratio=0.5).fit(ring)
>>> len(sets), len(sets.of(0))
(2, 2)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from topoff.batching.node_sets import NodeSets
from topoff.batching.pagerank import senders
from topoff.batching.partition import check_seed
from topoff.batching.pattern import Ints, Pattern, undirected
from topoff.batching.ratio import count_batches
from topoff.batching.samplers import Sampler, edge_sampler, node_sampler, walk_sampler
from topoff.batching.scopes import ibmb_sets, shadow_sets

if TYPE_CHECKING:
    from torch_geometric.data import Data

SAMPLERS = ("saint-node", "saint-edge", "saint-walk", "shadow", "ibmb")
WALK_LENGTH, FANOUT, HOPS = 2, 10, 2  # as the methods of these names have them


@dataclass(kw_only=True, eq=False)
class SampledSets:
    """Draw sets of about `ratio` of the nodes; the same for every epoch, or drawn anew (`regroup`).

    Attributes:
        method: one of `SAMPLERS`. The sets of saint-* have ratio * n nodes on average; those of shadow and ibmb are as
            large as the scopes of ratio of the training nodes (without a mask: of all nodes) come to.
        ratio: fraction of the nodes in a batch, in (0, 1]; there are `round(1 / ratio)` sets.
        seed: seed of all draws.
        regroup: draw new sets every epoch; each is compensated anew.
        parts_: (n,) the nodes, after `fit`; None before.
    """

    method: str
    ratio: float = 0.1
    seed: int = 0
    regroup: bool = False
    parts_: Tensor | None = field(default=None, init=False, repr=False)

    covers = False  # whether every node is in exactly one set

    def __len__(self) -> int:
        """Count the sets of an epoch."""
        return count_batches(self.ratio)

    def fit(self, data: Data, *, cache: bool = False) -> SampledSets:
        """Look at the graph; `cache` is accepted as by `NodeSets`, but nothing is kept on disk.

        Raises:
            ValueError: an unknown sampler, or a parameter out of range.
        """
        if self.method not in SAMPLERS:
            raise ValueError(f"Expected the sampler to be one of {', '.join(SAMPLERS)} (got '{self.method}').")
        check_seed(self.seed)
        self._num_nodes = int(data.num_nodes or 0)
        self._offsets, self._ids = senders(data.edge_index, self._num_nodes)
        if self.method.startswith("saint"):
            self._sampler = self._saint(data)
            self._budget = self._sampler.budget(self.ratio, generator=lambda trial: self._rng(trial, 6))
        else:
            self._targets = self._outputs(data)
            self.regroup = self.regroup and self.method != "ibmb"  # which draws nothing
        self.parts_ = torch.arange(self._num_nodes)
        return self

    def of(self, epoch: int) -> list[Tensor]:
        """List the sets of an epoch: int64 node ids, each at most once per set."""
        if self.parts_ is None:
            raise RuntimeError("Expected 'SampledSets' to be fitted before of() (got no graph); call fit(data) first.")
        return [torch.from_numpy(nodes) for nodes in self._drawn(epoch if self.regroup else 0)]

    def cover(self) -> list[Tensor]:
        """List as many sets that hold every node once; for exact inference."""
        return list(torch.arange(self._num_nodes).tensor_split(min(len(self), self._num_nodes)))

    def _drawn(self, epoch: int) -> list[Ints]:
        """Draw the sets of GraphSAINT, or groups of training nodes with what is around them."""
        if self.method.startswith("saint"):
            return [self._sampler.draw(self._budget, self._rng(epoch, number, 3)) for number in range(len(self))]
        if self.method == "ibmb":
            return ibmb_sets(self._offsets, self._ids, self._targets, batches=len(self))
        rng = self._rng(epoch, 2)
        groups = np.array_split(rng.permutation(self._targets), len(self))
        return shadow_sets(self._offsets, self._ids, groups, fanout=FANOUT, hops=HOPS, rng=rng)

    def _outputs(self, data: Data) -> Ints:
        """Return the training nodes, or all nodes where there is no mask."""
        mask = getattr(data, "train_mask", None)
        targets: Ints = np.arange(self._num_nodes) if mask is None else mask.nonzero().view(-1).numpy()
        if len(self) > len(targets):
            raise ValueError(
                f"Expected 'ratio' to give at most {len(targets)} batches, one per training node (got {self.ratio}, "
                f"{len(self)} batches); choose a larger ratio."
            )
        return targets

    def _saint(self, data: Data) -> Sampler:
        """Return the sampler of GraphSAINT (Algorithm 2 there)."""
        if self.method == "saint-walk":
            return walk_sampler(Pattern(self._offsets, self._ids), length=WALK_LENGTH)
        if self.method == "saint-edge":
            return edge_sampler(undirected(*data.edge_index.numpy(), num_nodes=self._num_nodes))
        # the columns of D^-1 (A + I)
        degree = np.diff(self._offsets)
        share = 1 / (degree + 1)
        columns = np.concatenate([self._ids, np.arange(self._num_nodes)])
        return node_sampler(columns, np.concatenate([np.repeat(share, degree), share]), num_nodes=self._num_nodes)

    def _rng(self, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *numbers])


def named_sets(
    method: str, *, ratio: float, parts: int | None, seed: int, regroup: bool, train_only: bool, reach: int | None
) -> NodeSets | SampledSets:
    """Return the node sets that a name means."""
    if method not in SAMPLERS:
        chosen: dict[str, Any] = {"regroup": regroup, "train_only": train_only, "reach": reach}
        return NodeSets(method=method, ratio=ratio, parts=parts, seed=seed, **chosen)
    if parts is not None or train_only or reach is not None:
        raise ValueError(
            f"Expected batches '{method}' without parts, train_only and reach (got one of them); leave it out."
        )
    return SampledSets(method=method, ratio=ratio, seed=seed, regroup=regroup)
