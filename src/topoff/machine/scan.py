"""Rows here and there of a matrix on disk: read from one end to the other, instead of row by row.

A disk that reads gigabytes per second in a row reads a few thousand pages per second at random, and of a mapped matrix
every row is such a page. So a matrix is walked block by block; the system is told of the next block while the rows of
one are picked.

>>> picked(torch.arange(8).view(4, 2), torch.tensor([1, 3]))
tensor([[2, 3],
        [6, 7]])
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

BLOCK = 2**26  # bytes that are walked at a time
SPARSE = 2**18  # bytes of a block per row that is wanted: with fewer rows than that, reading them one by one is faster


def picked(whole: Tensor, rows: Tensor) -> Tensor:
    """Return a copy of some rows (s, ...), ascending, of a matrix (n, ...) that is mapped from a file; in one walk.

    A view of some of its columns is walked like the whole.
    """
    out = whole.new_empty((len(rows), *whole.shape[1:]))
    wanted = [(*block, place) for block, place in _blocks(whole, rows)]
    for number, (start, stop, place) in enumerate(wanted):
        if number == 0:
            _ready(whole, start, stop, wanted=place)
        if number + 1 < len(wanted):
            first, last, after = wanted[number + 1]
            _ready(whole, first, last, wanted=after)
        torch.index_select(whole[start:stop], 0, rows[place] - start, out=out[place])
    return out


def _blocks(whole: Tensor, rows: Tensor) -> Iterator[tuple[tuple[int, int], slice]]:
    """Yield the blocks that hold some of the rows, each with where these are among them."""
    size = max(1, BLOCK // max(1, _pitch(whole)))
    starts = torch.arange(0, len(whole) + size, size)
    places = torch.searchsorted(rows, starts).tolist()
    for number, (first, last) in enumerate(pairwise(places)):
        if last > first:
            yield (number * size, min(len(whole), (number + 1) * size)), slice(first, last)


def _ready(whole: Tensor, start: int, stop: int, *, wanted: slice) -> None:
    """Let the system read a block in the background; not where hardly anything of it is wanted."""
    length = (stop - start) * _pitch(whole)
    if (wanted.stop - wanted.start) * SPARSE >= length:
        _advise(whole.data_ptr() + start * _pitch(whole), length)


def _pitch(whole: Tensor) -> int:
    """Return the bytes from one row to the next."""
    return whole.stride(0) * whole.element_size() if whole.dim() else 0


def ahead(rows: Tensor) -> None:
    """Let the system read a tensor that lies on disk in the background, since it is wanted soon."""
    _advise(rows.data_ptr(), rows.nbytes)


def _advise(address: int, length: int) -> None:
    """Tell the system that some memory is read soon; of memory that no file backs, it does nothing."""
    advise = _madvise()
    if advise is not None:
        first = address // mmap.PAGESIZE * mmap.PAGESIZE
        advise(ctypes.c_void_p(first), ctypes.c_size_t(address + length - first), mmap.MADV_WILLNEED)


def _madvise() -> Callable[..., int] | None:
    """Return the system's call; None where there is none."""
    if sys.platform == "win32" or not hasattr(mmap, "MADV_WILLNEED"):
        return None
    return getattr(ctypes.CDLL(None), "madvise", None)
