"""What a graph may carry besides its features and edges, and what a batch could only carry wrongly."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from graph_files import N, crooked
from topoff import TOP, predict
from topoff.data.check import check, check_graph
from topoff.data.layout import CARRIED
from topoff.data.load import load

EDGES = 5

FINE = {
    "graph-level row": torch.rand(1, 3),
    "number": 2.5,
    "scalar": torch.tensor(1),
    "text": "abcdef",  # as many letters as nodes
    "dict": {"source": "here", "mean": torch.rand(3)},
    "list per node": list("abcdef"),
    "list per edge": list("abcde"),
    "array per node": np.arange(N),
    "array of texts": np.array(list("abcdef"), dtype=object),
    "integers per node": torch.arange(N),
    "frozen parameter": nn.Parameter(torch.rand(N, 2), requires_grad=False),
    "sparse table": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("value", FINE.values(), ids=FINE.keys())
def test_further_attributes_pass_as_they_are(value: Any) -> None:
    assert check(crooked(more=value)).more is value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node_index", torch.arange(N)),  # one entry per node: its number, perhaps
        ("edge_kind_index", torch.arange(EDGES)),
        ("fold_index", 3),
        ("graph_index", torch.tensor(3)),
        ("refractive_index", torch.rand(2, 2)),  # no integers, no ids
        ("pos", torch.rand(N, 3)),
        ("edge_type", torch.zeros(EDGES, dtype=torch.long)),
    ],
)
def test_names_alone_are_no_offence(name: str, value: Any) -> None:
    assert check(crooked(**{name: value}))[name] is value


BAD: dict[str, tuple[dict[str, Any], str]] = {
    **{name: ({name: torch.arange(N)}, rf"a graph without '{name}' \(got one\); .*another name") for name in CARRIED},
    "number of our own": ({"batch_size": 3}, "a graph without 'batch_size'"),
    "learnable x": (
        {"x": nn.Parameter(torch.rand(N, 2))},
        r"'x' to be constant \(got .* requires a gradient\); detach",
    ),
    "x with a past": ({"x": torch.rand(N, 2, requires_grad=True) * 2}, "'x' to be constant .*belongs into the model"),
    "integer-like x": ({"x": torch.rand(N, 2, requires_grad=True).half()}, "'x' to be constant"),
    "learnable weight": ({"edge_weight": torch.rand(EDGES, requires_grad=True)}, "'edge_weight' to be constant"),
    "learnable attr": ({"edge_attr": torch.rand(EDGES, 2, requires_grad=True)}, "'edge_attr' to be constant"),
    "learnable more": ({"u": nn.Parameter(torch.rand(1, 2))}, "'u' to be constant"),
    "second edges": (
        {"neg_edge_index": torch.zeros(2, 3).long()},
        r"only list of node ids, which 'neg_edge_index' is by its name \(got shape \(2, 3\)\); .*with an edge_type",
    ),
    "as many second edges": ({"other_edge_index": torch.zeros(2, EDGES).long()}, "only list of node ids"),
    "array of ids": ({"pair_index": np.zeros((N, 2), dtype=np.int32)}, "only list of node ids, which 'pair_index'"),
    "faces": ({"face": torch.zeros(3, 2).long()}, "only list of node ids, which 'face'"),
    "root": ({"root_index": torch.tensor([4])}, r"'root_index' is by its name \(got shape \(1,\)\)"),
    "sparse": ({"adj": torch.eye(N).to_sparse()}, r"'adj' to be dense \(got a sparse matrix of shape \(6, 6\)\)"),
    "short positions": ({"pos": torch.rand(N - 1, 3)}, r"'pos' to have 6 rows, one per node \(got shape \(5, 3\)\)"),
    "stale types": ({"edge_type": torch.zeros(EDGES + 1).long()}, "'edge_type' to have 5 rows, one per edge"),
    "rows in a dict": (
        {"views": {"a": torch.rand(N, 2)}},
        r"'views' to hold nothing per node or edge \(got .* inside a dict\); make each",
    ),
    "rows in a list": ({"views": [torch.rand(2), np.zeros((EDGES, 2))]}, "inside a list"),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD.values(), ids=BAD.keys())
def test_what_a_batch_could_only_carry_wrongly_is_refused(changes: dict[str, Any], sentence: str) -> None:
    for function in (check, check_graph, load, lambda data: predict(nn.Linear(2, 2), data)):
        with pytest.raises(ValueError, match=sentence) as caught:
            function(crooked(**changes))
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=sentence):
        TOP(nn.Linear(2, 2), crooked(**changes))


def test_the_names_that_are_ours_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "ARCHITECTURE.md").read_text()
    table = page.partition("## What a batch may carry")[2].partition("## ")[0]
    assert {"n_id", "batch_size", *re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)} == set(CARRIED)


def test_a_graph_of_graphs_loses_only_where_each_begins() -> None:
    ring = Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
    checked = check_graph(Batch.from_data_list([ring, ring]))
    assert type(checked) is Data
    assert "ptr" not in checked
    assert checked.batch.tolist() == [0, 0, 0, 1, 1, 1]
