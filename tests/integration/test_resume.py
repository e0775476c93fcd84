"""A run that is killed at any moment and resumed ends in the same bits as one that is left alone."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

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


def start(*arguments: object, cache: Path) -> subprocess.Popen[str]:
    """Start a verb in a process of its own."""
    command = [sys.executable, "-m", "topoff", *map(str, arguments)]
    environment = {"TOPOFF_CACHE": str(cache), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(cache)}
    listening = {
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    }  # ignored under `nohup make test &`
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, text=True, **pipes, **listening)


def finish(*arguments: object, cache: Path) -> None:
    """Run a verb to its end."""
    process = start(*arguments, cache=cache)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err


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


@pytest.mark.parametrize("variant", [["--refresh", "every=3"], ["--refresh", "adaptive", "--regroup"]], ids=str)
def test_killed_and_resumed_is_uninterrupted(graph: Path, tmp_path: Path, variant: list[str]) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish("train", graph, *SETTINGS, *variant, "--out", whole, "--quiet", cache=tmp_path / "cache")
    process = start("train", graph, *SETTINGS, *variant, "--out", broken, "--quiet", cache=tmp_path / "cache")
    for epoch in (3, 10):
        wait_for_epoch(process, broken, epoch=epoch)
        time.sleep(0.013 * epoch)  # somewhere inside an epoch, a refresh or a write
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert not (broken / "result.json").exists()
        process = start("train", "--resume", broken, "--quiet", cache=tmp_path / "cache")
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, out + err
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert without_times(broken) == without_times(whole)
    assert len(without_times(whole)) == 24


def test_ctrl_c_saves_and_says_how_to_go_on(graph: Path, tmp_path: Path) -> None:
    run, settings = tmp_path / "run", [*SETTINGS, "--refresh", "every=3"]
    process = start("train", graph, *settings, "--out", run, "--quiet", cache=tmp_path / "cache")
    wait_for_epoch(process, run, epoch=5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err == f"topoff: Stopped; resume with: topoff train --resume {run}\n"
    finish("train", "--resume", run, "--quiet", cache=tmp_path / "cache")
    finish("train", graph, *settings, "--out", tmp_path / "whole", "--quiet", cache=tmp_path / "cache")
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
