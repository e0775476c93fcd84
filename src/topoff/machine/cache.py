"""Keep computed arrays between runs: atomic files named by their content's key, safe for two processes."""

import hashlib
import os
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from topoff.machine.files import remove_drafts, replacing
from topoff.machine.places import expand_home, home_or_temporary

DAY = 24 * 3600.0  # no process writes for so long: a draft this old was left by one that was killed
HASHED = 2**24  # entries that are hashed together
WIDER = {"float16": np.float32, "int32": np.int64}  # types in which a store is mapped, and those in which it is read
Arrays = dict[str, np.ndarray[Any, Any]]


def cache_dir() -> Path:
    """Return the cache folder: $TOPOFF_CACHE, else $XDG_CACHE_HOME/topoff, else ~/.cache/topoff. Create nothing.

    A user without a home has one among the temporary files.

    >>> cache_dir().is_absolute()
    True
    """
    if own := os.environ.get("TOPOFF_CACHE"):
        return expand_home(own).absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else home_or_temporary() / ".cache").absolute() / "topoff"


def content_hash(*parts: np.ndarray[Any, Any] | str, widened: bool = False) -> str:
    """Hash arrays (dtype, shape, values) and strings, in order, to 32 hexadecimal digits.

    Arrays that are `widened` have the hash of what they would be in the types of a graph in memory (`WIDER`).

    >>> content_hash("idf", np.arange(3)) == content_hash("idf", np.arange(3))
    True
    >>> content_hash(np.zeros(4)) == content_hash(np.zeros((2, 2)))
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(f"str:{len(part)}:{part}".encode())
            continue
        _refuse_objects({"part": part})
        wide = np.dtype(WIDER.get(part.dtype.name, part.dtype) if widened else part.dtype)
        digest.update(f"array:{wide.str}:{part.shape}:".encode())
        flat = np.ascontiguousarray(part).reshape(-1)  # not a copy of a large graph
        for start in range(0, len(flat), HASHED):
            digest.update(flat[start : start + HASHED].astype(wide, copy=False).view(np.uint8).data)
    return digest.hexdigest()[:32]


def cached(key: str, build: Callable[[], Arrays], *, folder: str | Path | None = None) -> Arrays:
    """Return the arrays stored under `key`, or build and store them.

    The file `<folder>/<key>.npz` (default folder: `cache_dir()`) is written in one step, so that a reader never sees
    half of it; if two processes build at once, the file of the last one stays. A damaged file is built again, and where
    the folder cannot be written the value is not cached; both warn.

    Raises ValueError if the key is not a plain file name, and TypeError for arrays that only pickle could store.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first = cached("squares", lambda: {"x": np.arange(3) ** 2}, folder=folder)
    ...     again = cached("squares", lambda: {}, folder=folder)
    >>> again["x"].tolist()
    [0, 1, 4]
    """
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}", key):
        raise ValueError(
            f"Expected 'key' to be letters, digits, '.', '_' and '-', at most 200 (got {key!r}); use content_hash()."
        )
    path = (Path(folder) if folder is not None else cache_dir()) / f"{key}.npz"
    stored = _read(path)
    if stored is not None:
        return stored
    arrays = {name: np.asarray(value) for name, value in build().items()}
    _refuse_objects(arrays)
    try:
        remove_drafts(path.parent, older=DAY)
        with replacing(path) as draft, zipfile.ZipFile(draft, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
    except OSError as error:
        warnings.warn(
            f"Cannot store {path}: {error.strerror or error}; the value is used but not kept. Free some space there, "
            "or set TOPOFF_CACHE to a writable folder.",
            RuntimeWarning,
            stacklevel=2,
        )
    return arrays


def _read(path: Path) -> Arrays | None:
    """Return the arrays in `path`; None if there is no file or, with a warning, if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): _read_member(archive, name) for name in archive.namelist()}
    except (FileNotFoundError, NotADirectoryError):  # or a file where the folder should be: writing will say so
        return None
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError) as error:
        warnings.warn(
            f"Expected {path} to be a readable cache file (got {type(error).__name__}: {error}); it is built again.",
            RuntimeWarning,
            stacklevel=3,
        )
        return None


def _read_member(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """Read one array; reading to the end makes zipfile compare the checksum."""
    with archive.open(name) as member:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"{name} is longer than its array")
    return array


def _refuse_objects(arrays: Arrays) -> None:
    """Raise TypeError for an array of Python objects."""
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise TypeError(
                f"Expected '{name}' to be an array of numbers or strings (got dtype {array.dtype}); "
                "convert it first, nothing is pickled here."
            )
