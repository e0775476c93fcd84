"""Exact inference pass by pass: what is computed once, what again, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv

from graphs import communities
from topoff.forward.exact import exact
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph
from topoff.machine.shelf import Shelf


class Layers(nn.Module):
    """Stack convs that count their calls."""

    def __init__(self, width: int, *, kind: Any = SAGEConv) -> None:
        super().__init__()
        self.convs = nn.ModuleList([kind(width, 8), kind(8, 8), kind(8, 3)]).double()
        self.inner: list[int] = []
        self.convs[1].register_forward_hook(lambda *_: self.inner.append(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        for conv in self.convs:
            x = torch.relu_(conv(x, edge_index))
        return x


class Noting(GCNConv):  # type: ignore[misc]
    """Note something on itself that the model reads."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = super().forward(x, edge_index)
        self.size = self.lin.weight.sum()
        return out


class Reading(Layers):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs:
            x = conv(x, edge_index)
            x = x + conv.size
        return x


class Uneven(Layers):
    deep = False

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = super().forward(x, edge_index)
        return self.convs[-1](torch.cat([out, out, out], 1)[:, :8], edge_index) if self.deep and len(x) > 12 else out


class Crossed(Layers):
    deep = False

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.convs[0](x, edge_index)
        first, second = (self.convs[1], self.convs[2]) if not (self.deep and len(x) > 12) else (self.convs[2],) * 2
        return second(torch.cat([first(x, edge_index)] * 3, 1)[:, :8], edge_index)


@pytest.fixture
def graph() -> Graph:
    return Graph(communities(48, seed=3))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(0, folder=tmp_path)


def run(model: nn.Module, graph: Graph, plan: Any, shelf: Shelf | None, **given: Any) -> Any:
    """Run a model exactly, in memory or on a shelf."""
    graph.shelf = shelf
    return exact(model, graph, SETS, plan=plan, **given)


SETS = [torch.arange(10), torch.arange(10, 30), torch.arange(30, 48)]


def test_models_that_note_something_on_a_conv_read_it(graph: Graph, shelf: Shelf):
    model = Reading(graph.data.num_features, kind=Noting)
    plan = make_plan(model, graph)
    memory, disk = (run(model, graph, plan, where) for where in (None, shelf))
    assert torch.equal(memory, disk)
    assert not hasattr(model.convs[0], "size")


def test_a_shelf_with_room_keeps_all_in_memory(graph: Graph, tmp_path: Path):
    model = Layers(graph.data.num_features)
    plan, roomy = make_plan(model, graph), Shelf(10**6, folder=tmp_path / "unused")
    memory, shelved = (run(model, graph, plan, where) for where in (None, roomy))
    assert torch.equal(memory, shelved)
    assert not (tmp_path / "unused").exists()


def test_what_convs_have_returned_is_not_computed_again(graph: Graph, shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    model = Layers(graph.data.num_features)
    plan, products = make_plan(model, graph), []
    from topoff.forward.member import Member

    real = Member.product
    monkeypatch.setattr(Member, "product", lambda *given: products.append(1) or real(*given))
    run(model, graph, plan, shelf)
    assert len(products) == 3 * 3  # batches and convs


@pytest.mark.parametrize(
    ("kind", "match"), [(Uneven, "whose depth depends on the batch"), (Crossed, "and another one")]
)
def test_forwards_that_differ_are_refused(kind: type[Layers], match: str, graph: Graph, shelf: Shelf):
    model = kind(graph.data.num_features)
    if kind is Crossed:
        model.convs[2] = SAGEConv(8, 8).double()
    plan = make_plan(model, graph)
    model.deep = True
    for where in (None, shelf):
        with pytest.raises(ValueError, match=match):
            run(model, graph, plan, where)


def test_an_output_without_rows_is_refused(graph: Graph, shelf: Shelf):
    model = Layers(graph.data.num_features)
    plan = make_plan(model, graph)
    with pytest.raises(ValueError, match="one row per node"):
        run(model, graph, plan, shelf, call=lambda net, b: net(b.x, b.edge_index).sum())


def test_an_error_of_the_model_is_told(graph: Graph, shelf: Shelf):
    model = Layers(graph.data.num_features)
    plan = make_plan(model, graph)
    model.convs[2] = nn.Identity()
    with pytest.raises(ValueError, match="Expected the model to run on a part of the graph"):
        run(model, graph, plan, shelf)
