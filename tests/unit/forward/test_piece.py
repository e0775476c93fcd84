"""The piece on which a model is tried: real edges, degrees and corners of any graph."""

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from graphs import communities, corners
from topoff.forward.piece import PADDED, TRIED, few_of, padded, piece_of
from topoff.graph.graph import Graph

N = 500
LINE = torch.arange(N - 1)


def graph_of(edges: Tensor, count: int = N) -> Data:
    """Return a graph whose features tell the nodes apart."""
    return Data(x=torch.arange(count, dtype=torch.float64).view(-1, 1), edge_index=edges.view(2, -1))


def layered() -> Tensor:
    """Return an acyclic graph of ten layers, every node hearing three of the layer before."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(50, N).repeat_interleave(3)
    source = (target // 50 - 1) * 50 + torch.randint(50, target.shape, generator=generator)
    return torch.stack([source, target])


GRAPHS = {
    "path": torch.stack([LINE, LINE + 1]),
    "star outward": torch.stack([torch.zeros_like(LINE), LINE + 1]),
    "star inward": torch.stack([LINE + 1, torch.zeros_like(LINE)]),
    "acyclic": layered(),
    "first edge apart": torch.cat([torch.tensor([[0], [1]]), torch.stack([LINE[3:], LINE[3:] + 1])], dim=1),
    "dense": communities(N, degree=12.0, directed=True).edge_index,
}


def nodes_of(piece: Data) -> Tensor:
    return piece.x.view(-1).long()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GRAPHS)
def test_a_piece_is_small_and_has_the_edges_of_the_graph_among_its_nodes(name: str, seed: int) -> None:
    data = graph_of(GRAPHS[name])
    piece = piece_of(Graph(data), seed=seed)
    nodes = nodes_of(piece)
    assert nodes.numel() == nodes.unique().numel() == piece.num_nodes <= TRIED + 16
    inside = torch.isin(data.edge_index, nodes).all(0)
    assert sorted(nodes[piece.edge_index].t().tolist()) == sorted(data.edge_index[:, inside].t().tolist())
    assert torch.equal(piece.n_id, torch.arange(piece.num_nodes))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GRAPHS)
def test_a_piece_has_many_real_edges_and_several_hops(name: str, seed: int) -> None:
    piece = piece_of(Graph(graph_of(GRAPHS[name])), seed=seed)
    assert piece.num_edges > TRIED // 3
    if "star" not in name:
        source, target = piece.edge_index
        assert torch.isin(source, target).any(), "a path of two edges"
        degree = torch.bincount(piece.edge_index.view(-1), minlength=piece.num_nodes)
        assert (degree >= 2).sum() > TRIED // 4


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["path", "first edge apart"])
def test_most_nodes_of_a_sparse_piece_have_their_true_degrees(name: str, seed: int) -> None:
    data = graph_of(GRAPHS[name])
    piece = piece_of(Graph(data), seed=seed)
    true = torch.bincount(data.edge_index.view(-1), minlength=N)[nodes_of(piece)]
    own = torch.bincount(piece.edge_index.view(-1), minlength=piece.num_nodes)
    assert (own == true).float().mean() > 0.7


@pytest.mark.parametrize("name", ["acyclic", "dense"])
def test_degrees_of_a_piece_differ(name: str) -> None:
    source, target = piece_of(Graph(graph_of(GRAPHS[name]))).edge_index
    assert all(torch.bincount(ends).unique().numel() > 3 for ends in (source, target))


@pytest.mark.parametrize("name", GRAPHS)
def test_batches_of_a_piece_have_a_halo(name: str) -> None:
    piece = piece_of(Graph(graph_of(GRAPHS[name])))
    parts = torch.randperm(piece.num_nodes).tensor_split(3)
    assert max(Graph(piece).neighborhood(part).halo.numel() for part in parts) > 0


def test_the_first_edge_being_apart_does_not_matter() -> None:
    piece = piece_of(Graph(graph_of(GRAPHS["first edge apart"])))
    assert (nodes_of(piece) > 3).sum() > TRIED // 3


@pytest.mark.parametrize("seed", range(4))
def test_corners_of_the_graph_are_in_the_piece(seed: int) -> None:
    edges = torch.cat([torch.stack([LINE[10:-2], LINE[10:-2] + 1]), torch.tensor([[77], [77]])], dim=1)
    hub = torch.stack([torch.arange(100, 140), torch.full((40,), 300)])
    piece = piece_of(Graph(graph_of(torch.cat([edges, hub], dim=1))), seed=seed)
    nodes = set(nodes_of(piece).tolist())
    assert {0, 77, 300, N - 1} <= nodes  # without edges, with a self-loop, with the most edges, the last of all
    assert N - 1 not in torch.cat([edges, hub], dim=1), "the last node is isolated"
    assert nodes_of(piece)[-1] == N - 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", GRAPHS)
def test_the_last_node_is_in_the_piece(name: str, seed: int) -> None:
    assert nodes_of(piece_of(Graph(graph_of(GRAPHS[name])), seed=seed))[-1] == N - 1


def test_a_graph_without_edges_has_a_piece() -> None:
    piece = piece_of(Graph(graph_of(torch.empty(2, 0, dtype=torch.int64))))
    assert piece.num_edges == 0
    assert nodes_of(piece).tolist() == [0, N - 1]


@pytest.mark.parametrize("data", [corners(), communities(TRIED), communities(1)], ids=["corners", "just", "one"])
def test_a_small_graph_is_its_own_piece(data: Data) -> None:
    piece = piece_of(Graph(data))
    assert torch.equal(piece.x, data.x)
    assert torch.equal(piece.edge_index, data.edge_index)
    assert torch.equal(piece.y, data.y)


def test_another_seed_is_another_piece_and_the_same_seed_the_same() -> None:
    graph = Graph(graph_of(GRAPHS["dense"]))
    first, again, other = (nodes_of(piece_of(graph, seed=seed)).tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_the_search_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    piece_of(Graph(graph_of(GRAPHS["dense"])))
    assert torch.equal(torch.get_rng_state(), before)


# more nodes


def test_padding_adds_nodes_without_edges_and_features() -> None:
    data = piece_of(Graph(corners()))
    longer = padded(data, 20)
    assert longer.n_id.tolist() == [*range(14), *[0] * 6]
    assert longer.num_nodes == len(longer.x) == len(longer.y) == len(longer.train_mask) == 20
    assert torch.equal(longer.x[:14], data.x)
    assert not longer.x[14:].any()
    assert longer.edge_index is data.edge_index
    assert longer.edge_attr is data.edge_attr
    assert data.num_nodes == len(data.x) == 14


def test_padding_is_bounded_and_never_takes_away() -> None:
    data = piece_of(Graph(corners()))
    assert padded(data, 10 * PADDED).num_nodes == PADDED
    assert padded(data, 3).num_nodes == 14


def test_a_few_nodes_keep_all_edges_among_them() -> None:
    data = Data(x=torch.eye(400), edge_index=torch.randint(400, (2, 3000), generator=torch.Generator().manual_seed(0)))
    few = few_of(Graph(data))
    own = {tuple(pair) for pair in few.n_id[few.edge_index].t().tolist()}
    inside = torch.isin(data.edge_index, few.n_id).all(dim=0)
    assert own == {tuple(pair) for pair in data.edge_index[:, inside].t().tolist()}
    assert torch.equal(few.x, data.x[few.n_id])
