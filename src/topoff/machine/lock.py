"""Let one process at a time work in a folder; the second one is told who is there.

The lock is the kernel's own, on `.lock` in the folder: it ends with its process, however that ends. `.holder.json`
beside it says who holds it. Both are removed at the end; what a killed process leaves of them blocks nobody.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from topoff.machine.files import remove_drafts, replacing

LOCK, HOLDER = ".lock", ".holder.json"
TRIES = 3  # a lock file that another process removes at its end is made again


@dataclass(frozen=True)
class Holder:
    """Say which process holds a folder."""

    pid: int
    host: str
    born: str  # when the process began, as its system counts: a number is given to many processes
    since: str = ""
    command: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}: {self.command}"

    def is_same_process(self, other: Holder | None) -> bool:
        """Whether two records are of one process."""
        return other is not None and (self.pid, self.host, self.born) == (other.pid, other.host, other.born)


def this_process() -> Holder:
    """Describe the process that calls."""
    try:
        born = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        born = ""
    since = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    name = Path(sys.argv[0] or "python").name
    words = ["topoff" if name == "__main__.py" else name, *sys.argv[1:]]
    return Holder(os.getpid(), platform.node(), born, since, shlex.join(words)[:500])


@contextmanager
def locked(*folders: Path) -> Iterator[None]:
    """Hold folders that exist for this process alone, inside `with`; what the process holds already it holds on.

    A folder of which nothing can be locked (a read-only disk, a file system without locks) is used with a warning.

    Raises:
        ValueError: another process holds one, and the sentence names it; or the file of the lock is a link.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, locked(Path(place)):
    ...     holder_of(Path(place)).pid == os.getpid()
    True
    """
    with ExitStack() as stack:
        for folder in dict.fromkeys(folders):
            stack.enter_context(_held(folder))
        yield


def holder_of(folder: Path) -> Holder | None:
    """Read who holds a folder, or was the last to hold it; None where nothing says so."""
    try:
        found: dict[str, Any] = json.loads((folder / HOLDER).read_bytes())
        words = {key: str(found[key]) for key in ("host", "born", "since", "command")}
        return Holder(pid=int(found["pid"]), **words)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold one folder; what killed processes left there of their drafts is removed."""
    if (folder / LOCK).is_symlink():  # of a foreign folder: older filelocks would empty the file that it leads to
        raise ValueError(f"Expected {folder / LOCK} to be the file of a lock (got a link); remove it.")
    lock, me = FileLock(str(folder / LOCK), timeout=0), this_process()
    try:
        number = _acquire(lock, folder)
    except Timeout:
        holder = holder_of(folder)
        if not me.is_same_process(holder):
            who = str(holder) if holder else "another process"
            raise ValueError(
                f"Expected {folder} to be free (got a run that is under way there: {who}); wait for its end, or stop "
                f"it{f' with kill {holder.pid}' if holder else ''}, or choose another folder."
            ) from None
        yield
        return
    except (OSError, NotImplementedError) as error:
        reason = str(getattr(error, "strerror", None) or error).lower()
        warnings.warn(
            f"Cannot lock {folder}: {reason}; see to it that no other process works there.", RuntimeWarning, 4
        )
        yield
        return
    try:
        for place in (folder, *(path for path in folder.iterdir() if path.is_dir() and not (path / LOCK).exists())):
            remove_drafts(place)
        with replacing(folder / HOLDER) as draft:
            draft.write_text(json.dumps(asdict(me)))
        yield
    finally:
        _remove(folder, number)
        lock.release()


def _acquire(lock: FileLock, folder: Path) -> int:
    """Acquire a lock whose file is there; return the number of the file."""
    for _ in range(TRIES):
        lock.acquire()
        try:
            return (folder / LOCK).stat().st_ino
        except FileNotFoundError:  # its holder removed it in between: the lock is on a file without a name
            lock.release()
    raise Timeout(str(folder / LOCK))


def _remove(folder: Path, number: int) -> None:
    """Remove the files of a lock that is still held, unless the folder has become another one."""
    try:
        if (folder / LOCK).stat().st_ino == number:
            (folder / HOLDER).unlink(missing_ok=True)
            (folder / LOCK).unlink()
    except OSError:  # the folder is gone, or has become read-only: what is left blocks nobody
        return
