"""Cluster-GCN, METIS clusters merged into batches, after PyG's examples/cluster_gcn_reddit.py."""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

from topoff import TOP, load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="wordnet")
parser.add_argument("--epochs", type=int, default=30)
args = parser.parse_args()

data = load(args.data)


class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(in_channels, 128), SAGEConv(128, out_channels)])

    def forward(self, x, edge_index):
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if i != len(self.convs) - 1:
                x = F.dropout(F.relu(x), p=0.5, training=self.training)
        return F.log_softmax(x, dim=-1)


model = Net(data.num_features, out_channels=int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
top = TOP(model, data, batches="metis", parts=200, ratio=20 / 200, regroup=True)


def train():
    model.train()
    total_loss = total_nodes = 0
    for batch in top:
        optimizer.zero_grad()
        out = top(batch)
        loss = F.nll_loss(out[batch.train_mask], batch.y[batch.train_mask])
        loss.backward()
        optimizer.step()
        nodes = int(batch.train_mask.sum())
        total_loss += loss.item() * nodes
        total_nodes += nodes
    return total_loss / total_nodes


@torch.no_grad()
def test():  # on the whole graph
    model.eval()
    y_pred = top.predict().argmax(dim=-1)
    masks = [data.train_mask, data.val_mask, data.test_mask]
    return [int((y_pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


for epoch in range(1, args.epochs + 1):
    loss = train()
    print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}")
    if epoch % 5 == 0:
        train_acc, val_acc, test_acc = test()
        print(f"Epoch: {epoch:02d}, Train: {train_acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")
print(top.evaluate(), top.fidelity())
