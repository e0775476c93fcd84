"""A run that is killed at any moment and resumed ends in the same bits; `scripts/kills.py` tries many more moments."""

import zipfile
from pathlib import Path

import pytest

from faults import Fault, Machine
from trials import SHORT, Trial, bits, leftovers, write_graph

MOMENTS = [
    [Fault(1, phase="preparation", delay=0.01)],
    [Fault(3, phase="step"), Fault(1, phase="evaluation")],  # and again, when it is resumed
    [Fault(2, phase="seeds", delay=0.005)],  # as the second seed begins
]
WRITES = ["seed-1/.config.toml.", "/checkpoint/"]  # half of what a file shall hold is written


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trial, list[str]]:
    """Leave a run of two seeds alone; return what it is compared by, and its changes of the disk."""
    machine = Machine(tmp_path_factory.mktemp("machine"), plots=False)
    graph = write_graph(machine.place / "graph.npz")
    made, ended = Trial.of(machine, "train", graph, *SHORT, "--seeds", "0,1")
    return made, ended.changes


@pytest.mark.parametrize("faults", MOMENTS, ids=["preparation", "step, evaluation", "seeds"])
def test_a_killed_run_ends_in_the_same_bits(trial: tuple[Trial, list[str]], faults: list[Fault]) -> None:
    wrong, ended = trial[0].survive(*faults)
    assert [end.code for end in ended] == [-9] * len(faults)
    assert wrong == ""


@pytest.mark.parametrize("where", WRITES)
def test_killed_in_the_middle_of_a_write(trial: tuple[Trial, list[str]], where: str) -> None:
    made, changes = trial
    at = next(number for number, change in enumerate(changes, 1) if change.startswith("write ") and where in change)
    wrong, ended = made.survive(Fault(at, phase="disk"))
    assert ended[0].code == -9
    assert wrong == ""


def test_four_processes_fill_one_empty_cache(trial: tuple[Trial, list[str]]) -> None:
    machine, begin = trial[0].machine, trial[0].begin[:-2]  # of one seed
    machine.clear()
    runs = [machine.disk / f"at-once-{number}" for number in range(4)]
    started = [machine.start(*begin, "--out", run) for run in runs]
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [0] * 4
    first, *others = [bits(run) for run in runs]
    assert len(first) >= 4
    assert all(other == first for other in others)
    cache = machine.disk / "cache"
    assert {path.suffix for path in cache.iterdir()} == {".npz"}
    assert all(zipfile.ZipFile(path).testzip() is None for path in cache.iterdir())
    assert [path for path in leftovers(machine.disk) if not Path(path).is_relative_to("temp")] == []
