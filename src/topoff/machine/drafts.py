"""Write a large file or folder in one step, and tidy up after processes that were killed while they wrote it.

`files.replacing` leaves nothing after an error or Ctrl-C, but a killed process leaves its hidden draft, and drafts of
stores are large. A draft that is made here is locked while its process lives, so that the next one can tell.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from topoff.machine.files import is_draft, replacing

LIVES = ".alive"  # locked as long as the process that writes
MOMENT = 60.0  # seconds between making a draft and locking it, at most


@contextmanager
def drafting(path: Path) -> Iterator[Path]:
    """Yield a draft as `replacing` does, after removing those of the same path that killed processes have left.

    Raises:
        OSError: something cannot be written; the error names `path`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with drafting(Path(place) / "store") as draft:
    ...         draft.mkdir()
    ...     [found.name for found in Path(place).iterdir()]
    ['store']
    """
    remove_left(path)
    with ExitStack() as held, replacing(path) as draft:  # held until the draft is in its place, not only written
        held.enter_context(FileLock(str(draft.parent / LIVES), timeout=0))
        yield draft


def remove_left(path: Path) -> None:
    """Remove the drafts of a path whose processes are gone; those of others, and of running ones, stay."""
    siblings = list(path.parent.iterdir()) if path.parent.is_dir() else []
    for place in siblings:
        if is_draft(place) and place.name.startswith(f".{path.name[:100]}.") and place.is_dir() and not _lives(place):
            shutil.rmtree(place, ignore_errors=True)


def _lives(place: Path) -> bool:
    """Whether the process that writes a draft is there: it holds the lock, or has only just made the folder."""
    with suppress(OSError):
        if not (place / LIVES).exists():
            return place.stat().st_mtime > time.time() - MOMENT
        try:
            with FileLock(str(place / LIVES), timeout=0):
                return False
        except Timeout:
            return True
    return True
