"""Models by what they return and what they are given; and models that no batch can reproduce, each with its reason."""

from collections import namedtuple

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
from torch import nn
from user_net import FEATURES, HIDDEN, MIXES, OUT, POOLS, RANDOM, SIZE, Net, Two, User, first, last, plainly
from user_net import TABLE as WHOLE_TABLE

Named = namedtuple("Named", ["logits", "embedding"])


class Returning(Net):
    """Return what `form(logits, embedding, model)` makes of them."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        return self.form(self.conv2(h, edge_index), h, self)


class TakesData(Net):
    """Take the graph itself, as most of PyG's examples do."""

    def forward(self, data):
        x, edge_index = data.x, data.edge_index
        x = F.dropout(self.conv1(x, edge_index).relu(), 0.2, training=self.training)
        return F.log_softmax(self.conv2(x, edge_index), dim=1)


class TakesDataAndWeighs(Net):
    """Take the graph and compute with its edges."""

    def forward(self, data):
        weight = self.edge(data.edge_attr).sigmoid().view(-1)
        h = self.conv1(data.x, data.edge_index, weight).tanh()
        return self.conv2(h, data.edge_index, weight)


class Mixing(Net):
    """Apply `mix(model, h)` to the embeddings of all nodes between the convs."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        return self.conv2(self.mix(self, h), edge_index)


class After(Net):
    """Apply it after the last conv."""

    def forward(self, x, edge_index):
        return self.mix(self, self.conv2(self.conv1(x, edge_index).tanh(), edge_index))


class Before(Net):
    """Apply it to the features."""

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(self.mix(self, x), edge_index).tanh(), edge_index)


class Virtual(Net):
    """Tell all nodes what a virtual node has gathered, behind a gate that is zero at first."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        h = h + self.gate * self.mlp(h.mean(dim=0, keepdim=True)).expand_as(h)
        return self.conv2(h, edge_index)


class WholeTable(Net):
    """Take the rows of a table instead of features."""

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(self.table.weight, edge_index).tanh(), edge_index)


def _returning(form, **parts):
    return User(lambda d: Returning(form=form, conv1=first(), conv2=last(), **{k: v() for k, v in parts.items()}))


def _mixing(mix, *, net=Mixing, why=MIXES, **parts):
    def make(d):
        return net(mix=mix, conv1=first(), conv2=last(), **{name: part() for name, part in parts.items()})

    return User(make, refused=why)


def _attention(model, h):
    return model.attention(h[None], h[None], h[None], need_weights=False)[0][0]


def _virtual(gate):
    mlp = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN))
    return Virtual(gate=nn.Parameter(torch.full((1,), gate)), mlp=mlp, conv1=first(), conv2=last())


def _hetero():
    convs = {("paper", "cites", "paper"): gnn.SAGEConv(FEATURES, OUT)}
    return gnn.HeteroConv(convs)


