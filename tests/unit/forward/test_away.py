"""Batches on disk: the same tensors, each once, and the next one is asked for."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

import topoff.forward.away
from topoff.forward.away import bring, put_away
from topoff.graph.operators import Movable
from topoff.machine.shelf import Shelf


@dataclass(frozen=True, repr=False)
class Record(Movable):
    x: Tensor
    more: dict[str, Tensor]
    wide: Data
    name: str = "a"


@pytest.fixture
def batch() -> Data:
    x = torch.rand(3000, 2)
    record = Record(x, {"y": torch.rand(4000)}, Data(x=x, z=torch.rand(5000)))
    return Data(x=x, record=record, number=3, text="words")


def test_the_same_tensor_stays_the_same(batch: Data, tmp_path: Path) -> None:
    before = batch.x, batch.record.more["y"], batch.record.wide.z
    put_away(batch, Shelf(0, folder=tmp_path))
    assert batch.x is batch.record.x is batch.record.wide.x
    after = batch.x, batch.record.more["y"], batch.record.wide.z
    for one, other in zip(before, after, strict=True):
        assert one is not other
        assert torch.equal(one, other)
    assert (batch.number, batch.text, batch.record.name) == (3, "words", "a")


def test_every_tensor_is_asked_for(batch: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(topoff.forward.away, "ahead", lambda rows: asked.append(rows.nbytes))
    bring(batch)
    assert {24000, 16000} <= set(asked)
