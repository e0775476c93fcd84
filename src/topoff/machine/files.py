"""Write a file or a folder in one step: a reader finds the old one or the new one, never half of it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from topoff.machine.places import without_empty_parents

DRAFT = re.compile(r"\..+\.[a-z0-9_]{8}\.part")  # as tempfile completes the name


@contextmanager
def replacing(path: Path, *, keep: Path | None = None) -> Iterator[Path]:
    """Yield a draft beside `path` to be written as a file or as a folder, then move it to `path` in one step.

    The draft has the name of `path`, in a hidden folder that is removed in any case: a failure, or Ctrl-C, leaves what
    was there before and nothing else. The content is on the disk before it is moved. Missing parents are created, and
    go again where nothing comes to be written. A file that is replaced stays as `keep`, in the same folder, where that
    is given.

    Raises:
        OSError: something cannot be written; the error names `path`, not the draft.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "a.txt") as draft:
    ...         _ = draft.write_text("whole")
    ...     [found.name for found in Path(folder).iterdir()]
    ['a.txt']
    """
    try:
        with without_empty_parents(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent) as hidden:
                draft = Path(hidden) / path.name
                yield draft
                for file in filter(Path.is_file, draft.rglob("*")) if draft.is_dir() else [draft]:
                    with file.open("rb") as handle:
                        os.fsync(handle.fileno())
                if keep is not None and path.is_file():
                    _keep(path, keep, draft=draft.with_name(keep.name))
                _move(draft, path, old=Path(hidden) / f"{path.name}.old")
    except OSError as error:
        if error.errno is None:
            raise
        reason = os.strerror(error.errno)  # pyarrow says more, and repeats itself
        raise OSError(error.errno, reason, str(path)) from error  # of the same class, which the number chooses


def is_draft(path: Path) -> bool:
    """Whether a path is a draft of `replacing`: one that is being written, or that a killed process has left.

    >>> is_draft(Path("run/.config.toml.ab12cd_x.part")), is_draft(Path("run/config.toml"))
    (True, False)
    """
    return DRAFT.fullmatch(path.name) is not None


def remove_drafts(folder: Path, *, older: float = 0.0) -> None:
    """Remove the drafts of killed processes from a folder that nobody else writes to, or those `older` than seconds.

    What cannot be removed, since the disk has become read-only, stays: it is in nobody's way.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / ".a.txt.ab12cd_x.part").mkdir()
    ...     remove_drafts(Path(folder))
    ...     list(Path(folder).iterdir())
    []
    """
    for path in filter(is_draft, list(folder.iterdir()) if folder.is_dir() else ()):
        with suppress(FileNotFoundError):  # its writer, or another process that tidies up, was faster
            if path.is_dir() and path.stat().st_mtime <= time.time() - older:
                shutil.rmtree(path, ignore_errors=True)


def _move(draft: Path, path: Path, *, old: Path) -> None:
    """Move the draft to its place; a folder cannot be replaced in one step, so the old one is kept until then."""
    if not path.is_dir() or not draft.is_dir():
        draft.replace(path)
        return
    path.replace(old)
    try:
        draft.replace(path)
    except BaseException:
        if not path.exists():
            old.replace(path)
        raise


def _keep(path: Path, place: Path, *, draft: Path) -> None:
    """Give a file that is about to be replaced a second name; where the disk knows no links, move it there."""
    try:
        os.link(path, draft)
    except OSError:
        path.replace(place)
    else:
        draft.replace(place)
