"""Array files: written in pieces, mapped, and refused in one sentence where they are not what was written."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from faults import Disk, Fault
from topoff.data.array_file import ArrayWriter, Entry, check_array, open_array, verify_array


def write(path: Path, values: np.ndarray) -> Entry:
    with ArrayWriter(path, values.dtype) as writer:
        for row in values:
            writer.append(row)
        return writer.finish(values.shape)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "int8", "<U3"])
def test_what_is_written_is_read_by_numpy_and_mapped(tmp_path: Path, dtype: str) -> None:
    values = np.arange(12).reshape(4, 3).astype(dtype)
    entry = write(tmp_path / "a.npy", values)
    assert np.array_equal(np.load(tmp_path / "a.npy"), values)
    mapped = open_array(tmp_path / "a.npy", entry)
    assert np.array_equal(mapped, values)
    assert mapped.dtype == values.dtype
    verify_array(tmp_path / "a.npy", entry)


def test_nothing_is_an_array_too(tmp_path: Path) -> None:
    entry = write(tmp_path / "a.npy", np.zeros((0, 3)))
    assert open_array(tmp_path / "a.npy", entry).shape == (0, 3)


def test_what_is_changed_in_memory_stays_there(tmp_path: Path) -> None:
    entry = write(tmp_path / "a.npy", np.zeros(3))
    open_array(tmp_path / "a.npy", entry)[:] = 1
    assert np.load(tmp_path / "a.npy").sum() == 0


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    entry = write(path, np.arange(6.0).reshape(3, 2))
    content = path.read_bytes()
    path.write_bytes(content[:-8])
    with pytest.raises(ValueError, match=r"a\.npy to have 176 bytes, .* \(got 168\); copy or write the store again"):
        check_array(path, entry)
    path.write_bytes(content[:-1] + b"\1")
    check_array(path, entry)
    with pytest.raises(ValueError, match=r"a\.npy to have the checksum \w+ \(got \w+: its content has changed\)"):
        verify_array(path, entry)
    path.write_bytes(b"x" * len(content))
    with pytest.raises(ValueError, match=r"a\.npy to be an \.npy file \(got a damaged header\)"):
        open_array(path, entry)
    path.write_bytes(content.replace(b"<f8", b"<i8"))
    with pytest.raises(ValueError, match=r"a\.npy to hold float64 of shape \(3, 2\).* \(got int64 of shape \(3, 2\)\)"):
        open_array(path, entry)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.npy as the store's header says \(got no such file\)"):
        open_array(path, entry)


def test_a_full_disk_is_an_error_with_its_number(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space") as raised,
        Disk(tmp_path, Fault(3, error=errno.ENOSPC, phase="disk", lasting=True)).watching(),
    ):
        write(tmp_path / "a.npy", np.zeros((100, 4)))
    assert raised.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == ["a.npy"]  # who writes a store removes it
