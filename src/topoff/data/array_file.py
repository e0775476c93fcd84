"""Arrays in plain .npy files: written piece by piece with a checksum, opened without being read.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     with ArrayWriter(Path(place) / "x.npy", np.float32) as writer:
...         for rows in np.arange(6.0).reshape(3, 2):
...             writer.append(rows)
...         entry = writer.finish((3, 2))
...     open_array(Path(place) / "x.npy", entry)[2].tolist(), entry.crc32
([4.0, 5.0], '91e79017')
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from topoff.data.refusal import refuse

HEADER = 128  # bytes before the values, so that the shape can be written last
PIECE = 1 << 24  # bytes that are read at a time
REMEDY = "copy or write the store again"
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Entry:
    """Say what an array file holds."""

    dtype: str  # numpy's name, such as float32; for strings its code, such as <U8
    shape: tuple[int, ...]
    crc32: str  # of the values' bytes, without the header: 8 hexadecimal digits

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        return HEADER + math.prod(self.shape) * np.dtype(self.dtype).itemsize


class ArrayWriter:
    """Append values to an .npy file of one dtype; `finish` says at the end which shape they have."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self.path, self.dtype = path, np.dtype(dtype)
        self._written, self._crc = 0, 0
        self._file = path.open("wb", buffering=0)
        try:
            put(self._file, bytes(HEADER))
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, values: Array) -> None:
        """Add values of any shape, in C order."""
        content = np.ascontiguousarray(values, dtype=self.dtype).reshape(-1).view(np.uint8).data
        put(self._file, content)
        self._crc = zlib.crc32(content, self._crc)
        self._written += len(content) // self.dtype.itemsize

    def finish(self, shape: tuple[int, ...]) -> Entry:
        """Write the header, close the file, and return what it holds."""
        assert math.prod(shape) == self._written, f"{self._written} values for shape {shape}"
        text = repr({"descr": self.dtype.str, "fortran_order": False, "shape": shape}).encode()
        self._file.seek(0)
        put(self._file, b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text.ljust(HEADER - 11) + b"\n")
        self._file.close()
        name = self.dtype.str if self.dtype.kind == "U" else self.dtype.name
        return Entry(name, shape, f"{self._crc:08x}")


def put(file: IO[bytes] | FileIO, content: bytes | memoryview) -> None:
    """Write all of it to a file without a buffer, where one call may write less: the last bytes of a full disk."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def open_array(path: Path, entry: Entry) -> Array:
    """Map a file into memory, copy on write: values are read when they are used, and changes never reach the file.

    Raises:
        FileNotFoundError: it is missing.
        ValueError: its size or its header are not those of the entry.
    """
    check_array(path, entry)
    if math.prod(entry.shape) == 0:  # which no system maps
        return np.zeros(entry.shape, entry.dtype)
    return np.memmap(path, dtype=entry.dtype, mode="c", offset=HEADER, shape=entry.shape)


def check_array(path: Path, entry: Entry) -> None:
    """Compare the size and the header of a file with its entry; values are not read.

    Raises as `open_array` does.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Expected {path} as the store's header says (got no such file); {REMEDY}.")
    if (size := path.stat().st_size) != entry.size:
        refuse(f"{path} to have {entry.size:,} bytes, as the store's header says", f"{size:,}", REMEDY)
    with path.open("rb") as file:
        try:
            np.lib.format.read_magic(file)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        except Exception as error:  # whatever numpy raises for damaged bytes
            raise ValueError(f"Expected {path} to be an .npy file (got a damaged header); {REMEDY}.") from error
    if (shape, fortran, dtype) != (entry.shape, False, np.dtype(entry.dtype)):
        expected = f"{path} to hold {entry.dtype} of shape {entry.shape}, as the store's header says"
        refuse(expected, f"{dtype.name} of shape {shape}", REMEDY)


def verify_array(path: Path, entry: Entry) -> None:
    """Read a whole file and compare its checksum.

    Raises as `open_array` does, and ValueError for another checksum.
    """
    check_array(path, entry)
    crc = 0
    with path.open("rb") as file:
        file.seek(HEADER)
        while piece := file.read(PIECE):
            crc = zlib.crc32(piece, crc)
    if f"{crc:08x}" != entry.crc32:
        refuse(f"{path} to have the checksum {entry.crc32}", f"{crc:08x}: its content has changed", REMEDY)
