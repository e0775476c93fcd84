"""Batches on disk: the same tensors, each once, and what is the user's stays as it is."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import topoff.forward.away
from graphs import communities
from topoff import TOP, load
from topoff.forward.away import bring, put_away
from topoff.forward.subgraph import cut_batch
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph
from topoff.machine.shelf import Shelf

LITTLE = 1e-9  # GiB: everything is larger


class Pair(NamedTuple):
    one: int
    other: Tensor


class Wide(nn.Module):
    """Reads edges itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = GCN(8, 8, num_layers=2, out_channels=3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        one = torch.ones_like(edge_index[1], dtype=x.dtype)
        degree = torch.zeros(len(x), dtype=x.dtype).index_add(0, edge_index[1], one)
        return self.net(x, edge_index) / (1 + degree[:, None])  # type: ignore[no-any-return]


def graph_of(model: nn.Module) -> tuple[Graph, Data]:
    n = 1500
    ids = torch.arange(n)
    data = Data(x=torch.rand(n, 8), edge_index=torch.stack([ids, ids.roll(1)]), y=ids % 3)
    data.other, data.pair = Data(z=torch.rand(4000)), Pair(1, torch.rand(4000))
    data.table = torch.rand(n + 1, 4)
    graph = Graph(data)
    return graph, cut_batch(graph, make_plan(model, graph), ids[:1000])


@pytest.mark.parametrize("model", [GCN(8, 8, num_layers=2, out_channels=3), Wide()], ids=["gcn", "wide"])
def test_a_batch_is_put_away_and_brought_back(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, batch = graph_of(model)
    shelf, kept, asked = Shelf(0, folder=tmp_path), Counter[int](), list[int]()
    keep = shelf.keep

    def counted(rows: Tensor) -> Tensor:
        kept[id(rows)] += 1
        return keep(rows)

    monkeypatch.setattr(shelf, "keep", counted)
    before, structure = batch.x, batch.supplement.structure
    put_away(batch, graph, shelf)
    assert set(kept.values()) == {1}
    assert batch.x is batch.supplement.own["x"]
    assert batch.x is not before
    assert torch.equal(batch.x, before)
    for chain, rows in batch.supplement.structure.constants.items():
        assert torch.equal(rows, structure.constants[chain])
    assert batch.other is graph.data.other
    assert batch.pair is graph.data.pair
    assert batch.table is graph.data.table
    found = batch.supplement
    monkeypatch.setattr(topoff.forward.away, "ahead", lambda rows: asked.append(rows.data_ptr()))
    bring(batch, graph)
    assert batch.supplement is found
    wide = [] if found.wide is None else [found.wide.x.data_ptr()]
    assert {batch.x.data_ptr(), batch.edge_index.data_ptr(), *wide} <= set(asked)


class Dropped(nn.Module):
    """Drops out its input."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.net = GCN(features, 8, num_layers=2, out_channels=8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(nn.functional.dropout(x, 0.5, self.training), edge_index)  # type: ignore[no-any-return]


def training(*, memory: float | None, epochs: int = 3, **settings: Any) -> Iterator[list[float]]:
    """Yield the losses of every epoch."""
    data = load(communities(dtype=torch.float32))
    torch.manual_seed(0)
    top = TOP(Dropped(data.num_features), data, ratio=0.25, rank=4, refresh="every=1", memory=memory, **settings)
    optimizer = torch.optim.Adam(top.model.parameters(), lr=0.01)
    for _ in range(epochs):
        losses = []
        for batch in top:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(top(batch)[batch.train_mask], batch.y[batch.train_mask])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        yield losses


@pytest.mark.parametrize("settings", [{"regroup": True}, {"inits": 2}, {}], ids=str)
def test_training_on_disk_has_the_bits_of_training_in_memory(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))
    monkeypatch.setattr("topoff.machine.shelf.mmap.PAGESIZE", 1)  # so that small tensors lie on disk, too
    assert list(training(memory=None, **settings)) == list(training(memory=LITTLE, **settings))


def test_a_refresh_that_a_full_disk_has_ended_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))
    data = load(communities(dtype=torch.float32))
    torch.manual_seed(0)
    top = TOP(GCN(data.num_features, 8, num_layers=2, out_channels=8), data, ratio=0.25, rank=4, memory=LITTLE)
    assert len(list(top)) == 4
    with monkeypatch.context() as patch:
        patch.setattr(Shelf, "keep", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            top.refresh()
    assert top.basis.due()
    assert len(list(top)) == 4
    assert not top.basis.due()
    assert all(batch.compensation.offsets for batch in top)
