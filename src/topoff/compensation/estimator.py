"""Estimate the compensation: out-of-batch embeddings as a linear combination of in-batch ones, H_C ~ R H_B (5, 6).

R has rank k and is never formed: `read` (k x b) takes k numbers per column from the batch, `spread` puts them where the
halo's messages would arrive,

    A[B, C] H_C  ~  spread @ (read @ H_B).

>>> import torch
>>> from torch_geometric.data import Data
>>> from torch_geometric.nn import GCN
>>> from topoff.forward.trial import make_plan
>>> from topoff.forward.structure import structure_of
>>> data = Data(x=torch.rand(6, 3), edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]))
>>> graph, model = Graph(data), GCN(3, 4, num_layers=2, out_channels=2)
>>> plan = make_plan(model, graph)
>>> compensator = Compensator(rank=2).fit(graph, plan, blocks=[torch.rand(6, 4)])
>>> compensator.of(structure_of(graph, plan, torch.arange(3))).read.shape
torch.Size([2, 3])
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from topoff.compensation.factors import Compensation
from topoff.compensation.features import Features
from topoff.compensation.principal import Principal, compress, full_precision, norm_of, one_thread, regularized_inverse
from topoff.compensation.sight import Sight, incoming, ways_into
from topoff.forward.plan import Plan
from topoff.forward.share import Share
from topoff.forward.structure import Structure
from topoff.graph.aggregation import Empty
from topoff.graph.graph import Graph
from topoff.graph.operators import full_type

ESTIMATORS = ("ridge", "paper", "released")
ENERGY_ROWS = 4096  # the leading directions of a batch's messages come from about this many of them
PINV_RTOL = 1e-3  # cut of the paper's pseudo-inverse
OF_FEATURES = 2  # directions of the features per unit of rank, where rows are regressed on these


@dataclass(frozen=True)
class Encoded:
    """Hold what rows that have received no messages are regressed on, where that is asked for."""

    places: Sequence[str]  # that read these rows
    blocks: list[Tensor]  # columns, (n, m) in blocks, or what batches see of them
    rank: int  # directions of them that a batch pays for


class Compensator:
    """Estimate compensations from basic embeddings.

    Args:
        rank: k, or the fraction of the basis energy to keep (0 < rank < 1). 0 means no compensation.
        estimator: "ridge" (default), "paper" (Eq. 12, 13) or "released" (the authors' code, one global QR basis).
        ridge: lambda, relative to the mean diagonal of the Gram matrix; 0 cuts the null space instead.
        anchors: how many nodes of a batch are read by "paper" (default: k) and "released" (default: all).
        width: columns of the basis per unit of rank: the regression uses all of them, the batch pays for `rank` only.
        seed: of the random sketches and anchors of "paper" and "released".
    """

    blocks_: list[Tensor]  # the basis Phi (n, m), in blocks of columns
    rank_: int

    def __init__(
        self,
        rank: int | float = 64,
        *,
        estimator: str = "ridge",
        ridge: float = 1e-5,
        anchors: int | None = None,
        width: int = 8,
        seed: int = 0,
    ) -> None:
        """Store the parameters; `check` refuses wrong ones."""
        self.rank, self.estimator, self.ridge, self.anchors, self.seed = rank, estimator, ridge, anchors, seed
        self.width = width
        self.features: Features | None = None
        self.sight: Sight | None = None  # what is kept of embeddings; None: all rows
        self.encoded: Encoded | None = None

    def fit(self, graph: Graph, plan: Plan, *, blocks: Iterable[Tensor]) -> Compensator:
        """Make the basis of the blocks (n, d) of basic embeddings, each used once and then let go."""
        principal = self.start(graph, plan)
        for block in blocks:
            principal.add(block)
        return self.finish(principal)

    def start(self, graph: Graph, plan: Plan, *, sight: Sight | None = None, share: Share | None = None) -> Principal:
        """Return an empty basis to which blocks are added one by one; end with `finish`.

        They are embeddings of all nodes, (n, d), or what some batches see of them. Of several processes each adds the
        rows of its `share` of the nodes.
        """
        self.check()
        if share is not None and self.estimator == "released":
            raise ValueError(
                "Expected estimator 'ridge' or 'paper' with several processes (got 'released', whose basis is made "
                "orthonormal over all nodes); use one of them, or one process."
            )
        if self.features is None or not self.features.are_of(graph, plan, sight):
            most = self.rank if isinstance(self.rank, int) else None
            self.features = Features(graph, plan, width=most, sight=sight)
        self._graph, self.sight = graph, sight
        width = None if self.estimator == "paper" or isinstance(self.rank, float) else self.width * self.rank
        return Principal(width, dtype=self._dtype, share=share, empty=self._empty)

    @full_precision()
    def finish(
        self, principal: Principal, *, hops: int = 0, encoded: Tensor | None = None, places: Sequence[str] = ()
    ) -> Compensator:
        """Close the basis and learn from it.

        With `hops`, the features after one to so many of them join it (see `Features`). The `encoded` rows have
        received no messages, and are what some `places` read: most are functions of the features, and as noisy.
        """
        assert self.features is not None
        joining = self.features.joining(hops=hops) if principal.blocks and self.estimator == "ridge" else []
        for block in joining:
            principal.add_features(block, blocks=max(1, hops))
        self.blocks_ = principal.basis(energy=self.rank if isinstance(self.rank, float) else None)
        m = sum(block.size(1) for block in self.blocks_)
        self.rank_ = m if isinstance(self.rank, float) else min(self.rank, m)
        if self.estimator == "released" and self.blocks_:
            self.blocks_ = [torch.linalg.qr(compress(self.blocks_, self.rank_)).Q]
        received = torch.from_numpy(self._graph.incoming().degrees)
        self._weight = (received + 1).to(self._dtype).sqrt()
        self.encoded = None if encoded is None else self._encoding(encoded, places, principal.share)
        return self

    def _encoding(self, rows: Tensor, places: Sequence[str], share: Share | None) -> Encoded:
        """Regress rows (n, d), or what batches see of them, on the features, a constant and the rows themselves."""
        assert self.features is not None
        columns = self.features.columns(most=OF_FEATURES * self.rank_)
        size = norm_of(rows, share) if self.sight is None else self.sight.norm(rows)
        count = len(rows) if self.sight is None else self.sight.count
        own = self.features.scaled(rows, (count * rows.size(1)) ** 0.5 / max(size, 1e-30))
        return Encoded(places, [columns, own], min(self.rank_, columns.size(1) + own.size(1)))

    def let_go(self) -> None:
        """Let go of the basis: what was estimated of it is all that is needed, until the features join the next one."""
        del self.blocks_
        self.encoded = None

    @property
    def is_fitted(self) -> bool:
        """Whether there is a basis."""
        return hasattr(self, "blocks_")

    @property
    def basis_(self) -> Tensor:
        """The basis Phi; (n, m), or what batches see of it."""
        rows = self.sight.size if self.sight else self._graph.num_nodes
        return torch.cat([torch.zeros(rows, 0, dtype=self._dtype), *self.blocks_], dim=1)

    @property
    def _dtype(self) -> torch.dtype:
        """The type of basis and compensation: that of the features, float32 where they have half precision."""
        return full_type(self._graph.dtype)

    @property
    def _empty(self) -> Empty | None:
        """What makes matrices of all nodes; None: memory."""
        return None if self._graph.shelf is None else self._graph.shelf.empty

    @full_precision()
    def of(self, structure: Structure) -> Compensation:
        """Return the compensation of one batch."""
        if self.rank_ == 0:
            rows = [spot.boundary.numel() for spot in structure.spots.values()]
            rows += [near.halo.numel() for near in structure.around.values()]
            spreads = [torch.zeros(count, 0, dtype=self._dtype) for count in rows]
            read = torch.zeros(0, structure.nodes.numel(), dtype=self._dtype)
            return Compensation.of(structure, spreads, read, rank=0, condition=1.0)
        if self.estimator != "ridge":
            return (self._paper if self.estimator == "paper" else self._released)(structure)
        found = self._ridge(structure, self.blocks_, self.rank_)
        if self.encoded is None:
            return found
        apart = self._ridge(structure, self.encoded.blocks, self.encoded.rank)
        return replace(found, apart=dict.fromkeys(self.encoded.places, apart))

    def _ridge(self, structure: Structure, blocks: list[Tensor], most: int) -> Compensation:
        """Regress the halo's messages on the batch, then keep the k directions that carry most of them, at `most`.

        With F = Phi_B, T = A[B,C] Phi_C and weights W (the square root of the degree: embeddings of well-connected
        nodes move less), the ridge solution is R = T (F'WF + lambda I)^-1 F'W; among all of rank k, the one nearest to
        it on the basis projects on the k leading right singular vectors V of the fitted messages:
        spread = T V, read = V' (F'WF + lambda I)^-1 F'W.
        """
        F = self._own(structure, blocks)
        weight = self._weight[structure.nodes].to(F.dtype)
        FW = F * (weight / weight.mean()).unsqueeze(1)
        messages = self._messages(structure, blocks)
        inverse, smooth, condition = regularized_inverse(F.T @ FW, self.ridge)
        energy = inverse.new_zeros(inverse.shape)
        for T in messages:
            sample = T[:: max(1, len(T) // ENERGY_ROWS)]
            gram = (sample.T @ sample).to(inverse.dtype)
            energy += gram / gram.trace().clamp(min=1e-30)
        with one_thread():
            values, vectors = torch.linalg.eigh(smooth.T @ energy @ smooth)
        k = min(most, len(F))
        V = vectors[:, vectors.size(1) - k :].flip(1)
        floor = torch.finfo(F.dtype).eps * values.clamp(min=0).sum()
        rank = int((values.flip(0)[:k] > floor).sum())
        self._warn_of_small_batch(len(F))
        read = (V.T @ inverse).to(F.dtype) @ FW.T
        return Compensation.of(structure, [T @ V.to(T.dtype) for T in messages], read, rank=rank, condition=condition)

    def _paper(self, structure: Structure) -> Compensation:
        """Follow Eq. (12): a range finder per batch, k uniform anchors, a truncated pseudo-inverse."""
        H = self._own(structure, self.blocks_)
        k = min(self.rank_, len(H))
        generator = self._generator(structure)
        sketch = torch.randn(H.size(1), k, generator=generator, dtype=H.dtype)
        Q = torch.linalg.qr(H @ sketch).Q
        count = min(len(H), k if self.anchors is None else self.anchors)
        anchors = torch.randperm(len(H), generator=generator)[:count].sort().values
        small = (Q[anchors].T @ H[anchors]).double()
        with one_thread():
            inverse = torch.linalg.pinv(small, rtol=PINV_RTOL).to(H.dtype)
            singular = torch.linalg.svdvals(small)
        rank = int((singular > PINV_RTOL * singular[:1]).sum())
        spreads = [T @ inverse for T in self._messages(structure, self.blocks_)]
        condition = float(singular[0] / singular[rank - 1]) if rank else 1.0
        return Compensation.of(
            structure, spreads, Q[anchors].T.contiguous(), anchors=anchors, rank=rank, condition=condition
        )

    def _released(self, structure: Structure) -> Compensation:
        """Follow the authors' release: one global orthonormal basis Q, read = pinv(Q_S), spread = A[B,C] Q_C."""
        Q = self._own(structure, self.blocks_)
        anchors = None
        if self.anchors is not None and self.anchors < len(Q):
            order = torch.randperm(len(Q), generator=self._generator(structure))
            anchors = order[: self.anchors].sort().values
        chosen = (Q if anchors is None else Q[anchors]).double()
        singular = torch.linalg.svdvals(chosen)
        cut = max(chosen.shape) * torch.finfo(Q.dtype).eps * float(singular.max()) if singular.numel() else 0.0
        rank = int((singular > cut).sum())
        read = torch.linalg.pinv(chosen, atol=cut, rtol=0.0).to(Q.dtype)
        condition = float(singular[0] / singular[rank - 1]) if rank else 1.0
        self._warn_of_small_batch(len(Q))
        return Compensation.of(
            structure, self._messages(structure, self.blocks_), read, anchors=anchors, rank=rank, condition=condition
        )

    def _own(self, structure: Structure, blocks: list[Tensor]) -> Tensor:
        """Return Phi of a batch's nodes; (b, m)."""
        sight = self.sight
        rows = [block[structure.nodes] if sight is None else sight.own(structure, block) for block in blocks]
        return torch.cat(rows, dim=1)

    def _messages(self, structure: Structure, blocks: list[Tensor]) -> list[Tensor]:
        """Return A[B,C] Phi_C for every operator, and Phi_C for every flow of the general path."""
        arrive, found = incoming if self.sight is None else self.sight.message, []
        for way in ways_into(structure):
            found.append(torch.cat([arrive(structure, way, block) for block in blocks], dim=1))
        return found

    def _generator(self, structure: Structure) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 1_000_003 + int(structure.nodes.sum()) % 1_000_003)

    def _warn_of_small_batch(self, size: int) -> None:
        """Warn where a batch has fewer nodes than the basis has directions."""
        if self.rank_ > size:
            warnings.warn(
                f"rank {self.rank_} exceeds a batch of {size} nodes, which can hold {size} directions at most: "
                f"raise ratio or lower rank.",
                stacklevel=4,
            )

    def check(self) -> None:
        """Refuse parameters that make no sense."""
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"Expected estimator to be one of {', '.join(ESTIMATORS)} (got '{self.estimator}').")
        whole = isinstance(self.rank, int) and not isinstance(self.rank, bool) and self.rank >= 0
        if not whole and not (isinstance(self.rank, float) and 0 < self.rank < 1):
            raise ValueError(
                f"Expected rank to be a whole number >= 0 or a fraction of the energy in (0, 1) (got {self.rank!r})."
            )
        if self.width < 1:
            raise ValueError(f"Expected width to be at least 1 (got {self.width}).")
        if self.ridge < 0:
            raise ValueError(f"Expected ridge to be at least 0 (got {self.ridge}).")
        if self.anchors is not None and self.anchors < 1:
            raise ValueError(f"Expected anchors to be at least 1 (got {self.anchors}): leave it out to read all nodes.")
