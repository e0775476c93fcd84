"""Read the arrays of .npz and .npy files without running or allocating what they merely claim.

The header of an array is read first: its dtype must be plain, its size must be what the file holds and what memory can
take. Only then are the values read. Nothing is ever unpickled.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     np.savez(Path(folder) / "g.npz", y=np.arange(3), more=np.zeros(2))
...     found = read_archive(Path(folder) / "g.npz", wanted=["y"])
>>> found.arrays["y"].tolist(), found.others
([0, 1, 2], ['more'])
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from topoff.data.refusal import refuse
from topoff.machine.cache import Arrays
from topoff.machine.memory import free_memory, readable

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
REMEDY = "write it again with numpy.savez, or fetch it again"
ENCRYPTED = 0x1  # bit of a zip member's flags
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


@dataclass(frozen=True)
class Archive:
    """Hold what was asked for of an .npz file, and what else is in it."""

    arrays: Arrays
    others: list[str]


class Pickled(ValueError):  # noqa: N818 - a kind of content, named as one
    """Say that an array holds Python objects, which only unpickling could read."""


def read_archive(path: Path, *, wanted: Collection[str]) -> Archive:
    """Return the `wanted` arrays of an .npz file; those that are missing are left out.

    Raises:
        Pickled: one of them holds Python objects.
        ValueError: the file is no .npz file, is damaged, or claims more than it holds or than memory can take.
    """
    expected = f"{path} to be a whole .npz file of plain arrays"
    with _one_sentence(expected), path.open("rb") as handle:
        _check_beginning(handle, expected=expected)
        with zipfile.ZipFile(handle) as archive:
            members = _members(archive, expected=expected)
            chosen = {name: members[name] for name in members if name in wanted}
            check_memory(sum(member.file_size for member in chosen.values()), what=f"the arrays in {path}")
            arrays = {}
            for name, member in chosen.items():
                with _one_sentence(expected, where=f" in '{name}'"):
                    arrays[name] = _read_member(archive, member, name, expected)
    return Archive(arrays, [name for name in members if name not in arrays])


@dataclass(frozen=True)
class Member:
    """Hold where an array of an .npz file is, so that it can be read in pieces."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool  # whether it lies by columns

    def read(self) -> np.ndarray[Any, Any]:
        """Read all of it."""
        return read_archive(self.path, wanted=[self.name]).arrays[self.name]

    def pieces(self, rows: int, *, row: int | None = None) -> Iterator[np.ndarray[Any, Any]]:
        """Yield some rows at a time; of one `row` of a matrix, if that is given, some entries at a time."""
        shape = self.shape if row is None else self.shape[1:]
        size = math.prod(shape[1:]) * self.dtype.itemsize
        expected = f"{self.path} to be a whole .npz file of plain arrays"
        with _one_sentence(expected, where=f" in '{self.name}'"), zipfile.ZipFile(self.path) as archive:
            member = _members(archive, expected=expected)[self.name]
            with archive.open(member) as content:
                HEADERS[np.lib.format.read_magic(content)](content)
                _skip(content, (row or 0) * math.prod(shape) * self.dtype.itemsize)
                for low in range(0, shape[0], rows):
                    count = min(rows, shape[0] - low)
                    yield np.frombuffer(content.read(count * size), self.dtype).reshape(count, *shape[1:])


def open_members(path: Path, *, wanted: Collection[str]) -> dict[str, Member]:
    """Return the `wanted` arrays of an .npz file without reading them; those with Python objects are left to others.

    Raises as `read_archive` does.
    """
    expected, found = f"{path} to be a whole .npz file of plain arrays", dict[str, Member]()
    with _one_sentence(expected), path.open("rb") as handle:
        _check_beginning(handle, expected=expected)
        with zipfile.ZipFile(handle) as archive:
            for name, member in _members(archive, expected=expected).items():
                if name in wanted:
                    with archive.open(member) as content:
                        shape, fortran, dtype = _header_of(content, member.file_size, name=name, expected=expected)
                    found[name] = Member(path, name, shape, dtype, fortran)
    return found


def _skip(content: IO[bytes], size: int) -> None:
    """Read on without keeping what comes."""
    while size > 0:
        size -= len(content.read(min(size, 1 << 24))) or size


