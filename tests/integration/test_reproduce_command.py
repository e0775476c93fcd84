"""`topoff reproduce`: a study by the command line, in real processes."""

from pathlib import Path

import pytest

from commands import call, finish, start_verb


def test_reproduce_measures_writes_and_resumes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("reproduce", "theory-symmetry,theory-colors", "--quick", "--out", tmp_path / "paper")
    done = call(*words, "--json", capture=capfd)
    assert set(done.json["studies"]) == {"theory-symmetry", "theory-colors"}
    assert all(Path(path).is_file() for path in done.json["studies"].values())
    assert Path(done.json["page"]).is_file()
    assert "0/2" in done.err
    again = call(*words, capture=capfd)
    assert "0/2" not in again.err
    assert "Figure 1: message invariance by symmetry" in again.out


def test_a_module_in_the_working_folder_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("open('run', 'w').close()\n")
    done = finish(start_verb("reproduce", "theory-colors", "--quick", "--out", "paper", folder=tmp_path))
    assert done.code == 0, done.err
    assert not (tmp_path / "run").exists()


def test_hours_end_a_run_that_the_same_command_goes_on_with(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("reproduce", "theory-colors", "--quick", "--out", tmp_path / "paper")
    done = call(*words, "--hours", "0", capture=capfd)
    assert "not run yet" in done.out
    assert "not run yet" not in call(*words, capture=capfd).out


def test_a_root_that_is_not_there_is_said_and_leaves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("reproduce", "table3", "--quick", "--root", tmp_path / "none", "--out", tmp_path / "out")
    assert "Expected --root to be a folder (got" in call(*words, capture=capfd, code=2).err
    assert not (tmp_path / "out").exists()


def test_an_unknown_study_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = call("reproduce", "table9", "--out", tmp_path, capture=capfd, code=2)
    assert "Expected 'all' or names among" in done.err
