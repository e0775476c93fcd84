"""Models whose own forward computes with edges: it drops, adds, weighs, turns or embeds them."""

import torch
import torch_geometric.nn as gnn
import torch_geometric.utils as pyg
from torch import nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from user_net import EDGES, FEATURES, HIDDEN, MIXES, NO_CONV, OUT, RANDOM, RELATIONS, Net, User, first, last


class Changed(Net):
    """Change the edges once, for both convs; what to do is `change(model, edge_index, n)`."""

    def forward(self, x, edge_index):
        edge_index = self.change(self, edge_index, x.size(0))
        return self.conv2(self.conv1(x, edge_index).tanh(), edge_index)


class Weighed(Net):
    """Weigh the edges by the model's own `weigh`: edge features to weights."""

    def forward(self, x, edge_index, edge_attr):
        weight = self.weigh(edge_attr).view(-1)
        return self.conv2(self.conv1(x, edge_index, weight).tanh(), edge_index, weight)


class NormedByHand(Net):
    """Normalise once and hand the weights to convs that do not."""

    def forward(self, x, edge_index):
        edges, weight = gcn_norm(edge_index, None, x.size(0), add_self_loops=self.loops, dtype=x.dtype)
        return self.conv2(self.conv1(x, edges, weight).tanh(), edges, weight)


class Encoded(Net):
    """Encode the edge features once, for convs that take them."""

    def forward(self, x, edge_index, edge_attr):
        e = self.encoder(edge_attr)
        return self.conv2(self.conv1(x, edge_index, e).tanh(), edge_index, e)


class FilledLoops(Net):
    """Add self-loops whose features are the mean of those that come in."""

    def forward(self, x, edge_index, edge_attr):
        edges, attr = pyg.add_self_loops(edge_index, edge_attr, fill_value="mean", num_nodes=x.size(0))
        return self.conv2(self.conv1(x, edges, attr).tanh(), edges, attr)


class Typed(Net):
    """Turn the integer type of an edge into something."""

    def forward(self, x, edge_index, edge_type):
        e = self.embed(edge_type)
        return self.conv2(self.conv1(x, edge_index, e).tanh(), edge_index, e)


class PerRelation(Net):
    """Keep one conv per relation, each on its own edges."""

    def forward(self, x, edge_index, edge_type):
        h = sum(conv(x, edge_index[:, edge_type == r]) for r, conv in enumerate(self.convs)).tanh()
        return sum(conv(h, edge_index[:, edge_type == r]) for r, conv in enumerate(self.outs))


class TwoWays(Net):
    """Send along the edges and against them."""

    def forward(self, x, edge_index):
        h = (self.conv1(x, edge_index) + self.back1(x, edge_index.flip(0))).tanh()
        return self.conv2(h, edge_index) + self.back2(h, torch.stack([edge_index[1], edge_index[0]]))


class Degrees(Net):
    """Let a node know its degree, as a feature."""

    def forward(self, x, edge_index):
        deg = torch.stack([pyg.degree(end, x.size(0), dtype=x.dtype) for end in edge_index], dim=1)
        x = torch.cat([x, (deg + 1).log()], dim=1)
        return self.conv2(self.conv1(x, edge_index).tanh(), edge_index)


class DegreeTable(Net):
    """Embed the degree between the convs."""

    def forward(self, x, edge_index):
        deg = pyg.degree(edge_index[1], x.size(0), dtype=torch.long).clamp(max=7)
        return self.conv2(self.conv1(x, edge_index).tanh() + self.table(deg), edge_index)


class Incoming(Net):
    """Normalise learnt scores over the edges that come in."""

    def forward(self, x, edge_index, edge_attr):
        weight = pyg.softmax(self.score(edge_attr).view(-1), edge_index[1], num_nodes=x.size(0))
        return self.conv2(self.conv1(x, edge_index, weight).tanh(), edge_index, weight)


class EndsOfFeatures(Net):
    """Weigh an edge by the features at its ends."""

    def forward(self, x, edge_index):
        row, col = edge_index
        weight = self.score(torch.cat([x[row], x[col]], dim=1)).sigmoid().view(-1)
        return self.conv2(self.conv1(x, edge_index, weight).tanh(), edge_index, weight)


class EndsOfEmbeddings(Net):
    """Weigh an edge by the embeddings at its ends, read outside any conv."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        weight = self.score(torch.cat([h[edge_index[0]], h[edge_index[1]]], dim=1)).sigmoid().view(-1)
        return self.conv2(h, edge_index, weight)


class Scattered(Net):
    """Sum the neighbours' embeddings by hand, outside any conv."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        return self.conv2(h, edge_index) + torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])[:, :3]


class Sparse(Net):
    """Multiply with a sparse matrix that is made in forward, and use no conv at all."""

    def forward(self, x, edge_index):
        ones, n = x.new_ones(edge_index.size(1)), x.size(0)
        matrix = torch.sparse_coo_tensor(edge_index.flip(0), ones, (n, n))
        x = matrix @ self.lin1(x)
        return matrix @ self.lin2(x.tanh()) if self.lin2 else self.conv(x.tanh(), edge_index)


