"""Keep on disk what sleeping forwards hold, beyond what may stay in memory.

In exact inference every batch sleeps at each propagation with the layers that its forward still needs: one n x d matrix
per live layer over all batches. Of a graph of millions of nodes that is more than the rest together. What a batch has
made while it was awake, and still holds, is noted; rows beyond a limit are written to an unnamed file, their memory is
given back, and they are read again before the batch wakes: the same tensors, the same bits. What nothing has written to
while the batch was awake has its copy in the file already.

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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

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
    parked: list[_Copy] = field(default_factory=list)
    copies: list[_Copy] = field(default_factory=list)  # of what is in memory again, while it is awake
    changed: set[int] = field(default_factory=set)  # memory that was written to meanwhile


@dataclass(frozen=True)
class _Copy:
    """Say where the content of a tensor is on disk."""

    ref: weakref.ref[Tensor]
    size: int  # bytes
    place: int
    version: int  # of the tensor; -1 where torch does not count


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Note the tensors of a batch's rows that operations make, each with memory of its own, and what they write to."""

    def __init__(self, held: _Held, *, rows: int, least: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made, self._changed, self._rows, self._least = held.made, held.changed, rows, least

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._changed |= _written(func, args, kwargs or {})
        given: set[int] | None = None
        for tensor in tree_leaves(out):
            if not isinstance(tensor, Tensor) or not self._is_large(tensor):
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
    return {tensor.untyped_storage()._cdata for tensor in tree_leaves(given) if isinstance(tensor, Tensor)}


def _written(func: Any, args: Any, kwargs: Any) -> set[int]:
    """Return the memory that an operation writes to."""
    found: set[int] = set()
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found |= _memory(args[number] if number < len(args) else kwargs.get(argument.name))
    return found


def _version(tensor: Tensor) -> int:
    """Return how often torch has seen a tensor written to."""
    return -1 if tensor.is_inference() else tensor._version


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
        with _Noting(held, rows=batch.rows, least=self.least):
            yield
        held.made = [ref for ref in held.made if ref() is not None]
        valid = self._valid(held)
        for ref in held.made:
            self._park(ref, held, valid.pop(id(ref()), None))
        self._give_up(valid.values())

    def _valid(self, held: _Held) -> dict[int, _Copy]:
        """Return the copies on disk that still are what is in memory, by tensor; give up the others."""
        copies, valid = {id(copy): copy for copy in held.copies}, dict[int, _Copy]()
        for number, copy in list(copies.items()):
            tensor = copy.ref()
            if tensor is None or copy.version < 0 or tensor._version != copy.version:
                continue
            if tensor.untyped_storage()._cdata not in held.changed:
                valid[id(tensor)] = copies.pop(number)
        self._give_up(copies.values())
        held.copies, held.changed = [], set()
        return valid

    def _give_up(self, copies: Iterable[_Copy]) -> None:
        """Let others be written where copies are that nobody reads any more."""
        for copy in copies:
            self._free[copy.size].append(copy.place)

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
            with _Noting(_Held(), rows=batch.rows, least=self.least):
                yield
        finally:
            self._wake(held)
            self._give_up(held.copies)

    @contextmanager
    def reading(self, batch: Rows, part: Tensor) -> Iterator[None]:
        """Give one tensor of a sleeping batch back, inside `with`."""
        held, memory = self._held.get(id(batch), _Held()), part.untyped_storage()
        for copy in held.parked:
            tensor = copy.ref()
            if tensor is not None and tensor.untyped_storage()._cdata == memory._cdata:
                self._read(tensor, copy)
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

    def _park(self, ref: weakref.ref[Tensor], held: _Held, copy: _Copy | None) -> None:
        """Write a tensor to the file and give its memory back, unless it may stay, or the disk is full.

        Where there is a copy already, nothing is written.
        """
        tensor = ref()
        if tensor is None or not tensor.untyped_storage().resizable():  # numpy looks at it, or it is gone
            self._give_up([copy] if copy else [])
            return
        size = tensor.numel() * tensor.element_size()
        if copy is None:
            if self._inside + size <= self.limit or self._full:
                self._inside, held.inside = self._inside + size, held.inside + size
                return
            copy = self._write(ref, tensor, size)
        if copy is not None:
            tensor.untyped_storage().resize_(0)
            held.parked.append(copy)

    def _write(self, ref: weakref.ref[Tensor], tensor: Tensor, size: int) -> _Copy | None:
        """Write a tensor to the file; None, with a warning, where the disk is full."""
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
                stacklevel=3,
            )
            return None
        self._end, self.written = max(self._end, place + size), self.written + size
        return _Copy(ref, size, place, _version(tensor))

    def _wake(self, held: _Held) -> None:
        for copy in held.parked:
            if (tensor := copy.ref()) is not None:
                self._read(tensor, copy)
        held.copies, held.parked = held.parked, []

    def _read(self, tensor: Tensor, copy: _Copy) -> None:
        tensor.untyped_storage().resize_(copy.size)
        _whole(lambda file, rest, at: os.preadv(file, [rest], at), self._file.fileno(), tensor, copy.place)


def _reserve(held: _Held) -> None:
    """Give what is parked of a batch its memory back, whatever is in it."""
    for copy in held.parked:
        if (tensor := copy.ref()) is not None:
            tensor.untyped_storage().resize_(copy.size)


def _whole(move: Any, file: int, tensor: Tensor, place: int) -> None:
    """Move all bytes of a tensor between memory and a file, however many go at once."""
    size = tensor.numel() * tensor.element_size()
    rest = memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")  # .numpy() would pin it
    while len(rest):
        done = move(file, rest, place)
        if not done:
            raise OSError("the file ends too early")
        rest, place = rest[done:], place + done
