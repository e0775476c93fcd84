"""Keep on disk what sleeping forwards hold, beyond what may stay in memory.

In exact inference every batch sleeps at each propagation with the layers that its forward still needs: one n x d matrix
per live layer over all batches. Of a graph of millions of nodes that is more than the rest together. What a batch has
made while it was awake, and still holds, is noted; rows beyond a limit are written to an unnamed file, their memory is
given back, and they are read again before the batch wakes: the same tensors, the same bits.

>>> import torch
>>> class Batch:
...     rows = 4
>>> batch, parking = Batch(), Parking(limit=0, least=1)
>>> with parking.awake(batch):
...     h = torch.arange(4.0) + 1
>>> h.untyped_storage().nbytes()
0
>>> with parking.awake(batch):
...     h
tensor([1., 2., 3., 4.])
>>> parking.close()
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from topoff.machine.memory import readable, trim

LIMIT = 2**29  # bytes that sleeping forwards may hold in memory
LEAST = 2**16  # bytes of a tensor that is worth a place on disk


class Rows(Protocol):
    """Say how many rows a batch's tensors have."""

    @property
    def rows(self) -> int:
        """The rows."""


@dataclass
class _Held:
    """Hold what one batch has made, and where it is on disk."""

    made: list[weakref.ref[Tensor]] = field(default_factory=list)
    inside: int = 0  # bytes in memory while it sleeps
    parked: list[tuple[weakref.ref[Tensor], int, int]] = field(default_factory=list)  # with size and place


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note the tensors of a batch's rows that operations make, each with memory of its own."""

    def __init__(self, made: list[weakref.ref[Tensor]], *, rows: int, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made, self._rows, self._least = made, rows, least

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given: set[int] | None = None
        for tensor in tree_leaves(out):
            if not _is_dense(tensor) or not self._is_large(tensor):
                continue
            given = _memory((args, kwargs)) if given is None else given
            if tensor.untyped_storage()._cdata not in given:
                self._made.append(weakref.ref(tensor))
        return out

    def _is_large(self, tensor: Tensor) -> bool:
        size = tensor.numel() * tensor.element_size()
        if tensor.device.type != "cpu" or size < self._least or tensor.shape[:1] != (self._rows,):
            return False
        return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == size


def _memory(given: Any) -> set[int]:
    """Return the memory of all tensors among the arguments of an operation."""
    return {tensor.untyped_storage()._cdata for tensor in tree_leaves(given) if _is_dense(tensor)}


def _is_dense(given: Any) -> bool:
    """Whether something is a tensor with memory of its own; a sparse one has others."""
    return isinstance(given, Tensor) and given.layout == torch.strided


class Parking:
    """Keep what sleeping batches hold in memory up to a limit, and on disk beyond it."""

    def __init__(self, *, limit: int = LIMIT, least: int = LEAST) -> None:
        trim()  # what is free stays the process's own otherwise
        self.limit, self.least = limit, least
        self.written = 0  # bytes, in all
        self._file: Any = None
        self._end = 0
        self._free: dict[int, list[int]] = {}  # places by size
        self._held: dict[int, _Held] = {}
        self._inside = 0
        self._full = False

    @contextmanager
    def awake(self, batch: Rows) -> Iterator[None]:
        """Give a batch back what it holds, inside `with`; then park what is beyond the limit."""
        held = self._held.setdefault(id(batch), _Held())
        self._inside, held.inside = self._inside - held.inside, 0
        self._wake(held)
        with _Noting(held.made, rows=batch.rows, least=self.least):
            yield
        held.made = [ref for ref in held.made if ref() is not None]
        for ref in held.made:
            self._park(ref, held)

    @contextmanager
    def ending(self, batch: Rows) -> Iterator[None]:
        """Let the forward of a batch end, inside `with`: what it holds has memory, and no content, for nobody reads it.

        To read it would take as long as to compute it, and all of it would be in memory at once. What outlives the
        forward has its content after all.
        """
        held = self._held.pop(id(batch), _Held())
        self._inside -= held.inside
        _reserve(held)
        try:
            with _Noting([], rows=batch.rows, least=self.least):
                yield
        finally:
            self._wake(held)

    @contextmanager
    def reading(self, batch: Rows, part: Tensor) -> Iterator[None]:
        """Give one tensor of a sleeping batch back, inside `with`."""
        held, memory = self._held.get(id(batch), _Held()), part.untyped_storage()
        for ref, size, place in held.parked:
            tensor = ref()
            if tensor is not None and tensor.untyped_storage()._cdata == memory._cdata:
                self._read(tensor, size, place)
                yield
                memory.resize_(0)
                return
        yield

    def close(self) -> None:
        """Give all batches back what is parked, and let go of the file."""
        for held in self._held.values():
            self._wake(held)
        self._held.clear()
        if self._file is not None:
            self._file.close()

    def _park(self, ref: weakref.ref[Tensor], held: _Held) -> None:
        """Write a tensor to the file and give its memory back, unless it may stay, or the disk is full."""
        tensor = ref()
        if tensor is None or not tensor.untyped_storage().resizable():  # numpy looks at it, or it is gone
            return
        size = tensor.numel() * tensor.element_size()
        if self._inside + size <= self.limit or self._full:
            self._inside, held.inside = self._inside + size, held.inside + size
            return
        places = self._free.setdefault(size, [])
        place = places.pop() if places else self._end
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="topoff-")  # noqa: SIM115 - open until `close`
            _whole(os.pwrite, self._file.fileno(), tensor, place)
        except OSError as error:
            self._full = True
            where = f"{tempfile.gettempdir()}: {error.strerror or error}"
            warnings.warn(
                f"Cannot write {readable(size)} to {where}; exact inference goes on in memory. Free some space there, "
                f"or set TMPDIR to another folder.",
                stacklevel=2,
            )
            return
        self._end, self.written = max(self._end, place + size), self.written + size
        tensor.untyped_storage().resize_(0)
        held.parked.append((ref, size, place))

    def _wake(self, held: _Held) -> None:
        for ref, size, place in held.parked:
            if (tensor := ref()) is not None:
                self._read(tensor, size, place)
            self._free[size].append(place)
        held.parked = []

    def _read(self, tensor: Tensor, size: int, place: int) -> None:
        tensor.untyped_storage().resize_(size)
        _whole(lambda file, rest, at: os.preadv(file, [rest], at), self._file.fileno(), tensor, place)


def _reserve(held: _Held) -> None:
    """Give what is parked of a batch its memory back, whatever is in it."""
    for ref, size, _ in held.parked:
        if (tensor := ref()) is not None:
            tensor.untyped_storage().resize_(size)


def _whole(move: Any, file: int, tensor: Tensor, place: int) -> None:
    """Move all bytes of a tensor between memory and a file, however many go at once."""
    size = tensor.numel() * tensor.element_size()
    rest = memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")  # .numpy() would pin it
    while len(rest):
        done = move(file, rest, place)
        if not done:
            raise OSError("the file ends too early")
        rest, place = rest[done:], place + done
