"""Whatever the disk refuses, a run ends in one sentence and goes on in the same bits; `scripts/disks.py` tries all."""

import errno
import re
import resource
import signal

import pytest

from faults import Fault, Here
from trials import SHORT, Trial, refused_well, write_graph

FAILURES = [
    ("config.toml", "open", errno.ENOSPC),
    ("config.toml", "os.rename", errno.EROFS),
    ("checkpoint", "write", errno.ENOSPC),  # after half of the bytes
    ("checkpoint", "os.fsync", errno.EIO),
    ("checkpoint", "os.rename", errno.EACCES),
    ("metrics.jsonl", "write", errno.EDQUOT),
    ("result.json", "os.mkdir", errno.EROFS),
    ("report.html", "write", errno.ENOSPC),
    ("tensorboard/", "write", errno.ENOSPC),
    ("cache/", "write", errno.ENOSPC),
]
CODES = {errno.ENOSPC: 1, errno.EDQUOT: 1, errno.EIO: 1, errno.EROFS: 2, errno.EACCES: 2}


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, list[str]]:
    """Leave a run alone; return what it is compared by, and its changes of the disk."""
    machine = Here(tmp_path_factory.mktemp("machine"), plots=False)
    graph = write_graph(machine.place / "graph.npz")
    made, ended = Trial.of(machine, "train", graph, *SHORT, "--tensorboard")
    return made, ended.changes


@pytest.mark.parametrize(("file", "kind", "error"), FAILURES)
def test_a_disk_that_fails(trial: tuple[Trial, list[str]], file: str, kind: str, error: int) -> None:
    made, changes = trial
    found = [number for number, change in enumerate(changes, 1) if change.startswith(f"{kind} ") and file in change]
    wrong, (ended,) = made.survive(Fault(found[len(found) // 2], error=error, phase="disk", lasting=True))
    assert wrong == ""
    assert ended.code == CODES[error], ended.err
    assert re.search(r"no space|input/output|quota|read-only|permission", ended.err.lower())


def test_a_cache_that_fails_costs_a_warning(trial: tuple[Trial, list[str]]) -> None:
    made, changes = trial
    at = next(number for number, change in enumerate(changes, 1) if change.startswith("write cache/"))
    wrong, (ended,) = made.survive(Fault(at, error=errno.ENOSPC, phase="disk"))  # and not from then on
    assert (wrong, ended.code) == ("", 0)
    assert "warning: Cannot store" in ended.err


def test_a_file_that_may_not_grow(trial: tuple[Trial, list[str]]) -> None:
    """Let the system itself refuse: no file may have more than 4 KB."""
    made, before = trial[0], resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does itself, if not the program around it
    made.machine.clear()
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        ended = made.go_on(made.machine.disk / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert ended.code == 1
    assert refused_well(ended)
    assert made.go_on(made.machine.disk / "run").code == 0
    assert made.bits(made.machine.disk / "run") == made.whole
