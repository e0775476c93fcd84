"""What other processes compute is told apart from what this one does."""

from pathlib import Path

import pytest

import topoff.experiments.others
from topoff.experiments.others import Others


@pytest.fixture
def stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the machine's account be a file of ours, and time pass as the test says."""
    path = tmp_path / "stat"
    path.write_text("cpu  100 0 100 5000 7 0 0 0 0 0\ncpu0 1 1 1\n")
    monkeypatch.setattr(topoff.experiments.others, "STAT", path)
    return path


def test_what_others_compute_is_counted(stat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(topoff.experiments.others.time, "monotonic", lambda: next(moments))
    monkeypatch.setattr(topoff.experiments.others.os, "sysconf", lambda _: 100)
    others = Others()
    stat.write_text("cpu  900 100 200 5000 7 0 0 500 0 0\n")  # 15 seconds more, waiting and idling aside
    found = others.cores()
    assert found is not None
    assert 1.3 <= found <= 1.5
    stat.unlink()
    assert others.cores() is None
    assert Others().cores() is None