def check_array_file(path: Path, *, expected: str) -> None:
    """Refuse an .npy or .npz file that is damaged, or claims more than it holds or than memory can take.

    For files that are read elsewhere, by PyG: headers and sizes are looked at, values are not. Objects may be there.
    """
    with _one_sentence(expected), path.open("rb") as handle:
        if path.suffix == ".npy":
            _check_claim(handle, path.stat().st_size, name=path.name, expected=expected)
            return
        with zipfile.ZipFile(handle) as archive:
            for name, member in _members(archive, expected=expected).items():
                with archive.open(member) as content:
                    _check_claim(content, member.file_size, name=name, expected=expected)


def check_memory(size: int, *, what: str, remedy: str = "give fewer rows or columns") -> None:
    """Refuse what is larger than the memory that is free.

    Raises:
        ValueError: it is.
    """
    free = free_memory()
    if free is not None and size > free:
        refuse(f"{what} to fit into memory, {readable(free)} free", readable(size), remedy)


@contextmanager
def _one_sentence(expected: str, *, where: str = "") -> Iterator[None]:
    """Turn what numpy and zipfile raise for damaged files into one sentence; what is one already passes."""
    try:
        yield
    except MemoryError as error:
        raise ValueError(f"Expected {expected} (got more than memory can take{where}); give a smaller one.") from error
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # zlib, lzma, struct, tokenize, RuntimeError, ...: whatever a damaged byte leads to
        if isinstance(error, ValueError) and str(error).startswith("Expected "):
            raise
        got = "damaged content"
        if isinstance(error, zipfile.BadZipFile):
            got = "a wrong checksum" if "CRC" in str(error) else "no zip archive, or a damaged one"
        raise ValueError(f"Expected {expected} (got {got}{where}); {REMEDY}.") from error


def _check_beginning(handle: IO[bytes], *, expected: str) -> None:
    """Name what is no zip archive by its first bytes."""
    begin = handle.read(8)
    handle.seek(0)
    if begin.startswith(b"\x93NUMPY"):
        refuse(expected, "one bare array, as numpy.save writes it", REMEDY)
    if not begin.startswith(b"PK"):
        refuse(expected, "an empty file" if not begin else f"something that begins with {begin!r}", REMEDY)


def _members(archive: zipfile.ZipFile, *, expected: str) -> dict[str, zipfile.ZipInfo]:
    """Return the members by the names that numpy gives them; refuse double ones."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in found:
            refuse(expected, f"two arrays called '{name}'", "keep one of them")
        found[name] = member
    return found


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, expected: str) -> np.ndarray[Any, Any]:
    """Read one array; reading to its end makes zipfile compare the checksum."""
    if member.flag_bits & ENCRYPTED:
        refuse(expected, f"'{name}' encrypted", "write it again without a password")
    if member.compress_type not in METHODS:
        got = f"'{name}' compressed by method {member.compress_type}, which Python lacks"
        refuse(expected, got, "write it again with numpy.savez_compressed")
    with archive.open(member) as content:
        if _check_claim(content, member.file_size, name=name, expected=expected).hasobject:
            raise Pickled(f"Expected {expected} (got pickled objects in '{name}'); {REMEDY}, numbers and strings only.")
    with archive.open(member) as content:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(content, allow_pickle=False)
        content.read(1)
    return array


def _check_claim(content: IO[bytes], size: int, *, name: str, expected: str) -> np.dtype[Any]:
    """Return the dtype in an array's header; refuse a header that claims another size than the file or memory has."""
    with _one_sentence(expected, where=f" in '{name}'"):
        _, _, dtype = _header_of(content, size, name=name, expected=expected)
        check_memory(size - content.tell(), what=f"'{name}'")
    return dtype


def _header_of(
    content: IO[bytes], size: int, *, name: str, expected: str
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and dtype in an array's header; refuse one that claims another size than the file has."""
    with _one_sentence(expected, where=f" in '{name}'"):
        version = np.lib.format.read_magic(content)
        if version not in HEADERS:
            refuse(expected, f"'{name}' in version {version[0]}.{version[1]} of numpy's format", REMEDY)
        shape, fortran, dtype = HEADERS[version](content)
        claimed, held = math.prod(shape) * dtype.itemsize, size - content.tell()
        if not dtype.hasobject and claimed != held:
            got = f"'{name}' with {held} bytes, and a header that claims {claimed} for shape {shape}"
            refuse(expected, got, REMEDY)
    return shape, fortran, dtype
