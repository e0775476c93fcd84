"""Rows of matrices on disk, picked in one walk."""

import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from topoff.machine import scan
from topoff.machine.scan import picked
from topoff.machine.shelf import Shelf


def on_disk(folder: Path, rows: Tensor) -> Tensor:
    whole = Shelf(0, folder=folder).empty(tuple(rows.shape), rows.dtype)
    whole[:] = rows
    return whole


ROWS = {"none": [], "all": range(100), "few": [0, 3, 4, 50, 99], "twice": [7, 7, 8], "late": [99]}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("block", [1, 64, 1000, 2**26])
@pytest.mark.parametrize("sparse", [0, 2**18])
def test_picked_rows_are_the_rows(
    rows: list[int], block: int, sparse: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "BLOCK", block)
    monkeypatch.setattr(scan, "SPARSE", sparse)
    chosen = torch.tensor(list(rows), dtype=torch.int64)
    whole = on_disk(tmp_path, torch.rand(100, 6, dtype=torch.float64))
    for view in (whole, whole[:, ::2], whole[:, 0], whole.view(100, 2, 3), torch.rand(100, 6)):
        assert torch.equal(picked(view, chosen), view[chosen])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_types_are_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    whole = on_disk(tmp_path, torch.arange(30).view(10, 3).to(dtype))
    assert torch.equal(picked(whole, torch.tensor([2, 9])), whole[[2, 9]])


def test_a_matrix_without_rows_or_columns() -> None:
    assert picked(torch.empty(0, 3), torch.empty(0, dtype=torch.int64)).shape == (0, 3)
    assert picked(torch.empty(4, 0), torch.tensor([1, 2])).shape == (2, 0)


def test_the_system_is_told_of_blocks_of_which_much_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(scan, "BLOCK", 2**20)
    monkeypatch.setattr(scan, "_advise", lambda address, length: told.append((address - whole.data_ptr(), length)))
    whole = torch.zeros(2**10, 2**10)  # 4 KiB each: blocks of 256 rows
    picked(whole, torch.tensor([0, 1, 2, 3, 256, 768, 769, 770, 771]))
    assert told == [(0, 2**20), (3 * 2**20, 2**20)]


def test_a_system_without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_WILLNEED", raising=False)
    whole = torch.rand(20, 2)
    assert torch.equal(picked(whole, torch.arange(20)), whole)
