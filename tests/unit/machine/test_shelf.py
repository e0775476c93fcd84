"""Matrices in memory and on disk."""

import gc
from pathlib import Path

import pytest
import torch

from topoff.machine.shelf import Shelf, put, range_of, take

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]


def mapped() -> bool:
    return "/shelf-here/" in Path("/proc/self/maps").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shelf-here"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("limit", [0, 10**6])
def test_rows_are_kept(dtype: torch.dtype, limit: int, folder: Path):
    shelf = Shelf(limit, folder=folder)
    rows = torch.randint(2, (100, 3)).to(dtype)
    whole = shelf.empty((200, 3), dtype)
    put(whole, torch.arange(50, 150), rows)
    shelf.put_away(whole)
    assert shelf.is_away(whole) == shelf.is_away(whole[:, ::2]) == (limit == 0)
    assert torch.equal(take(whole, torch.arange(50, 150)), rows)
    assert torch.equal(take(whole, torch.tensor([149, 50])), rows[[99, 0]])
    assert folder.is_dir() == (limit == 0)


def test_a_matrix_on_disk_has_no_name_and_goes_with_its_tensor(folder: Path):
    whole = Shelf(0, folder=folder).empty((100, 3), torch.float32)
    assert not list(folder.iterdir())
    assert mapped()
    del whole
    gc.collect()
    assert not mapped()


def test_a_view_keeps_the_matrix(folder: Path):
    whole = Shelf(0, folder=folder).empty((100, 3), torch.float32)
    whole[:] = 1
    part = whole[10:20]
    del whole
    gc.collect()
    assert float(part.sum()) == 30


def test_scattered_rows(folder: Path):
    whole, nodes = Shelf(0, folder=folder).empty((6, 1), torch.float32), torch.tensor([4, 0, 2])
    whole.zero_()
    put(whole, nodes, torch.tensor([[1.0], [2.0], [3.0]]))
    assert whole.view(-1).tolist() == [2, 0, 3, 0, 1, 0]
    assert take(whole, nodes).view(-1).tolist() == [1, 2, 3]
    assert range_of(nodes) is None
    assert range_of(nodes[:0]) is None


def test_what_was_taken_is_ones_own(folder: Path):
    whole = Shelf(0, folder=folder).empty((6, 1), torch.float32)
    whole.zero_()
    take(whole, torch.arange(2)).add_(1)
    assert float(whole.sum()) == 0


def test_a_full_disk_is_one_sentence(folder: Path):
    with pytest.raises(OSError, match=r"expected room for a matrix of .* free some space there, set TOPOFF_CACHE"):
        Shelf(0, folder=folder).empty((2**45, 8), torch.float64)
    assert not list(folder.iterdir())
    (folder / "file").write_text("")
    with pytest.raises(OSError, match="expected room for a matrix of 12 B"):
        Shelf(0, folder=folder / "file").empty((1, 3), torch.float32)


def test_room_is_what_may_be_read_and_what_is_free(folder: Path, monkeypatch: pytest.MonkeyPatch):
    shelf = Shelf(0, block=100, folder=folder)
    for free, room in ((None, 100), (1000, 100), (60, 33)):
        monkeypatch.setattr("topoff.machine.shelf.free_memory", lambda free=free: free)
        assert shelf.room() == room


@pytest.mark.parametrize("dtype", TYPES)
def test_many_tensors_are_kept_in_one_file_that_goes_with_the_last(dtype: torch.dtype, folder: Path):
    shelf = Shelf(0, folder=folder)
    given = [torch.randint(2, (5000 + number, 3)).to(dtype) for number in range(3)]
    kept = [shelf.keep(tensor) for tensor in given]
    assert all(torch.equal(one, other) for one, other in zip(given, kept, strict=True))
    assert [tensor.data_ptr() % 64 for tensor in kept] == [0, 0, 0]
    assert len({tensor.data_ptr() for tensor in (*given, *kept)}) == 6
    assert mapped()
    assert not list(folder.iterdir())
    small, turned = torch.ones(3), torch.ones(3000, 2).t()
    assert shelf.keep(small) is small
    assert shelf.keep(turned) is turned
    del kept, shelf
    gc.collect()
    assert not mapped()


def test_a_tensor_that_is_larger_than_a_file_has_one_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("topoff.machine.shelf.SEGMENT", 2**14)
    shelf = Shelf(0, folder=folder)
    given = [torch.rand(size) for size in (2**11, 2**13, 2**11, 2**12)]
    assert all(torch.equal(shelf.keep(tensor), tensor) for tensor in given)


def test_what_was_kept_before_a_full_disk_stays(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("topoff.machine.shelf.SEGMENT", 2**14)
    shelf = Shelf(0, folder=folder)
    first = torch.rand(2**11)
    kept = shelf.keep(first)
    with monkeypatch.context() as patch:
        patch.setattr(shelf, "_mapped", lambda size: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            shelf.keep(torch.rand(2**13))
    shelf.keep(torch.zeros(2**11))
    assert torch.equal(kept, first)
    sparse = torch.eye(3000).to_sparse()
    assert shelf.keep(sparse) is sparse


def test_large_matrices_of_others_are_away_where_that_is_known(folder: Path):
    shelf, small, large = Shelf(100, folder=folder), torch.ones(5, 2), torch.ones(50, 2)
    shelf.adopt(small)
    shelf.adopt(large)
    assert [shelf.is_away(rows) for rows in (small, large, large[:, ::2], torch.ones(50, 2))] == [
        False,
        True,
        True,
        False,
    ]
    shelf.put_away(large)
    assert float(large.sum()) == 100
