"""A run that is killed at any moment and resumed ends in the same bits as one that is left alone."""

import json
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from commands import Command, Done, finish, start_verb

SETTINGS = ["--epochs", "24", "--hidden", "16", "--layers", "2", "--ratio", "0.25", "--rank", "8", "--dropout", "0.3"]
SETTINGS += ["--eval-every", "2", "--schedule", "cosine", "--checkpoint-seconds", "0", "--weight-decay", "1e-4"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a random graph of 400 nodes, three classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 400)
    x = (np.eye(3)[y] + rng.normal(size=(400, 3))).astype(np.float32)
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    np.savez(path, x=x, y=y, edge_index=rng.integers(0, 400, (2, 1600)))
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))


def wait_for_epoch(process: subprocess.Popen[str], run: Path, *, epoch: int) -> None:
    """Wait until a run has written the line of an epoch."""
    for _ in range(2400):
        lines = (run / "metrics.jsonl").read_text().count("\n") if (run / "metrics.jsonl").is_file() else 0
        if lines >= epoch or process.poll() is not None:
            return
        time.sleep(0.05)


def without_times(run: Path) -> list[dict[str, object]]:
    """Return the metrics of a run; seconds differ between any two runs."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if not key.endswith("seconds")} for record in records]


@pytest.mark.parametrize("variant", [["--refresh", "every=3"], ["--refresh", "auto", "--regroup"]], ids=str)
def test_killed_and_resumed_is_uninterrupted(command: Command, graph: Path, tmp_path: Path, variant: list[str]) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command("train", graph, *SETTINGS, *variant, "--out", whole, "--quiet")
    for epoch, line in ((3, [graph, *SETTINGS, *variant, "--out", broken]), (10, ["--resume", broken])):
        process = start_verb("train", *line, "--quiet", folder=tmp_path)
        wait_for_epoch(process, broken, epoch=epoch)
        time.sleep(0.013 * epoch)  # somewhere inside an epoch, a refresh or a write
        process.send_signal(signal.SIGKILL)
        assert finish(process).code == -signal.SIGKILL
        assert not (broken / "result.json").exists()
    command("train", "--resume", broken, "--quiet")
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert without_times(broken) == without_times(whole)
    assert len(without_times(whole)) == 24


def test_ctrl_c_saves_and_says_how_to_go_on(command: Command, graph: Path, tmp_path: Path) -> None:
    run, settings = tmp_path / "run", [*SETTINGS, "--refresh", "every=3"]
    process = start_verb("train", graph, *settings, "--out", run, "--quiet", folder=tmp_path)
    wait_for_epoch(process, run, epoch=5)
    process.send_signal(signal.SIGINT)
    assert finish(process) == Done(1, "", f"topoff: Stopped; resume with: topoff train --resume {run}\n")
    command("train", "--resume", run, "--quiet")
    command("train", graph, *settings, "--out", tmp_path / "whole", "--quiet")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
