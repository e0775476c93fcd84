"""The leading principal directions of basic embeddings, in bounded memory, and the inverse of their Gram matrix.

>>> principal = Principal(width=1)
>>> principal.add(torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 0.1]]))
>>> [tuple(block.shape) for block in principal.basis()]
[(3, 1)]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from topoff.forward.share import Share
from topoff.graph.aggregation import Empty

FEATURE_WEIGHT = 0.1  # norm of the propagated features A X in the basis, relative to that of an embedding block
HELD = 768  # columns that are held at least before some are let go
ROWS = 2**16  # that are projected together
GRAM_ROWS = 8192  # principal directions come from the Gram matrix of about this many rows, evenly spaced
WIDE, FEW = 1024, 16  # columns, or columns per direction, beyond which a randomised range finder finds the directions


@contextmanager
def full_precision() -> Iterator[None]:
    """Estimate in the type of the numbers at hand, also where a user computes with fewer digits (autocast).

    >>> with torch.autocast("cpu"), full_precision():
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    with torch.autocast("cpu", enabled=False):
        yield


class Principal:
    """Collect blocks of embeddings and keep their leading principal directions (uncentred), in bounded memory.

    With more than `HELD` columns, and more than four times `width`, the directions of least energy are let go, so that
    n x 4 width numbers are held, however many blocks come.
    """

    def __init__(
        self,
        width: int | None,
        *,
        dtype: torch.dtype | None = None,
        share: Share | None = None,
        empty: Empty | None = None,
    ) -> None:
        """Start without blocks, to be held in `dtype`, by default as they come; None as width keeps all columns.

        With a `share` of the nodes a block has rows for those alone; energies and Gram matrices are those of all.
        `empty` makes the matrices that are held; by default in memory.
        """
        self.width, self.dtype, self.share, self.empty = width, dtype, share, empty
        self.energy = 0.0  # of all blocks
        self.blocks = 0
        self._columns: list[Tensor] = []

    @full_precision()
    def add(self, block: Tensor) -> None:
        """Add a block (n, d)."""
        block = block.to(self.dtype or block.dtype)
        norm = norm_of(block, self.share)
        _refuse_large(norm, block.dtype)
        self.energy += norm**2
        self.blocks += 1
        self._columns.append(block)
        held = sum(part.size(1) for part in self._columns)
        if self.width is not None and held > max(HELD, 4 * self.width):
            self._columns = [compress(self._columns, 2 * self.width, share=self.share, empty=self.empty)]

    def add_features(self, leading: Tensor, *, blocks: float = 1.0) -> None:
        """Add fixed features, as heavy as some `blocks`, at a low weight: they take little rank from the embeddings."""
        target = FEATURE_WEIGHT * (blocks * self.energy / self.blocks) ** 0.5
        scale, scaled = target / float(leading.norm().clamp(min=1e-30)), self._empty(leading)
        for rows, given in zip(torch.split(scaled, ROWS), torch.split(leading, ROWS), strict=True):
            torch.mul(given, scale, out=rows)
        self._columns.append(scaled)

    @full_precision()
    def basis(self, *, energy: float | None = None) -> list[Tensor]:
        """Return the basis (n, m) in blocks: 1.5 `width` columns at most, or as many as hold a share of the energy."""
        m = sum(block.size(1) for block in self._columns)
        if energy is not None and m:
            return [compress(self._columns, m, energy=energy, share=self.share, empty=self.empty)]
        if self.width is None or m <= 1.5 * self.width:
            return self._columns
        return [compress(self._columns, self.width, share=self.share, empty=self.empty)]

    def _empty(self, like: Tensor) -> Tensor:
        return torch.empty_like(like) if self.empty is None else self.empty(tuple(like.shape), like.dtype)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let small factorisations run on one thread: as fast on an idle machine, and on a busy one a hundred times faster.

    Their many short parallel sections wait for each other (measured: eigh of 192 x 192, 3 ms on one thread; on two
    threads beside another process up to 800).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compress(
    blocks: Sequence[Tensor],
    width: int,
    *,
    energy: float | None = None,
    share: Share | None = None,
    empty: Empty | None = None,
) -> Tensor:
    """Project blocks of columns (n, m) on their leading principal directions, without joining them.

    `width` directions are kept, or as many as hold a share of the energy. Of several processes each adds the rows of
    its `share` to the Gram matrix; rows that it does not have are NaN, and stay so. `empty` makes the matrix for them.
    """
    step = max(1, blocks[0].size(0) // GRAM_ROWS)
    chosen = slice(None, None, step) if share is None else share.nodes[share.nodes % step == 0]
    sample = torch.cat([block[chosen] for block in blocks], dim=1)
    leading = directions(sample, width, energy=energy, share=share)
    shape, dtype = (blocks[0].size(0), leading.size(1)), blocks[0].dtype
    projected = torch.empty(shape, dtype=dtype) if empty is None else empty(shape, dtype)
    parts = torch.split(leading, [block.size(1) for block in blocks])
    for place, *rows in zip(*(torch.split(matrix, ROWS) for matrix in (projected, *blocks)), strict=True):
        place.zero_()
        for block, part in zip(rows, parts, strict=True):
            place.addmm_(block, part)
    return projected


def directions(sample: Tensor, width: int, *, energy: float | None = None, share: Share | None = None) -> Tensor:
    """Return the leading principal directions of rows (s, m), or as many as hold a share of the energy; (m, width).

    >>> directions(torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 0.1]]), 1).abs().tolist()
    [[1.0], [0.0]]
    """
    _refuse_large(float(torch.linalg.vector_norm(sample)), sample.dtype)
    if energy is None and sample.size(1) > min(WIDE, FEW * width):
        return _leading_directions(sample, width, share=share)
    values, vectors = _spectrum(sample, share)
    if energy is not None:
        part = values.flip(0).clamp(min=0).cumsum(0) / values.clamp(min=0).sum().clamp(min=1e-30)
        width = min(sample.size(1), int((part < energy).sum()) + 1)
    return vectors.flip(1)[:, :width].to(sample.dtype)


def _spectrum(sample: Tensor, share: Share | None) -> tuple[Tensor, Tensor]:
    """Return eigenvalues, ascending, and eigenvectors of the Gram matrix of rows (s, m), of all processes."""
    gram = (sample.T @ sample).double()
    gram = gram if share is None else share.ranks.sum(gram)
    with one_thread():
        values, vectors = torch.linalg.eigh(gram)
    return values, vectors


def norm_of(block: Tensor, share: Share | None) -> float:
    """Return the norm of a block (n, d) over the rows of all processes."""
    if share is None:
        return float(torch.linalg.vector_norm(block))
    rows = torch.linalg.vector_norm(block, dim=1)  # of all, which is cheaper than a copy of those that count
    return float(share.ranks.sum(rows[share.nodes].double().square().sum()).sqrt())


def _refuse_large(norm: float, dtype: torch.dtype) -> None:
    """Refuse embeddings whose squares are too large for their type, NaN among them.

    Raises:
        ValueError: with where it may come from.
    """
    if not norm <= 0.1 * torch.finfo(dtype).max ** 0.5:
        raise ValueError(
            f"Expected what the model's layers read to be finite, and its squares in {dtype} too (got a norm of "
            f"{norm:.1e} over all nodes); scale the features, lower the learning rate, or use rank 0."
        )


def _leading_directions(rows: Tensor, width: int, *, share: Share | None = None) -> Tensor:
    """Return the leading right singular vectors of wide rows (n, m) by a randomised range finder; (m, width)."""
    generator = torch.Generator().manual_seed(0)
    sketch = torch.randn(rows.size(1), width + 16, generator=generator, dtype=rows.dtype)
    for _ in range(2):
        seen = rows.T @ (rows @ sketch)
        sketch = torch.linalg.qr(seen if share is None else share.ranks.sum(seen)).Q
    if share is None:
        rotation = torch.linalg.svd(rows @ sketch, full_matrices=False).Vh[:width].T
    else:
        rotation = _spectrum(rows @ sketch, share)[1].flip(1)[:, :width].to(rows.dtype)
    leading: Tensor = sketch @ rotation
    return leading


def regularized_inverse(gram: Tensor, ridge: float) -> tuple[Tensor, Tensor, float]:
    """Return (G + lambda mean(diag G) I)^-1, that times G, and the condition number, in float64.

    At lambda = 0 the null space of G is cut instead (eigenvalues below m eps max). With a ridge the condition number is
    a lower bound, from the pivots of the Cholesky factor.
    """
    eps = torch.finfo(gram.dtype).eps
    G = gram.double()
    if G.numel() == 0:
        return G, G, 1.0
    if float(G.diagonal().sum()) == 0:  # nothing to read in this batch
        return torch.zeros_like(G), torch.zeros_like(G), 1.0
    with one_thread():
        return _inverse((G + G.T) / 2, ridge, eps=eps)


def _inverse(G: Tensor, ridge: float, *, eps: float) -> tuple[Tensor, Tensor, float]:
    """Do so for a symmetric matrix that is not zero."""
    m, shift = G.size(0), ridge * float(G.diagonal().mean().clamp(min=1e-300))
    if ridge:
        factor, failed = torch.linalg.cholesky_ex(G + shift * torch.eye(m, dtype=G.dtype))
        pivots = factor.diagonal()
        if not failed:
            condition = float((pivots.max() / pivots.min()) ** 2)
            return torch.cholesky_inverse(factor), torch.cholesky_solve(G, factor), condition
    values, vectors = torch.linalg.eigh(G)
    if ridge:  # rounding of a Gram matrix in single precision made it negative somewhere by more than the ridge
        values = values.clamp(min=0.0)
        shifted = values + shift
        condition = float(shifted.max() / shifted.min())
        return (vectors / shifted) @ vectors.T, (vectors * (values / shifted)) @ vectors.T, condition
    keep = values > m * eps * values.max().clamp(min=1e-300)
    values, vectors = values[keep], vectors[:, keep]
    condition = float(values.max() / values.min()) if len(values) else 1.0
    return (vectors / values) @ vectors.T, vectors @ vectors.T, condition
