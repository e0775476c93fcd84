"""Models that compute with rows: encoders, gates, norms, parts replaced, time, state."""

import torch
import torch_geometric.nn as gnn
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from user_features import Features
from user_net import FEATURES, HIDDEN, OUT, Net, Two, User, first, last, plainly


class Between(Net):
    """Apply `between` to the embeddings between the convs."""

    def forward(self, x, edge_index):
        return self.conv2(self.between(self.conv1(x, edge_index)).tanh(), edge_index)


class Gated(Net):
    """Add a second branch behind a gate, a head or a residual scale that is zero at first."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        return self.conv2(h, edge_index) + self.gate * self.head(self.deep(h, edge_index).tanh())


class Positions(Net):
    """Add positional encodings that come with the graph to the encoded features."""

    def forward(self, x, pe, edge_index):
        h = torch.cat([self.encoder(x).relu(), self.position(pe)], dim=1)
        return self.conv2(self.norm(self.conv1(h, edge_index)).tanh(), edge_index)


class Jumping(Net):
    """Join all layers at the end."""

    def forward(self, x, edge_index):
        h1 = self.conv1(x, edge_index).tanh()
        h2 = self.conv2(h1, edge_index).tanh()
        return self.lin(self.jk([h1, h2]))


class Dense(Net):
    """Hand every layer all that came before."""

    def forward(self, x, edge_index):
        h1 = torch.cat([x, self.conv1(x, edge_index).tanh()], dim=1)
        h2 = torch.cat([h1, self.conv2(h1, edge_index).tanh()], dim=1)
        return self.lin(h2)


class Root(Net):
    """GCNII: the first embedding comes back in every layer."""

    def forward(self, x, edge_index):
        h = root = self.first(x).tanh()
        for conv in self.convs:
            h = conv(h, root, edge_index).tanh()
        return self.last(h)


class Shared(Net):
    """Apply one conv three times."""

    def forward(self, x, edge_index):
        h = self.first(x)
        for _ in range(3):
            h = h + self.conv(h, edge_index).tanh()
        return self.last(h)


class Depth(Net):
    """Skip a conv now and then, in training or in eval mode."""

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index).tanh()
        if not self.skips(self):
            h = h + self.middle(h, edge_index).tanh()
        return self.conv2(h, edge_index)


class Indexed(Net):
    """Look a node's own row up in a table of the whole graph."""

    def forward(self, x, n_id, edge_index):
        return self.conv2(self.conv1(torch.cat([x, self.table(n_id)], dim=1), edge_index).tanh(), edge_index)


