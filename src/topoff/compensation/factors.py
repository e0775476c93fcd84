"""The compensation of one batch: the factors of A[B, C] R, and what they missed of the last exact embeddings.

With `offsets` the halo is H*_C + R (h_B - H*_B): the exact embeddings H* of the last refresh, and R for what has
changed since. On the linear path that is one constant per propagation,

    A[B, C] H_C  ~  spread @ (read @ H_B) + offset,    offset = A[B, C] H*_C - spread @ (read @ H*_B),

exact at the refresh whatever the rank is. It is added before a conv's weights, so that old rows meet the new weights.

>>> import torch
>>> from torch_geometric.data import Data
>>> from torch_geometric.nn import GCN
>>> from topoff import TOP, load
>>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
>>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
>>> top = TOP(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, rank=2, batches="random")
>>> [(place, tuple(offset.shape)[1:]) for (place, _), offset in next(iter(top)).compensation.offsets.items()]
[('convs.1/0/0', (4,))]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.compensation.principal import full_precision
from topoff.compensation.sight import Sight, Way, incoming
from topoff.forward.plan import Plan
from topoff.forward.structure import Structure
from topoff.graph.operators import Movable, Operator


def ways_of(place: str, plan: Plan) -> list[Way]:
    """Return the ways by which messages come into a propagation, "conv/call/hop": one, but for a conv with many."""
    conv = next(conv for conv in plan.convs if conv.name == place.rsplit("/", 2)[0])
    if conv.path == "general" or conv.name in plan.rewired:
        return [plan.flow_of(conv)]
    return [operator for operator in plan.operators if operator in conv.operators.values()]


def share_outside(structures: Iterable[Structure]) -> float:
    """Return the share of all messages that comes from outside the batches, by weight."""
    outside = total = 0.0
    for structure in structures:
        for found, inside in messages_of(structure):
            outside, total = outside + found, total + found + inside
    return outside / total if total else 0.0


def messages_of(structure: Structure) -> Iterator[tuple[float, float]]:
    """Yield the messages from outside and from inside a batch, by weight, for every way in."""
    for spot in structure.spots.values():
        yield float(spot.halo.values.abs().sum()), float(spot.within.values.abs().sum())
    for near in structure.around.values():
        outside = int((near.edge_index[0] >= len(structure.nodes)).sum())
        yield outside, near.edge_index.size(1) - outside


def work_row(batch: Data) -> list[float]:
    """Return the rows of a batch, and how many messages come from inside and outside, those that no step takes as 0.

    Of several operators, each of which has all messages, the mean counts.
    """
    structure: Structure = batch.supplement.structure
    trained = "train_mask" not in batch or bool(batch.train_mask.any())
    counts = [(spot.within.ids.numel(), spot.halo.ids.numel()) for spot in structure.spots.values()]
    for near in structure.around.values():
        halo = int((near.edge_index[0] >= len(structure.nodes)).sum())
        counts.append((near.edge_index.size(1) - halo, halo))
    inside, outside = (
        sum(column) / max(1, len(counts)) for column in (zip(*counts, strict=True) if counts else ((), ()))
    )
    return [float(trained * len(structure.nodes)), trained * inside, outside]


def message_row(structure: Structure) -> list[float]:
    """Return the messages from outside and from inside a batch, over all ways in."""
    found = list(messages_of(structure))
    return [sum((outside for outside, _ in found), 0.0), sum((inside for _, inside in found), 0.0)]


@dataclass(frozen=True, repr=False)
class Compensation(Movable):
    """Hold what a batch needs to replace its halo: the factors of A[B, C] R, for every operator of the model."""

    read: Tensor  # (k, s)
    anchors: Tensor | None  # (s,) positions in the batch that are read; None: all b
    spread: dict[Operator, Tensor]  # (r, k) per linear operator, for the boundary rows alone
    halo: dict[str, Tensor]  # (c, k) per flow: the halo's own rows are halo @ (read @ h), for the general path
    rank: int  # directions that carry energy
    condition: float  # of the regularised Gram matrix that was inverted
    offsets: dict[tuple[str, Way], Tensor] = field(default_factory=dict)  # (r, d) or (c, d), by place and way
    apart: dict[str, Compensation] = field(default_factory=dict)  # factors of a place that has its own

    def __repr__(self) -> str:
        return f"Compensation(rank={self.rank})"

    @classmethod
    def of(
        cls,
        structure: Structure,
        spreads: Sequence[Tensor],
        read: Tensor,
        *,
        rank: int,
        condition: float,
        anchors: Tensor | None = None,
    ) -> Compensation:
        """Sort the spreads of a batch, first those of its operators, then those of its flows."""
        spread = dict(zip(structure.spots, spreads, strict=False))
        halo = dict(zip(structure.around, spreads[len(spread) :], strict=True))
        return cls(read.contiguous(), anchors, spread, halo, rank, condition)

    def summary(self, h: Tensor) -> Tensor:
        """Read the batch: (b, d) -> (k, d)."""
        return self.read @ (h if self.anchors is None else h[self.anchors]).to(self.read.dtype)

    @full_precision()
    def add_offsets(
        self, structure: Structure, ways: Sequence[Way], place: str, *, exact: Tensor, sight: Sight | None = None
    ) -> None:
        """Keep what the factors miss of the exact embeddings that a propagation reads; (n, d), or what is in sight."""
        exact, factors = exact.to(self.read.dtype), self.apart.get(place, self)
        summary = factors.summary(exact[structure.nodes] if sight is None else sight.own(structure, exact))
        for way in ways:
            true = incoming(structure, way, exact) if sight is None else sight.message(structure, way, exact)
            self.offsets[place, way] = torch.addmm(true, factors.factor(way), summary, alpha=-1)

    @full_precision()
    def residual(
        self,
        structure: Structure,
        ways: Sequence[Way],
        rows: Tensor,
        *,
        place: str = "",
        offsets: bool = True,
        step: int = 1,
        sight: Sight | None = None,
    ) -> tuple[float, float]:
        """Return ||A[B,C] H_C - estimate||^2 and ||A[B,C] H_C||^2 of the batch for embeddings at a `place`.

        They are (n, d), or what is in `sight`.

        Its `offsets` are part of the estimate; `rows` are then every `step`-th of its columns.
        """
        missing, whole, factors = 0.0, 0.0, self.apart.get(place, self)
        summary = factors.summary(rows[structure.nodes] if sight is None else sight.own(structure, rows))
        for way in ways:
            true = incoming(structure, way, rows) if sight is None else sight.message(structure, way, rows)
            true = true.to(self.read.dtype)  # a model may cast inside
            missed = torch.addmm(true, factors.factor(way), summary, alpha=-1)
            if offsets and (place, way) in self.offsets:
                missed -= self.offsets[place, way][:, ::step]
            missing += float(missed.square_().sum())
            whole += float(true.square().sum())
        return missing, whole

    def factor(self, way: Way) -> Tensor:
        """Return what spreads a batch that was read, (k, d) -> (r, d) or (c, d)."""
        return self.spread[way] if isinstance(way, Operator) else self.halo[way]
