"""`topoff bench`: every case on tiny stand-ins, in real processes."""

import json
from pathlib import Path

import pytest

from commands import call
from topoff.experiments import bench as room


def test_bench_prints_every_ratio_and_exits_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(room, "FIDELITY", 1.1)  # nothing is so true
    words = ("--only", "products", "--scale", "0.002", "--repeats", "1", "--out", tmp_path / "bench")
    done = call("bench", *words, "--json", "--quiet", capture=capfd, code=1)
    found = json.loads(done.out.splitlines()[-1])
    met = {promise["name"]: promise["met"] for promise in found["promises"]}
    assert met["fidelity of train_only batches"] is found["met"] is False
    assert met["peak memory, GiB"] is None, "promised of the full size alone"
    assert "GAS epoch / TOP epoch, train_only" in met
    assert all(promise["measured"] > 0 for promise in found["promises"])
    assert json.loads((tmp_path / "bench" / "bench.json").read_text()) == found
    again = call("bench", *words, capture=capfd, code=done.code)  # what is finished is read, not run again
    assert "met within 10 %" in again.out
    assert not again.err


def test_a_case_that_there_is_not_is_named_and_leaves_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    done = call("bench", "--only", "speed", "--out", tmp_path / "bench", capture=capfd, code=2)
    assert not (tmp_path / "bench").exists()
    assert "Expected --only to name cases of epoch, products, estimates (got 'speed')" in done.err
