"""Rows that several processes share out."""

import torch
from torch_geometric.data import Data

from processes import together
from shared_work import filled
from topoff.forward.plan import Plan
from topoff.forward.share import read_by
from topoff.graph.graph import AROUND, Graph


def test_who_is_read_depends_on_the_directions() -> None:
    graph = Graph(Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]])))
    found = {
        flow: read_by(graph, Plan([], (), flows=(flow,)), torch.tensor([1])).nonzero().view(-1).tolist()
        for flow in ("source_to_target", "target_to_source", AROUND)
    }
    assert found == {"source_to_target": [0], "target_to_source": [2], AROUND: [0, 2]}


def test_rows_that_are_read_arrive_and_others_are_nan() -> None:
    first, second = together(filled)
    assert str(first["filled"]) == "[0.0, 1.0, nan, 3.0]"  # nodes 0 and 1 are its own; it reads 3
    assert str(second["filled"]) == "[0.0, nan, 2.0, 3.0]"
    for found in (first, second):
        assert found["complete"] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
        assert found["numbers"] == [0, 1, 2, 3]
