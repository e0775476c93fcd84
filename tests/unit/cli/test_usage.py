"""Command lines that cannot be understood: one line, exit code 2, the nearest word."""

import re
from pathlib import Path

import pytest

from commands import Command
from topoff.cli.flags import command as own_command
from topoff.cli.flags import quoted


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["trian", "x"], r"Expected a verb of topoff \(got 'trian'\); did you mean train\?"),
        (["xyz"], r"Expected a verb of topoff \(got 'xyz'\); see topoff --help\."),
        (["train", "x", "--epoch", "3"], r"Expected a flag of topoff train \(got '--epoch'\); did you mean --epochs\?"),
        (["info", "x", "-o", "3"], r"Expected a flag of topoff info \(got '-o'\); see topoff info --help\."),
        (["--vers"], r"Expected a flag of topoff \(got '--vers'\); did you mean --version\?"),
        (["info"], r"Expected .*dataset.* to be given \(got nothing\); see topoff info --help\."),
        (
            ["info", "x", "--split", "y"],
            r"Expected --split to be a valid integer \(got 'y'\); see topoff info --help\.",
        ),
        (["info", "x", "--split=y"], r"Expected --split to be a valid integer \(got 'y'\); see topoff info --help\."),
        (["measure", "x", "--dropout", "2"], r"Expected --dropout to be less than or equal to 0\.99 \(got '2'\); .*"),
        (["info", "a", "b"], r"Expected no further argument of topoff info \(got b\); see topoff info --help\."),
        (["train", "x", "--out"], r"Option '--out' requires an argument; see .*"),
        (["train", "x", "--jk=3"], r"Option '--jk' .*; see .*"),
        (
            ["train", "x", "--out", ""],
            r"Expected --out to be given a value \(got ''\); give one, or leave the flag out\.",
        ),
        (["train", "x", "--out="], r"Expected --out to be given a value \(got ''\); .*"),
        (["train", "x", "--quiet", ""], r"Expected a name or a path \(got ''\); give one, or leave it out\."),
        (["info", ""], r"Expected a name or a path \(got ''\); .*"),
        (["train", "gr\udcff.npz"], r"Expected the command in UTF-8 \(got 'gr\\udcff\.npz'\); rename what it names\."),
    ],
    ids=str,
)
def test_a_usage_error_is_one_line(command: Command, line: list[str], message: str, empty_folder: Path) -> None:
    done = command(*line, code=2)
    assert re.fullmatch(rf"topoff: {message}\n", done.err)
    assert not done.out
    assert not list(empty_folder.iterdir())


@pytest.mark.parametrize("flag", ["--seeds", "--config", "--set", "--model", "--root", "--methods", "--metric"])
def test_an_empty_value_is_refused(command: Command, flag: str) -> None:
    done = command("compare", "x", flag, "", code=2)
    assert done.err.startswith(f"topoff: Expected {flag} to be given a value (got '');")


def test_without_a_verb_there_is_help(command: Command) -> None:
    assert "compare" in command().out


@pytest.mark.parametrize(
    ("word", "text"),
    [("plain", "plain"), ("it's", "'it'\"'\"'s'"), ("a\nb", r"$'a\nb'"), ("\x1b'\\é", r"$'\x1b\'\\é'"), ("", "''")],
)
def test_a_command_is_one_line_for_the_shell(monkeypatch: pytest.MonkeyPatch, word: str, text: str) -> None:
    assert quoted(word) == text
    monkeypatch.setattr("sys.argv", ["topoff", "info", word])
    assert own_command() == f"topoff info {text}"
