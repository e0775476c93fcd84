"""Exact passes over all nodes, for a basis: what a network's propagations read, and at which places.

>>> import torch
>>> from torch_geometric.data import Data
>>> from torch_geometric.nn import GCN
>>> from topoff import TOP, load
>>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
>>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
>>> top = TOP(GCN(3, 4, num_layers=3, out_channels=2), data, ratio=0.5, rank=4, batches="random")
>>> loader = top.prepare()
>>> top.basis.passes.places, top.basis.passes.hops
(['convs.1/0/0', 'convs.2/0/0'], 1)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from topoff.compensation.embeddings import embed, is_known
from topoff.compensation.loader import Loader
from topoff.forward.call import Call
from topoff.forward.exact import exact
from topoff.forward.lockstep import Lockstep, Remember
from topoff.forward.share import SharedLockstep
from topoff.forward.trial import check_same_convs, recheck


class Passes:
    """Run networks exactly on the graph of a loader, each time after another look whether batches can be exact.

    Args:
        model: the model that is trained; it is called, never changed.
        loader: its batches, where they hold every node once, else other sets, are what is run at a time.
        call: how to call the model on a batch, where names do not suffice.
    """

    def __init__(self, model: nn.Module, loader: Loader, *, call: Call | None = None) -> None:
        self.model, self.loader, self.call = model, loader, call
        self.checks = 0  # against the plain forward
        self.places: list[str] = []  # whose input is not known beforehand, in the order of the forward
        self.encoded: list[str] = []  # of these, those that read what the first one reads
        self.hops = 0  # propagations of the model, one after the other, behind its first
        self._known: tuple[str, ...] | None = None  # places that were looked at for this

    def output(self) -> Any:
        """Return the exact output for every node, in eval mode; (n, out)."""
        self._recheck(self.model)
        loader, pieces = self.loader, self.loader.pieces()
        return exact(self.model, loader.graph, pieces, plan=loader.plan, call=self.call, lockstep=self._lockstep())

    def embed(
        self, network: nn.Module, collect: Remember, *, current: bool, remember: bool, output: bool = True
    ) -> Any:
        """Run a network, hand over what its convs read, and return its output (n, out).

        Networks that have not the `current` weights are copies of the model, and need no look. If asked, norms over all
        nodes `remember` what they see. Without `output` it ends where the last rows are handed over.
        """
        if current or network is self.model:
            self._recheck(network)
        loader = self.loader
        kept = loader.plan.moments if remember else None
        last = None if output or loader.plan.normalizes or not self.places else self.places[-1]
        given: dict[str, Any] = {"plan": loader.plan, "collect": collect, "call": self.call, "last": last}
        return embed(network, loader.graph, loader.pieces(), moments=kept, lockstep=self._lockstep(), **given)

    def _recheck(self, network: nn.Module) -> None:
        """Compare exact batches with the plain forward on another piece than before."""
        self.checks += 1
        if network is self.model:
            check_same_convs(network, self.loader.plan)
        graph, plan = self.loader.graph, self.loader.plan
        read = tuple(recheck(network, graph, plan, call=self.call, seed=self.checks))
        self.places = [place for place in read if not is_known(place, plan)]
        if read != self._known:
            self._known = read
            self._look(recheck(network, graph, plan, call=self.call, perturbed=True))  # the piece that it was tried on

    def _look(self, read: dict[str, Tensor]) -> None:
        """Find places that read the same rows side by side, as branches and directions do."""
        rows = list(read.values())
        apart = [not any(torch.equal(each, other) for other in rows[:number]) for number, each in enumerate(rows)]
        self.hops = max(0, sum(apart) - 1)
        self.encoded = self.places[:1]  # perturbed weights may lead a model's own branches elsewhere: then it alone
        for place in self.places[1:]:
            if {place, self.places[0]} <= read.keys() and torch.equal(read[place], read[self.places[0]]):
                self.encoded.append(place)

    def _lockstep(self) -> Callable[..., Lockstep] | None:
        """Return what runs the batches of several processes in step; None where this one is alone."""
        share = self.loader.share()
        return None if share is None else partial(SharedLockstep, share=share)
