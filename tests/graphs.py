"""Hand-made tiny graphs for every test, all in float64, and the node sets that go with them.

A test file imports them with `from graphs import corners`; pytest puts this folder on the path.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_dense_adj

from topoff.batching.node_sets import NodeSets

SQUARE = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])  # directed ring

CLASSES = 3

# Sources and targets of the "all corners" graph, by what they stand for.
_CORNER_EDGES = (
    *((0, 1), (1, 0), (1, 2), (2, 3), (3, 0), (0, 2)),  # inside the first batch, one way only for the most part
    *((4, 5), (5, 6), (6, 7), (7, 4), (6, 4)),  # inside the second batch, which has no training nodes
    *((0, 4), (4, 1), (5, 2), (3, 7), (2, 6)),  # between these two, either way
    *((2, 2), (5, 5), (12, 12)),  # self-loops, one of them in a one-node batch
    *((0, 1), (7, 4), (3, 7), (3, 7)),  # duplicates, inside a batch and across two
    *((9, 10), (10, 11), (11, 9), (10, 9)),  # a component of its own: a batch with an empty halo
    *((0, 12), (5, 12), (12, 3)),  # the one-node batch receives and sends
    *((13, 1), (13, 6)),  # a node that nobody sends to: a one-node batch without messages from outside
)  # node 8 is isolated


def corners(*, dtype: torch.dtype = torch.float64) -> Data:
    """Return the graph with all corners: 14 nodes, directed, weighted, with edge features, masks and labels.

    It has an isolated node (8), self-loops, duplicate edges, a node without incoming edges (13); its `corner_sets()`
    have one-node batches, a batch without training nodes and batches with an empty halo.
    """
    edges = torch.tensor(_CORNER_EDGES).t().contiguous()
    n, generator = 14, torch.Generator().manual_seed(14)
    train = torch.tensor([True, True, False, True, *[False] * 4, False, True, False, True, True, True])
    val = torch.zeros(n, dtype=torch.bool)
    val[[2, 4, 5, 10]] = True
    return Data(
        x=torch.randn(n, 4, generator=generator, dtype=torch.float64).to(dtype),
        edge_index=edges,
        edge_weight=(0.5 + torch.rand(edges.size(1), generator=generator, dtype=torch.float64)).to(dtype),
        edge_attr=torch.randn(edges.size(1), 2, generator=generator, dtype=torch.float64).to(dtype),
        y=torch.arange(n) % CLASSES,
        train_mask=train,
        val_mask=val,
        test_mask=~(train | val),
    )


def corner_sets() -> list[Tensor]:
    """Return node sets of `corners()`, every node once, no two alike."""
    return [
        torch.tensor([0, 1, 2, 3]),  # a self-loop, a duplicate edge
        torch.tensor([4, 5, 6, 7]),  # no training nodes
        torch.tensor([8]),  # one isolated node
        torch.tensor([9, 10, 11]),  # empty halo
        torch.tensor([12]),  # one node with a self-loop and a halo
        torch.tensor([13]),  # one node that sends only
    ]


def communities(
    n: int = 60,
    *,
    groups: int = 4,
    features: int = 5,
    degree: float = 5.0,
    directed: bool = False,
    weighted: bool = False,
    edge_features: int = 0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Data:
    """Return a random graph with communities, most of its edges inside them; labels are the communities.

    Undirected graphs hold both directions of an edge with one weight. Every sixth node has a self-loop where the graph
    is directed. Half of the nodes are training nodes.
    """
    generator = torch.Generator().manual_seed(seed)
    group = torch.arange(n) * groups // n
    same = group.view(-1, 1) == group
    inside = 0.75 * degree * groups / n
    outside = 0.25 * degree * groups / (n * (groups - 1)) if groups > 1 else 0.0
    probability = torch.where(same, inside, outside)
    drawn = torch.rand(n, n, generator=generator) < probability
    drawn = drawn.fill_diagonal_(fill_value=False) if directed else drawn.triu(1) | drawn.triu(1).t()
    if directed:
        drawn.diagonal()[::6] = True
    edges = drawn.nonzero().t().contiguous()
    split = torch.randperm(n, generator=generator)
    centers = torch.randn(groups, features, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, features, generator=generator, dtype=torch.float64)
    data = Data(x=(centers[group] + noise).to(dtype), edge_index=edges, y=group)
    if weighted:
        value = 0.5 + torch.rand(n, n, generator=generator, dtype=torch.float64)
        value = value if directed else (value + value.t()) / 2
        data.edge_weight = value[edges[0], edges[1]].to(dtype)
    if edge_features:
        values = torch.randn(edges.size(1), edge_features, generator=generator, dtype=torch.float64)
        data.edge_attr = values.to(dtype)
    for name, part in zip(
        ("train_mask", "val_mask", "test_mask"), split.tensor_split([n // 2, 3 * n // 4]), strict=True
    ):
        data[name] = torch.zeros(n, dtype=torch.bool)
        data[name][part] = True
    return data


def six_nodes(*, features: int = 3, seed: int = 0) -> Data:
    """Return the paper's Figure 1: edges 1-3, 2-3, 3-4, 4-5, 4-6 (here from 0), classes {1,2,5,6} and {3,4}.

    Nodes of a class have equal features, so that B = {1,2,3} knows all there is: h4 = h3.
    """
    pairs = torch.tensor([[0, 2], [1, 2], [2, 3], [3, 4], [3, 5]]).t()
    kind = torch.tensor([0, 0, 1, 1, 0, 0])
    rows = torch.randn(2, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    train = torch.tensor([True, False, True, False, True, True])
    return Data(
        x=rows[kind],
        edge_index=torch.cat([pairs, pairs.flip(0)], dim=1),
        y=kind,
        train_mask=train,
        val_mask=~train & (kind == 0),
        test_mask=~train & (kind == 1),
    )


def six_node_sets() -> list[Tensor]:
    """Return the paper's B = {1,2,3} and the rest of `six_nodes()`; each has one node of every class."""
    return [torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])]


def one_node_sets(n: int) -> list[Tensor]:
    """Return every node as a batch of its own."""
    return list(torch.arange(n).tensor_split(n))


def node_sets(sets: Sequence[Tensor]) -> NodeSets:
    """Return hand-made sets, which hold every node once, as fitted `NodeSets`: one batch per set, in some order."""
    chosen = NodeSets(method="random", ratio=1 / len(sets), parts=len(sets))
    count = sum(nodes.numel() for nodes in sets)
    chosen.nodes_, chosen.parts_ = torch.arange(count), torch.empty(count, dtype=torch.int64)
    for number, nodes in enumerate(sets):
        chosen.parts_[nodes] = number
    return chosen


def cliques(count: int, size: int) -> Tensor:
    """Connect `count` cliques of `size` nodes in a ring, each pair of neighbours by one edge; one direction only."""
    edges = [(c * size + i, c * size + j) for c in range(count) for i in range(size) for j in range(i + 1, size)]
    edges += [(c * size, (c + 1) % count * size + 1) for c in range(count)]
    return torch.tensor(edges).T


def same_part(part: Tensor) -> Tensor:
    """Describe a partition up to the names of its parts."""
    return part[:, None] == part[None, :]


def normalized(data: Data) -> Tensor:
    """Return D^-1/2 (A + I) D^-1/2 of an undirected graph, dense."""
    edges: Tensor = to_dense_adj(data.edge_index, max_num_nodes=data.num_nodes)[0]
    matrix = edges.double() + torch.eye(len(edges))
    scale = matrix.sum(1).rsqrt()
    return scale.view(-1, 1) * matrix * scale
