"""GCNII, a deep GCN in which every layer sees the first one, after PyG's examples/gcn2_cora.py."""

import argparse

import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from torch.nn import Linear
from torch_geometric.nn import GCN2Conv

from topoff import TOP, load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="wordnet")
parser.add_argument("--epochs", type=int, default=1000)
args = parser.parse_args()

data = T.GCNNorm()(load(args.data))


class GCN2(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, alpha, theta, dropout):
        super().__init__()
        self.lins = torch.nn.ModuleList([Linear(in_channels, hidden_channels), Linear(hidden_channels, out_channels)])
        self.convs = torch.nn.ModuleList(
            GCN2Conv(hidden_channels, alpha, theta, layer + 1, normalize=False) for layer in range(num_layers)
        )
        self.dropout = dropout

    def forward(self, x, edge_index, edge_weight):
        x = F.dropout(x, self.dropout, training=self.training)
        x = x_0 = self.lins[0](x).relu()
        for conv in self.convs:
            x = F.dropout(x, self.dropout, training=self.training)
            x = conv(x, x_0, edge_index, edge_weight).relu()
        x = F.dropout(x, self.dropout, training=self.training)
        return self.lins[1](x).log_softmax(dim=-1)


model = GCN2(data.num_features, 64, int(data.y.max()) + 1, num_layers=16, alpha=0.1, theta=0.5, dropout=0.6)
optimizer = torch.optim.Adam(
    [
        {"params": model.convs.parameters(), "weight_decay": 0.01},
        {"params": model.lins.parameters(), "weight_decay": 5e-4},
    ],
    lr=0.01,
)
top = TOP(model, data)


def train(data):
    model.train()
    optimizer.zero_grad()
    out = top(data)
    loss = F.nll_loss(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    pred = top.predict().argmax(dim=-1)
    masks = [data.train_mask, data.val_mask, data.test_mask]
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


for epoch in range(1, args.epochs + 1):
    for batch in top:
        loss = train(batch)
    train_acc, val_acc, test_acc = test()
    print(f"Epoch: {epoch:04d}, Loss: {loss:.4f}, Train: {train_acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")
print(top.evaluate(), top.fidelity())
