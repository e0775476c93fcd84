"""One step from the old file or folder to the new one, whatever breaks in between."""

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from topoff.machine.files import is_draft, remove_drafts, replacing


def write_file(draft: Path) -> None:
    draft.write_text("new")


def write_folder(draft: Path) -> None:
    (draft / "deep").mkdir(parents=True)
    (draft / "nodes.csv").write_text("new")
    (draft / "deep" / "edges.csv").write_text("new")


def held(folder: Path) -> dict[str, str]:
    """Return all files below a folder, hidden ones included, and an empty text for folders."""
    return {str(path.relative_to(folder)): "" if path.is_dir() else path.read_text() for path in folder.rglob("*")}


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_what_is_new_takes_its_place_with_missing_parents(tmp_path: Path, write: Callable[[Path], None]) -> None:
    with replacing(tmp_path / "a" / "b" / "old") as draft:
        write(draft)
        assert not (tmp_path / "a" / "b" / "old").exists()
    write(tmp_path / "same")
    assert held(tmp_path / "a" / "b") == {
        name.replace("same", "old"): text for name, text in held(tmp_path).items() if name.startswith("same")
    }


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_what_is_old_is_there_until_it_is_replaced_as_a_whole(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "graph.npz"
    if write is write_folder:
        path.mkdir()
    (path / "other.csv" if write is write_folder else path).write_text("old")
    with replacing(path) as draft:
        write(draft)
        assert draft.suffix == ".npz"  # numpy would add it
        assert "old" in held(tmp_path).values()
    assert [file.name for file in tmp_path.iterdir()] == ["graph.npz"]
    assert "old" not in held(tmp_path).values()
    assert "new" in held(tmp_path).values()


def half_write(path: Path, error: BaseException) -> None:
    """Start to write a file, and fail."""
    with replacing(path) as draft:
        draft.write_text("half")
        raise error


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    path.write_text("old")
    with pytest.raises(OSError, match=r"No space left on device: '.*/graph\.npz'$"):
        half_write(path, OSError(errno.ENOSPC, "No space left on device", "a hidden draft"))
    with pytest.raises(OSError, match=r"^disk full$"):
        half_write(path, OSError("disk full"))
    with pytest.raises(KeyboardInterrupt):
        half_write(path, KeyboardInterrupt())
    assert held(tmp_path) == {"graph.npz": "old"}


def test_an_error_keeps_its_kind_and_names_the_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NotADirectoryError) as caught, replacing(tmp_path / "file" / "sub" / "new"):
        pass
    assert caught.value.filename == str(tmp_path / "file" / "sub" / "new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError), replacing(tmp_path / "folder") as draft:
        write_file(draft)
    with pytest.raises(NotADirectoryError), replacing(tmp_path / "file") as draft:
        write_folder(draft)
    assert held(tmp_path) == {"file": "in the way", "folder": ""}


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_folder_that_cannot_be_moved_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "nodes.csv").write_text("old")
    with pytest.raises(FileNotFoundError), replacing(folder):
        pass  # nothing was written, so there is nothing to move
    assert held(tmp_path) == {"old": "", "old/nodes.csv": "old"}
    move, moves = os.replace, []

    def fail_at_the_second(source: Path, target: Path) -> None:
        moves.append(target)
        if len(moves) == 2:
            raise error
        move(source, target)

    monkeypatch.setattr(os, "replace", fail_at_the_second)
    with pytest.raises(type(error)), replacing(folder) as draft:
        write_folder(draft)
    assert len(moves) == 3  # away, there in vain, back
    assert held(tmp_path) == {"old": "", "old/nodes.csv": "old"}


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_the_content_is_on_the_disk_before_it_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    done: list[str] = []
    flush, move = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("flush"), flush(handle))[1])
    monkeypatch.setattr(os, "replace", lambda source, target: (done.append("move"), move(source, target))[1])
    with replacing(tmp_path / "new") as draft:
        write(draft)
    assert done == ["flush"] * (2 if write is write_folder else 1) + ["move"]


def test_a_killed_process_leaves_the_old_file_whole(tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from topoff.machine.files import is_draft, remove_drafts, replacing
        with replacing(Path(sys.argv[1])) as draft:
            draft.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    path = tmp_path / "result.json"
    path.write_text("old")
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], check=False)
    assert run.returncode < 0
    assert path.read_text() == "old"
    with replacing(path) as draft:  # what was left behind is in nobody's way
        draft.write_text("new")
    assert path.read_text() == "new"


def test_drafts_of_one_place_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "k.npz"
    with replacing(path) as first, replacing(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert held(tmp_path) == {"k.npz": "first"}  # the last to be moved


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "written") as draft:
        write_file(draft)
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_what_a_killed_process_leaves_is_recognised_and_removed(tmp_path: Path) -> None:
    with replacing(tmp_path / "old") as draft:
        draft.write_text("new")
        shutil.copytree(draft.parent, tmp_path / draft.parent.name.replace("old", "older"))
        assert is_draft(draft.parent)
    (tmp_path / ".mine.part").mkdir()
    (tmp_path / ".film.abcdefgh.part").write_text("a download")  # a file: no draft of ours
    remove_drafts(tmp_path, older=60)
    assert len(list(tmp_path.iterdir())) == 4
    remove_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".film.abcdefgh.part", ".mine.part", "old"]
    remove_drafts(tmp_path / "nowhere")