class SparseIntoConv(Net):
    """Hand the convs a sparse matrix instead of edges."""

    def forward(self, x, edge_index):
        ones = x.new_ones(edge_index.size(1))
        adj = pyg.to_torch_csr_tensor(edge_index.flip(0), ones, size=(x.size(0), x.size(0)))
        return self.conv2(self.conv1(x, adj).tanh(), adj)


class Scaled(Net):
    """Divide the weights by the largest one of the graph."""

    def forward(self, x, edge_index, edge_weight):
        weight = edge_weight / edge_weight.max()
        return self.conv2(self.conv1(x, edge_index, weight).tanh(), edge_index, weight)


class Lighter(Net):
    """Leave light edges out in training: not random, so that it can be compared in any order of the edges."""

    def forward(self, x, edge_index, edge_weight):
        if self.training:
            edge_index = edge_index[:, edge_weight > 0.8]
        x = self.conv1(x, edge_index)
        return self.conv2(x.tanh(), edge_index) if self.conv2 else x


def _drop(model, edges, n):
    return pyg.dropout_edge(edges, p=0.4, training=model.training)[0]


def _drop_by_hand(model, edges, n):
    return edges[:, torch.rand(edges.size(1)) > 0.4] if model.training else edges


def _changed(change, *, conv=gnn.GCNConv, **verdict):
    return User(lambda d: Changed(change=change, conv1=conv(FEATURES, HIDDEN), conv2=conv(HIDDEN, OUT)), **verdict)


def _mlp(out):
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, out), nn.Sigmoid())


def _gats(net, **parts):
    return net(conv1=gnn.GATConv(FEATURES, HIDDEN, edge_dim=2), conv2=gnn.GATConv(HIDDEN, OUT, edge_dim=2), **parts)


def _rgcn(net, **parts):
    return net(conv1=gnn.RGCNConv(FEATURES, HIDDEN, RELATIONS), conv2=gnn.RGCNConv(HIDDEN, OUT, RELATIONS), **parts)


def _convs(out, width):
    return nn.ModuleList(gnn.SAGEConv(width, out) for _ in range(RELATIONS))


def _square(model, edges, n):
    dense = pyg.to_dense_adj(edges, max_num_nodes=n)[0]
    return pyg.dense_to_sparse(dense @ dense)[0]


