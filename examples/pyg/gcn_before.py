"""A GCN of two layers, after PyG's examples/gcn.py."""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv

from topoff import load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="wordnet")
parser.add_argument("--epochs", type=int, default=200)
args = parser.parse_args()

data = load(args.data)


class GCN(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = GCNConv(in_channels, hidden_channels)
        self.conv2 = GCNConv(hidden_channels, out_channels)

    def forward(self, x, edge_index, edge_weight=None):
        x = F.dropout(x, p=0.5, training=self.training)
        x = self.conv1(x, edge_index, edge_weight).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.conv2(x, edge_index, edge_weight)


model = GCN(data.num_features, hidden_channels=16, out_channels=int(data.y.max()) + 1)
optimizer = torch.optim.Adam(
    [
        {"params": model.conv1.parameters(), "weight_decay": 5e-4},  # only the first convolution decays
        {"params": model.conv2.parameters(), "weight_decay": 0},
    ],
    lr=0.01,
)


def train(data):
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index, data.edge_weight)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return loss.item()


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.edge_index, data.edge_weight).argmax(dim=-1)
    masks = [data.train_mask, data.val_mask, data.test_mask]
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


best_val_acc = test_acc = 0
for epoch in range(1, args.epochs + 1):
    loss = train(data)
    train_acc, val_acc, tmp_test_acc = test()
    if val_acc > best_val_acc:
        best_val_acc, test_acc = val_acc, tmp_test_acc
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Train: {train_acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")
