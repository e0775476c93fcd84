"""A mapped graph is described as it is in memory."""

from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from graphs import communities, corners
from topoff.data import describe_store
from topoff.data.check import check
from topoff.data.describe import describe
from topoff.data.load import load
from topoff.data.pieces import data_pieces
from topoff.data.store_write import write_store


def crooked() -> Data:
    data = corners(dtype=torch.float32)
    del data.edge_attr
    data.x[:, 0] = 2.0
    data.y[3] = -1
    data.train_mask[3] = False
    return data


def chain() -> Data:
    """Return a long path, in an order that propagation of labels would need many steps for."""
    order = torch.randperm(300)
    return Data(x=torch.randn(300, 2), edge_index=torch.stack([order[:-1], order[1:]]), y=torch.arange(300) % 3)


def several() -> Data:
    data = communities(dtype=torch.float32, directed=True)
    data.y = (torch.rand(60, 4) < 0.5).float()
    return data


@pytest.mark.parametrize("make", [crooked, chain, several, communities])
@pytest.mark.parametrize("size", [3, 1 << 22])
def test_the_same_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object, size: int) -> None:
    monkeypatch.setattr(describe_store, "EDGES", size)
    monkeypatch.setattr(describe_store, "ROWS", size)
    write_store(tmp_path / "s", data_pieces(load(make())))  # type: ignore[operator]
    read, mapped = (describe(load(tmp_path / "s", in_memory=wish)) for wish in (True, False))
    for item in fields(read):
        one, other = getattr(read, item.name), getattr(mapped, item.name)
        if item.name == "features":
            assert vars(other) == pytest.approx({**vars(one), "dtype": other.dtype})
        elif item.name == "memory":
            assert one["edges"] > other["edges"]
        elif "homophily" in item.name:
            assert other == (None if one is None else pytest.approx(one))
        else:
            assert one == other, item.name


def test_classes_without_an_edge_between_them(tmp_path: Path) -> None:
    loops = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [0, 1]]), y=torch.arange(3))
    write_store(tmp_path / "s", data_pieces(check(load(loops))))
    assert describe(load(tmp_path / "s", in_memory=False)).homophily is None
