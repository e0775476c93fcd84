"""Whose home a path means, and folders that are not left behind."""

import pwd
from pathlib import Path
from typing import Any

import pytest

from topoff.machine.cache import cache_dir
from topoff.machine.files import replacing
from topoff.machine.places import expand_home, home_or_temporary, without_empty_parents


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a user that nobody knows, as in a container."""

    def nobody(_: Any) -> Any:
        raise KeyError

    for name in ("HOME", "TOPOFF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr(pwd, "getpwnam", nobody)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_has_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert home_or_temporary().parent == tmp_path
    assert cache_dir().is_relative_to(tmp_path)
    assert not list(tmp_path.iterdir())  # nothing is created


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("path", ["~/x", "~", "~nobody/x"])
def test_a_home_that_is_not_there_is_one_sentence(path: str) -> None:
    with pytest.raises(ValueError, match=rf"'{path}' to begin with the home folder .* \(got '~.*write the path out"):
        expand_home(path)


def test_other_paths_are_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "~nosuchuser").mkdir()
    found = [str(expand_home(path)) for path in ("a/~", "~/x", "~nosuchuser", Path("b"))]
    assert found == ["a/~", "/home/me/x", "~nosuchuser", "b"]


def test_parents_that_were_made_go_again_while_empty(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with without_empty_parents(tmp_path / "old" / "a" / "b" / "run"):
        (tmp_path / "old" / "a" / "b").mkdir(parents=True)
    assert list(tmp_path.rglob("*")) == [tmp_path / "old"]
    with without_empty_parents(tmp_path / "new" / "c" / "run"):
        (tmp_path / "new" / "c").mkdir(parents=True)
        (tmp_path / "new" / "kept").touch()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["kept"]


def test_a_file_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such graph"), replacing(tmp_path / "a" / "b" / "c.csv"):
        raise ValueError("no such graph")
    assert not list(tmp_path.iterdir())
