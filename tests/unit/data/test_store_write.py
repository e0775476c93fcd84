"""A store comes about whole or not at all: bad graphs, full disks, killed processes."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from faults import Disk, Fault
from topoff.data.load import load
from topoff.data.store_write import EdgePiece, Pieces, write_store


def pieces(**changes: object) -> Pieces:
    ring = EdgePiece(np.arange(6), np.roll(np.arange(6), 1))
    parts: dict[str, object] = {"x": [np.ones((3, 2)), np.ones((3, 2))], "edges": [ring], "y": [np.arange(6) % 2]}
    return Pieces(nodes=6, expected_edges=6, **{**parts, "split": np.array([0, 0, 0, 1, 2, -1]), **changes})


def test_the_type_of_features_is_kept_or_chosen(tmp_path: Path) -> None:
    cases = ((np.float64, None, "float64"), (np.float16, None, "float16"), (np.int64, None, "float32"))
    for number, (given, wish, came) in enumerate((*cases, (np.float64, "float16", "float16"))):
        store = write_store(tmp_path / str(number), pieces(x=[np.ones((6, 2), given)]), dtype=wish)
        assert (store.header.dtype, store.array("x").dtype.name) == (came, came)
    with pytest.raises(ValueError, match=r"features to be float32, float16, float64 \(got 'int8'\); choose one"):
        write_store(tmp_path / "s", pieces(), dtype="int8")
    with pytest.raises(ValueError, match=r"features within the range of float16 \(got 1e\+05\); scale them, or store"):
        write_store(tmp_path / "s", pieces(x=[np.full((6, 2), 1e5)]), dtype="float16")


def test_narrow_features_are_mapped_as_they_are_and_read_wide(tmp_path: Path) -> None:
    path = write_store(tmp_path / "s", pieces(x=[np.full((6, 2), 300.0)]), dtype="float16").path
    assert str(load(path, in_memory=False).x.dtype) == "torch.float16"
    assert str(load(path, in_memory=True).x.dtype) == "torch.float32"


BAD = {
    "features": ({"x": [np.array([[np.nan, 1]] * 6)]}, r"'x' to be finite \(got NaN or inf in 6 rows, first 0\)"),
    "rows": ({"y": [np.arange(5)]}, r"got something else: y of shape \(5,\)|'y' to have 6 rows"),
    "edges": ({"edges": [EdgePiece(np.array([6]), np.array([0]))]}, "node ids from 0 to 5"),
    "training": ({"split": np.full(6, 2)}, "'train_mask' to hold a node"),
    "classes": ({"y": [np.full(6, -1)]}, "'y' to hold classes from 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_graph_that_fails_a_check_is_not_written(tmp_path: Path, name: str) -> None:
    changes, match = BAD[name]
    with pytest.raises(ValueError, match=match):
        write_store(tmp_path / "s", pieces(**changes))
    assert os.listdir(tmp_path) == []


def test_a_store_is_replaced_in_one_step(tmp_path: Path) -> None:
    write_store(tmp_path / "s", pieces())
    with pytest.raises(ValueError, match="node ids"):
        write_store(tmp_path / "s", pieces(**BAD["edges"][0]))
    assert load(tmp_path / "s").num_nodes == 6
    write_store(tmp_path / "s", pieces(x=[np.zeros((6, 3))]))
    assert load(tmp_path / "s").num_features == 3
    assert os.listdir(tmp_path) == ["s"]


def test_a_disk_that_fills_up_at_any_moment_leaves_nothing(tmp_path: Path) -> None:
    """Let every change of the disk fail in turn, as on a disk that is full from then on."""
    with Disk(tmp_path).watching() as disk:
        write_store(tmp_path / "s", pieces())
    changes = disk.changes
    assert len(changes) > 30
    (tmp_path / "s").rename(tmp_path / "old")
    outcomes: dict[str, set[int]] = {"whole": set(), "nothing": set()}
    for at, change in enumerate(changes, 1):
        try:
            with Disk(tmp_path, Fault(at, error=errno.ENOSPC, phase="disk", lasting=True)).watching():
                write_store(tmp_path / "s", pieces())
        except OSError as error:
            outcomes["nothing"].add(error.errno or 0)
            assert os.listdir(tmp_path) == ["old"], change
        else:  # what frees room may be done on a full disk
            outcomes["whole"].add(load(tmp_path / "s").num_nodes or 0)
            shutil.rmtree(tmp_path / "s")
    assert outcomes == {"whole": {6}, "nothing": {errno.ENOSPC}}


def test_a_killed_process_leaves_nothing_that_is_loaded_and_its_draft_is_removed(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
import numpy as np
from topoff.data.store_write import EdgePiece, Pieces, write_store
def x():
    yield np.ones((3, 2))
    os.kill(os.getpid(), signal.SIGKILL)
ring = EdgePiece(np.arange(6), np.roll(np.arange(6), 1))
write_store(Path(sys.argv[1]), Pieces(nodes=6, edges=[ring], expected_edges=6, x=x()))
"""
    process = subprocess.run([sys.executable, "-c", script, str(tmp_path / "s")], check=False)
    assert process.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".s.")
    assert left.name.endswith(".part")
    for path in (left, left / "s", tmp_path / "s"):
        with pytest.raises(FileNotFoundError):
            load(path)
    write_store(tmp_path / "s", pieces())
    assert os.listdir(tmp_path) == ["s"]


def test_a_process_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Iterator[np.ndarray]:
        yield np.ones((3, 2))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_store(tmp_path / "new" / "s", pieces(x=rows()))
    assert os.listdir(tmp_path) == []
