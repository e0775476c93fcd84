"""SGC, one linear layer on twice-propagated features, after PyG's examples/sgc.py."""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.nn import SGConv

from topoff import load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="wordnet")
parser.add_argument("--epochs", type=int, default=100)
args = parser.parse_args()

data = load(args.data)


class SGC(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = SGConv(in_channels, out_channels, K=2, cached=True)

    def forward(self):
        x = self.conv1(data.x, data.edge_index)
        return F.log_softmax(x, dim=1)


model = SGC(data.num_features, out_channels=int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.2, weight_decay=0.005)


def train(data):
    model.train()
    optimizer.zero_grad()
    out = model()
    F.nll_loss(out[data.train_mask], data.y[data.train_mask]).backward()
    optimizer.step()


@torch.no_grad()
def test():
    model.eval()
    pred = model().argmax(dim=-1)
    masks = [data.train_mask, data.val_mask, data.test_mask]
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


best_val_acc = test_acc = 0
for epoch in range(1, args.epochs + 1):
    train(data)
    train_acc, val_acc, tmp_test_acc = test()
    if val_acc > best_val_acc:
        best_val_acc, test_acc = val_acc, tmp_test_acc
    print(f"Epoch: {epoch:03d}, Train: {train_acc:.4f}, Val: {best_val_acc:.4f}, Test: {test_acc:.4f}")
