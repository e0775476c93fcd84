"""Refused commands: one sentence, exit code 2, and nothing left behind; runs that a signal stops in the background."""

import re
import signal
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

from commands import Command, Done, finish, start_verb
from topoff.cli.compare_progress import CompareProgress

TINY = ["--epochs", "1", "--hidden", "4", "--layers", "2", "--quiet"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder with three small graphs: classes, targets, and several labels per node."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path.parent / "cache"))
    rng, n = np.random.default_rng(0), 40
    edges = rng.integers(0, n, (2, 4 * n))
    kinds = {"g": np.arange(n) % 3, "r": rng.normal(size=n).astype("f4"), "m": (rng.random((n, 3)) < 0.4).astype("f4")}
    for name, y in kinds.items():
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(n, 4)).astype("f4"), edge_index=edges, y=y)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["train", "g.npz", "--model", "nope"], "Expected model .*'nope'"),
        (["train", "g.npz", "--out", "a/b/c", "--parts", "99"], "Expected 'parts' .*99"),
        (["train", "g.npz", "--out", "a/b", "--seeds", "0-1", "--metric", "rmse"], "Expected metric .*'rmse'"),
        (["train", "g.npz", "--device", "meta"], r"Expected device .* \(got 'meta'\)"),
        (["train", "g.npz", "--seeds", "0-200000"], "Expected --seeds to name at most 1,000 seeds"),
        (["train", "g.npz", "--seed", "1", "--seeds", "0-2"], "Expected --seeds or one seed, not both"),
        (
            ["train", "g.npz", "--set", "lr=1", "--set", "lr=2"],
            r"Expected --set to give each key once \(got 'lr' twice\)",
        ),
        (["train", "~nosuchuser/g.npz"], "Expected '~nosuchuser/g.npz' to begin with the home folder"),
        (["info", "g.npz", "--root", "~nosuchuser"], "Expected '~nosuchuser' to begin with the home folder"),
        (["compare", "g.npz", "--set", "method=top"], r"Expected the methods as --methods \(got --set method=top\)"),
        (["compare", "g.npz", "--methods", "full,,top"], r"Expected --methods .* \(got ''\)"),
        (["compare", "g.npz", "--methods", "full", "--metric", "accuracy", "--target", "75"], "write 75 % as 0.75"),
        (
            ["measure", "g.npz", "--methods", "top,top"],
            r"Expected methods to name each method once \(got 'top' twice\)",
        ),
        (["measure", "g.npz", "--methods", ","], r"Expected methods to be among .* \(got ''\)"),
        (["measure", "g.npz", "--lr", "nan"], "Expected --lr to be greater than 0 and finite"),
        (["measure", "g.npz", "--refresh-age", "²"], r"Expected --refresh-age .* \(got '²'\)"),
        (["measure", "g.npz", "--seed", str(10**30)], "Expected --seed to be less than or equal to 4294967295"),
        (["partition", "g.npz", "--out", "p.npz", "--parts", "99"], "Expected 'parts'"),
        (["predict", "nope", "--out", "a/b/c.csv"], "Expected nope to be the folder of a run"),
        (["report", "nope", "--out", "a/b.html"], "Expected run to be a folder"),
    ],
    ids=str,
)
def test_a_refused_command_leaves_nothing(command: Command, place: Path, line: list[str], message: str) -> None:
    before = sorted(place.rglob("*"))
    done = command(*line, *(["--quiet"] if "--quiet" not in line else []), code=2)
    assert re.fullmatch(rf"topoff: .*{message}.*\n", done.err)
    assert sorted(place.rglob("*")) == before


def test_a_target_that_the_labels_rule_out_is_refused_before_training() -> None:
    with CompareProgress(quiet=True, targets={"--target": 75}) as progress:
        with pytest.raises(ValueError, match=r"accuracy can have, 0 to 1 \(got 75\); write 75 % as 0\.75"):
            progress.knows("accuracy", 3)
        progress.knows("rmse", 3)


@pytest.mark.filterwarnings("ignore:The compensation misses")
@pytest.mark.parametrize("name", ["r", "m"])
@pytest.mark.usefixtures("place")
def test_other_labels_than_classes_can_be_measured(command: Command, name: str) -> None:
    done = command("measure", f"{name}.npz", *TINY, "--rank", "4", "--ratio", "0.5", "--methods", "top,drop", "--json")
    assert all(0 < row["relative_error"] < 5 for row in done.json.values())
    assert all(-1 <= row["gradient_cosine"] <= 1 for row in done.json.values())


def test_odd_names_are_recorded_as_they_are(command: Command, place: Path) -> None:
    odd = "x\n[y]\x1b\"'\\é  # chosen: z"
    (place / f"{odd}.npz").write_bytes((place / "g.npz").read_bytes())
    command("train", f"{odd}.npz", *TINY, "--method", "full", "--out", place / odd)
    text = (place / odd / "config.toml").read_text()
    assert tomllib.loads(text)["dataset"] == f"{odd}.npz"
    assert text.startswith("# topoff train $'x\\n[y]\\x1b")
    command("evaluate", place / odd, "--quiet")
    command("train", "--resume", place / odd, "--quiet")


def test_a_run_in_the_background_hears_ctrl_c(place: Path) -> None:
    line = ["train", "g.npz", *TINY, "--epochs", "100000", "--method", "full", "--out", "run"]
    process = start_verb(*line, "--set", "checkpoint_seconds=999", folder=place, ignored=signal.SIGINT)
    metrics = place / "run" / "metrics.jsonl"
    for _ in range(2400):  # a busy machine
        if process.poll() is not None or (metrics.is_file() and metrics.stat().st_size):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert finish(process) == Done(1, "", "topoff: Stopped; resume with: topoff train --resume run\n")
    assert (place / "run" / "checkpoint" / "latest.safetensors").is_file()  # saved when it was stopped
