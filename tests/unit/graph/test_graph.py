"""The prepared graph: batches cut out with all that belongs to them, and the edges that reach them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from graphs import communities, corner_sets, corners
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator

NONE = torch.empty(0, dtype=torch.int64)
FLOWS = ["source_to_target", "target_to_source"]
SETS = [*corner_sets(), torch.tensor([6, 2, 12, 0]), torch.arange(14)]


def receivers(data: Data, flow: str) -> Tensor:
    return data.edge_index[1 if flow == "source_to_target" else 0]


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("nodes", SETS, ids=lambda nodes: str(nodes.tolist()))
def test_edges_into_lists_the_arriving_edges_in_their_own_order(nodes: Tensor, flow: str) -> None:
    data = corners()
    expected = torch.isin(receivers(data, flow), nodes).nonzero().view(-1)
    assert torch.equal(Graph(data).edges_into(nodes, flow=flow), expected)


def test_edges_into_no_nodes_is_empty() -> None:
    assert Graph(corners()).edges_into(NONE).numel() == 0


@pytest.mark.parametrize("nodes", SETS, ids=lambda nodes: str(nodes.tolist()))
def test_induced_holds_the_edges_inside_in_their_own_order(nodes: Tensor) -> None:
    data = corners()
    batch = Graph(data).induced(nodes)
    edges, attributes = subgraph(nodes, data.edge_index, data.edge_attr, num_nodes=14)
    assert torch.equal(nodes[batch.edge_index], edges)
    assert torch.equal(batch.edge_attr, attributes)


def test_induced_keeps_every_attribute_with_n_id_and_batch_size() -> None:
    data, nodes = corners(), torch.tensor([7, 3, 12])
    batch = Graph(data).induced(nodes)
    for key in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(batch[key], data[key][nodes])
    assert batch.edge_weight.shape == (batch.num_edges,)
    assert torch.equal(batch.n_id, nodes)
    assert batch.batch_size == batch.num_nodes == 3
    batch.validate()


def carrying() -> tuple[Data, dict[str, Any]]:
    """Return a graph that carries all kinds of things, and what a batch of nodes 7, 3, 12 must make of them."""
    data, kept = corners(), [7, 3, 12]
    inside = Graph(data).induced(torch.tensor(kept))
    ids = [i for i, (u, v) in enumerate(data.edge_index.t().tolist()) if {u, v} <= set(kept)]
    assert len(ids) == inside.num_edges > 0
    whole = {
        "u": torch.rand(1, 3),
        "number": 3.5,
        "name": "a graph of 14n",  # as many letters as nodes
        "settings": {"a": [1, 2]},
        "classes": ["few", "names"],
        "scalar": torch.tensor(2),
        "table": np.eye(3),
    }
    for key, value in whole.items():
        data[key] = value
    entries = {"texts": [f"text {i}" for i in range(14)], "years": np.arange(14) + 1990}
    data.texts, data.years, data.kind = entries["texts"], entries["years"], torch.arange(14) % 3
    data.edge_names, data.edge_years = [f"edge {i}" for i in range(32)], np.arange(32)
    wanted = whole | {"texts": [f"text {i}" for i in kept], "years": np.array(kept) + 1990}
    return data, wanted | {"edge_names": [f"edge {i}" for i in ids], "edge_years": np.array(ids)}


def alike(first: Any, second: Any) -> bool:
    return type(first) is type(second) and bool(np.all(np.asarray(first == second)))


def test_induced_carries_lists_and_arrays_by_entry_and_all_else_unchanged() -> None:
    data, wanted = carrying()
    batch = Graph(data).induced(torch.tensor([7, 3, 12]))
    assert {key: alike(batch[key], value) for key, value in wanted.items()} == dict.fromkeys(wanted, True)
    assert all(batch[key] is data[key] for key in ("u", "settings", "table"))
    assert batch.kind.equal(data.kind[batch.n_id])


def test_a_part_of_a_part_knows_what_belongs_to_the_whole() -> None:
    data = corners()
    data.u, data.classes, data.edge_kind = torch.rand(3, 2), ["a", "b", "c"], torch.arange(32)
    piece = Graph(data).induced(torch.tensor([7, 3, 12]))  # as many nodes as u has rows
    part = Graph(piece).induced(torch.tensor([0]))
    assert part.u is data.u
    assert part.classes is data.classes
    assert part.x.equal(data.x[7:8])
    assert Graph(piece).edge_level == Graph(data).edge_level
    assert part.edge_kind.shape == (part.num_edges,)
    del piece.u
    assert "u" not in Graph(piece).induced(torch.tensor([0]))


def test_induced_by_no_nodes_is_empty() -> None:
    batch = Graph(corners()).induced(NONE)
    assert batch.num_nodes == 0
    assert batch.num_edges == 0
    assert batch.x.shape == (0, 4)


def test_induced_tells_node_rows_from_edge_rows_where_there_are_as_many() -> None:
    data = Data(
        x=torch.rand(3, 1), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), edge_weight=torch.tensor([1.0, 2.0, 3.0])
    )
    batch = Graph(data).induced(torch.tensor([1, 2]))
    assert batch.edge_weight.tolist() == [2.0]


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("nodes", SETS, ids=lambda nodes: str(nodes.tolist()))
def test_neighborhood_holds_the_edges_into_the_batch_in_their_own_order(nodes: Tensor, flow: str) -> None:
    data = corners()
    around = Graph(data).neighborhood(nodes, flow=flow)
    ids = torch.cat([nodes, around.halo])
    assert torch.equal(ids[around.edge_index], data.edge_index[:, around.edge_ids])
    assert bool((around.edge_ids.diff() > 0).all())
    assert torch.equal(around.edge_ids, torch.isin(receivers(data, flow), nodes).nonzero().view(-1))


def test_neighborhood_numbers_the_halo_after_the_batch_and_never_repeats_it() -> None:
    around = Graph(corners()).neighborhood(torch.tensor([4, 5, 6, 7]))
    assert around.halo.tolist() == [0, 2, 3, 13]
    assert around.edge_index[1].max() < 4
    assert around.edge_index[0].max() == 7


def test_neighborhood_carries_edge_values_and_the_features_of_the_halo() -> None:
    data = corners()
    around = Graph(data).neighborhood(torch.tensor([0, 1, 2, 3]))
    assert torch.equal(around.values["edge_attr"], data.edge_attr[around.edge_ids])
    assert torch.equal(around.values["edge_weight"], data.edge_weight[around.edge_ids])
    assert torch.equal(around.features["x"], data.x[around.halo])
    assert torch.equal(around.features["y"], data.y[around.halo])
    assert set(around.features) == {"x", "y", "train_mask", "val_mask", "test_mask"}


def test_neighborhood_has_the_halos_rows_of_all_node_tensors_and_leaves_lists_out() -> None:
    data, _ = carrying()
    around = Graph(data).neighborhood(torch.tensor([0, 1, 2, 3]))
    assert around.features["kind"].equal(data.kind[around.halo])
    assert {"texts", "years", "u", "edge_names"}.isdisjoint(around.features)
    assert set(around.values) == {"edge_attr", "edge_weight"}


@pytest.mark.parametrize("nodes", [torch.tensor([8]), torch.tensor([9, 10, 11]), torch.arange(14), NONE])
def test_neighborhood_with_an_empty_halo(nodes: Tensor) -> None:
    around = Graph(corners()).neighborhood(nodes)
    assert around.halo.numel() == 0
    assert around.features["x"].shape == (0, 4)


def test_neighborhood_moves_as_a_whole() -> None:
    moved = Graph(corners()).neighborhood(torch.arange(4)).to("meta")
    tensors = [moved.halo, moved.edge_index, moved.edge_ids, *moved.values.values(), *moved.features.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_operators_are_built_once() -> None:
    graph = Graph(corners())
    assert graph.aggregation(Operator(norm="gcn")) is graph.aggregation(Operator(norm="gcn"))
    assert graph.aggregation(Operator(norm="gcn")) is not graph.aggregation(Operator())


def test_propagated_applies_the_chain_and_keeps_it() -> None:
    graph = Graph(communities(20))
    mean, total = Operator(aggr="mean"), Operator()
    X = graph.data.x
    assert graph.propagated(()) is X
    once = graph.aggregation(mean).all() @ X
    assert torch.equal(graph.propagated((mean,)), once)
    assert torch.equal(graph.propagated((mean, total)), graph.aggregation(total).all() @ once)
    assert graph.propagated((mean,)) is graph.propagated((mean,))


def test_features_are_moved_once() -> None:
    graph = Graph(corners())
    assert graph.features(torch.device("cpu")) is graph.data.x
    meta = graph.features(torch.device("meta"))
    assert meta is graph.features(torch.device("meta"))
    assert meta.device.type == "meta"
