"""Convs that users write themselves: what they read from the graph is in their own code, unknown to the package."""

import torch
import torch_geometric.nn as gnn
import torch_geometric.utils as pyg
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from user_net import FEATURES, HIDDEN, MIXES, OUT, Net, Two, User, two


class Own(gnn.MessagePassing):
    """Begin a conv with a linear layer, as most do; sum the neighbours' rows."""

    def __init__(self, width, out, **options):
        super().__init__(**({"aggr": "add"} | options))
        self.lin = nn.Linear(width, out)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x))


class Tutorial(Own):
    """The GCN of PyG's tutorial."""

    def forward(self, x, edge_index):
        edge_index, _ = pyg.add_self_loops(edge_index, num_nodes=x.size(0))
        x = self.lin(x)
        row, col = edge_index
        deg = pyg.degree(col, x.size(0), dtype=x.dtype)
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        return self.propagate(edge_index, x=x, norm=norm)

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Median(Own):
    """Take the median of the neighbours and of the node itself; PyG's own fails where the first node gets nothing."""

    def forward(self, x, edge_index):
        edge_index, _ = pyg.add_self_loops(edge_index, num_nodes=x.size(0))
        return self.propagate(edge_index, x=self.lin(x))


class OldTutorial(Own):
    """The same, as the tutorial had it once: the degrees are counted inside the message."""

    def forward(self, x, edge_index):
        edge_index, _ = pyg.add_self_loops(edge_index, num_nodes=x.size(0))
        return self.propagate(edge_index, size=(x.size(0), x.size(0)), x=self.lin(x))

    def message(self, x_j, edge_index, size):
        row, col = edge_index
        scale = pyg.degree(row, size[0], dtype=x_j.dtype).clamp(min=1).pow(-0.5)
        return (scale[row] * scale[col]).view(-1, 1) * x_j


class Normed(Own):
    """Call PyG's gcn_norm."""

    def forward(self, x, edge_index):
        edge_index, norm = gcn_norm(edge_index, None, x.size(0), dtype=x.dtype)
        return self.propagate(edge_index, x=self.lin(x), norm=norm)

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class Laplacian(Normed):
    """Multiply with the normalised Laplacian."""

    def forward(self, x, edge_index):
        edges, norm = pyg.get_laplacian(edge_index, None, "sym", dtype=x.dtype, num_nodes=x.size(0))
        return self.propagate(edges, x=self.lin(x), norm=norm)


class OutDegree(Normed):
    """Divide what a node sends by the number of its receivers: the degrees of the neighbours."""

    def forward(self, x, edge_index):
        norm = 1 / pyg.degree(edge_index[0], x.size(0), dtype=x.dtype)[edge_index[0]]
        return self.propagate(edge_index, x=self.lin(x), norm=norm)


class RandomWalk(Normed):
    """Divide what a node receives by its own degree."""

    def forward(self, x, edge_index):
        norm = 1 / pyg.degree(edge_index[1], x.size(0), dtype=x.dtype)[edge_index[1]]
        return self.propagate(edge_index, x=self.lin(x), norm=norm)


class TargetDegree(Own):
    """Scale the result by the receiver's degree, kept from one method to the next."""

    def forward(self, x, edge_index):
        self.deg = pyg.degree(edge_index[1], x.size(0), dtype=x.dtype)
        return self.propagate(edge_index, x=self.lin(x))

    def update(self, inputs):
        return inputs * (self.deg + 1).log().view(-1, 1)


class TwoHops(Own):
    """Propagate what was propagated, with a nonlinearity between."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.propagate(edge_index, x=self.lin(x)).tanh())


class Hops(Own):
    """Sum the first K powers, each with a weight of its own."""

    def forward(self, x, edge_index, *, hops=3):
        edge_index, norm = gcn_norm(edge_index, None, x.size(0), dtype=x.dtype)
        x = out = self.lin(x)
        for hop in range(hops):
            x = self.propagate(edge_index, x=x, norm=norm)
            out = out + x / (hop + 2)
        return out

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j


class SameTwice(Own):
    """Propagate one operand twice, differently."""

    def forward(self, x, edge_index):
        x = self.lin(x)
        up, down = x.new_ones(edge_index.size(1)), x.new_full((edge_index.size(1),), 0.5)
        plus = self.propagate(edge_index, x=x, scale=up)
        return plus.tanh() - self.propagate(edge_index, x=x, scale=down)

    def message(self, x_i, x_j, scale):
        return scale.view(-1, 1) * torch.sigmoid(x_i - x_j)


class TwoOperands(Own):
    """Propagate the input and its transform, each once."""

    def forward(self, x, edge_index):
        return self.lin(self.propagate(edge_index, x=x)) + self.propagate(edge_index, x=self.lin(x).tanh())


class Updater(Own):
    """Compute attention in `edge_updater`."""

    def forward(self, x, edge_index):
        x = self.lin(x)
        alpha = self.edge_updater(edge_index, x=x)
        return self.propagate(edge_index, x=x, alpha=alpha)

    def edge_update(self, x_i, x_j, index, ptr, size_i):
        return pyg.softmax((x_i * x_j).sum(-1), index, ptr, size_i)

    def message(self, x_j, alpha):
        return alpha.view(-1, 1) * x_j


class Attention(Own):
    """Weigh the neighbours by a softmax inside the message, with dropout on it."""

    def message(self, x_i, x_j, index, size_i):
        alpha = pyg.softmax((x_i * x_j).sum(-1), index, num_nodes=size_i)
        return nn.functional.dropout(alpha, 0.3, self.training).view(-1, 1) * x_j


class EdgeConv(gnn.MessagePassing):
    """The EdgeConv of PyG's tutorial."""

    def __init__(self, width, out):
        super().__init__(aggr="max")
        self.mlp = nn.Sequential(nn.Linear(2 * width, out), nn.Tanh(), nn.Linear(out, out))

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.mlp(torch.cat([x_i, x_j - x_i], dim=-1))


