"""Models that change the features before the first conv: in training alone, at random, or in place."""

import torch
import torch.nn.functional as F
import torch_geometric.nn as gnn
import torch_geometric.utils as pyg
from user_net import FEATURES, HIDDEN, IN_PLACE, OUT, Net, User, first


class One(Net):
    """Change the features by `change(model, x)`, then apply one conv: all that lies outside a batch is known."""

    def forward(self, x, edge_index):
        return self.conv(self.change(self, x), edge_index)


class Features(Net):
    """The same, with two convs."""

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(self.change(self, x), edge_index).tanh(), edge_index)


def _column(model, x):
    if not model.training:
        return x
    keep = x.new_ones(x.size(1))
    keep[1] = 0
    return x * keep


def _zeroed(model, x):
    x[:, 0] = 0
    return x


def _halved(model, x):
    x *= 0.5
    return x


CHANGES = {  # not random: a batch knows what lies outside
    "half in training": lambda m, x: x * 0.5 if m.training else x,
    "a column masked in training": _column,
    "a branch on the mode": lambda m, x: -x.tanh() if m.training else x,
}
RANDOM_CHANGES = {
    "tanh": lambda m, x: x.tanh(),
    "mask_feature": lambda m, x: pyg.mask_feature(x, p=0.5, training=m.training)[0],
    "noise in training": lambda m, x: x + torch.randn_like(x) if m.training else x,
    "dropout of the features": lambda m, x: F.dropout(x, 0.5, m.training),
    "whole rows dropped": lambda m, x: x * (torch.rand(len(x), 1) > 0.3) if m.training else x,
}
IN_PLACES = {"a column zeroed in place": _zeroed, "relu_ in place": lambda m, x: x.relu_(), "halved in place": _halved}
CONVS = {"GCN": gnn.GCNConv, "SAGE": gnn.SAGEConv, "GAT": gnn.GATConv}


TABLE = {
    f"{name}, {kind}": User(lambda d, c=change, k=conv: One(change=c, conv=k(FEATURES, OUT)), known=True)
    for name, change in CHANGES.items()
    for kind, conv in CONVS.items()
}
TABLE |= {
    name: User(lambda d, c=change: Features(change=c, conv1=first(), conv2=gnn.GATConv(HIDDEN, OUT)), random=True)
    for name, change in RANDOM_CHANGES.items()
}
TABLE |= {
    f"{name}, {kind}": User(
        lambda d, c=change, k=conv: One(change=c, conv=k(FEATURES, OUT)), refused=IN_PLACE, either=True
    )
    for name, change in IN_PLACES.items()
    for kind, conv in CONVS.items()
}
