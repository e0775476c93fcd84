"""GAS, GNNAutoScale (Fey et al., ICML 2021): the halo's rows come from histories, the last known ones.

Eq. (2) and (3) and Algorithm 1: a batch B of clusters receives all of its messages, A[B,B] H_B + A[B,C] Hbar_C, where
Hbar_C are the rows that the halo C had when it was last in a batch. They are constants of the backward pass. Then the
rows of the batch are pushed, for others to pull. With frozen weights the batches are exact after as many passes as the
model has propagations that need histories.

Any model that topoff can batch will do. As in the authors' code, a conv that reads the raw features knows its halo;
histories hold embeddings before dropout, pulled rows are dropped out like the batch's own, histories are filled before
the first epoch and again by every exact evaluation, whose time then counts as training, and batches without training
nodes are skipped, so that their rows stay as old as that (with `train_only`, those of all other nodes).

What differs: halo features are not dropped out with the batch's; a first conv behind a linear layer (GCNII) has a
history, where the authors run that layer on the halo; their regularisation for Lipschitz continuity is left out; tables
live on the model's device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import evaluating
from topoff.forward.convs import Conv
from topoff.forward.structure import Structure
from topoff.forward.subgraph import Subgraph, cut_batch
from topoff.graph.operators import Movable, Operator, Sparse
from topoff.methods.cluster import Cluster
from topoff.methods.histories import Histories
from topoff.models.dropout import DropoutNotes


@dataclass(frozen=True, repr=False)
class Halo(Movable):
    """Hold a batch's halo on the linear path, and the messages that come from there."""

    nodes: Tensor  # (c,) global ids of C, ascending
    inward: dict[Operator, Sparse]  # A[boundary, C], columns numbered by position in `nodes`


def halo_of(structure: Structure) -> Halo:
    """Number the halo of a structure, which all its operators share."""
    found = {operator: spot.halo for operator, spot in structure.spots.items()}
    place = torch.zeros(max([halo.shape[1] for halo in found.values()], default=0), dtype=torch.int32)
    for halo in found.values():
        place[halo.ids.long()] = 1
    nodes = place.nonzero().view(-1)  # much faster than sorting all senders
    place[nodes] = torch.arange(len(nodes), dtype=place.dtype)
    inward = {
        operator: replace(halo, shape=(halo.shape[0], len(nodes)), ids=place[halo.ids.long()].to(halo.ids.dtype))
        for operator, halo in found.items()
    }
    return Halo(nodes, inward)


class Remembering(Subgraph):
    """Stand in for a model's message passing, the halo's rows taken from histories."""

    before_weights = True
    recomputable: ClassVar[bool] = False  # histories would be pushed twice

    def __init__(self, convs: list[Conv], model: nn.Module, *, histories: Histories) -> None:
        super().__init__(convs)
        self.model, self.histories = model, histories
        self.filling = False  # push in eval mode too
        self.notes = DropoutNotes()

    @property
    def pushes(self) -> bool:
        """Whether what a batch computes is remembered: in training."""
        return self.model.training or self.filling

    def listener(self, batch: Data) -> DropoutNotes:
        """Return what listens to the forward of one batch in training."""
        return DropoutNotes()

    @contextmanager
    def on(self, batch: Data) -> Iterator[Data]:
        """Bind the model to a batch inside `with`; dropout is noted meanwhile."""
        self.notes = self.listener(batch)
        with super().on(batch) as seen, ExitStack() as listening:
            if self.model.training:
                listening.enter_context(self.notes)
            yield seen

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        """Return A[B,B] h + A[B,C] Hbar_C (Eq. 3) and push h; (b, d)."""
        spot = self.batch.supplement.structure.spots[operator]
        halo: Halo = self.batch.halo
        rows = self.exchange(place, h, halo=halo.nodes)
        out: Tensor = spot.within @ h
        return out.index_add_(0, spot.boundary, halo.inward[operator] @ rows)

    def virtual(self, place: str, flow: str, h: Tensor) -> Tensor:
        """Return the halo's rows of a general conv, and push those of the batch; (c, d)."""
        return self.exchange(place, h, halo=self.batch.supplement.structure.around[flow].halo)

    def exchange(self, place: str, h: Tensor, *, halo: Tensor) -> Tensor:
        """Push the rows h (b, d) as they were before dropout; pull those of the halo, dropped out alike; (c, d)."""
        note = self.notes.of(h)
        rows = self.histories.pull(place, halo, like=h)
        if self.pushes:
            self.histories.push(place, self.batch.supplement.structure.nodes, h if note is None else note.source)
        return rows if note is None else note.again(rows)


class Gas(Cluster):
    """Run the model on batches of clusters that receive all messages, those from outside out of histories.

    >>> from torch_geometric.nn import GCN
    >>> from topoff import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> gas = Gas(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, batches="random")
    >>> gas.prepare()
    >>> [gas.forward(batch).shape for batch in gas.batches()]
    [torch.Size([10, 2]), torch.Size([10, 2])]
    >>> {place: tuple(table.shape) for place, table in gas.weights().items()}
    {'convs.1/0/0': (20, 4)}
    """

    handler: Remembering
    any_model: ClassVar[bool] = False

    def __init__(self, model: nn.Module, data: Data, *, filled: bool = True, **settings: Any) -> None:
        super().__init__(model, data, **settings)
        self.filled = filled  # whether `prepare` fills the histories

    def stand_in(self) -> Remembering:
        """Return what stands in for the model's message passing."""
        return Remembering(self.plan.convs, self.model, histories=self.histories)

    def cut(self, nodes: Tensor) -> Data:
        """Cut a batch with all messages that arrive there."""
        batch = cut_batch(self.graph, self.plan, nodes)
        batch.halo = halo_of(batch.supplement.structure)
        return batch

    def prepare(self) -> None:
        """Look at the model and the graph, and fill the histories, as the authors do before the first epoch."""
        super().prepare()
        if self.filled:
            self.fill()

    def fill(self) -> None:
        """Make the histories of all nodes exact for the current weights: a batch makes the tables, `exact` fills them.

        The authors take as many passes over the batches as there are layers.
        """
        self.handler.filling = True
        try:
            with evaluating(self.model):
                self.forward(self.placed(self.batch(0, 0)))
        finally:
            self.handler.filling = False
        self._whole(remember=self._remember)

    @property
    def due(self) -> bool:
        """Whether histories become exact at the next evaluation."""
        return bool(self.histories.tables) and not self.frozen

    def exact(self) -> tuple[Tensor, bool]:
        """Return the exact outputs of all nodes; the histories become exact with them, as in the authors' code."""
        if not self.due:
            return super().exact()
        return self._whole(remember=self._remember), True

    def _remember(self, place: str, rows: Tensor) -> None:
        """Write the rows of all nodes into the table of a place, by the names that GAS, GraphFM and LMC give it."""
        tables = self.histories.tables
        for name in {place, place.removesuffix("/0"), f"embeddings/{place}"} & tables.keys():
            tables[name].copy_(rows)

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on from a position and the histories at that time."""
        self.filled = False  # the histories come from there
        super().restore(state, weights)
