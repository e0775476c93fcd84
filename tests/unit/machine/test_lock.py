"""One process per folder: files of a lock that go, a lock that is held already, a holder that nobody can read."""

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from topoff.machine.lock import HOLDER, LOCK, Holder, holder_of, locked, this_process


def test_a_lock_leaves_nothing_and_is_held_once_per_process(tmp_path: Path) -> None:
    with locked(tmp_path), locked(tmp_path, tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {LOCK, HOLDER}
        assert holder_of(tmp_path) is not None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", '{"pid": "x"}', "[" * 100_000, '{"pid": 1}'])
def test_a_holder_that_nobody_can_read_is_another_process(tmp_path: Path, text: str) -> None:
    with FileLock(str(tmp_path / LOCK)):
        (tmp_path / HOLDER).write_text(text)
        with pytest.raises(ValueError, match=r"to be free \(got .* there: another process\); wait for its end"):
            locked(tmp_path).__enter__()


def test_the_number_of_a_process_is_not_its_identity(tmp_path: Path) -> None:
    me = this_process()
    assert me.pid == os.getpid()
    assert me.is_same_process(Holder(me.pid, me.host, me.born))
    assert not me.is_same_process(Holder(me.pid, "elsewhere", me.born))
    assert not me.is_same_process(Holder(me.pid, me.host, "-1"))
    assert not me.is_same_process(None)


def test_a_folder_that_moves_takes_its_lock_along(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with locked(tmp_path / "a"):
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").mkdir()
        with locked(tmp_path / "a"):
            assert json.loads((tmp_path / "b" / HOLDER).read_text())["pid"] == os.getpid()
    assert {path.name for path in (tmp_path / "a").iterdir()} == set()


def test_a_folder_that_cannot_be_locked_is_used_with_a_warning_but_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.warns(RuntimeWarning, match=r"Cannot lock .*: is a directory; see to it"), locked(tmp_path):
        pass
    (tmp_path / LOCK).rmdir()
    (tmp_path / "mine.txt").write_text("years of work")
    (tmp_path / LOCK).symlink_to("mine.txt")
    with pytest.raises(ValueError, match=r"\.lock to be the file of a lock \(got a link\); remove it"):
        locked(tmp_path).__enter__()
    assert (tmp_path / "mine.txt").read_text() == "years of work"
