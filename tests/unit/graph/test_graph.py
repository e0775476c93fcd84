"""The prepared graph: batches cut out with all that belongs to them, and the edges that reach them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import subgraph

from graphs import communities, corner_sets, corners
from topoff.graph.graph import APART, AROUND, Graph
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
def test_neighborhood_holds_the_edges_into_the_batch_sorted_by_target(nodes: Tensor, flow: str) -> None:
    data = corners()
    around = Graph(data).neighborhood(nodes, flow=flow)
    ids = torch.cat([nodes, around.halo])
    assert torch.equal(ids[around.edge_index], data.edge_index[:, around.edge_ids])
    assert torch.equal(around.edge_ids.sort().values, torch.isin(receivers(data, flow), nodes).nonzero().view(-1))
    target, place = around.edge_index[1], around.edge_ids
    assert torch.equal(torch.argsort(target * data.num_edges + place), torch.arange(len(place)))  # ties in their order


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
@pytest.mark.parametrize("flow", [*FLOWS, AROUND, APART])
def test_neighborhood_with_an_empty_halo(nodes: Tensor, flow: str) -> None:
    around = Graph(corners()).neighborhood(nodes, flow=flow)
    assert around.halo.numel() == 0
    assert around.features["x"].shape == (around.others, 4)
    assert not around.features["x"].any()


@pytest.mark.parametrize("flow", [*FLOWS, AROUND, APART])
@pytest.mark.parametrize("nodes", [*SETS, *torch.arange(14).split(1), NONE], ids=lambda nodes: str(nodes.tolist()))
def test_rows_and_edges_of_a_neighborhood_cannot_be_taken_for_each_other(nodes: Tensor, flow: str) -> None:
    around = Graph(corners()).neighborhood(nodes, flow=flow)
    rows = nodes.numel() + around.halo.numel() + around.others
    assert rows != around.edge_index.size(1)
    assert around.edge_index.numel() == 0 or around.edge_index.max() < rows
    assert len(around.features["x"]) == rows - nodes.numel()


# all edges about a batch


@pytest.mark.parametrize("flow", [AROUND, APART])
@pytest.mark.parametrize("nodes", SETS, ids=lambda nodes: str(nodes.tolist()))
def test_around_a_batch_all_degrees_of_batch_and_halo_are_the_true_ones(nodes: Tensor, flow: str) -> None:
    data = corners()
    around = Graph(data).neighborhood(nodes, flow=flow)
    inside = torch.cat([nodes, around.halo])
    rows = inside.numel() + around.others
    for side in (0, 1):
        degree = torch.bincount(around.edge_index[side], minlength=rows)[: inside.numel()]
        assert torch.equal(degree, torch.bincount(data.edge_index[side], minlength=14)[inside])
    touching = torch.isin(data.edge_index, inside).any(0).nonzero().view(-1)
    alone = nodes.numel() == 1 and not touching.numel()  # then two nodes more have an edge, which is like the first
    assert torch.equal(around.edge_ids.sort().values, torch.tensor([0]) if alone else touching)
    assert bool((around.edge_index[1].diff() >= 0).all())
    own = torch.isin(data.edge_index[:, around.edge_ids], inside)
    assert torch.equal(inside[around.edge_index[own]], data.edge_index[:, around.edge_ids][own])


def test_self_loops_that_a_conv_adds_to_a_batch_without_edges_are_not_as_many_as_its_rows() -> None:
    loop = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 3, 3], [1, 0, 3, 3]]))
    for nodes in (torch.tensor([2]), torch.tensor([2, 3])):
        around = Graph(loop).neighborhood(nodes, flow=AROUND)
        rows, edges = len(nodes) + around.others, around.edge_index
        added = int((edges[0] != edges[1]).sum()) + rows  # loops that are there are replaced
        assert len({rows, edges.size(1), added}) == 3
        assert int(edges.max()) < rows


def test_the_halo_around_a_batch_lies_in_both_directions() -> None:
    path = Data(x=torch.eye(7), edge_index=torch.stack([torch.arange(6), torch.arange(1, 7)]))
    graph, nodes = Graph(path), torch.tensor([3])
    assert graph.neighborhood(nodes).halo.tolist() == [2]
    assert graph.neighborhood(nodes, flow="target_to_source").halo.tolist() == [4]
    around, apart = (graph.neighborhood(nodes, flow=flow) for flow in (AROUND, APART))
    assert around.halo.tolist() == apart.halo.tolist() == [2, 4]
    assert around.edge_ids.tolist() == [2, 1, 3, 4]  # 2 -> 3, 1 -> 2, 3 -> 4, 4 -> 5
    assert around.edge_index.tolist() == [[1, 3, 0, 2], [0, 1, 2, 3]]  # nodes 1 and 5 are one
    assert apart.edge_ids.tolist() == [2, 1, 3, 4]
    assert apart.edge_index.tolist() == [[1, 3, 0, 2], [0, 1, 2, 4]]
    assert (len(around.features["x"]), len(apart.features["x"])) == (2 + around.others, 2 + apart.others)


@pytest.mark.parametrize("flow", [AROUND, APART])
def test_a_widened_batch_has_the_rows_of_its_neighborhood_after_its_own(flow: str) -> None:
    data, wanted = carrying()
    graph, nodes = Graph(data), torch.tensor([7, 3, 12])
    batch, near = graph.induced(nodes), graph.neighborhood(nodes, flow=flow)
    wide = graph.widened(batch, near)
    rows, size = 3 + near.halo.numel() + near.others, 3 + near.halo.numel()
    assert wide.num_nodes == len(wide.x) == len(wide.texts) == len(wide.years) == rows
    assert torch.equal(wide.n_id[:size], torch.cat([nodes, near.halo]))
    assert wide.x[:size].equal(data.x[wide.n_id[:size]])
    assert near.others > 0
    assert not wide.x[size:].any()
    assert wide.edge_index is near.edge_index
    assert wide.edge_attr.equal(data.edge_attr[near.edge_ids])
    assert wide.u is data.u
    assert wide.texts[:3] == wanted["texts"]
    assert batch.num_nodes == len(batch.x) == 3, "the batch itself stays as it is"


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


# what is kept


def test_corners_are_found_once() -> None:
    graph = Graph(corners())
    found, edges = graph.corners, graph.data.edge_index
    assert graph.corners is found
    loops = edges[0][edges[0] == edges[1]]
    alone = [node for node in range(graph.num_nodes) if not (edges == node).any()]
    assert set(found.tolist()) >= {graph.num_nodes - 1, int(loops[0]), alone[0]}
    assert len(found) <= 4


def test_propagated_features_can_be_let_go_and_made_again() -> None:
    graph, chain = Graph(corners()), (Operator(aggr="mean"),)
    first = graph.propagated(chain)
    assert graph.propagated(chain) is first
    graph.let_go()
    assert graph.propagated(chain) is not first
    assert torch.equal(graph.propagated(chain), first)


def test_edges_are_found_by_positions_of_the_graphs_own_kind() -> None:
    found = Graph(corners()).edges_into(torch.tensor([0, 3]))
    assert found.dtype == torch.int64
    assert found.tolist() == sorted(found.tolist())
