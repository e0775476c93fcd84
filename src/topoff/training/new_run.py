"""Make the folders of a new run, or put a new run in the place of an old one: all or nothing, one process at a time.

>>> import tempfile
>>> from topoff.training.config import make_config
>>> with tempfile.TemporaryDirectory() as place:
...     with new_run(Path(place) / "runs" / "x", {Path(): make_config({"dataset": "wordnet"})}, command="topoff train"):
...         found = sorted(path.name for path in (Path(place) / "runs" / "x").iterdir())
...     left = list(Path(place).iterdir())  # nothing was trained
>>> found, left
(['.holder.json', '.lock', 'config.toml'], [])
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from topoff.machine.lock import locked
from topoff.machine.places import remove_content, without_empty_parents
from topoff.training.checkpoints import CHECKPOINT, PREVIOUS
from topoff.training.config import Config, write_toml
from topoff.training.run_folder import PACE, RunFolder, is_remnant

BEGINNING = (
    "config.toml",
    "encoding.json",
    "metrics.jsonl",
    "checkpoint",
    "tensorboard",
)  # before the first epoch ends


@contextmanager
def new_run(
    top: Path,
    seeds: Mapping[Path, Config],
    *,
    command: str,
    overwrite: bool = False,
    records: Mapping[Path, bytes] | None = None,
) -> Iterator[None]:
    """Make the folders of a run and write its settings; where nothing comes to be trained, leave all as it was.

    `seeds` are the settings by folder, `records` files that are there before them, all relative to `top`. All folders
    are locked inside `with`; an old run that `overwrite` lets be replaced is kept beside, as `.<name>.old`, until the
    new one has trained.

    Raises:
        FileExistsError: the folder holds something, and nothing lets it be replaced.
        ValueError: another process is at work there, or the run to be replaced is where the user stands.
    """
    put_back(top)
    with without_empty_parents(top / "config.toml"), ExitStack() as held:
        old = _set_aside(top, held) if overwrite and (top / "config.toml").is_file() else None
        try:
            RunFolder(top).create()
            held.enter_context(locked(top))
            RunFolder(top).create()  # no other process has begun a run there in between
        except BaseException:
            if old is not None:
                old.rename(top.resolve())
            raise
        try:
            for remnant in [path for path in top.iterdir() if path.is_dir()]:
                shutil.rmtree(remnant)
            (top / PACE).unlink(missing_ok=True)  # of a beginning, like those
            for place, content in (records or {}).items():
                RunFolder(top).write(place, content)
            first = next(iter(seeds.values()))
            inner = {place: config for place, config in seeds.items() if place != Path()}
            for place, config in {**inner, Path(): first}.items():  # that of the whole run is the last: it makes it one
                RunFolder(top / place).write("config.toml", write_toml(config, command=command))
                held.enter_context(locked(top / place))
            yield
        finally:
            trained = has_trained(top)
            if not trained:
                remove_content(top)
            if old is not None:
                shutil.rmtree(old, ignore_errors=True) if trained else old.rename(top.resolve())


def put_back(top: Path) -> None:
    """Put a run back that a process was about to replace when it was killed, before the new one had trained anything.

    What is no beginning of a run is never removed.

    Raises:
        ValueError: the process is still at work.
    """
    place, old = top.resolve(), _beside(top)
    if not (old / "config.toml").is_file() or not _has_only_begun(place):
        return
    with locked(*(path for path in (place, old) if path.is_dir())):
        shutil.rmtree(place, ignore_errors=True)
        old.rename(place)
    with locked(place):  # whose end removes the files of the lock, which have moved with the folder
        return


def has_trained(top: Path) -> bool:
    """Whether a run, or one of its seeds, has finished an epoch or left a checkpoint."""
    names = ("metrics.jsonl", CHECKPOINT, PREVIOUS)
    kept = [folder / name for folder in (top, *top.glob("seed-*")) for name in names]
    return any(path.is_file() and path.stat().st_size for path in kept)


def _has_only_begun(place: Path) -> bool:
    """Whether a folder holds nothing but what a run has before its first epoch, or is not there at all."""
    if not place.is_dir():
        return not place.exists()
    known = (path.name in BEGINNING or is_remnant(path) or _is_begun_seed(path) for path in place.iterdir())
    return all(known) and not has_trained(place)


def _is_begun_seed(path: Path) -> bool:
    return path.is_dir() and path.name.startswith("seed-") and _has_only_begun(path)


def _beside(top: Path) -> Path:
    """Return where a run is kept while it is replaced."""
    place = top.resolve()
    return place.with_name(f".{place.name}.old")


def _set_aside(top: Path, held: ExitStack) -> Path:
    """Move a run that nobody works on out of the way; return where it is now, still locked."""
    place, old = top.resolve(), _beside(top)
    if Path.cwd().is_relative_to(place):
        raise ValueError(f"Expected --overwrite from outside the run (got {top}, which holds this folder); go up.")
    if old.exists() and not (old / "config.toml").is_file():
        raise ValueError(f"Expected {old} to be free for the run that is replaced (got other files there); move them.")
    held.enter_context(locked(place, *(path for path in place.glob("seed-*") if path.is_dir())))
    shutil.rmtree(old, ignore_errors=True)  # left by a process that was killed after the new run had trained
    place.rename(old)
    return old