class Pair(Own):
    """Read the neighbours from one tensor and the node itself from another."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=(self.lin(x), x @ self.lin.weight.t()))

    def message(self, x_i, x_j):
        return x_j * x_i.sigmoid()


class BatchNormed(Own):
    """Normalise inside the conv, before and after the messages."""

    def __init__(self, width, out):
        super().__init__(width, out, aggr="mean")
        self.before, self.after = nn.BatchNorm1d(out), nn.BatchNorm1d(out)

    def forward(self, x, edge_index):
        h = self.before(self.lin(x))
        return self.after(self.propagate(edge_index, x=h) + h)


class Around(Own):
    """Call another conv inside the conv."""

    def __init__(self, width, out):
        super().__init__(width, out, aggr="mean")
        self.inner = gnn.GCNConv(width, out)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x)) + self.inner(x, edge_index).tanh()


class Central(Own):
    """Subtract the mean over all nodes inside the conv."""

    def forward(self, x, edge_index):
        x = self.lin(x)
        return self.propagate(edge_index, x=x - x.mean(dim=0))


class EdgeFeatures(Own):
    """Add what an edge carries to the neighbour's row."""

    def __init__(self, width, out):
        super().__init__(width, out, aggr="mean")
        self.edge = nn.Linear(2, out)

    def forward(self, x, edge_index, edge_attr):
        return self.propagate(edge_index, x=self.lin(x), edge_attr=self.edge(edge_attr))

    def message(self, x_j, edge_attr):
        return (x_j + edge_attr).tanh()


class WithEdges(Net):
    """Hand the edge features to both convs."""

    def forward(self, x, edge_index, edge_attr):
        return self.conv2(self.conv1(x, edge_index, edge_attr).tanh(), edge_index, edge_attr)


def _several():
    return gnn.MultiAggregation(["mean", gnn.SoftmaxAggregation(learn=True), "std"], mode="sum")


TABLE = {
    name: two(conv)
    for name, conv in {
        "own sum": Own,
        "tutorial GCN": Tutorial,
        "tutorial GCN, degrees in the message": OldTutorial,
        "own gcn_norm": Normed,
        "own Laplacian": Laplacian,
        "own out-degrees": OutDegree,
        "own random walk": RandomWalk,
        "own in-degree of the target": TargetDegree,
        "own two hops": TwoHops,
        "own K hops": Hops,
        "own one operand twice": SameTwice,
        "own two operands": TwoOperands,
        "own edge_updater": Updater,
        "tutorial EdgeConv": EdgeConv,
        "own pair": Pair,
        "own batch norm inside": BatchNormed,
    }.items()
}
TABLE |= {
    "own mean": two(Own, aggr="mean"),
    "own max": two(Own, aggr="max"),
    "own backwards": two(Tutorial, flow="target_to_source"),
    "own softmax aggregation": two(Own, aggr="softmax"),
    "own median": two(Median, aggr="median"),
    "own several aggregations": User(
        lambda d: Two(conv1=Own(FEATURES, HIDDEN, aggr=_several()), conv2=Own(HIDDEN, OUT, aggr=_several()))
    ),
    "own lstm": User(
        lambda d: Two(
            conv1=Own(FEATURES, HIDDEN, aggr=gnn.LSTMAggregation(HIDDEN, HIDDEN)),
            conv2=Own(HIDDEN, OUT, aggr=gnn.LSTMAggregation(OUT, OUT)),
        ),
        refused="sorted|order|fill",
        either=True,
        ordered=True,
    ),
    "own conv in a conv": User(
        lambda d: Two(conv1=Around(4, 6), conv2=Around(6, 3)), refused="inside|within|another conv", either=True
    ),
    "own attention with dropout": User(lambda d: Two(conv1=Attention(4, 6), conv2=Attention(6, 3)), random_edges=True),
    "own edge features": User(lambda d: WithEdges(conv1=EdgeFeatures(4, 6), conv2=EdgeFeatures(6, 3))),
    "own mean over all nodes": User(lambda d: Two(conv1=Own(4, 6), conv2=Central(6, 3)), refused=MIXES),
}
