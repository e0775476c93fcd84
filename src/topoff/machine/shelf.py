"""Matrices with a row per node, in memory as long as they are small, else in files that nobody else sees.

A matrix on disk is a tensor over a mapped file. The file has no name from the start, so that it is gone when the tensor
is, also after an error or a kill; its space is taken at once, so that a full disk is one sentence here and not a crash
in the middle of a product.

>>> with tempfile.TemporaryDirectory() as folder:
...     rows = Shelf(100, folder=Path(folder)).empty((20, 3), torch.float32)
...     rows[2:4] = torch.ones(2, 3)
...     float(rows[:5].sum()), list(Path(folder).iterdir())
(6.0, [])
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from topoff.machine.cache import cache_dir
from topoff.machine.memory import free_memory, readable, trim

READ = 0.55  # of the free memory may be read into it for a while; the rest is for the pages of what is written
SEGMENT, ALIGNED = 2**26, 64  # bytes of a file of kept tensors, and of the steps in which they lie there
WORDS = {torch.bfloat16: torch.int16}  # types that numpy does not know, by one of the same size


class Shelf:
    """Give out matrices: in memory up to `limit` bytes each, beyond on disk.

    Args:
        limit: bytes of the largest matrix that lies in memory.
        block: bytes of one that may be read into memory for a while, at most; by default as many.
        folder: where the others lie; by default in the cache folder.
    """

    def __init__(self, limit: int, *, block: int | None = None, folder: Path | None = None) -> None:
        self.limit, self.block, self.folder = limit, limit if block is None else block, folder
        self._maps: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()  # by address
        self._adopted = set[int]()  # addresses of the features, which outlive it
        self._segment, self._free = np.empty(0, dtype=np.uint8), 0  # the file that tensors are kept in, and its room

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a matrix to be filled.

        Raises:
            OSError: the disk has no room for it, in one sentence.
        """
        size = math.prod(shape) * dtype.itemsize
        if size <= self.limit:
            return torch.empty(shape, dtype=dtype)
        mapping = self._mapped(size)
        words = np.frombuffer(mapping, dtype=_numpy_type(WORDS.get(dtype, dtype)))
        rows = torch.from_numpy(words).view(dtype).view(shape)
        self._maps[rows.data_ptr()] = mapping
        return rows

    def keep(self, rows: Tensor) -> Tensor:
        """Return a copy on disk of a tensor that is not changed any more; many of them lie in one file, in turn.

        The file goes with the last tensor in it. What is smaller than a page, sparse, on another device or in another
        order than that of its rows stays where it is.

        Raises:
            OSError: the disk has no room for it, in one sentence.
        """
        plain = rows.layout == torch.strided and rows.device.type == "cpu" and rows.is_contiguous()
        if not plain or rows.nbytes < mmap.PAGESIZE:
            return rows
        if self._free < rows.nbytes:
            self._segment = np.frombuffer(self._mapped(max(SEGMENT, rows.nbytes)), dtype=np.uint8)
            self._free = len(self._segment)
        start = len(self._segment) - self._free
        self._free -= -(-rows.nbytes // ALIGNED) * ALIGNED
        place = self._segment[start : start + rows.nbytes]
        place[:] = rows.reshape(-1).view(torch.uint8).numpy()  # before there is a tensor that would count as changed
        return torch.from_numpy(place).view(rows.dtype).view(rows.shape)

    def put_away(self, rows: Tensor) -> None:
        """Let the pages of a matrix on disk leave memory, once they are written; of one in memory, nothing happens.

        They come back when they are read. Memory that was freed is given back, too: other pages may need it.
        """
        mapping = self._maps.get(rows.data_ptr())
        if mapping is not None:
            mapping.flush()
            if hasattr(mapping, "madvise"):
                mapping.madvise(mmap.MADV_DONTNEED)
            trim()

    def room(self) -> int:
        """Return the bytes that may be read into memory now, for a while, where less is free than there was."""
        trim()
        free = free_memory()
        return self.block if free is None else min(self.block, int(READ * free))

    def is_away(self, rows: Tensor) -> bool:
        """Whether a matrix, or a view that begins where it does, lies on disk."""
        return rows.data_ptr() in self._maps or rows.data_ptr() in self._adopted

    def adopt(self, rows: Tensor) -> None:
        """Take note of a matrix that others hold, and have mapped from a file, if it is large."""
        if rows.nbytes > self.limit:
            self._adopted.add(rows.data_ptr())

    def _mapped(self, size: int) -> mmap.mmap:
        folder = cache_dir() / "shelf" if self.folder is None else self.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:  # the mapping keeps the file
                _allocate(file.fileno(), size)
                return mmap.mmap(file.fileno(), size)
        except OSError as error:
            reason = os.strerror(error.errno or errno.EIO)
            raise OSError(
                error.errno,
                f"{reason}: expected room for a matrix of {readable(size)}; free some space there, set TOPOFF_CACHE to "
                f"a folder on a larger disk, or give more memory",
                str(folder),
            ) from error


def put(whole: Tensor, nodes: Tensor, rows: Tensor) -> None:
    """Write the rows of some nodes (b, ...) into a matrix of all (n, ...); a range of nodes is written in one piece.

    >>> whole = torch.zeros(3, 1)
    >>> put(whole, torch.tensor([1, 2]), torch.ones(2, 1))
    >>> whole.view(-1).tolist()
    [0.0, 1.0, 1.0]
    """
    start = range_of(nodes)
    if start is None:
        whole[nodes] = rows
    else:
        whole[start : start + len(nodes)] = rows


def take(whole: Tensor, nodes: Tensor) -> Tensor:
    """Return a copy of the rows of some nodes (b, ...) of a matrix of all (n, ...).

    >>> take(torch.arange(4), torch.tensor([1, 2]))
    tensor([1, 2])
    """
    start = range_of(nodes)
    return whole.index_select(0, nodes) if start is None else whole[start : start + len(nodes)].clone()


def range_of(nodes: Tensor) -> int | None:
    """Return the first of some nodes where they are a range, ascending; None where they are not.

    >>> range_of(torch.tensor([2, 3, 4])), range_of(torch.tensor([2, 4, 3]))
    (2, None)
    """
    if not len(nodes) or int(nodes[-1]) - int(nodes[0]) != len(nodes) - 1:
        return None
    start = int(nodes[0])
    return start if bool((nodes == torch.arange(start, start + len(nodes))).all()) else None


def _allocate(file: int, size: int) -> None:
    """Take the space of a file; where the system cannot, the file is as long but its space is taken as it is used."""
    if not hasattr(os, "posix_fallocate"):  # macOS
        os.truncate(file, size)
        return
    os.posix_fallocate(file, 0, size)


def _numpy_type(dtype: torch.dtype) -> Any:
    return torch.empty(0, dtype=dtype).numpy().dtype
