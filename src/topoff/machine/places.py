"""Folders: whose home a path means, and nothing that is left behind in one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def expand_home(path: str | Path) -> Path:
    """Return a path with `~` or `~user` in front replaced by that home folder; a file of such a name is itself meant.

    Raises:
        ValueError: there is no such user, or this one has no home.

    >>> expand_home("graphs/one.npz")
    PosixPath('graphs/one.npz')
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        if Path(path).exists():
            return Path(path)
        raise ValueError(
            f"Expected '{path}' to begin with the home folder of a user (got '{Path(path).parts[0]}', which has none "
            "here); write the path out, or set HOME."
        ) from error


def home_or_temporary() -> Path:
    """Return where this user may keep files: the home folder, or a folder of one's own among the temporary files.

    Users without a home are those of containers: HOME is not set, and no entry in the list of users names one.
    """
    try:
        return Path.home()
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"topoff-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


@contextmanager
def without_empty_parents(path: Path) -> Iterator[None]:
    """Remove the parents of a path that did not exist before and are empty after what happens inside `with`.

    >>> with tempfile.TemporaryDirectory() as place, without_empty_parents(Path(place) / "runs" / "first"):
    ...     (Path(place) / "runs").mkdir()
    """
    missing = [parent for parent in path.absolute().parents if not parent.exists()]
    try:
        yield
    finally:
        for parent in missing:  # the deepest first
            with suppress(OSError):  # it holds something, or was never made
                parent.rmdir()


def remove_content(folder: Path) -> None:
    """Remove what a folder holds, as far as that is possible, and leave the folder itself, which may be a link.

    >>> with tempfile.TemporaryDirectory() as place:
    ...     (Path(place) / "runs" / "first").mkdir(parents=True)
    ...     remove_content(Path(place))
    ...     list(Path(place).iterdir())
    []
    """
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
