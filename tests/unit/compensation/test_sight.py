"""What batches see of all nodes is enough for an estimate."""

from pathlib import Path

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities
from topoff import TOP
from topoff.batching.node_sets import NodeSets
from topoff.compensation import basis, passes
from topoff.compensation.loader import Loader
from topoff.compensation.sight import Sight, gathered
from topoff.machine.shelf import Shelf


def few(n: int = 120, *, most: bool = False) -> Data:
    """Return a graph of which every sixth node is for training, or all others."""
    data = communities(n)
    data.train_mask = (torch.arange(n) % 6 == 0) ^ most
    data.val_mask, data.test_mask = ~data.train_mask, torch.zeros(n, dtype=torch.bool)
    return data


class Encoded(nn.Module):
    """Propagate no raw features, whose weight in a basis depends on which rows are counted."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first, self.convs = nn.Linear(features, 6), gnn.GraphSAGE(6, 6, num_layers=2, out_channels=3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.convs(self.first(x).relu(), edge_index)
        return out


def top_of(data: Data, *, encoded: bool = False, **settings: object) -> TOP:
    torch.manual_seed(0)
    sage = gnn.GraphSAGE(data.num_features, 6, num_layers=3, out_channels=3)
    model = (Encoded(data.num_features) if encoded else sage).to(data.x.dtype)
    sets = NodeSets(method="random", ratio=0.5, train_only=True)
    return TOP(model, data, batches=sets, rank=8, refresh="every=1", **settings)


def test_an_estimate_from_what_is_seen_is_that_from_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    data = few()
    monkeypatch.setattr(basis, "SCARCE", 10.0)  # else propagated features join the basis, by the rows that are counted
    seen = top_of(data, encoded=True)
    batches = seen.prepare().batches()
    assert seen.compensator.sight is not None
    assert not seen.compensator.is_fitted, "the basis was let go"
    monkeypatch.setattr(Loader, "sight", lambda self: None)
    whole = top_of(data, encoded=True)
    for one, other in zip(batches, whole.prepare().batches(), strict=True):
        for operator, spread in one.compensation.spread.items():
            product = spread @ one.compensation.read
            truth = other.compensation.spread[operator] @ other.compensation.read
            torch.testing.assert_close(product, truth, rtol=1e-6, atol=1e-8)
        for place, offset in one.compensation.offsets.items():
            torch.testing.assert_close(offset, other.compensation.offsets[place], rtol=1e-6, atol=1e-8)


def test_a_refresh_makes_batches_of_few_nodes_exact_with_and_without_its_output() -> None:
    top = top_of(few())
    top.prepare()
    with torch.no_grad():
        for parameter in top.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert top.refresh(output=False) is None
    kept = [dict(batch.compensation.offsets) for batch in top.prepare().batches()]
    assert torch.allclose(top.refresh(), top.predict())
    again = [batch.compensation.offsets for batch in top.prepare().batches()]
    assert all(torch.equal(one[key], other[key]) for one, other in zip(kept, again, strict=True) for key in one)
    assert top.fidelity().relative_error < 1e-6


def test_all_rows_are_kept_where_batches_see_more_than_there_is() -> None:
    assert top_of(few(most=True)).prepare().sight() is None
    assert top_of(few(), estimator="released", offset=False).prepare().sight() is None


@pytest.mark.parametrize("kind", [gnn.GCN, gnn.GAT])
@pytest.mark.parametrize("room", [0, 2000, 10**9])
def test_what_batches_see_of_a_matrix_on_disk_is_what_they_see_in_memory(
    kind: type[nn.Module], room: int, tmp_path: Path
) -> None:
    data = few()
    model = kind(data.num_features, 6, num_layers=2, out_channels=3).to(data.x.dtype)
    top = TOP(model, data, batches=NodeSets(method="random", ratio=0.25, train_only=True), rank=2)
    batches = top.prepare().batches()
    structures = [batch.supplement.structure for batch in batches]
    rows, shelf = torch.rand(120, 6, dtype=torch.float64), Shelf(0, block=room, folder=tmp_path)
    whole = shelf.empty((120, 6), torch.float64)
    whole[:] = rows
    assert torch.equal(Sight(structures, shelf=shelf).of(whole), Sight(structures).of(rows))
    groups = list(gathered(structures, whole, shelf=shelf))
    assert [number for group in groups for number in group.numbers] == list(range(len(structures)))
    assert len(groups) == {0: len(structures), 10**9: 1}.get(room, len(groups))
    assert all(len(group.rows) < 120 for group in groups)


def test_a_matrix_in_memory_is_not_copied(tmp_path: Path) -> None:
    rows = torch.rand(4, 2)
    (group,) = gathered([], rows, shelf=Shelf(0, folder=tmp_path))
    assert group.rows is rows


def test_a_fit_ends_where_the_last_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str | None] = []
    embed = passes.embed
    monkeypatch.setattr(passes, "embed", lambda *args, **given: ended.append(given["last"]) or embed(*args, **given))
    top = top_of(few(), inits=2)
    top.prepare()
    assert ended == ["convs.2/0/0"] * len(ended)
    assert len(ended) == 2
