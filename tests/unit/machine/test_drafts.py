"""Drafts of killed processes are removed, those of living ones and of others stay."""

import os
import time
from pathlib import Path

from filelock import FileLock

from topoff.machine.drafts import LIVES, drafting, remove_left


def draft(folder: Path, name: str, *, lock: bool = True) -> Path:
    path = folder / name
    path.mkdir()
    if lock:
        (path / LIVES).touch()
    return path


def test_only_dead_drafts_of_the_same_path_are_removed(tmp_path: Path) -> None:
    dead, other = draft(tmp_path, ".s.abcdefgh.part"), draft(tmp_path, ".t.abcdefgh.part")
    alive, new, old = (draft(tmp_path, f".s.{letter * 8}.part", lock=letter == "a") for letter in "abc")
    os.utime(old, (time.time() - 3600,) * 2)
    mine = draft(tmp_path, "s.part")
    with FileLock(str(alive / LIVES)):
        remove_left(tmp_path / "s")
    assert [path.exists() for path in (dead, old, other, alive, new, mine)] == [False, False, True, True, True, True]


def test_two_processes_may_write_the_same_path_at_once(tmp_path: Path) -> None:
    with drafting(tmp_path / "s") as first:
        first.write_text("first")
        with drafting(tmp_path / "s") as second:
            second.write_text("second")
        assert first.exists()
    assert (tmp_path / "s").read_text() == "first"
    assert os.listdir(tmp_path) == ["s"]
