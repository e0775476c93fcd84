"""Turn node sets into batches: a PyG `Data` with its rows, masks and edges, and the supplement that compensates it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.batching.overlapping_sets import SampledSets
from topoff.compensation.certificate import Residual
from topoff.compensation.compensated import Supplement
from topoff.compensation.estimator import Compensation, Compensator
from topoff.forward.plan import Plan, Structure, structure_of
from topoff.graph.graph import Graph
from topoff.machine.cache import Arrays

Progress = Callable[[str, int, int], None]  # what is being done, how many are done, how many there are


def whole_graph(graph: Graph, plan: Plan) -> Data:
    """Return the whole graph as one batch: nothing to compensate, on the fast operator."""
    nodes = torch.arange(graph.num_nodes)
    batch = graph.induced(nodes)
    batch.supplement = Supplement(plan, structure_of(graph, plan, nodes, x=batch.x), None)
    return batch


def closed(subgraph: Data, plan: Plan) -> Data:
    """Return a subgraph as a batch that is a graph of its own: nothing outside is seen, degrees are those inside."""
    batch = whole_graph(Graph(subgraph), plan)
    batch.n_id, batch.batch_size = subgraph.n_id, subgraph.batch_size
    return batch


class Loader:
    """Iterate over compensated batches, shuffled by (seed, epoch); fixed batches are cut once and kept.

    Args:
        graph: the whole graph.
        plan: what the model needs.
        sets: the fitted node sets.
        compensator: fitted, or None to leave the halo out.
        seed: of the order of the batches.
        progress: told how many batches are ready.
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
    ) -> None:
        """Store the parts; batches are cut when they are first asked for."""
        self.graph, self.plan, self.sets, self.compensator, self.seed = graph, plan, sets, compensator, seed
        self.progress = progress
        self.epoch = 0
        self._position = 0  # batches of this epoch that were handed out
        self._resumed = False  # the position was loaded
        self._batches: list[Data] = []
        self._cut_for = -1  # epoch of the batches at hand

    def __len__(self) -> int:
        """Count the batches of an epoch."""
        return len(self.sets)

    def __iter__(self) -> Iterator[Data]:
        """Yield the batches of the current epoch that hold training nodes, then go on to the next epoch."""
        self.begin_epoch()
        self._resumed = False
        batches = self.batches()
        order = np.random.default_rng([self.seed, self.epoch, 1]).permutation(len(batches))
        while self._position < len(order):
            batch = batches[order[self._position]]
            self._position += 1
            if "train_mask" not in batch or bool(batch.train_mask.any()):
                yield batch
        self.epoch, self._position = self.epoch + 1, 0

    def begin_epoch(self) -> None:
        """Go on to the next epoch where the last one was left early, unless its position was just loaded."""
        if self._position and not self._resumed:
            self.epoch, self._position = self.epoch + 1, 0

    def batches(self) -> list[Data]:
        """Return all batches of the current epoch, in the order of the node sets."""
        epoch = self.epoch if self.sets.regroup else 0
        if self._cut_for != epoch:
            sets = self.sets.of(epoch)
            self._batches = [self._cut(nodes) for nodes in sets]
            if isinstance(self.sets, SampledSets):
                self._weigh_losses(sets)
            self._cut_for = epoch
            if self.compensator is not None and self.compensator.is_fitted:
                self.compensate()
        return self._batches

    def compensate(self) -> None:
        """Estimate the compensation of every batch at hand anew, after a refit of the compensator."""
        for done, batch in enumerate(self._batches):
            self._report("compensating batches", done)
            compensation = None if self.compensator is None else self.compensator.of(batch.supplement.structure)
            batch.supplement = replace(batch.supplement, compensation=compensation)
        self._report("compensating batches", len(self._batches))

    def saved(self) -> Arrays:
        """Return the compensations at hand as plain arrays, for `restore`."""
        arrays: Arrays = {}
        for number, batch in enumerate(self.batches()):
            compensation: Compensation = batch.supplement.compensation
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
            keys = [*structure.spots, *structure.around]
            matrices = [torch.from_numpy(arrays[f"{number}.spread.{place}"]) for place in range(len(keys))]
            spread = dict(zip(structure.spots, matrices, strict=False))
            halo = dict(zip(structure.around, matrices[len(spread) :], strict=True))
            anchors = arrays.get(f"{number}.anchors")
            rank, condition = arrays[f"{number}.numbers"].tolist()
            batch.supplement = replace(
                batch.supplement,
                compensation=Compensation(
                    torch.from_numpy(arrays[f"{number}.read"]),
                    None if anchors is None else torch.from_numpy(anchors),
                    spread,
                    halo,
                    int(rank),
                    condition,
                ),
            )

    def residual(self) -> Residual:
        """Return an empty account of how well the compensations at hand explain embeddings."""
        assert self.compensator is not None
        return Residual(self.compensator, self.batches())

    def state_dict(self) -> dict[str, Any]:
        """Return the position: the epoch and how many of its batches were handed out."""
        return {"epoch": self.epoch, "position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position."""
        self.epoch, self._position, self._resumed = state["epoch"], state["position"], True

    def _cut(self, nodes: Tensor) -> Data:
        """Cut one batch, not yet compensated."""
        batch = self.graph.induced(nodes)
        structure: Structure = structure_of(self.graph, self.plan, nodes, x=batch.x)
        batch.supplement = Supplement(self.plan, structure, None)
        return batch

    def _weigh_losses(self, sets: list[Tensor]) -> None:
        """Weigh the loss of every training node by how often it occurs, so that an epoch's mean is that over them."""
        times = torch.bincount(torch.cat(sets), minlength=self.graph.num_nodes)
        seen = times > 0
        count = int((seen & self.graph.data.train_mask).sum()) if "train_mask" in self.graph.data else int(seen.sum())
        for batch, nodes in zip(self._batches, sets, strict=True):
            batch.loss_weight = (len(sets) / max(1, count) / times[nodes]).to(self.graph.data.x.dtype)

    def _report(self, what: str, done: int) -> None:
        if self.progress:
            self.progress(what, done, len(self._batches))