class Steps(Net):
    """Read the features as time steps, one conv for all of them, and a recurrent layer over time."""

    def forward(self, x, edge_index):
        x = x.view(-1, 2, FEATURES // 2)
        steps = torch.stack([self.conv(x[:, t], edge_index).tanh() for t in range(2)], dim=1)
        return self.lin(self.gru(steps)[0][:, -1])


class NodesSecond(Net):
    """Read the features as time steps, with the nodes in the second dimension."""

    def forward(self, x, edge_index):
        steps = x.view(-1, 2, FEATURES // 2).transpose(0, 1)
        return self.conv2(self.conv1(steps, edge_index).tanh(), edge_index).mean(dim=0)


class Memory(Net):
    """Keep a running mean of the embeddings, and read it."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def forward(self, x, edge_index):
        h = self.conv1(x, edge_index)
        out = self.conv2((h - self.mean).tanh(), edge_index)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(dim=0)
        return out


NORMS = {
    "BatchNorm": lambda: gnn.BatchNorm(HIDDEN),
    "LayerNorm of nodes": lambda: gnn.LayerNorm(HIDDEN, mode="node"),
    "LayerNorm of the graph": lambda: gnn.LayerNorm(HIDDEN),
    "GraphNorm": lambda: gnn.GraphNorm(HIDDEN),
    "PairNorm": gnn.PairNorm,
    "PairNorm of each": lambda: gnn.PairNorm(scale_individually=True),
    "InstanceNorm": lambda: gnn.InstanceNorm(HIDDEN, affine=True),
    "InstanceNorm with statistics": lambda: gnn.InstanceNorm(HIDDEN, track_running_stats=True),
    "GraphSizeNorm": gnn.GraphSizeNorm,
    "MeanSubtractionNorm": gnn.MeanSubtractionNorm,
    "DiffGroupNorm": lambda: gnn.DiffGroupNorm(HIDDEN, 2),
}


def _gate(**parts):
    zero = nn.Parameter(torch.zeros(1))
    given = {"gate": zero, "head": nn.Linear(HIDDEN, OUT), "conv1": first(), "conv2": last()}
    return Gated(**(given | {"deep": gnn.GCNConv(HIDDEN, HIDDEN)} | parts))


def _zero_head():
    head = nn.Linear(HIDDEN, OUT)
    nn.init.zeros_(head.weight)
    return head


def _replaced(lin):
    model = Two(conv1=first(), conv2=last())
    model.conv1.lin = lin
    return model


def _hooked():
    model = Two(conv1=first(), conv2=last())
    model.conv1.lin.register_forward_hook(lambda module, given, out: out + 1)
    model.conv2.register_forward_hook(lambda module, given, out: out * 2)
    return model


def _parametrized(norm):
    model = Two(conv1=first(), conv2=gnn.SAGEConv(HIDDEN, OUT))
    norm(model.conv1.lin, "weight")
    norm(model.conv2.lin_l, "weight")
    return model


def _skipping(skips):
    return Depth(conv1=first(), middle=gnn.GATConv(HIDDEN, HIDDEN), conv2=last(), skips=skips)


def _encoder():
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN))


def _layer(block):
    return gnn.DeepGCNLayer(gnn.GCNConv(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN), nn.Tanh(), block=block)


def _sequential():
    steps = [(first(), "x, edge_index -> h"), nn.Tanh(), (last(), "h, edge_index -> x"), nn.Linear(OUT, OUT)]
    return gnn.Sequential("x, edge_index", steps)


TABLE = {
    f"norm: {name}": User(lambda d, n=norm: Between(between=n(), conv1=first(), conv2=gnn.SAGEConv(HIDDEN, OUT)))
    for name, norm in NORMS.items()
}
TABLE |= {
    "norm: layer_norm of GCN": User(lambda d: gnn.GCN(FEATURES, HIDDEN, 3, OUT, norm="layer_norm"), plainly),
    "zero gate": User(lambda d: _gate()),
    "zero gate, GAT": User(lambda d: _gate(deep=gnn.GATConv(HIDDEN, HIDDEN))),
    "zero head": User(lambda d: _gate(gate=1.0, head=_zero_head())),
    "encoder": User(
        lambda d: Features(change=lambda m, x: m.mlp(x), mlp=_encoder(), conv1=gnn.GCNConv(6, 6), conv2=last())
    ),
    "positions": User(
        lambda d: Positions(
            encoder=nn.Linear(4, 3),
            position=nn.Linear(2, 3),
            norm=gnn.BatchNorm(6),
            conv1=gnn.GATConv(6, 6),
            conv2=last(),
        )
    ),
    "jumping knowledge, lstm": User(
        lambda d: Jumping(
            jk=gnn.JumpingKnowledge("lstm", HIDDEN, 2), conv1=first(), conv2=gnn.SAGEConv(6, 6), lin=nn.Linear(6, 3)
        )
    ),
    "dense": User(lambda d: Dense(conv1=first(), conv2=gnn.SAGEConv(10, 6), lin=nn.Linear(16, OUT))),
    "GCNII": User(
        lambda d: Root(
            first=nn.Linear(4, 6), convs=nn.ModuleList(gnn.GCN2Conv(6, 0.1) for _ in range(3)), last=nn.Linear(6, 3)
        )
    ),
    "APPNP with dropout": User(
        lambda d: Features(
            change=lambda m, x: m.lin(x), lin=nn.Linear(4, 6), conv1=gnn.APPNP(3, 0.1, dropout=0.5), conv2=last()
        ),
        random_edges=True,
    ),
    "linear layer with a bias": User(lambda d: _replaced(nn.Linear(FEATURES, HIDDEN))),
    "an MLP as linear layer": User(lambda d: _replaced(_encoder())),
    "hooks": User(lambda d: _hooked()),
    "weight_norm": User(lambda d: _parametrized(weight_norm)),
    "spectral_norm": User(lambda d: _parametrized(spectral_norm)),
    "one conv, three times": User(
        lambda d: Shared(first=nn.Linear(4, 6), conv=gnn.GATConv(HIDDEN, HIDDEN), last=nn.Linear(6, 3))
    ),
    "stochastic depth": User(lambda d: _skipping(lambda m: m.training and torch.rand(()) < 0.5), random=True),
    "a conv in eval mode alone": User(lambda d: _skipping(lambda m: m.training)),
    "a conv in training alone": User(lambda d: _skipping(lambda m: not m.training)),
    "a table by n_id": User(
        lambda d: Indexed(table=nn.Embedding(d.num_nodes, 2), conv1=gnn.GCNConv(6, 6), conv2=last()),
        lambda model, b: model(b.x, b.n_id, b.edge_index),
    ),
    "time steps": User(
        lambda d: Steps(conv=gnn.GCNConv(2, 5), gru=nn.GRU(5, 5, batch_first=True), lin=nn.Linear(5, 3))
    ),
    "nodes in the second dimension": User(
        lambda d: NodesSecond(conv1=gnn.GCNConv(2, HIDDEN), conv2=last()),
        refused="dimension|one row per node",
        either=True,
    ),
    "a running mean": User(lambda d: Memory(conv1=first(), conv2=last())),
    "cached": User(lambda d: Two(conv1=first(cached=True), conv2=gnn.SGConv(HIDDEN, OUT, 2, cached=True))),
    "gnn.Sequential": User(lambda d: _sequential(), plainly),
    "DeepGCNLayer": User(
        lambda d: Features(
            change=lambda m, x: m.lin(x), lin=nn.Linear(4, 6), conv1=_layer("res+"), conv2=_layer("plain")
        )
    ),
    "no parameters": User(lambda d: Two(conv1=gnn.LGConv(), conv2=gnn.LGConv())),
}
