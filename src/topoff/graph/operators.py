"""What a conv multiplies with: the name of an operator, and a sparse matrix with a fast product and its gradient.

>>> import scipy.sparse as sp
>>> to_sparse(sp.csr_array(np.array([[0.0, 2.0], [1.0, 0.0]])), torch.float32) @ torch.eye(2)
tensor([[0., 2.],
        [1., 0.]])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Operator:
    """Name an aggregation: what one conv multiplies its operand with. Equal names share one matrix."""

    norm: str = "none"  # "none", "gcn" (symmetric, after self-loops), "cluster" (Cluster-GCN's diagonal enhancement)
    aggr: str = "sum"  # "sum" or "mean" over the incoming messages
    self_loops: bool = False  # whether the layer adds self-loops
    improved: bool = False  # GCN's 2 I
    diag_lambda: float = 0.0  # Cluster-GCN's lambda
    flow: str = "source_to_target"
    weight: str | None = None  # the edge-level attribute of the graph that weighs the messages

    @property
    def weighted(self) -> bool:
        """Whether PyG's own layer multiplies its messages with weights, whose type then counts in the result's."""
        return self.norm != "none" or self.weight is not None


Change = Callable[[Any], Any]  # of a tensor, or of PyG's `Data`, to another


@dataclass(frozen=True, repr=False)
class Movable:
    """Let a record of tensors, and of records and dicts of them, move to a device as a whole (PyG's `Data.to`)."""

    def __repr__(self) -> str:
        """Name the record alone: a batch that is printed would print all its tensors."""
        return f"{type(self).__name__}(...)"

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return the record on a device."""
        return self.changed(lambda value: value.to(device))

    def changed(self, change: Change) -> Self:
        """Return the record with other tensors in the place of its own; what PyG's `Data` holds is changed in place."""
        return replace(self, **{name: with_changed(value, change) for name, value in vars(self).items()})


def with_changed(value: Any, change: Change) -> Any:
    """Return a value of a record with its tensors changed, those of records and dicts in it, too."""
    if isinstance(value, dict):
        return {key: with_changed(item, change) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(with_changed(item, change) for item in value)
    if isinstance(value, Movable):
        return value.changed(change)
    return change(value) if hasattr(value, "to") else value


@dataclass(frozen=True, repr=False)
class Sparse(Movable):
    """Hold a sparse matrix and its transpose, so that the backward pass is a forward product with A^T.

    On the CPU the product is `embedding_bag` with 32-bit ids (facts: 2 to 20 times faster than the alternatives),
    elsewhere torch's CSR product. Sums are taken in the type of the values, whatever h has (mixed precision), and given
    back in the type that PyG's own messages would have: h's, or the wider of h's and `weighs`.
    """

    shape: tuple[int, int]
    ids: Tensor  # (nnz,) columns
    offsets: Tensor  # (rows + 1,)
    values: Tensor  # (nnz,)
    ids_t: Tensor  # (nnz,) of A^T; the same tensors as above where A is symmetric
    offsets_t: Tensor  # (columns + 1,)
    values_t: Tensor  # (nnz,)
    weighs: torch.dtype | None = None  # of the weights that PyG's messages are multiplied with; None: there are none

    def __matmul__(self, h: Tensor) -> Tensor:
        """Multiply: (rows, columns) @ (columns, ...) -> (rows, ...), differentiable in h."""
        columns = h if h.dim() == 2 else h.reshape(len(h), math.prod(h.shape[1:]))
        product: Tensor = _Product.apply(columns, *self.tensors)  # type: ignore[no-untyped-call]
        product = product if h.dim() == 2 else product.view(len(product), *h.shape[1:])
        return product.to(torch.promote_types(self.weighs or h.dtype, h.dtype))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return A and A^T as six tensors, the way the autograd functions take them."""
        return self.ids, self.offsets, self.values, self.ids_t, self.offsets_t, self.values_t


def multiply(ids: Tensor, offsets: Tensor, values: Tensor, h: Tensor) -> Tensor:
    """Multiply a CSR matrix with h (columns, d): row i is the sum of values[e] * h[ids[e]] over its entries e.

    The sums are taken, and returned, in the type of the values.
    """
    if h.numel() == 0 or ids.numel() == 0:
        return values.new_zeros(offsets.numel() - 1, h.size(1))
    if len(h) > len(ids) and (h.dtype != values.dtype or not h.is_contiguous()):
        ids, h = _read_alone(ids, h)  # nothing else is converted
    h = h.to(values.dtype)
    if h.is_cuda:
        shape = (offsets.numel() - 1, h.size(0))
        with torch.autocast("cuda", enabled=False):
            return torch.sparse_csr_tensor(offsets, ids, values, shape, check_invariants=False) @ h
    return F.embedding_bag(
        ids, h.contiguous(), offsets, mode="sum", per_sample_weights=values, include_last_offset=True
    )


def _read_alone(ids: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of h that are read, each once, and the ids among them."""
    read, places = torch.unique(ids, return_inverse=True)
    return places.to(ids.dtype), h.index_select(0, read)


def multiply_along(matrix: Sparse, h: Tensor, axis: int) -> Tensor:
    """Multiply along the axis of h that holds the nodes: `matrix @ h` for axis 0, differentiable in h.

    >>> import scipy.sparse as sp
    >>> ring = to_sparse(sp.csr_array(np.roll(np.eye(3), 1, axis=1)), torch.float32)
    >>> multiply_along(ring, torch.arange(6.0).view(1, 3, 2), axis=-2)
    tensor([[[2., 3.],
             [4., 5.],
             [0., 1.]]])
    """
    return (matrix @ h.movedim(axis, 0)).movedim(0, axis)


class _Product(torch.autograd.Function):
    """A @ h with the stored transpose; letting embedding_bag differentiate costs 4 to 10 times more."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, *tensors: Tensor) -> Tensor:
        """Return A h, and keep A^T for the gradient; `tensors` as `Sparse.tensors`."""
        ids, offsets, values, *transposed = tensors
        ctx.save_for_backward(*transposed)
        return multiply(ids, offsets, values, h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return A^T grad, the gradient in h; A itself is constant."""
        ids_t, offsets_t, values_t = ctx.saved_tensors
        return multiply(ids_t, offsets_t, values_t, grad), *[None] * 6


def to_sparse(matrix: Any, dtype: torch.dtype, *, transpose: bool = True, symmetric: bool = False) -> Sparse:
    """Convert scipy CSR; without `transpose` the product has no gradient (for constants).

    A matrix that is known to be `symmetric` is its own transpose. For half precision, values and sums are float32.
    """
    matrix, dtype = matrix.tocsr(), full_type(dtype)
    forward = _csr_tensors(matrix, dtype)
    if not transpose:
        empty = torch.empty(0, dtype=torch.int32)
        return Sparse(matrix.shape, *forward, empty, empty, forward[2][:0])
    backward = forward if symmetric else _csr_tensors(matrix.T.tocsr(), dtype)
    return Sparse(matrix.shape, *forward, *backward)


def full_type(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which to sum, factorise and solve: the type itself, float32 for half precision.

    >>> full_type(torch.bfloat16), full_type(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.promote_types(dtype, torch.float32)


def _csr_tensors(matrix: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return columns, row pointers and values as tensors; ids have 32 bits where they suffice."""
    index = np.int32 if max(*matrix.shape, matrix.nnz) < 2**31 else np.int64
    ids, offsets = matrix.indices.astype(index, copy=False), matrix.indptr.astype(index, copy=False)
    return torch.from_numpy(ids), torch.from_numpy(offsets), torch.from_numpy(matrix.data).to(dtype)
