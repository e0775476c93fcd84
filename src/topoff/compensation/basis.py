"""The basis behind the compensation of all batches: fitted once, refreshed from current embeddings, certified."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from topoff.compensation.certificate import Residual
from topoff.compensation.embeddings import random_network, unreset_parameter
from topoff.compensation.factors import message_row, share_outside, work_row
from topoff.compensation.fingerprint import copied, fingerprint_of
from topoff.compensation.loader import Loader
from topoff.compensation.passes import Passes
from topoff.compensation.principal import Principal
from topoff.compensation.refresh import SCARCE, Refreshing, price_of
from topoff.forward.call import Call
from topoff.forward.lockstep import Remember
from topoff.machine.cache import cached

MOST_HOPS = 4  # after which propagated features join a basis


class Basis:
    """Estimate the compensation of a loader's batches from the embeddings of networks, and say how much it misses.

    Args:
        model: the model that is trained; it is called, never changed.
        loader: hands out the batches that are compensated.
        refreshing: when the basis is too old.
        tolerance: a certificate above this warns.
        seed: of random initialisations.
        held_out: whether one may be drawn for the first certificate.
        offset: compensate what has changed since the last fit alone (see `factors`).
        call: how to call the model on a batch, where names do not suffice.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from torch_geometric.nn import GCN
    >>> from topoff import TOP, load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> top = TOP(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, rank=4, batches="random", refresh="every=2")
    >>> for _ in range(4):
    ...     print(sum(1 for batch in top), top.basis.fitted_at)
    2 0
    2 0
    2 2
    2 2
    """

    fitted_: dict[str, Any]  # the weights that the basis was estimated from
    fitted_at: int  # the epoch that it was estimated for

    def __init__(
        self,
        model: nn.Module,
        loader: Loader,
        *,
        refreshing: Refreshing,
        tolerance: float = 0.5,
        seed: int = 0,
        held_out: bool = True,
        offset: bool = False,
        call: Call | None = None,
    ) -> None:
        assert loader.compensator is not None
        self.model, self.loader, self.compensator, self.refreshing = model, loader, loader.compensator, refreshing
        self.tolerance, self.seed, self.held_out, self.offset = tolerance, seed, held_out, offset
        self.passes = Passes(model, loader, call=call)
        self.first = True  # it was never refreshed
        self.bare = False  # nothing was estimated yet
        self.whole = True  # no estimate was left halfway, as on a full disk
        self._certificates: tuple[float, list[float]] | None = None  # pooled, and of each batch

    def fit(self, networks: Sequence[nn.Module], *, cache: bool = False, late: bool = False) -> None:
        """Estimate every batch's compensation from the embeddings of some networks (Algorithm 1).

        With `cache` it is kept on disk, unless the batches change, it has offsets, which are as large as a layer of
        the model, or a `call` has a meaning that no name can hold. With `late`, an offset
        and a refresh, nothing is estimated before the first epoch is over, in which weights move furthest, unless
        batches hold few of the nodes or norms must see all.
        """
        self.fitted_at, self.fitted_ = self.loader.position.epoch, copied(networks[0])
        graph, counted = self.loader.graph, self._counted()
        price = price_of(*counted, nodes=graph.num_nodes, edges=graph.data.edge_index.size(1))
        scarce = graph.num_nodes > SCARCE * counted[0]
        apart = scarce or self.loader.plan.normalizes or not self.refreshing.interval
        self.bare = late and self.offset and not apart
        self.refreshing.begin(price=price, outside=self._outside(), scarce=scarce, late=self.bare)
        fixed = not self.loader.sets.regroup and not self.loader.plan.normalizes  # norms must see the embeddings
        alone = self.loader.ranks.size == 1
        if cache and self.compensator.rank and fixed and not self.offset and self.passes.call is None and alone:
            key = f"compensation-{fingerprint_of(self.loader, self.model, networks)}"
            self.loader.restore(cached(key, lambda: self._fit(networks).saved()))
        else:
            self._fit(networks)

    def _fit(self, networks: Sequence[nn.Module]) -> Loader:
        principal, exact = self._start(), dict[str, Tensor]()
        for done, network in enumerate(networks if self.compensates and not self.bare else ()):
            self.loader.tell("basic embeddings", done, len(networks))
            keep = [exact.__setitem__] if self.offset and done == 0 else []
            self.embed(network, self._seen(self._added(principal), *keep), current=done == 0, output=False)
        self._finish(principal, exact)
        self.loader.compensate(exact)
        self._let_go()
        return self.loader

    def _start(self) -> Principal:
        """Begin a basis; of few nodes in batches, of what these see."""
        graph, plan, sight = self.loader.graph, self.loader.plan, self.loader.sight()
        return self.compensator.start(graph, plan, sight=sight, share=self.loader.share())

    @property
    def _encodes(self) -> bool:
        """Whether few nodes must follow a model whose propagations read no raw features."""
        known = any(map(any, self.loader.plan.known_hops.values()))
        return self.refreshing.scarce and not known and self.compensator.estimator == "ridge"

    @property
    def _encoded(self) -> list[str]:
        """The places that read what a model makes of its features alone, if that is to be estimated apart.

        What few nodes know of rows that have received no messages is little and noisy, unless it is read off features.
        """
        return self.passes.encoded if self.offset and self.compensator.rank and self._encodes else []

    def _finish(self, principal: Principal, exact: dict[str, Tensor]) -> None:
        """Close a basis, `exact` being what the current weights read, by place."""
        places = self._encoded
        rows = exact[places[0]] if places else None
        hops = min(MOST_HOPS, self.passes.hops) if self.compensator.rank and self._encodes else 0
        self.compensator.finish(principal, hops=hops, encoded=rows, places=places)

    def _added(self, principal: Principal) -> Remember:
        """Return what adds rows to a basis, but for those of places that are estimated apart, if there are others."""

        def add(place: str, rows: Tensor) -> None:
            """Add the rows of a place."""
            if place not in self._encoded or self.passes.places == self.passes.encoded:
                principal.add(rows)

        return add

    def _seen(self, *sinks: Remember) -> Remember:
        """Return what hands over what the batches see of rows, or all of them."""
        sight, give = self.compensator.sight, _to(*sinks)
        return give if sight is None else lambda place, rows: give(place, sight.of(rows))

    def _let_go(self) -> None:
        """Let go of what only batches that are cut anew would read: the basis itself, and A X."""
        if (self.loader.sets.covers or self.compensator.sight) and not self.loader.sets.regroup:
            self.compensator.let_go()
            self.loader.graph.let_go()

    @property
    def compensates(self) -> bool:
        """Whether anything is to be compensated."""
        return self.offset or self.compensator.rank != 0

    def _counted(self) -> list[float]:
        """Count the rows of the batches that are trained on, and their messages from inside and from outside."""
        return [
            sum(column) for column in zip(*self.loader.pooled(list(map(work_row, self.loader.batches()))), strict=True)
        ]

    def _outside(self) -> float:
        """Return the share of the messages that comes from outside the batches."""
        structures = [batch.supplement.structure for batch in self.loader.batches()]
        if self.loader.ranks.size == 1:
            return share_outside(structures)
        outside, inside = map(sum, zip(*self.loader.pooled([message_row(each) for each in structures]), strict=True))
        return float(outside / (outside + inside)) if outside else 0.0

    def due(self) -> bool:
        """Whether the basis is old enough to be replaced before the epoch that comes; never where there is none."""
        age = self.loader.position.epoch - self.fitted_at
        if self.bare or not self.whole:
            return age > 0 or not self.whole
        kept = self.compensator.rank_ > 0 or self.offset or (self.compensates and self.loader.plan.normalizes)
        return kept and self.refreshing.due(age)

    def refresh(self, *, output: bool = True) -> Any:
        """Estimate anew from the model's current embeddings; return the exact output that comes with them (n, out).

        Without `output`, what lies behind the last propagation is not computed, and nothing returned.
        """
        age = self.loader.position.epoch - self.fitted_at
        self.fitted_at, self.fitted_, self.first = self.loader.position.epoch, copied(self.model), False
        if not self.compensator.rank_ and not self.offset:
            return self.embed(self.model, _to(), current=True)
        principal, exact = self._start(), dict[str, Tensor]()
        residual = self.loader.residual(sight=self.compensator.sight)
        keep = [exact.__setitem__] if self.offset else []
        blind = self.bare or not self.whole  # without offsets nothing is to be learnt of how long they last
        collect = _to(self._seen(residual.add, self._added(principal), *keep), self._forget)
        out = self.embed(self.model, collect, current=True, output=output)
        if blind:
            self.bare = False
            self._keep(residual)
        else:
            self.refreshing.observe(self._take(residual) * self._outside())
        del residual  # it holds the old compensations
        self._finish(principal, exact)
        self.whole = False
        self.loader.compensate(exact)
        self.whole = True
        self._let_go()
        self.loader.tell(f"refreshed at an age of {age}: {self.refreshing.why}", 1, 1)
        return out

    def _forget(self, place: str, _: Tensor) -> None:
        """Let go of the offsets of a place that new ones are about to replace: they are as large as its rows."""
        if self.offset:
            self.whole = False
            self.loader.forget(place)

    def certify(self, network: nn.Module | None = None) -> float:
        """Measure the compensation on the embeddings of a network, by default a held-out random initialisation."""
        if not self.compensator.rank_:  # nothing is compensated but by offsets, or nothing needs to be
            missed = 1.0 if self.compensator.rank == 0 or (self.bare and self._outside()) else 0.0
            self._certificates = missed, [missed] * self.loader.count
            return missed
        if network is None:
            random = self.held_out and unreset_parameter(self.model) is None
            network = random_network(self.model, 0, seed=self.seed) if random else self.model
        residual = self.loader.residual(offsets=False)  # which belong to other weights
        self.embed(network, _to(residual.add), output=False)
        return self._take(residual)

    def certificates(self) -> tuple[float, list[float]]:
        """Return the certificate over all batches, and that of each; measured now, where that was not done."""
        if self._certificates is None:
            self.certify()
        assert self._certificates is not None
        return self._certificates

    def _keep(self, residual: Residual) -> float:
        """Keep the certificates; return the one over all batches."""
        residual.pool(self.loader.pooled)
        self._certificates = residual.pooled(), residual.per_batch()
        return self._certificates[0]

    def _take(self, residual: Residual) -> float:
        """Keep the certificates, and warn of a bad one."""
        pooled = self._keep(residual)
        if pooled > self.tolerance:
            warnings.warn(
                f"The compensation misses {pooled:.0%} of the messages from outside the batches (tolerance "
                f"{self.tolerance:.0%}): raise rank or inits, refresh more often, or use larger or clustered batches.",
                stacklevel=4,
            )
        return pooled

    def embed(self, network: nn.Module, collect: Remember, *, current: bool = False, output: bool = True) -> Any:
        """Run a network exactly on the whole graph; norms over all nodes remember what the `current` weights make."""
        remember = current and bool(self.refreshing.interval)
        return self.passes.embed(network, collect, current=current, remember=remember, output=output)

    # ---- resuming

    def state(self) -> dict[str, Any]:
        """Return age and certificates; JSON-able."""
        state = {"fitted_at": self.fitted_at, "first": self.first, "bare": self.bare}
        return state | {"certificates": self._certificates, "refreshing": dataclasses.asdict(self.refreshing)}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what a basis that was fitted again cannot know."""
        self.first, certificates = state["first"], state["certificates"]
        self._certificates = None if certificates is None else (certificates[0], certificates[1])


def _to(*sinks: Remember) -> Remember:
    """Return what hands the rows of a place to every sink."""

    def collect(place: str, rows: Tensor) -> None:
        """Give the rows to every sink."""
        for sink in sinks:
            sink(place, rows)

    return collect
