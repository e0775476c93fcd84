"""Tensors in files that carry their own checksum: a bit that flips on a disk is noticed when the file is read.

A sealed file is a safetensors file like any other; the checksum of all its bytes is in its metadata, computed with
zeros in its own place. A file without one, of an older version or of another program, is read as it is.

>>> import tempfile
>>> import torch
>>> with tempfile.TemporaryDirectory() as place:
...     path = Path(place) / "model.safetensors"
...     _ = path.write_bytes(sealed({"weight": torch.ones(2)}, {"epochs": 3}))
...     _, tensors = unsealed(path)
...     content = bytearray(path.read_bytes())
...     content[-1] ^= 1
...     _ = path.write_bytes(content)
...     unsealed(path)  # doctest: +ELLIPSIS
Traceback (most recent call last):
ValueError: the checksum ... in it, but content with the checksum ...
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

OURS, KEY, PLACE = "topoff", "crc32", "0" * 8
CHUNK = 2**22  # bytes read at once


def sealed(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> bytes:
    """Return the content of a safetensors file: tensors, plain values and a checksum over all of it.

    Every tensor gets contiguous memory of its own on the CPU: safetensors refuses shared ones. The values are one entry
    of the file's metadata, since the order of several is random: the same tensors and values are the same bytes.
    """
    separate = {key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}
    content = save(separate, metadata={OURS: json.dumps({KEY: PLACE, **(metadata or {})})})
    at = _place(content[: _header_end(content[:8])], PLACE)
    found = f"{zlib.crc32(content):08x}".encode()
    return b"".join((content[:at], found, content[at + len(PLACE) :]))


def unsealed(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read a safetensors file and its values, and compare its checksum where it has one.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged; the sentence is to be finished by the caller, who knows what to do.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = _read(path, file.metadata() or {})
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, RuntimeError, MemoryError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def _read(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the values in a file's metadata; raise ValueError where its content is not what its checksum says."""
    if OURS not in metadata:
        if any(KEY in value for value in metadata.values()):
            raise ValueError(f"a checksum under another name than '{OURS}'")
        return dict(metadata)
    values = json.loads(metadata[OURS])
    said = values.pop(KEY, None) if isinstance(values, dict) else None
    if not isinstance(said, str) or len(said) != len(PLACE):
        raise ValueError(f"no checksum of {len(PLACE)} digits in it")
    came = _checksum(path, said)
    if said != came:
        raise ValueError(f"the checksum {said} in it, but content with the checksum {came}")
    return dict(values)


def _checksum(path: Path, said: str) -> str:
    """Return the checksum of a file, with zeros in the place of the one that it says."""
    with path.open("rb") as file:
        start = file.read(8)
        header = start + file.read(_header_end(start) - 8)
        at = _place(header, said)
        found = zlib.crc32(header[:at] + PLACE.encode() + header[at + len(PLACE) :])
        while piece := file.read(CHUNK):
            found = zlib.crc32(piece, found)
    return f"{found:08x}"


def _header_end(start: bytes) -> int:
    """Return where the header of a safetensors file ends, from its first 8 bytes."""
    return 8 + int.from_bytes(start, "little")


def _place(header: bytes, value: str) -> int:
    """Return where the checksum stands in the header of a file: first among our values, in a text inside a text."""
    pattern = f'"{OURS}":"{{\\"{KEY}\\": \\"'.encode()
    at = header.find(pattern + value.encode())
    if at < 0:
        raise ValueError("no checksum in its place")
    return at + len(pattern)
