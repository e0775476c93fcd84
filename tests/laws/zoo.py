"""Every conv and model that the laws run over: small, float64, and called with whatever edge values it takes.

A model is made by `zoo.make(name, data, seed=...)`; it reads `data` only for sizes and PNA's degrees.
"""

import inspect
import itertools
from collections.abc import Callable

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import degree

HIDDEN, OUT = 6, 3

Layer = Callable[[int, int, Data], nn.Module]


class Convs(nn.Module):
    """Apply convs one after the other with tanh between them, so that no gradient meets a kink."""

    def __init__(self, convs: list[nn.Module]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def run(self, x: Tensor, *edges: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = conv(x, *edges).tanh()
        return self.convs[-1](x, *edges)


class Stack(Convs):
    """Hand every conv the edges alone."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(x, edge_index)


class Weighted(Convs):
    """Hand the edge weights to every conv."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.run(x, edge_index, edge_weight)


class Featured(Convs):
    """Hand the edge features to every conv."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.run(x, edge_index, edge_attr)


class Rooted(Convs):
    """Hand the first embedding to every conv (GCNII)."""

    def __init__(self, features: int, convs: list[nn.Module]) -> None:
        super().__init__(convs)
        self.first, self.last = nn.Linear(features, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        x = root = self.first(x).tanh()
        for conv in self.convs:
            x = conv(x, root, edge_index, edge_weight).tanh()
        return self.last(x)


class Same(Convs):
    """Surround convs that keep the width with linear layers."""

    def __init__(self, features: int, convs: list[nn.Module]) -> None:
        super().__init__(convs)
        width = HIDDEN if not isinstance(convs[0], gnn.SimpleConv) or convs[0].combine_root != "cat" else 4 * HIDDEN
        self.first, self.last = nn.Linear(features, HIDDEN), nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.last(self.run(self.first(x).tanh(), edge_index, edge_weight))


class Paired(Stack):
    """Hand every conv its input twice, as source and as target."""

    def run(self, x: Tensor, *edges: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = conv((x, x), *edges).tanh()
        return self.convs[-1]((x, x), *edges)


class Gated(gnn.MessagePassing):  # type: ignore[misc]  # PyG has no types
    """Weigh a neighbour's row by a gate that reads the neighbour's root: a user's own conv with two node inputs."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="add")
        self.lin, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, root: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.propagate(edge_index, x=x, root=root)) + x

    def message(self, x_j: Tensor, root_j: Tensor) -> Tensor:
        return x_j * self.gate(root_j).sigmoid()


class Own(nn.Module):
    """Stack the user's own convs."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(features, HIDDEN), nn.Linear(HIDDEN, OUT)
        self.convs = nn.ModuleList(Gated(HIDDEN) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = root = self.first(x).tanh()
        for conv in self.convs:
            x = conv(x, root, edge_index).tanh()
        return self.last(x)


class OwnFirst(nn.Module):
    """Let the user's own conv read the raw features and an embedding at once."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.root, self.conv, self.last = nn.Linear(features, features), Gated(features), nn.Linear(features, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.conv(x, self.root(x).tanh(), edge_index))


class Unlearned(Stack):
    """Propagate the raw features by convs without weights, then classify (SGC as a user might write it)."""

    def __init__(self, features: int, convs: list[nn.Module]) -> None:
        super().__init__(convs)
        self.last = nn.Linear(features, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.run(x, edge_index))


class Mixed(nn.Module):
    """Mix GCN, mean and attention in each layer, with a residual, batch norm and jumping knowledge."""

    def __init__(self, features: int) -> None:
        super().__init__()
        widths = [features, HIDDEN, HIDDEN]
        self.gcn = nn.ModuleList(gnn.GCNConv(width, HIDDEN) for width in widths)
        self.mean = nn.ModuleList(gnn.SAGEConv(width, HIDDEN) for width in widths)
        self.attention = nn.ModuleList(gnn.GATv2Conv(width, HIDDEN) for width in widths)
        self.norms = nn.ModuleList(nn.BatchNorm1d(HIDDEN) for _ in widths)
        self.jump = gnn.JumpingKnowledge("max")
        self.last = nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        seen = []
        for gcn, mean, attention, norm in zip(self.gcn, self.mean, self.attention, self.norms, strict=True):
            h = gcn(x, edge_index, edge_weight) + mean(x, edge_index) + attention(x, edge_index)
            x = norm(h).tanh() + (x if x.shape == h.shape else 0)
            seen.append(x)
        return self.last(self.jump(seen))


class Linear(nn.Module):
    """Mix GCN and mean operators in each layer: two operators, one compensation."""

    def __init__(self, features: int) -> None:
        super().__init__()
        widths = [features, HIDDEN, HIDDEN]
        self.gcn = nn.ModuleList(gnn.GCNConv(width, HIDDEN) for width in widths)
        self.mean = nn.ModuleList(gnn.SAGEConv(width, HIDDEN) for width in widths)
        self.last = nn.Linear(HIDDEN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        for gcn, mean in zip(self.gcn, self.mean, strict=True):
            x = (gcn(x, edge_index, edge_weight) + mean(x, edge_index)).tanh()
        return self.last(x)


class Block(nn.Module):
    """Hold a conv deep inside, as nested models do."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"conv": gnn.GCNConv(before, after), "norm": nn.LayerNorm(after)})

    def forward(self, data: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, edge_index = data
        return self.inner["norm"](self.inner["conv"](x, edge_index)).tanh(), edge_index


class Nested(nn.Module):
    """Nest modules and take the batch itself as the only argument."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.body = nn.Sequential(Block(features, HIDDEN), nn.Sequential(Block(HIDDEN, HIDDEN)))
        self.head = gnn.GATConv(HIDDEN, OUT)

    def forward(self, data: Data) -> Tensor:
        x, edge_index = self.body((data.x, data.edge_index))
        return self.head(x, edge_index)


class Shared(nn.Module):
    """Use one conv for all layers, and a second one that reads both the features and embeddings."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(features, features)
        self.attention = gnn.GATConv(features, features)
        self.last = nn.Linear(features, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = x
        for _ in range(3):
            h = self.conv(h, edge_index).tanh() + self.attention(h, edge_index)
        return self.last(h)


def _mlp(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Linear(before, after), nn.Tanh(), nn.Linear(after, after))


def _degrees(data: Data) -> Tensor:
    return torch.bincount(degree(data.edge_index[1], data.num_nodes, dtype=torch.long))


def _edge_width(data: Data) -> int:
    return data.edge_attr.size(1)


def _pna(before: int, after: int, data: Data) -> nn.Module:
    how = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification", "attenuation"]}
    return gnn.PNAConv(before, after, **how, deg=_degrees(data), edge_dim=_edge_width(data))


def _nn(before: int, after: int, data: Data) -> nn.Module:
    return gnn.NNConv(before, after, nn.Linear(_edge_width(data), before * after), aggr="mean")


# (how the stack calls them, one layer of `before` -> `after` channels)
LINEAR_CONVS: dict[str, tuple[type[Convs], Layer]] = {
    "gcn": (Stack, lambda a, b, d: gnn.GCNConv(a, b)),
    "gcn_weighted": (Weighted, lambda a, b, d: gnn.GCNConv(a, b)),
    "gcn_improved": (Weighted, lambda a, b, d: gnn.GCNConv(a, b, improved=True)),
    "gcn_without_loops": (Weighted, lambda a, b, d: gnn.GCNConv(a, b, add_self_loops=False)),
    "gcn_without_norm": (Weighted, lambda a, b, d: gnn.GCNConv(a, b, normalize=False)),
    "gcn_cached": (Weighted, lambda a, b, d: gnn.GCNConv(a, b, cached=True)),
    "gcn_backwards": (Weighted, lambda a, b, d: gnn.GCNConv(a, b, flow="target_to_source")),
    "sage_mean": (Stack, lambda a, b, d: gnn.SAGEConv(a, b)),
    "sage_sum": (Stack, lambda a, b, d: gnn.SAGEConv(a, b, aggr="sum")),
    "sage_projected": (Stack, lambda a, b, d: gnn.SAGEConv(a, b, project=True, normalize=True)),
    "sage_pair": (Paired, lambda a, b, d: gnn.SAGEConv((a, a), b)),
    "graph_add": (Weighted, lambda a, b, d: gnn.GraphConv(a, b)),
    "graph_mean": (Weighted, lambda a, b, d: gnn.GraphConv(a, b, aggr="mean")),
    "gin": (Stack, lambda a, b, d: gnn.GINConv(_mlp(a, b), train_eps=True)),
    "sg": (Weighted, lambda a, b, d: gnn.SGConv(a, b, K=3)),
    "sg_cached": (Weighted, lambda a, b, d: gnn.SGConv(a, b, K=2, cached=True)),
    "ssg": (Weighted, lambda a, b, d: gnn.SSGConv(a, b, alpha=0.2, K=3)),
    "tag": (Weighted, lambda a, b, d: gnn.TAGConv(a, b, K=2)),
    "cluster": (Stack, lambda a, b, d: gnn.ClusterGCNConv(a, b)),
    "cluster_diagonal": (Stack, lambda a, b, d: gnn.ClusterGCNConv(a, b, diag_lambda=0.5)),
    "mixhop": (Weighted, lambda a, b, d: gnn.MixHopConv(a, b // 3, powers=[0, 1, 2])),
}
GENERAL_CONVS: dict[str, tuple[type[Convs], Layer]] = {
    "sage_max": (Stack, lambda a, b, d: gnn.SAGEConv(a, b, aggr="max")),
    "sage_max_backwards": (Stack, lambda a, b, d: gnn.SAGEConv(a, b, aggr="max", flow="target_to_source")),
    "gat": (Stack, lambda a, b, d: gnn.GATConv(a, b // 3, heads=3)),
    "gat_pair": (Paired, lambda a, b, d: gnn.GATConv((a, a), b, add_self_loops=False)),
    "gat_features": (Featured, lambda a, b, d: gnn.GATConv(a, b, edge_dim=_edge_width(d))),
    "gatv2": (Featured, lambda a, b, d: gnn.GATv2Conv(a, b, heads=2, concat=False, edge_dim=_edge_width(d))),
    "transformer": (Featured, lambda a, b, d: gnn.TransformerConv(a, b, edge_dim=_edge_width(d), beta=True)),
    "pna": (Featured, _pna),
    "gen": (Featured, lambda a, b, d: gnn.GENConv(a, b, edge_dim=_edge_width(d), learn_t=True, norm="layer")),
    "gine": (Featured, lambda a, b, d: gnn.GINEConv(_mlp(a, b), edge_dim=_edge_width(d))),
    "nn": (Featured, _nn),
    "res_gated": (Featured, lambda a, b, d: gnn.ResGatedGraphConv(a, b, edge_dim=_edge_width(d))),
}
MODELS: dict[str, Callable[[Data], nn.Module]] = {
    "gcn2": lambda d: Rooted(d.num_features, [gnn.GCN2Conv(HIDDEN, 0.1, 0.5, layer + 1) for layer in range(3)]),
    "appnp": lambda d: Same(d.num_features, [gnn.APPNP(K=3, alpha=0.1)]),
    "lg": lambda d: Same(d.num_features, [gnn.LGConv(), gnn.LGConv()]),
    "gated": lambda d: Same(d.num_features, [gnn.GatedGraphConv(HIDDEN, 2), gnn.GatedGraphConv(HIDDEN, 1)]),
    "simple": lambda d: Same(d.num_features, [gnn.SimpleConv(combine_root="self_loop"), gnn.SimpleConv("mean")]),
    "simple_cat": lambda d: Same(d.num_features, [gnn.SimpleConv("mean", "cat"), gnn.SimpleConv("sum", "cat")]),
    "propagated_features": lambda d: Unlearned(d.num_features, [gnn.LGConv(), gnn.SimpleConv("mean")]),
    "mixed_operators": lambda d: Linear(d.num_features),
    "mixed": lambda d: Mixed(d.num_features),
    "nested": lambda d: Nested(d.num_features),
    "own": lambda d: Own(d.num_features),
    "own_first": lambda d: OwnFirst(d.num_features),
    "shared": lambda d: Shared(d.num_features),
    "pyg_gcn": lambda d: gnn.GCN(d.num_features, HIDDEN, 3, OUT, norm="batch_norm", jk="cat", act="tanh"),
    "pyg_sage": lambda d: gnn.GraphSAGE(d.num_features, HIDDEN, 3, OUT, jk="max", act="tanh"),
    "pyg_gat": lambda d: gnn.GAT(d.num_features, HIDDEN, 2, OUT, heads=2, v2=True, act="tanh", norm="layer_norm",
                                 norm_kwargs={"mode": "node"}, edge_dim=_edge_width(d)),
    "pyg_gin": lambda d: gnn.GIN(d.num_features, HIDDEN, 2, OUT, jk="max", norm="batch_norm", act="tanh"),
    "pyg_pna": lambda d: gnn.PNA(d.num_features, HIDDEN, 2, OUT, aggregators=["mean", "max"], scalers=["identity"],
                                 deg=_degrees(d), act="tanh", edge_dim=_edge_width(d)),
}  # fmt: skip

LINEAR = list(LINEAR_CONVS)
GENERAL = list(GENERAL_CONVS)
ALL = [*LINEAR, *GENERAL, *MODELS]


def make(name: str, data: Data, *, seed: int = 0, layers: int = 2) -> nn.Module:
    """Return the named model in float64 with random weights."""
    torch.manual_seed(seed)
    if name in MODELS:
        return MODELS[name](data).double()
    stack, layer = (LINEAR_CONVS | GENERAL_CONVS)[name]
    widths = [data.num_features, *[HIDDEN] * (layers - 1), OUT]
    return stack([layer(a, b, data) for a, b in itertools.pairwise(widths)]).double()


def full_batch(model: nn.Module, data: Data) -> Tensor:
    """Call the model on the whole graph as its author would, without this package."""
    names = list(inspect.signature(model.forward).parameters)
    if names == ["data"]:
        return model(data)
    given = ("x", "edge_index", "edge_weight", "edge_attr")
    return model(**{name: data[name] for name in given if name in names and name in data})


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """Return the gradient of every parameter, zero where the loss does not depend on it."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def assert_near(value: Tensor | list[Tensor], truth: Tensor | list[Tensor], *, tolerance: float) -> None:
    """Demand equality up to `tolerance` times the largest entry of the truth (at least 1)."""
    pairs = zip(value, truth, strict=True) if isinstance(value, list) else [(value, truth)]
    for number, (one, other) in enumerate(pairs):
        assert one.shape == other.shape
        one, other = one.detach(), other.detach()
        error = float((one - other).abs().max()) if one.numel() else 0.0
        assert error <= tolerance * max(1.0, float(other.abs().max())), f"tensor {number}: off by {error:.1e}"
