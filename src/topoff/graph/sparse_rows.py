"""Rows that are mostly zero, such as bags of words: a linear layer multiplies with their entries alone.

>>> rows = torch.zeros(4, 300).index_put((torch.arange(4), torch.arange(4)), torch.ones(4))
>>> found, weight = for_linear(rows), torch.rand(2, 300)
>>> type(found).__name__, torch.allclose(F.linear(found, weight), F.linear(rows, weight))
('SparseRows', True)
>>> type(for_linear(torch.ones(4, 300))).__name__
'Tensor'
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional as F

from topoff.graph.incoming import Array
from topoff.graph.operators import Sparse, to_sparse

WIDE, SCARCE = 256, 0.1  # columns at least, and entries at most of them, for which the dense product is the slower one
LOOKED_AT = 64  # rows that tell how many entries there are
BLOCK = 512  # rows whose entries are found at a time


def entries_of(rows: Tensor) -> Sparse | None:
    """Return rows (b, f) by their entries, where these are few enough to be multiplied faster; else None."""
    if rows.is_cuda or rows.dim() != 2 or rows.size(1) < WIDE or not rows.size(0) or not _is_plain(rows.dtype):
        return None
    values = rows.detach().numpy()
    some, most = values[:: max(1, len(values) // LOOKED_AT)], SCARCE * rows.numel()
    if np.count_nonzero(some) > SCARCE * some.size:
        return None
    blocks, count = [], 0
    for start in range(0, len(values), BLOCK):
        blocks.append(_block(values[start : start + BLOCK]))
        count += blocks[-1].nnz
        if count > most:  # the others have more
            return None
    return to_sparse(sp.vstack(blocks, format="csr"), rows.dtype)


def _block(values: Array) -> Any:
    """Return some rows by their entries; numpy finds those of truth values several times as fast as torch of floats."""
    count, width = values.shape
    places = np.flatnonzero(values != 0)
    ends = np.searchsorted(places, np.arange(count + 1) * width)
    return sp.csr_array((values.reshape(-1)[places], (places % width).astype(np.int32), ends), shape=values.shape)


def _is_plain(dtype: torch.dtype) -> bool:
    """Whether products are taken in the type itself."""
    return dtype in (torch.float32, torch.float64)


class SparseRows(Tensor):
    """A dense tensor, for all but linear layers, which multiply with its entries."""

    entries: Sparse
    written: int  # how often the rows had been written to when the entries were taken

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a function of torch; what it returns is a plain tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            if func is F.linear and args and type(args[0]) is cls:
                return _linear(args[0], *args[1:], **(kwargs or {}))
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseRows:
        """Copy the rows, and share the entries: nobody writes to these."""
        return _with_entries(copy.deepcopy(self.as_subclass(Tensor), memo), self.entries)


def for_linear(rows: Tensor) -> Tensor:
    """Return rows (b, f) for linear layers to read: as they are, or by their entries, where these are few."""
    entries = entries_of(rows)
    return rows if entries is None else _with_entries(rows, entries)


def _with_entries(rows: Tensor, entries: Sparse) -> SparseRows:
    """Return the same memory as a tensor whose linear layers multiply with its entries."""
    found = rows.as_subclass(SparseRows)
    found.entries, found.written = entries, _version(rows)
    return found


def _version(rows: Tensor) -> int:
    """Return how often a tensor was written to; of one made for inference nobody counts that."""
    return 0 if rows.is_inference() else rows._version


def _linear(rows: SparseRows, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return rows @ weight^T + bias; in all but the plain case by the dense product, errors included."""
    plain = weight.dtype == rows.dtype and weight.device == rows.device and weight.dim() == 2
    changed = rows.requires_grad or rows.written != _version(rows)
    if not plain or weight.size(1) != rows.size(1) or changed or torch.is_autocast_enabled(rows.device.type):
        return F.linear(rows.as_subclass(Tensor), weight, bias)
    out = rows.entries @ weight.T
    return out if bias is None else out + bias
