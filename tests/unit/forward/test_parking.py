"""What sleeping forwards hold goes to disk and comes back: the same bits, less memory, and no trace."""

import os
from collections.abc import Callable, Iterator

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn

from graphs import communities
from topoff.forward import lockstep as room
from topoff.forward.exact import exact
from topoff.forward.parking import Parking
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph


class Batch:
    rows = 8


class Deep(nn.Module):
    """Hold several layers while others are propagated: a view of one, one twice, and one that it writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(gnn.SAGEConv(6, 6) for _ in range(4))
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        root = self.first(x).relu()
        h, total = root, torch.zeros_like(root)
        for conv in self.convs:
            total += h
            flipped = h.view(-1).view_as(h)
            h = conv(h, edge_index).relu() + 0.1 * flipped + 0.1 * root
        return self.last(total + h)


@pytest.fixture
def park() -> Iterator[Callable[..., Parking]]:
    made: list[Parking] = []

    def make(**settings: int) -> Parking:
        made.append(Parking(least=1, **settings))
        return made[-1]

    yield make
    for parking in made:
        parking.close()


def holds(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() > 0


@pytest.mark.parametrize("limit", [0, 4000])
def test_exact_inference_gives_the_same_bits_with_and_without_disk(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    data, model = communities(60), Deep()
    graph = Graph(data)
    model.first = nn.Linear(data.num_features, 6)
    model = model.to(data.x.dtype).eval()
    plan, sets = make_plan(model, graph), list(torch.arange(60).split(17))
    expected = exact(model, graph, sets, plan=plan)
    made: list[Parking] = []

    def small() -> Parking:
        made.append(Parking(limit=limit, least=1))
        return made[-1]

    monkeypatch.setattr(room, "LARGE", 1)
    monkeypatch.setattr(room, "Parking", small)
    assert torch.equal(exact(model, graph, sets, plan=plan), expected)
    assert torch.allclose(model(data.x, data.edge_index), expected)
    assert made[-1].written > 0


@pytest.mark.parametrize("last", ["convs.1/0/0", "convs.2/0/0"])
def test_forwards_that_are_ended_early_leave_torch_as_it_was(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    data = communities(60)
    graph, model = Graph(data), Deep()
    model.first = nn.Linear(data.num_features, 6)
    model = model.to(data.x.dtype).eval()
    plan, sets, told = make_plan(model, graph), list(torch.arange(60).split(17)), list[str]()
    monkeypatch.setattr(room, "LARGE", 1)
    monkeypatch.setattr(room, "Parking", lambda: Parking(limit=0, least=1))
    inner = os.preadv
    monkeypatch.setattr(os, "preadv", lambda *given: told.append("read") or inner(*given))
    assert exact(model, graph, sets, plan=plan, remember=lambda place, _: told.append(place), last=last) is None
    assert "read" in told
    assert told[-1] == last, "nothing is read again that nobody wants"
    assert torch.ones(2).sum() == 2, "no mode is left behind"
    assert torch.allclose(exact(model, graph, sets, plan=plan), model(data.x, data.edge_index))
    monkeypatch.setattr(Deep, "forward", lambda self, x, edge_index: broken(self, x, edge_index))
    with pytest.raises(ValueError, match="no more"):
        exact(model, graph, sets, plan=plan)
    assert torch.ones(2).sum() == 2


def broken(model: Deep, x: Tensor, edge_index: Tensor) -> Tensor:
    """Fail in the last batch while all others sleep."""
    h = model.convs[1](model.convs[0](model.first(x), edge_index), edge_index)
    if len(x) == 60 % 17:
        raise RuntimeError("no more")
    return model.last(h)


def test_what_is_within_the_limit_stays_in_memory(park: Callable[..., Parking]) -> None:
    batch, parking = Batch(), park(limit=8 * 4)
    with parking.awake(batch):
        one, two = torch.ones(8), torch.ones(8)
        gone = torch.zeros(8)
        del gone
    assert [holds(one), holds(two)] == [True, False]
    assert parking.written == 8 * 4
    with parking.awake(batch):
        assert torch.equal(one + two, torch.full((8,), 2.0))


def test_only_rows_of_the_batch_with_memory_of_their_own_are_parked(park: Callable[..., Parking]) -> None:
    batch, parking, shared = Batch(), park(limit=0), torch.arange(8.0)
    with parking.awake(batch):
        view, table, own = shared.view(8, 1), torch.ones(5), torch.ones(8)
        seen = torch.ones(8)
        numbers = seen.numpy()
    assert [holds(each) for each in (view, shared, table, own, seen)] == [True, True, True, False, True]
    assert numbers.tolist() == [1.0] * 8
    parking.close()
    assert own.tolist() == [1.0] * 8


def test_one_tensor_can_be_read_while_the_batch_sleeps(park: Callable[..., Parking]) -> None:
    batch, parking = Batch(), park(limit=0)
    with parking.awake(batch):
        one, other = torch.ones(8), torch.ones(8)
        part = one[:4]
    with parking.reading(batch, part):
        assert one.sum() == 8
        assert not holds(other)
    assert not holds(one)
    with parking.reading(Batch(), torch.ones(2)):
        pass


def test_what_ends_with_its_forward_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch, park: Callable[..., Parking]
) -> None:
    batch, parking, read = Batch(), park(limit=0), list[int]()
    with parking.awake(batch):
        gone, kept = torch.ones(8), torch.arange(8.0)
    inner = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: read.append(at) or inner(file, parts, at))
    with parking.ending(batch):
        assert [holds(gone), holds(kept), read] == [True, True, []]
        del gone
    assert kept.tolist() == list(range(8)), "what outlives the forward has its content"
    assert len(read) == 1


def test_places_on_disk_are_used_again(park: Callable[..., Parking]) -> None:
    batch, parking = Batch(), park(limit=0)
    h = torch.ones(8)
    for _ in range(5):
        with parking.awake(batch):
            h = h + 1
    assert parking._end == 8 * 4
    parking.close()
    assert h.tolist() == [6.0] * 8


def test_a_full_disk_is_said_once_and_memory_used_instead(
    monkeypatch: pytest.MonkeyPatch, park: Callable[..., Parking]
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    batch, parking = Batch(), park(limit=0)
    with (
        pytest.warns(UserWarning, match="Cannot write 32 B to .*No space left on device; exact inference goes on"),
        parking.awake(batch),
    ):
        one = torch.ones(8)
    with parking.awake(batch):
        two = one + 1
    assert [holds(one), holds(two)] == [True, True]


def test_a_file_that_ends_too_early_is_refused(monkeypatch: pytest.MonkeyPatch, park: Callable[..., Parking]) -> None:
    batch, parking = Batch(), park(limit=0)
    with parking.awake(batch):
        one = torch.ones(8)
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", lambda *_: 0)
        with pytest.raises(OSError, match="the file ends too early"), parking.reading(batch, one):
            pass


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_single_numbers_and_sparse_matrices_stay(park: Callable[..., Parking]) -> None:
    batch, parking = Batch(), park(limit=0)
    with parking.awake(batch):
        number, sparse = torch.ones(8).sum(), torch.eye(8).to_sparse()
        sparse.mul_(2)
        rows = torch.eye(8).to_sparse_csr() @ torch.ones(8, 2)
    assert not holds(rows)
    assert float(number) == 8
    assert float(sparse.to_dense().sum()) == 16