RETURNING = {
    "tuple": _returning(lambda out, h, m: (out, h)),
    "list": _returning(lambda out, h, m: [out, h]),
    "dict": _returning(lambda out, h, m: {"logits": out, "embedding": h}),
    "namedtuple": _returning(lambda out, h, m: Named(out, h)),
    "nested": _returning(lambda out, h, m: (out, {"h": h, "rest": None})),
    "tuple with a penalty": _returning(lambda out, h, m: (out, m.conv1.lin.weight.pow(2).sum())),
    "tuple with a number": _returning(lambda out, h, m: (out, 3)),
    "three dimensions": _returning(lambda out, h, m: h.view(-1, 2, 3) * out[:, None]),
    "one dimension": _returning(lambda out, h, m: out[:, 0]),
    "classes": _returning(lambda out, h, m: (out, out.argmax(dim=1))),
    "Data": User(lambda d: TakesData(conv1=first(), conv2=last()), random=True),
    "Data with edge features": User(
        lambda d: TakesDataAndWeighs(edge=nn.Linear(2, 1), conv1=first(), conv2=last()), needs=("edge_attr",)
    ),
    "Data, by call": User(
        lambda d: TakesDataAndWeighs(edge=nn.Linear(2, 1), conv1=first(), conv2=gnn.GraphConv(6, 3)),
        lambda model, batch: model(batch),
        needs=("edge_attr",),
    ),
    "half of the features by call": User(
        lambda d: Two(conv1=gnn.GCNConv(2, HIDDEN), conv2=last()), lambda model, b: model(b.x[:, :2], b.edge_index)
    ),
}
REFUSED = {
    "virtual node": User(lambda d: _virtual(1.0), refused=MIXES),
    "virtual node, zero gate": User(lambda d: _virtual(0.0), refused=MIXES),
    "mean subtracted": _mixing(lambda m, h: h - h.mean(dim=0)),
    "mean of the features subtracted": _mixing(lambda m, x: x - x.mean(dim=0), net=Before),
    "mean of the outputs subtracted": _mixing(lambda m, out: out - out.mean(dim=0), net=After),
    "features over the largest": _mixing(lambda m, x: x / x.abs().max(), net=Before),
    "softmax over nodes": _mixing(lambda m, out: out.softmax(dim=0), net=After),
    "F.normalize over nodes": _mixing(lambda m, h: F.normalize(h, dim=0)),
    "attention over all nodes": _mixing(
        _attention, attention=lambda: nn.MultiheadAttention(HIDDEN, 2, batch_first=True)
    ),
    "transformer over all nodes": _mixing(
        lambda m, h: m.layer(h[None])[0],
        layer=lambda: nn.TransformerEncoderLayer(HIDDEN, 2, 8, dropout=0.0, batch_first=True),
    ),
    "Gram matrix": _mixing(lambda m, h: h @ (h.t() @ h).tanh()),
    "nodes as a sequence": _mixing(
        lambda m, h: m.gru(h[None])[0][0], gru=lambda: nn.GRU(HIDDEN, HIDDEN, batch_first=True)
    ),
    "nodes in order": _mixing(lambda m, h: h.cumsum(dim=0)),
    "first node": _mixing(lambda m, h: h + h[:1]),
    "next node": _mixing(lambda m, h: h + h.roll(1, dims=0)),
    "mean pool": _mixing(lambda m, out: gnn.global_mean_pool(out, None), net=After, why=POOLS),
    "sum as output": _mixing(lambda m, out: out.sum(dim=0), net=After, why=POOLS),
    "number as output": _mixing(lambda m, out: out.mean(), net=After, why=POOLS),
    "text as output": _mixing(lambda m, out: "done", net=After, why=r"per node|tensor"),
    "tuple with a mean": _mixing(lambda m, out: (out, out.mean()), net=After, why=f"{MIXES}|{POOLS}"),
    "dropout in eval mode": _mixing(lambda m, h: F.dropout(h, 0.5), why=RANDOM),
    "dropout in eval mode, of the features": _mixing(lambda m, x: F.dropout(x), net=Before, why=RANDOM),
    "noise in eval mode": _mixing(lambda m, h: h + torch.randn_like(h), why=RANDOM),
    "one draw in eval mode": _mixing(lambda m, out: out * torch.rand(()), net=After, why=RANDOM),
    "branch on the number of nodes": _mixing(lambda m, h: 2 * h if h.size(0) > 10 else h, why=SIZE),
    "divided by the number of nodes": _mixing(lambda m, h: h / len(h), why=SIZE),
    "a whole table": User(
        lambda d: WholeTable(table=nn.Embedding(d.num_nodes, FEATURES), conv1=first(), conv2=last()),
        refused=WHOLE_TABLE,
    ),
    "a row per node as parameter": User(
        lambda d: Before(
            mix=lambda m, x: x + m.rows, rows=nn.Parameter(torch.randn(d.num_nodes, 1)), conv1=first(), conv2=last()
        ),
        refused=WHOLE_TABLE,
    ),
    "HeteroConv": User(
        lambda d: _hetero(),
        lambda m, b: m({"paper": b.x}, {("paper", "cites", "paper"): b.edge_index})["paper"],
        refused="HeteroConv",
        either=True,
    ),
    "GPSConv": User(
        lambda d: Two(conv1=first(), conv2=gnn.GPSConv(HIDDEN, gnn.GCNConv(HIDDEN, HIDDEN))),
        plainly,
        refused="GPSConv.*attends? over all nodes",
    ),
    "no conv": User(lambda d: Net(lin=nn.Linear(4, 3)), lambda m, b: m.lin(b.x), refused="MessagePassing"),
}
