"""Turn node sets into batches: a PyG `Data` with its rows, masks and edges, and the supplement that compensates it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.batching.overlapping_sets import SampledSets
from topoff.batching.position import NOBODY, Position, in_steps
from topoff.compensation.certificate import Residual
from topoff.compensation.estimator import Compensator
from topoff.compensation.factors import Compensation, ways_of
from topoff.compensation.sight import Sight
from topoff.forward.away import bring, put_away
from topoff.forward.call import Progress
from topoff.forward.plan import Plan
from topoff.forward.share import Share, read_by
from topoff.forward.structure import Structure
from topoff.forward.subgraph import cut_batch, for_many_steps
from topoff.graph.graph import Graph
from topoff.machine.cache import Arrays
from topoff.machine.ranks import Ranks


class Loader:
    """Iterate over compensated batches, shuffled by (seed, epoch); fixed batches are cut once and kept.

    Args:
        graph: the whole graph.
        plan: what the model needs.
        sets: the fitted node sets.
        compensator: fitted, or None to leave the halo out.
        seed: of the order of the batches.
        progress: told how many batches are ready.
        accumulate: batches of a step, of which each process takes its share (see `in_steps`); where one has none left,
            or one without training nodes, it is handed an empty batch, so that all take as many steps.
        ranks: the processes that share out the batches; each has every so many of them.

    >>> from torch_geometric.nn import GCN
    >>> from topoff import TOP, load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> loader = TOP(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, rank=2, batches="random").prepare()
    >>> [batch.num_nodes for batch in loader], loader.state_dict()
    ([10, 10], {'epoch': 1, 'position': 0})
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        *,
        sets: NodeSets | SampledSets,
        compensator: Compensator | None,
        seed: int = 0,
        progress: Progress | None = None,
        accumulate: int = 1,
        ranks: Ranks | None = None,
    ) -> None:
        """Store the parts; batches are cut when they are first asked for."""
        self.accumulate, self.ranks, self.count = accumulate, ranks or Ranks(), len(sets)
        self.graph, self.plan, self.sets, self.compensator, self.seed = graph, plan, sets, compensator, seed
        self.progress, self.position = progress, Position()
        self._batches: list[Data] = []
        self._exact: dict[str, Tensor] = {}  # by place: the embeddings H* (n, d) that offsets are made of
        self.cut_for = -1  # epoch of the batches at hand
        self._share: tuple[int, Share] | None = None  # with the epoch of the batches that it is for

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.sets)

    def __iter__(self) -> Iterator[Data]:
        """Yield the batches of the current epoch that hold training nodes, then go on to the next epoch."""
        if self.compensator is not None and not hasattr(self.compensator, "rank_"):
            remedy = "fit it first, or pass None to leave the halo out"
            raise ValueError(f"Expected a fitted compensator (got one without a basis); {remedy}.")
        self.position.begin_epoch()
        batches, ranks = self.batches(), self.ranks
        order = np.random.default_rng([self.seed, self.position.epoch, 1]).permutation(self.count).tolist()
        steps = in_steps(order, self.accumulate)
        own = {number: batches[number // ranks.size] for number in steps[ranks.rank :: ranks.size] if number != NOBODY}
        used = {number: batch for number, batch in own.items() if "train_mask" not in batch or batch.train_mask.any()}
        after = dict(pairwise(used)) if self.graph.shelf is not None else {}
        for number in self.position.walk(steps, first=ranks.rank, stride=ranks.size):
            if number in after:
                bring(used[after[number]], self.graph)
            if number in used:
                yield used[number]
            elif self.accumulate > 1:
                yield Data(batch_size=0)

    def batches(self) -> list[Data]:
        """Return all batches of the current epoch, in the order of the node sets; of several processes, its own."""
        epoch = self.position.epoch if self.sets.regroup else 0
        if self.cut_for != epoch:
            sets = self.sets.of(epoch)
            own = sets[self.ranks.rank :: self.ranks.size]
            self._batches, self.count = [self._cut(nodes) for nodes in own], len(sets)
            if isinstance(self.sets, SampledSets):
                self._weigh_losses(sets)
            self.cut_for = epoch
            if self.compensator is not None and self.compensator.is_fitted:
                self.compensate()
        return self._batches

    def _cut(self, nodes: Tensor) -> Data:
        """Cut a batch; where memory is short, it lies on disk."""
        batch = cut_batch(self.graph, self.plan, nodes)
        if self.graph.shelf is not None:
            put_away(batch, self.graph, self.graph.shelf)
        return batch if self.sets.regroup or self.graph.shelf is not None else for_many_steps(batch)

    def compensate(self, exact: dict[str, Tensor] | None = None) -> None:
        """Estimate the compensation of every batch at hand anew, after a refit of the compensator.

        `exact` are the embeddings (n, d) by place that offsets are made of; they are let go, unless batches change.
        """
        self._exact, shelf = self._exact if exact is None else exact, self.graph.shelf
        for done, batch in enumerate(self._batches):
            self.tell("compensating batches", done, len(self._batches))
            batch.compensation = None if self.compensator is None else self.compensator.of(batch.supplement.structure)
            if batch.compensation is not None and shelf is not None:
                batch.compensation = batch.compensation.changed(shelf.keep)
        for place in list(self._exact):
            rows, ways = self._exact[place], ways_of(place, self.plan)
            sight = None if self.compensator is None else self.compensator.sight
            for batch in self._batches:
                batch.compensation.add_offsets(batch.supplement.structure, ways, place, exact=rows, sight=sight)
                if shelf is not None:
                    offsets = batch.compensation.offsets
                    offsets |= {(place, way): shelf.keep(offsets[place, way]) for way in ways}
            if not self.sets.regroup:
                del self._exact[place]
        self.tell("compensating batches", len(self._batches), len(self._batches))

    def forget(self, place: str) -> None:
        """Let go of the offsets of a place."""
        for batch in self._batches:
            for way in ways_of(place, self.plan):
                batch.compensation.offsets.pop((place, way), None)

    def saved(self) -> Arrays:
        """Return the compensations at hand as plain arrays, for `restore`."""
        arrays: Arrays = {}
        for number, batch in enumerate(self.batches()):
            compensation: Compensation = batch.compensation
            found = [*compensation.spread.values(), *compensation.halo.values()]
            arrays |= {f"{number}.spread.{place}": matrix.numpy() for place, matrix in enumerate(found)}
            arrays[f"{number}.read"] = compensation.read.numpy()
            arrays[f"{number}.numbers"] = np.array([compensation.rank, compensation.condition])
            if compensation.anchors is not None:
                arrays[f"{number}.anchors"] = compensation.anchors.numpy()
        return arrays | {"rank": np.array(self.compensator.rank_ if self.compensator else 0)}

    def restore(self, arrays: Arrays) -> None:
        """Put saved compensations into the batches at hand; the basis itself is not among them."""
        assert self.compensator is not None
        self.compensator.rank_ = int(arrays["rank"])
        for number, batch in enumerate(self.batches()):
            structure: Structure = batch.supplement.structure
            count, anchors = len(structure.spots) + len(structure.around), arrays.get(f"{number}.anchors")
            batch.compensation = Compensation.of(
                structure,
                [torch.from_numpy(arrays[f"{number}.spread.{place}"]) for place in range(count)],
                torch.from_numpy(arrays[f"{number}.read"]),
                anchors=None if anchors is None else torch.from_numpy(anchors),
                rank=int(arrays[f"{number}.numbers"][0]),
                condition=float(arrays[f"{number}.numbers"][1]),
            )
            if self.graph.shelf is not None:
                batch.compensation = batch.compensation.changed(self.graph.shelf.keep)

    def sight(self) -> Sight | None:
        """Return what the batches see of all nodes, where that is kept instead of all rows: where it is less.

        Steps of several batches keep all rows, so that the processes that share them out find the same basis.
        """
        needs_all = self.compensator is not None and self.compensator.estimator == "released"
        if self.sets.regroup or self.accumulate > 1 or self.ranks.size > 1 or needs_all:
            return None
        sight = Sight([batch.supplement.structure for batch in self.batches()], shelf=self.graph.shelf)
        return sight if sight.size < self.graph.num_nodes else None

    def pooled(self, rows: list[list[float]]) -> list[list[float]]:
        """Return some numbers of every batch, in their order, from those of the batches at hand."""
        if self.ranks.size == 1:
            return rows
        found = torch.zeros(self.count, len(rows[0]), dtype=torch.float64)
        found[self.ranks.rank :: self.ranks.size] = torch.tensor(rows, dtype=torch.float64)
        pooled: list[list[float]] = self.ranks.sum(found).tolist()
        return pooled

    def pieces(self) -> list[Data] | list[Tensor]:
        """Return batches that hold every node once: those at hand where they do, else node sets.

        Of several processes each has its own.
        """
        if self.sets.covers:
            return self.batches()
        return self.sets.cover()[self.ranks.rank :: self.ranks.size]

    def share(self) -> Share | None:
        """Return the nodes whose rows this process computes and reads, found once per cut; None where it is alone."""
        batches, ranks = self.batches(), self.ranks
        if ranks.size == 1:
            return None
        if self._share is None or self._share[0] != self.cut_for:
            owner = torch.empty(self.graph.num_nodes, dtype=torch.long)
            for number, nodes in enumerate(self.sets.of(self.cut_for) if self.sets.covers else self.sets.cover()):
                owner[nodes] = number % ranks.size
            own = torch.cat([(owner == ranks.rank).nonzero().view(-1), *(batch.n_id for batch in batches)])
            reads = read_by(self.graph, self.plan, own)
            reads[slice(None) if self.sets.regroup else own] = True  # batches of later epochs may read any row
            self._share = self.cut_for, Share(ranks, owner, reads=reads)
        return self._share[1]

    def residual(self, *, offsets: bool = True, sight: Sight | None = None) -> Residual:
        """Return an empty account of how well the compensations at hand explain embeddings."""
        return Residual(self.batches(), plan=self.plan, offsets=offsets, shelf=self.graph.shelf, sight=sight)

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the epoch and how many of its batches were handed out."""
        return self.position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position."""
        self.position.load_state_dict(state)

    def _weigh_losses(self, sets: list[Tensor]) -> None:
        """Weigh the loss of every training node by how often it occurs, so that an epoch's mean is that over them."""
        times = torch.bincount(torch.cat(sets), minlength=self.graph.num_nodes)
        seen = times > 0
        count = int((seen & self.graph.data.train_mask).sum()) if "train_mask" in self.graph.data else int(seen.sum())
        for batch, nodes in zip(self._batches, sets[self.ranks.rank :: self.ranks.size], strict=True):
            batch.loss_weight = (len(sets) / max(1, count) / times[nodes]).to(self.graph.data.x.dtype)

    def tell(self, what: str, done: int, total: int) -> None:
        """Tell how far the preparation is."""
        if self.progress:
            self.progress(what, done, total)
