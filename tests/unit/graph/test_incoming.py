"""The edges by receiver: sorted or not, with every corner."""

import numpy as np
import pytest
import torch
from torch import Tensor

from graphs import communities, corners
from topoff.graph import incoming as room
from topoff.graph.incoming import Incoming, incoming_of


def of(edges: Tensor, n: int, flow: str = "source_to_target") -> Incoming:
    return incoming_of(edges, n, flow=flow)


@pytest.fixture(params=[3, 2**22])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CHUNK", request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_every_receiver_has_its_senders_ascending(flow: str, dtype: torch.dtype) -> None:
    edges = corners().edge_index.to(dtype)
    senders, receivers = (edges if flow == "source_to_target" else edges.flip(0)).numpy()
    found = of(edges, 14, flow)
    for node in range(14):
        positions, counts = found.spans(np.array([node]))
        assert found.senders[positions].tolist() == sorted(senders[receivers == node].tolist())
        assert counts.tolist() == [(receivers == node).sum()]
        assert found.order is not None
        assert (receivers[found.order[positions]] == node).all()


def test_sorted_edges_are_neither_copied_nor_ordered() -> None:
    edges = torch.tensor([[1, 2, 0, 2, 0], [0, 0, 1, 1, 2]], dtype=torch.int32)
    found = of(edges, 3)
    assert found.order is None
    assert np.shares_memory(found.senders, edges.numpy())
    assert of(edges, 3, "target_to_source").order is not None


@pytest.mark.usefixtures("chunk")
def test_symmetric_distinct_and_loops_are_found() -> None:
    edges = communities(20).edge_index
    assert of(edges, 20).is_symmetric
    assert of(edges, 20).is_distinct
    assert not len(of(edges, 20).loops)
    assert not of(edges[:, 1:], 20).is_symmetric
    assert not of(torch.cat([edges, edges[:, :1]], dim=1), 20).is_symmetric, "one direction twice"
    assert not of(torch.cat([edges, edges], dim=1), 20).is_distinct
    assert of(torch.cat([edges, edges], dim=1), 20).is_symmetric
    assert of(torch.cat([edges, torch.tensor([[3], [3]])], dim=1), 20).loops.tolist() == [3]


def test_a_graph_without_edges_or_nodes_has_no_corner_of_its_own() -> None:
    for n in (0, 3):
        found = of(torch.empty(2, 0, dtype=torch.int64), n)
        assert found.is_symmetric
        assert found.is_distinct
        assert not len(found.loops)
        assert found.degrees.tolist() == [0] * n
