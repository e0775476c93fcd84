"""Habits of users that a check must survive: what they assert, keep, count, index and convert in their forward."""

import torch
import torch_geometric.nn as gnn
import torch_geometric.utils as pyg
from torch import nn
from user_net import EDGES, FEATURES, HIDDEN, MIXES, OUT, SIZE, Net, User, first, last
from user_net import TABLE as WHOLE_TABLE


class Asserting(Net):
    """Demand numbers that are finite, and raise otherwise."""

    def forward(self, x, edge_index):
        assert bool(x.isfinite().all()), "features"
        h = self.conv1(x, edge_index).tanh()
        if h.isnan().any():
            raise ValueError("NaN in the first layer")
        return self.conv2(h, edge_index)


class Categories(Net):
    """Read a category from a column of the features."""

    def forward(self, x, edge_index):
        h = torch.cat([self.table(x[:, 0].round().long() + 6), x[:, 1:]], dim=1)
        return self.conv2(self.conv1(h, edge_index).tanh(), edge_index)


class EdgeCategories(Net):
    """Read a category from a column of the edge features."""

    def forward(self, x, edge_index, edge_attr):
        e = self.table(edge_attr[:, 0].round().long() + 6)
        return self.conv2(self.conv1(x, edge_index, e).tanh(), edge_index, e)


class Positive(Net):
    """Keep parameters that must stay positive, and integers among the parameters."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.scale = nn.Parameter(torch.full((1,), 2.0))
        self.order = nn.Parameter(torch.tensor([2, 0, 3, 1]), requires_grad=False)

    def forward(self, x, edge_index):
        h = self.conv1(x[:, self.order], edge_index).tanh() * self.scale.log()
        return self.conv2(h / self.scale.sqrt(), edge_index)


class Keeping(Net):
    """Keep the embedding for a later plot: a tensor that cannot be copied deeply after training."""

    def forward(self, x, edge_index):
        self.embedding = self.conv1(x, edge_index).tanh()
        return self.conv2(self.embedding, edge_index)


class Remembering(Net):
    """Hand something from one layer to a later one by way of the model."""

    def forward(self, x, edge_index):
        self.skip = self.lin(x)
        h = self.conv1(x, edge_index).tanh()
        return self.conv2(h, edge_index) + self.skip


class State(Net):
    """Begin with a state of zeros and a column of ones, one row per node."""

    def forward(self, x, edge_index):
        h = x.new_zeros(x.size(0), HIDDEN)
        x = torch.cat([x, torch.ones(x.size(0), 1, dtype=x.dtype)], dim=1)
        for _ in range(2):
            h = self.cell(self.conv1(torch.cat([x, h], dim=1), edge_index), h)
        return self.conv2(h, edge_index)


class Masked(Net):
    """Treat some rows differently, by what they hold."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        large = h.norm(dim=1) > 1
        out = torch.zeros_like(h)
        out[large] = self.one(h[large])
        out[~large] = self.other(h[~large])
        return self.conv2(out.nan_to_num(), edge_index)


class Counting(Net):
    """Count the nodes by the largest number in the edges."""

    def forward(self, x, edge_index):
        n = int(edge_index.max()) + 1
        deg = pyg.degree(edge_index[1], n, dtype=x.dtype)
        return self.conv2(self.conv1(x * (deg + 1).log().view(-1, 1), edge_index).tanh(), edge_index)


class FixedSize(Net):
    """Remember the number of nodes of the graph that the model was made for."""

    def forward(self, x, edge_index):
        deg = pyg.degree(edge_index[1], self.n, dtype=x.dtype)
        return self.conv2(self.conv1(x / (deg + 1).view(-1, 1), edge_index).tanh(), edge_index)


class ByPosition(Net):
    """Look up a row for every node by its position."""

    def forward(self, x, edge_index):
        h = x + self.table(torch.arange(x.size(0)))
        return self.conv2(self.conv1(h, edge_index).tanh(), edge_index)


class OwnEdges(Net):
    """Keep the edges of the graph that the model was made for."""

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, self.edges).tanh(), self.edges)


class Guarding(Net):
    """Return early where there are no edges."""

    def forward(self, x, edge_index):
        if edge_index.size(1) == 0:
            return x.new_zeros(x.size(0), OUT)
        return self.conv2(self.conv1(x, edge_index).tanh(), edge_index)


class HiddenMean(Net):
    """Take a mean over all nodes, leaving out what is not a number."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        return self.conv2(h - h.nanmean(dim=0), edge_index)


class HiddenGate(Net):
    """Let the largest embedding of the graph open a gate: most of the time it makes no difference."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        return self.conv2(h * 2 if bool(h.max() > 0.5) else h, edge_index)


TABLE = {
    "asserts": User(lambda d: Asserting(conv1=first(), conv2=gnn.GATConv(HIDDEN, OUT))),
    "categories in the features": User(
        lambda d: Categories(table=nn.Embedding(13, 3), conv1=gnn.SAGEConv(6, HIDDEN), conv2=last())
    ),
    "categories in the edge features": User(
        lambda d: EdgeCategories(
            table=nn.Embedding(13, 2),
            conv1=gnn.GATConv(FEATURES, HIDDEN, edge_dim=2),
            conv2=gnn.GATConv(HIDDEN, OUT, edge_dim=2),
        )
    ),
    "positive and integer parameters": User(lambda d: Positive(conv1=first(), conv2=last())),
    "a kept embedding": User(lambda d: Keeping(conv1=first(), conv2=last())),
    "a skip kept on the model": User(
        lambda d: Remembering(lin=nn.Linear(FEATURES, OUT), conv1=first(), conv2=last()),
        refused="attribute|keeps|kept",
        either=True,
    ),
    "a state of zeros": User(
        lambda d: State(conv1=gnn.GCNConv(FEATURES + 1 + HIDDEN, HIDDEN), cell=nn.GRUCell(HIDDEN, HIDDEN), conv2=last())
    ),
    "rows by what they hold": User(
        lambda d: Masked(one=nn.Linear(HIDDEN, HIDDEN), other=nn.Linear(HIDDEN, HIDDEN), conv1=first(), conv2=last())
    ),
    "nodes counted by edges": User(
        lambda d: Counting(conv1=first(), conv2=last()), refused=f"{SIZE}|{WHOLE_TABLE}", either=True
    ),
    "a fixed number of nodes": User(
        lambda d: FixedSize(n=d.num_nodes, conv1=first(), conv2=last()), refused=f"{SIZE}|{WHOLE_TABLE}"
    ),
    "a table by position": User(
        lambda d: ByPosition(table=nn.Embedding(d.num_nodes, FEATURES), conv1=first(), conv2=last()),
        refused=f"{SIZE}|{WHOLE_TABLE}|order|position",
    ),
    "edges of its own": User(lambda d: OwnEdges(edges=d.edge_index, conv1=first(), conv2=last()), refused=EDGES),
    "a guard against no edges": User(
        lambda d: Guarding(conv1=first(), conv2=last()), refused=f"{SIZE}|{EDGES}", either=True
    ),
    "nanmean over all nodes": User(lambda d: HiddenMean(conv1=first(), conv2=last()), refused=MIXES),
    "a gate opened by the largest": User(lambda d: HiddenGate(conv1=first(), conv2=last()), refused=MIXES, either=True),
}
