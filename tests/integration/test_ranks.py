"""`torchrun -m topoff train`: several processes, one run folder, and what happens when one of them is lost."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from commands import KEPT
from graphs import communities
from processes import run_verbs, start_verbs

SETTINGS = ("--epochs", 4, "--ratio", 0.2, "--hidden", 8, "--batches", "random", "--checkpoint-seconds", 0, "--quiet")
TRAIN = ("train", "graph.npz", *SETTINGS)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "-m", "topoff")


def write(folder: Path, **kind: int) -> None:
    """Write a graph."""
    data = communities(120, **kind)
    np.savez(folder / "graph.npz", **{key: value.numpy() for key, value in data.to_dict().items()})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a graph, and a run of two processes that nobody disturbed."""
    folder = tmp_path_factory.mktemp("ranks")
    write(folder)
    first, second = run_verbs([folder] * 2, *TRAIN, "--json", "--out", "whole")
    assert (first.code, second.code, second.out, second.err) == (0, 0, "", ""), first.err
    result = first.json
    assert result["processes"] == 2
    assert 0 < result["bytes_per_epoch"] < min(result["rivals_bytes_per_epoch"].values())
    assert result["bytes_per_refresh"] > 0
    assert result["steps"] == 12
    return folder


def wait_for_an_epoch(run: Path) -> None:
    """Wait until a run has left a line of an epoch."""
    for _ in range(1200):
        if (run / "metrics.jsonl").is_file() and (run / "metrics.jsonl").stat().st_size:
            return
        time.sleep(0.05)


def second_of(launcher: int) -> int:
    """Return the second process that torchrun has started."""
    found = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and is_second(path, launcher))
    return next(found)


def is_second(path: Path, launcher: int) -> bool:
    try:
        parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == launcher and b"\0RANK=1\0" in (path / "environ").read_bytes()
    except OSError:
        return False


def bits(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def test_torchrun_starts_a_killed_process_again_and_the_run_ends_in_the_same_bits(place: Path) -> None:
    words = [sys.executable, *map(str, (*TORCHRUN, *TRAIN, "--out", "restarted"))]
    kept = {key: os.environ[key] for key in KEPT if key in os.environ} | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, cwd=place, env=kept, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_an_epoch(place / "restarted")
    os.kill(second_of(process.pid), signal.SIGKILL)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert bits(place / "restarted") == bits(place / "whole")


def test_a_run_that_lost_a_process_says_so_and_goes_on(place: Path) -> None:
    words = (*TRAIN, "--epochs", 4, "--out", "killed")
    first, second = start_verbs([place] * 2, *words)
    wait_for_an_epoch(place / "killed")
    second.process.kill()
    lost = first.end()
    assert lost.code == 1
    assert re.search(r"^topoff \(rank 0\): Expected all processes of the run to go on \(got one that has", lost.err)
    assert lost.err.endswith("the same command with --out killed goes on.\n")
    assert not (place / "killed" / "result.json").exists()
    assert [done.code for done in run_verbs([place] * 2, *words)] == [0, 0]
    assert bits(place / "killed") == bits(place / "whole")


def test_a_stopped_run_is_saved_by_the_first_process(place: Path) -> None:
    words = (*TRAIN, "--out", "stopped", "--checkpoint-seconds", 100)
    first, second = start_verbs([place] * 2, *words)
    wait_for_an_epoch(place / "stopped")
    assert second.process.pid is not None
    os.kill(second.process.pid, signal.SIGTERM)
    done = [first.end(), second.end()]
    assert [each.code for each in done] == [1, 1]
    assert "Stopped; resume with: topoff train --resume stopped" in done[0].err
    assert done[1].err == ""
    assert [each.code for each in run_verbs([place] * 2, "train", "--resume", "stopped", "--quiet")] == [0, 0]
    assert bits(place / "stopped") == bits(place / "whole")


def test_another_number_of_processes_goes_on_or_is_refused(place: Path) -> None:
    words = ("train", "--resume", "whole", "--json")
    (place / "whole" / "result.json").unlink()  # its end is still to be written
    one = run_verbs([place], *words)[0]
    assert one.code == 0, one.err
    assert one.json["steps"] == 12
    (place / "whole" / "result.json").unlink()
    for done in run_verbs([place] * 3, *words):
        assert done.code == 2
        assert "as divide the 2 batches of a step (got 3)" in done.err
    assert run_verbs([place], *words)[0].code == 0


def test_a_run_of_single_batches_is_not_resumed_by_several(place: Path) -> None:
    assert run_verbs([place], *TRAIN, "--out", "single")[0].code == 0
    (place / "single" / "result.json").unlink()
    first, second = run_verbs([place] * 2, "train", "--resume", "single")
    assert (first.code, second.code) == (2, 1)
    assert "as divide the 1 batches of a step (got 2)" in first.err


def test_other_data_are_named_by_every_process(place: Path, tmp_path: Path) -> None:
    write(tmp_path, seed=1)
    for rank, done in enumerate(run_verbs([place, tmp_path], *TRAIN, "--out", "other")):
        assert done.code == 2
        pattern = rf"^topoff \(rank {rank}\): Expected the same graph in all processes \(got content \w+ in rank 1 and"
        assert re.search(pattern, done.err), done.err
    assert not (place / "other").exists()


def test_more_processes_than_batches_is_one_sentence(place: Path) -> None:
    for done in run_verbs([place] * 3, *TRAIN, "--ratio", 0.5, "--out", "many"):
        assert done.code == 2
        assert "Expected at most 2 processes, one per batch (got 3)" in done.err
    assert not (place / "many").exists()


def test_a_port_in_use_is_one_sentence(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = start_verbs([place], *TRAIN, port=port, size=2)[0].end()
    assert done.code == 2
    assert done.err.startswith(f"topoff (rank 0): Expected a free port for 127.0.0.1:{port} (got one that is in use)")
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--method", "gas"), "Expected method top, drop or drop-ax with several processes (got 'gas'"),
        (("--seconds", 5), "Expected epochs with several processes (got seconds = 5)"),
    ],
    ids=["gas", "seconds"],
)
def test_what_cannot_be_shared_is_refused(place: Path, words: tuple[object, ...], sentence: str) -> None:
    for done in run_verbs([place] * 2, "train", "graph.npz", "--out", "refused", *words):
        assert done.code == 2
        assert sentence in done.err
    assert not (place / "refused").exists()


def test_a_dry_run_speaks_once(place: Path) -> None:
    first, second = run_verbs([place] * 2, *TRAIN, "--dry-run", "--json")
    assert (first.code, second.code, second.out) == (0, 0, "")
    assert first.json["config"]["hidden"] == 8


@pytest.mark.parametrize(("size", "code"), [(2, 0), (1, -signal.SIGABRT)])
def test_one_of_several_ends_without_being_torn_down(size: int, code: int) -> None:
    """A thread of a library that has not ended aborts a process in its last moments, when all was written."""
    run = "import atexit, os, sys; atexit.register(os.abort); sys.argv = ['topoff', '--version']"
    command = [sys.executable, "-c", f"{run}; from topoff.cli.app import main; main()"]
    given = os.environ | {"RANK": "0", "WORLD_SIZE": str(size)}
    done = subprocess.run(command, env=given, capture_output=True, text=True)
    assert (done.returncode, done.stdout.startswith("topoff ")) == (code, True)
