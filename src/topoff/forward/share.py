"""Exact inference by several processes: each runs some batches, and gets the rows that these read of other processes.

All processes have the whole graph; what they share out is the work and the rows between layers. Rows that nobody here
reads are NaN: a row that was read without having been asked for would be noticed.

>>> import torch
>>> from torch_geometric.data import Data
>>> graph = Graph(Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]])))
>>> read_by(graph, Plan([], (), flows=("source_to_target",)), torch.tensor([2])).tolist()  # messages come from node 1
[False, True, False]
>>> share = Share(Ranks(), torch.zeros(3, dtype=torch.long), reads=torch.ones(3, dtype=torch.bool))
>>> share.nodes.tolist(), share.fill(torch.ones(3, 1)).tolist()
([0, 1, 2], [[1.0], [1.0], [1.0]])
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from topoff.forward.lockstep import Lockstep
from topoff.forward.member import Handed
from topoff.forward.norms import Moments
from topoff.forward.plan import Plan
from topoff.graph.graph import APART, AROUND, Graph
from topoff.machine.ranks import Ranks


class Share:
    """Hold which nodes each process computes, and which rows of others this one reads.

    Args:
        ranks: the processes.
        owner: (n,) the process that computes each node.
        reads: (n,) whether something here reads the node's rows; the others are told once.
    """

    def __init__(self, ranks: Ranks, owner: Tensor, *, reads: Tensor) -> None:
        self.ranks = ranks
        self.nodes_of = [(owner == rank).nonzero().view(-1) for rank in range(ranks.size)]
        reads = reads & (owner != ranks.rank)
        wanted = [nodes[reads[nodes]] for nodes in self.nodes_of]
        self._routes, self._wanted = ranks.routes(wanted), torch.cat(wanted)
        self._unknown = ((owner != ranks.rank) & ~reads).nonzero().view(-1)

    @property
    def nodes(self) -> Tensor:
        """The nodes that this process computes."""
        return self.nodes_of[self.ranks.rank]

    def fill(self, whole: Tensor) -> Tensor:
        """Put the rows of other processes that are read here into (n, ...), in place; all else there is NaN."""
        if self.ranks.size > 1:
            rows = whole[self._routes.give.to(whole.device)]
            whole[self._wanted.to(whole.device)] = self.ranks.exchange(rows, self._routes)
            if whole.is_floating_point():
                whole[self._unknown.to(whole.device)] = float("nan")
        return whole

    def complete(self, whole: Tensor) -> Tensor:
        """Put the rows of all processes into (n, ...), in place."""
        if self.ranks.size > 1:
            counts = [len(nodes) for nodes in self.nodes_of]
            found = self.ranks.gather(whole[self.nodes.to(whole.device)], counts=counts)
            for nodes, rows in zip(self.nodes_of, found, strict=True):
                whole[nodes.to(whole.device)] = rows
        return whole


def read_by(graph: Graph, plan: Plan, nodes: Tensor) -> Tensor:
    """Return (n,) whether a node sends messages to some nodes, in the directions of a model."""
    flows = {operator.flow for operator in plan.operators} | set(plan.flows)
    if flows & {AROUND, APART}:
        flows = {"source_to_target", "target_to_source"}
    receives, reads = (torch.zeros(graph.num_nodes, dtype=torch.bool) for _ in range(2))
    receives[nodes] = True
    source, target = graph.data.edge_index
    for flow in flows:
        sender, receiver = (source, target) if flow == "source_to_target" else (target, source)
        reads[sender[receives[receiver]]] = True
    return reads


class SharedLockstep(Lockstep):
    """Run the batches of this process in step with those of all others."""

    def __init__(self, *args: Any, share: Share, **device: Any) -> None:
        self.share = share
        super().__init__(*args, **device)

    def _gather(self, parts: list[Any], *, of: str = "the output", inner: bool = False) -> Any:
        """Put own rows into one matrix, and then those of other processes: all of an output, else what is read."""
        whole = super()._gather(parts, of=of, inner=inner)
        if not isinstance(whole, Tensor) or not whole.dim() or len(whole) != self.graph.num_nodes:
            return whole
        return self.share.complete(whole) if of == "the output" else self.share.fill(whole)

    def _summed(self, handed: list[Handed]) -> Moments:
        """Add up the means of all processes."""
        moments = super()._summed(handed)
        return replace(moments, means=self.share.ranks.sum(moments.means))