TABLE = {
    "dropout_edge": _changed(_drop, random_edges=True),
    "dropout_edge, SAGE": _changed(_drop, conv=gnn.SAGEConv, random_edges=True),
    "dropout_edge, GAT": _changed(_drop, conv=gnn.GATConv, random_edges=True),
    "DropEdge by hand": _changed(_drop_by_hand, random_edges=True),
    "dropout_edge in eval mode": _changed(lambda m, e, n: pyg.dropout_edge(e, p=0.4)[0], refused=RANDOM),
    "add_self_loops": _changed(lambda m, e, n: pyg.add_self_loops(e, num_nodes=n)[0], conv=gnn.SAGEConv),
    "add_self_loops, GAT": _changed(lambda m, e, n: pyg.add_self_loops(e, num_nodes=n)[0], conv=gnn.GATConv),
    "add_self_loops without num_nodes": _changed(
        lambda m, e, n: pyg.add_self_loops(e)[0], conv=gnn.GraphConv, either=True, refused="num_nodes|number of nodes"
    ),
    "add_remaining_self_loops": _changed(lambda m, e, n: pyg.add_remaining_self_loops(e, num_nodes=n)[0]),
    "remove_self_loops": _changed(lambda m, e, n: pyg.remove_self_loops(e)[0], conv=gnn.SAGEConv),
    "to_undirected": _changed(lambda m, e, n: pyg.to_undirected(e, num_nodes=n)),
    "to_undirected, GAT": _changed(lambda m, e, n: pyg.to_undirected(e, num_nodes=n), conv=gnn.GATConv),
    "coalesce": _changed(lambda m, e, n: pyg.coalesce(e, num_nodes=n), conv=gnn.GraphConv),
    "coalesce, GCN": _changed(lambda m, e, n: pyg.coalesce(e, num_nodes=n)),
    "light edges left out in training": User(lambda d: Lighter(conv1=first(), conv2=last())),
    "light edges left out in training, GAT": User(lambda d: Lighter(conv1=gnn.GATConv(4, 3), conv2=None), known=True),
    "light edges left out in training, SAGE": User(lambda d: Lighter(conv1=gnn.SAGEConv(4, 3), conv2=None), known=True),
    "a copy of the edges": _changed(lambda m, e, n: e.clone(), conv=gnn.GATConv),
    "every other edge": _changed(lambda m, e, n: e[:, ::2], refused=EDGES),
    "edges of two steps": _changed(_square, conv=gnn.SAGEConv, either=True, refused=EDGES),
    "gcn_norm by hand": User(
        lambda d: NormedByHand(loops=True, conv1=first(normalize=False), conv2=gnn.GraphConv(HIDDEN, OUT))
    ),
    "gcn_norm by hand, no loops": User(
        lambda d: NormedByHand(
            loops=False, conv1=first(normalize=False), conv2=gnn.GCNConv(HIDDEN, OUT, normalize=False)
        )
    ),
    "edge weights from an MLP": User(lambda d: Weighed(weigh=_mlp(1), conv1=first(), conv2=last())),
    "edge weights from an MLP, GraphConv": User(
        lambda d: Weighed(weigh=_mlp(1), conv1=gnn.GraphConv(FEATURES, HIDDEN), conv2=gnn.GraphConv(HIDDEN, OUT))
    ),
    "edge weights from a column": User(
        lambda d: Weighed(weigh=lambda e: e[:, 0].abs() + 0.1, conv1=first(), conv2=last())
    ),
    "edge weights from a bare column": User(
        lambda d: Weighed(
            weigh=lambda e: e[:, 0], conv1=gnn.GraphConv(FEATURES, HIDDEN), conv2=gnn.GraphConv(HIDDEN, OUT)
        )
    ),
    "edge encoder": User(lambda d: _gats(Encoded, encoder=_mlp(2))),
    "edge encoder, GINE": User(
        lambda d: Encoded(
            encoder=nn.Linear(2, 4),
            conv1=gnn.GINEConv(nn.Linear(FEATURES, HIDDEN), edge_dim=4),
            conv2=gnn.GINEConv(nn.Linear(HIDDEN, OUT), edge_dim=4),
        )
    ),
    "self-loops with mean features": User(lambda d: _gats(FilledLoops)),
    "edge types embedded": User(lambda d: _gats(Typed, embed=nn.Embedding(RELATIONS, 2))),
    "edge types one-hot": User(
        lambda d: Typed(
            embed=lambda t: nn.functional.one_hot(t, RELATIONS).double(),
            conv1=gnn.TransformerConv(FEATURES, HIDDEN, edge_dim=RELATIONS),
            conv2=gnn.TransformerConv(HIDDEN, OUT, edge_dim=RELATIONS),
        )
    ),
    "edge types": User(lambda d: _rgcn(Typed, embed=lambda t: t)),
    "edge types, a copy": User(lambda d: _rgcn(Typed, embed=lambda t: t.clone())),
    "a conv per relation": User(lambda d: PerRelation(convs=_convs(HIDDEN, FEATURES), outs=_convs(OUT, HIDDEN))),
    "both directions": User(
        lambda d: TwoWays(conv1=first(), back1=first(), conv2=gnn.SAGEConv(HIDDEN, OUT), back2=gnn.GATConv(HIDDEN, OUT))
    ),
    "DirGNNConv": User(
        lambda d: Changed(
            change=lambda m, e, n: e, conv1=gnn.DirGNNConv(first()), conv2=gnn.DirGNNConv(gnn.SAGEConv(HIDDEN, OUT))
        )
    ),
    "degrees as features": User(lambda d: Degrees(conv1=gnn.GCNConv(FEATURES + 2, HIDDEN), conv2=last())),
    "degrees embedded": User(lambda d: DegreeTable(table=nn.Embedding(8, HIDDEN), conv1=first(), conv2=last())),
    "edge softmax by hand": User(lambda d: Incoming(score=nn.Linear(2, 1), conv1=first(), conv2=last())),
    "edge weights from features at both ends": User(
        lambda d: EndsOfFeatures(score=nn.Linear(2 * FEATURES, 1), conv1=first(), conv2=last()),
        refused=EDGES,
        either=True,
    ),
    "edge weights from embeddings at both ends": User(
        lambda d: EndsOfEmbeddings(score=nn.Linear(2 * HIDDEN, 1), conv1=first(), conv2=last()), refused=MIXES
    ),
    "scatter by hand": User(lambda d: Scattered(conv1=first(), conv2=last()), refused=MIXES),
    "sparse matrix alone": User(lambda d: Sparse(lin1=nn.Linear(4, 6), lin2=nn.Linear(6, 3)), refused=NO_CONV),
    "sparse matrix of features": User(
        lambda d: Sparse(lin1=nn.Linear(4, 6), lin2=None, conv=last()), refused=f"sparse|{EDGES}", either=True
    ),
    "sparse matrix into convs": User(
        lambda d: SparseIntoConv(conv1=gnn.SAGEConv(4, 6), conv2=gnn.SAGEConv(6, 3)), refused="sparse", either=True
    ),
    "weights over the largest": User(
        lambda d: Scaled(conv1=gnn.GraphConv(4, 6), conv2=last()), refused=EDGES, either=True
    ),
}
