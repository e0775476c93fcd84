"""Exact inference on disk, one batch after the other, has the bits of exact inference in lockstep."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import zoo
from pyg_convs import CONVS
from pyg_models import MODELS
from pyg_zoo import EXACT, Variant
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities, corner_sets, corners
from topoff import TOP
from topoff.batching.node_sets import NodeSets
from topoff.forward.exact import exact
from topoff.forward.intercept import map_tensors
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph
from topoff.machine.shelf import Shelf

VARIANTS = [
    pytest.param(variant, id=f"{name}({variant.what})")
    for table in (CONVS, MODELS)
    for name, variants in table.items()
    for variant in variants
    if variant.verdict == EXACT and "directed" not in variant.not_on
]


@pytest.fixture
def shelf(tmp_path):
    """Return a shelf on which everything lies on disk."""
    yield Shelf(0, folder=tmp_path)
    assert not list(tmp_path.iterdir()), "a matrix on disk has a name"


def tensors(out: Any) -> list[Tensor]:
    """Return the tensors of an output."""
    found: list[Tensor] = []
    map_tensors(out, found.append)
    return found


def assert_same(model: nn.Module, graph: Graph, batches: Any, shelf: Shelf, *, call: Any = None) -> None:
    """Compare outputs, what convs read and what norms see, bit for bit."""
    plan, seen = make_plan(model, graph, call=call), []
    for where in (None, shelf):
        graph.shelf = where
        read: list[tuple[str, Tensor]] = []
        moments: dict[str, Any] = {}
        remember: Callable[[str, Tensor], None] = lambda place, rows, read=read: read.append((place, rows.clone()))  # noqa: E731
        out = exact(model, graph, batches, plan=plan, call=call, remember=remember, moments=moments)
        bare = exact(model, graph, batches, plan=plan, call=call)
        means = [kept.means for kept in moments.values()]
        seen.append(
            ([place for place, _ in read], [*tensors(out), *tensors(bare), *(rows for _, rows in read), *means])
        )
    assert seen[0][0] == seen[1][0]
    assert len(seen[0][1]) == len(seen[1][1])
    for memory, disk in zip(seen[0][1], seen[1][1], strict=True):
        assert memory.dtype == disk.dtype
        assert torch.equal(memory.nan_to_num(), disk.nan_to_num())


def pieces_of(graph: Graph) -> list[Tensor]:
    return NodeSets(method="random", ratio=0.25).fit(graph.data).cover()


@pytest.mark.parametrize("name", zoo.ALL)
def test_the_bits_of_lockstep(name: str, shelf: Shelf):
    data = communities(48, directed=True, weighted=True, edge_features=2, seed=1)
    graph = Graph(data)
    assert_same(zoo.make(name, data), graph, pieces_of(graph), shelf)


@pytest.mark.parametrize("name", zoo.ALL)
def test_the_bits_of_lockstep_on_batches_that_were_cut(name: str, shelf: Shelf):
    data = communities(48, directed=False, weighted=True, edge_features=2, seed=2)
    model = zoo.make(name, data)
    top = TOP(model, data, ratio=0.25, rank=2, batches="metis", tolerance=float("inf"))
    assert_same(model, top.prepare().graph, top.cover(), shelf)


@pytest.mark.parametrize("name", ["gcn_weighted", "gat_features", "mixed"])
def test_every_corner(name: str, shelf: Shelf):
    graph = Graph(corners())
    assert_same(zoo.make(name, graph.data), graph, corner_sets(), shelf)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_model_of_pyg(variant: Variant, shelf: Shelf):
    data: Data = variant.graph("directed")
    graph = Graph(data)
    assert_same(variant.model(data), graph, pieces_of(graph), shelf, call=variant.call)
