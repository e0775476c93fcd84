"""Graphs whose classes of nodes are known, and networks of random weights on them, all in float64.

`lift` copies every node of a base graph: an edge of the base becomes a matching between the copies of its ends, drawn
at random. Copies have equal features and see copies of the same neighbours, so no message passing tells them apart:
the classes are the nodes of the base, all of one size.

>>> data = lift(ring(4), copies=5, seed=0)
>>> data.num_nodes, data.kind.unique().tolist()
(20, [0, 1, 2, 3])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from topoff.batching.node_sets import NodeSets
from topoff.compensation.embeddings import embed
from topoff.forward.trial import make_plan
from topoff.graph.aggregation import aggregation
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator, Sparse

ACTIVATIONS = ("leaky_relu", "tanh", "relu")


def six_nodes(*, features: int = 3, seed: int = 0) -> Data:
    """Return Figure 1: edges 1-3, 2-3, 3-4, 4-5, 4-6 (here from 0), equal features inside {1, 2, 5, 6} and {3, 4}."""
    kind = torch.tensor([0, 0, 1, 1, 0, 0])
    return _graph([(0, 2), (1, 2), (2, 3), (3, 4), (3, 5)], _normal(2, features, seed=seed)[kind], kind)


def ring(n: int, *, features: int = 4, chords: int | None = None, seed: int = 0) -> Data:
    """Return a ring with chords of random ends (by default n // 2), every node unlike the others by its features."""
    generator = torch.Generator().manual_seed(seed)
    pairs = {(i, (i + 1) % n) for i in range(n)}
    for i, j in torch.randint(n, (n // 2 if chords is None else chords, 2), generator=generator).tolist():
        if i != j and (i, j) not in pairs and (j, i) not in pairs:
            pairs.add((i, j))
    return _graph(sorted(pairs), _normal(n, features, seed=seed + 1), torch.arange(n))


def lift(base: Data, *, copies: int, seed: int) -> Data:
    """Return a random lift: node b of the base has the copies b * copies + i, `kind` (n,) is the node of the base."""
    generator = torch.Generator().manual_seed(seed)
    own, pairs = torch.arange(copies), []
    for i, j in base.edge_index.T.tolist():
        if i < j:
            other = torch.randperm(copies, generator=generator)
            pairs += list(zip((i * copies + own).tolist(), (j * copies + other).tolist(), strict=True))
    return _graph(pairs, base.x.repeat_interleave(copies, 0), base.kind.repeat_interleave(copies))


def star(n: int, *, features: int = 3, seed: int = 0) -> Data:
    """Return a hub, node 0, with n - 1 equal leaves: two classes of very different sizes."""
    kind = (torch.arange(n) > 0).long()
    return _graph([(0, i) for i in range(1, n)], _normal(2, features, seed=seed)[kind], kind)


def hubs(count: int, *, leaves: int, features: int = 3, seed: int = 0) -> Data:
    """Return a ring of equal hubs, nodes 0 to count - 1, each with equal leaves: classes of shares 1 to `leaves`."""
    own = torch.arange(count * leaves)
    pairs = [(i, (i + 1) % count) for i in range(count)]
    pairs += list(zip((own // leaves).tolist(), (count + own).tolist(), strict=True))
    kind = (torch.arange(count * (1 + leaves)) >= count).long()
    return _graph(pairs, _normal(2, features, seed=seed)[kind], kind)


def path(x: Tensor) -> Data:
    """Return a path with features x (n, d)."""
    return _graph([(i, i + 1) for i in range(len(x) - 1)], x, torch.arange(len(x)))


def sparse_graph(n: int, *, degree: float, kinds: int, seed: int) -> Data:
    """Return a uniform random graph whose features are drawn from a finite set, one unit vector per kind."""
    generator = torch.Generator().manual_seed(seed)
    drawn = (torch.rand(n, n, generator=generator) < degree / n).triu(1)
    kind = torch.randint(kinds, (n,), generator=generator)
    return _graph([(i, j) for i, j in drawn.nonzero().tolist()], torch.eye(kinds, dtype=torch.float64)[kind], kind)


def network(data: Data, *, layers: int, width: int = 8, act: str | None = "tanh", seed: int = 0) -> nn.Module:
    """Return PyG's GCN without biases, as Eq. 1 has it, with normal weights; `act=None` is a linear GNN.

    >>> network(six_nodes(), layers=2)
    GCN(3, 8, num_layers=2)
    """
    model = GCN(data.num_features, width, num_layers=layers, out_channels=width, act=act, bias=False).double()
    return with_weights(model, seed=seed)


def with_weights(model: nn.Module, *, seed: int) -> nn.Module:
    """Draw all weights of a model from a normal distribution of variance 1 / inputs, and return the model."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.copy_(drawn / weight.size(-1) ** 0.5)
    return model


def embedder(model: nn.Module, data: Data) -> Callable[[nn.Module], list[Tensor]]:
    """Return a function that maps networks like `model` to what their convs after the first read.

    These are the basic embeddings H^(1), ..., H^(L-1), each (n, d), by exact inference.

    >>> data = six_nodes()
    >>> [rows.shape for rows in embedder(network(data, layers=3), data)(network(data, layers=3, seed=1))]
    [torch.Size([6, 8]), torch.Size([6, 8])]
    """
    graph = Graph(data)
    plan, whole = make_plan(model, graph), [graph.induced(torch.arange(graph.num_nodes))]

    def layers(network: nn.Module) -> list[Tensor]:
        """Collect the embeddings of one network."""
        found: list[Tensor] = []
        embed(network, graph, whole, plan=plan, collect=lambda _, rows: found.append(rows))
        return found

    return layers


def operator_of(data: Data) -> Sparse:
    """Return the matrix A of Eq. 1, with the weights of GCN: D^-1/2 (A + I) D^-1/2."""
    return aggregation(data, Operator(norm="gcn", self_loops=True)).all()


def sets_of(sets: Sequence[Tensor]) -> NodeSets:
    """Return sets that hold every node once as fitted `NodeSets`: one batch per set, in an order of its own.

    >>> [nodes.tolist() for nodes in sets_of([torch.tensor([0, 2]), torch.tensor([1])]).of(0)]
    [[0, 2], [1]]
    """
    count = sum(nodes.numel() for nodes in sets)
    found = NodeSets(method="random", ratio=1 / len(sets), parts=len(sets))
    found.nodes_, found.parts_ = torch.arange(count), torch.empty(count, dtype=torch.int64)
    for number, nodes in enumerate(sets):
        found.parts_[nodes] = number
    return found


def _normal(rows: int, columns: int, *, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _graph(pairs: Sequence[tuple[int, int]], x: Tensor, kind: Tensor) -> Data:
    """Return an undirected graph whose nodes are all training nodes; their class is `kind`, and their label."""
    edges = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T
    every, none = torch.ones(len(x), dtype=torch.bool), torch.zeros(len(x), dtype=torch.bool)
    masks = {"train_mask": every, "val_mask": none, "test_mask": none}
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=kind, kind=kind, **masks)
