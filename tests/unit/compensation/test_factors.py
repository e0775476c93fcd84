"""What a refresh is said to cost: the rows and messages that are counted, and where batches hold few of the nodes."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GAT, SAGEConv

from topoff import TOP, NodeSets, load
from topoff.compensation.factors import work_row
from topoff.compensation.refresh import price_of


def path(nodes: int = 12) -> Data:
    """Return a path, both ways; the first two nodes are for training."""
    one = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    data = Data(x=torch.rand(nodes, 3), edge_index=torch.cat([one, one.flip(0)], dim=1), y=torch.arange(nodes) % 2)
    data.train_mask = torch.arange(nodes) < 2
    data.val_mask, data.test_mask = torch.arange(nodes) == 2, torch.arange(nodes) > 2
    return load(data)


def prepared(model: torch.nn.Module, **settings: object) -> TOP:
    """Return a TOP whose batches are cut."""
    top = TOP(model, path(), rank=1, tolerance=float("inf"), **settings)  # type: ignore[arg-type]
    top.prepare()
    return top


class Sage(torch.nn.Module):
    """Two layers of mean aggregation, whose operator has no self-loops."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(3, 4), SAGEConv(4, 2)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)  # type: ignore[no-any-return]


def halves() -> NodeSets:
    """Return sets that cut the path in two, so that one edge each way goes across."""
    sets = NodeSets(method="metis", ratio=0.5, parts=2)
    sets.fit(path(), parts=(torch.arange(12) >= 6).long())
    return sets


@pytest.mark.parametrize("model", [Sage(), GAT(3, 4, num_layers=2, out_channels=2)], ids=["linear", "general"])
def test_rows_and_messages_are_counted_and_steps_only_where_there_are_labels(model: torch.nn.Module) -> None:
    batches = prepared(model, batches=halves()).cover()
    counted = {bool(batch.train_mask.any()): work_row(batch) for batch in batches}
    assert counted == {True: [6.0, 10.0, 1.0], False: [0.0, 0.0, 1.0]}


def test_a_refresh_costs_more_where_messages_come_from_outside() -> None:
    few, many = (price_of(1000, 20_000 - out, out, nodes=1000, edges=20_000) for out in (1_000, 15_000))
    assert few < 1 < many


@pytest.mark.parametrize(("train_only", "scarce"), [(True, True), (False, False)])
def test_batches_of_few_nodes_are_scarce(*, train_only: bool, scarce: bool) -> None:
    top = prepared(Sage(), ratio=0.5, batches="random", train_only=train_only)
    assert top.refreshing.scarce is scarce
