"""cache.py: one key, one file, never half of it."""

import errno
import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

from topoff.machine.cache import Arrays, cache_dir, cached, content_hash


def build() -> Arrays:
    return {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "name": np.array(["a", "bc"]), "flag": np.array(True)}


def unexpected() -> Arrays:
    pytest.fail("built again although the file is there")


def equal(first: Arrays, second: Arrays) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) and first[name].dtype == second[name].dtype for name in first
    )


def test_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("TOPOFF_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "topoff"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "topoff"
    assert list(tmp_path.iterdir()) == []


def test_builds_once_then_reads(tmp_path: Path) -> None:
    assert equal(cached("k", build, folder=tmp_path), build())
    assert equal(cached("k", unexpected, folder=tmp_path), build())
    assert [path.name for path in tmp_path.iterdir()] == ["k.npz"]
    with np.load(tmp_path / "k.npz", allow_pickle=False) as file:  # an ordinary npz
        assert equal(dict(file), build())


def test_default_folder_is_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "deep" / "er"))
    cached("k", build)
    assert (tmp_path / "deep" / "er" / "k.npz").is_file()


@pytest.mark.parametrize("name", ["file", "allow_pickle", "self"])
def test_any_array_name(tmp_path: Path, name: str) -> None:
    cached("k", lambda: {name: np.zeros(2)}, folder=tmp_path)
    assert equal(cached("k", unexpected, folder=tmp_path), {name: np.zeros(2)})


@pytest.mark.parametrize("key", ["", "../up", "a/b", ".hidden", "a b", "x" * 201])
def test_key_must_be_a_file_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="Expected 'key' to be letters, digits"):
        cached(key, build, folder=tmp_path)


def test_objects_are_not_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"Expected 'bad' to be an array of numbers or strings .*nothing is pickled"):
        cached("k", lambda: {"bad": np.array([{}, None])}, folder=tmp_path)
    with pytest.raises(TypeError, match="nothing is pickled"):
        content_hash(np.array([{}, None]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "bit", "npy", "folder"])
def test_damaged_file_is_built_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "k.npz"
    cached("k", build, folder=tmp_path)
    content = path.read_bytes()
    middle = content.index(np.float32(7.0).tobytes())
    flipped = content[:middle] + b"\xff" + content[middle + 1 :]
    path.unlink()
    if damage == "npy":
        np.save(tmp_path / "k.npy", np.zeros(3))
        (tmp_path / "k.npy").rename(path)
    elif damage == "folder":
        path.mkdir()
    else:
        broken = {"truncated": content[: len(content) // 2], "empty": b"", "text": b"hello", "bit": flipped}
        path.write_bytes(broken[damage])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert equal(cached("k", build, folder=tmp_path), build())
    assert "to be a readable cache file" in str(caught[0].message)
    assert "it is built again" in str(caught[0].message)
    if damage != "folder":
        assert equal(cached("k", unexpected, folder=tmp_path), build())


def test_full_disk_leaves_the_value_uncached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device.*used but not kept.*TOPOFF_CACHE"):
        assert equal(cached("k", build, folder=tmp_path), build())
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(RuntimeWarning, match="used but not kept"):
        assert equal(cached("k", build, folder=tmp_path / "file" / "sub"), build())
    with pytest.warns(RuntimeWarning, match="used but not kept"):
        assert equal(cached("k", build, folder=tmp_path / "file"), build())


def test_write_that_stops_half_way(tmp_path: Path) -> None:
    """A real limit on the file's size, in a process of its own."""
    code = """
        import resource, signal, sys, warnings
        import numpy as np
        from topoff.machine.cache import cached
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert cached("k", lambda: {"x": np.zeros(10_000)}, folder=sys.argv[1])["x"].shape == (10_000,)
        assert "used but not kept" in str(caught[0].message), caught
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], check=True)
    assert list(tmp_path.iterdir()) == []


def test_two_processes_at_once(tmp_path: Path) -> None:
    """Both build, store and delete the same key; nobody ever reads half a file (any warning is an error)."""
    code = """
        import sys
        from pathlib import Path
        import numpy as np
        from topoff.machine.cache import cached
        folder = Path(sys.argv[1])
        for round in range(60):
            if round % 3 == int(sys.argv[2]):
                (folder / "k.npz").unlink(missing_ok=True)
            x = cached("k", lambda: {"x": np.arange(100_000)}, folder=folder)["x"]
            assert np.array_equal(x, np.arange(100_000))
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), str(tmp_path)]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["k.npz"]


def test_content_hash_of_widened_arrays_is_that_of_wide_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topoff.machine.cache.HASHED", 4)  # in several pieces
    for narrow, wide in ((np.float16, np.float32), (np.int32, np.int64), (np.bool_, np.bool_)):
        x = np.arange(10).reshape(2, 5).astype(narrow)
        assert (
            content_hash(x, widened=True) == content_hash(x.astype(wide)) == content_hash(x.astype(wide), widened=True)
        )
        assert (content_hash(x) == content_hash(x, widened=True)) == (narrow is wide)


def test_content_hash_sees_values_dtype_shape_and_order() -> None:
    x = np.arange(6)
    different = [
        content_hash(x),
        content_hash(x.astype(np.int32)),
        content_hash(x.reshape(2, 3)),
        content_hash(x + 1),
        content_hash(x, "a"),
        content_hash("a", x),
        content_hash("a", "b"),
        content_hash("ab"),
        content_hash(),
    ]
    assert len(set(different)) == len(different)
    assert content_hash(x.reshape(2, 3)) == content_hash(np.asfortranarray(x.reshape(2, 3)))
    assert all(len(value) == 32 for value in different)


def test_old_drafts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    drafts = [tmp_path / f".a.npz.{name}.part" for name in ("abcdefgh", "12345678")]
    for draft in drafts:
        draft.mkdir()
    os.utime(drafts[0], (0, 0))
    cached("a", lambda: {"x": np.zeros(1)}, folder=tmp_path)
    assert sorted(tmp_path.iterdir()) == [drafts[1], tmp_path / "a.npz"]  # the other one may be written just now
