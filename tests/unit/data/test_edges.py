"""Edges without self-loops, merged, and both ways: their weights go with them."""

import pytest
import torch
from torch_geometric.data import Data

from topoff.data.edges import merge_edges, without_self_loops


def pair(edges: list[tuple[int, int]], weights: list[float] | None = None) -> Data:
    """Return a graph of three nodes with these edges."""
    index = torch.tensor(edges, dtype=torch.long).view(-1, 2).t()
    data = Data(x=torch.eye(3), edge_index=index)
    if weights is not None:
        data.edge_weight = torch.tensor(weights)
    return data


@pytest.mark.parametrize("undirected", [False, True])
def test_equal_weights_stay_and_others_add_up(undirected: bool) -> None:  # noqa: FBT001
    data = pair([(0, 1), (0, 1), (1, 2), (1, 2), (1, 2), (2, 2)], [2.0, 2.0, 1.0, 1.0, 5.0, 4.0])
    merged = merge_edges(data, undirected=undirected)
    both = [[0, 1], [1, 0], [1, 2], [2, 1], [2, 2]]
    assert merged.edge_index.t().tolist() == (both if undirected else [both[0], both[2], both[4]])
    assert merged.edge_weight.tolist() == ([2, 2, 7, 7, 4] if undirected else [2, 7, 4])
    assert merged.edge_weight.dtype == data.edge_weight.dtype
    assert merged.edge_index.is_contiguous()
    assert data.edge_index.size(1) == 6


def test_merging_needs_no_weights_and_no_edges() -> None:
    merged = merge_edges(pair([(0, 1), (0, 1)]), undirected=False)
    assert merged.edge_index.tolist() == [[0], [1]]
    assert "edge_weight" not in merged
    for undirected in (False, True):
        assert merge_edges(pair([], []), undirected=undirected).edge_index.shape == (2, 0)


def test_self_loops_take_their_weights_along() -> None:
    data = pair([(0, 1), (1, 1), (1, 2)], [1.0, 2.0, 3.0])
    data.edge_attr = torch.arange(6).view(3, 2)
    out = without_self_loops(data)
    assert out.edge_index.tolist() == [[0, 1], [1, 2]]
    assert out.edge_weight.tolist() == [1, 3]
    assert out.edge_attr.tolist() == [[0, 1], [4, 5]]
    assert data.edge_index.size(1) == 3
