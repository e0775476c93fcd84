"""GraphSAGE of two layers, after PyG's examples/reddit.py."""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import typing as installed
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import SAGEConv

from topoff import load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="wordnet")
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

if not (installed.WITH_PYG_LIB or installed.WITH_TORCH_SPARSE):
    raise SystemExit("NeighborLoader needs pyg-lib or torch-sparse (got neither): install one, or run reddit_after.py.")
data = load(args.data)
train_loader = NeighborLoader(data, [25, 10], input_nodes=data.train_mask, batch_size=1024, shuffle=True)
subgraph_loader = NeighborLoader(data, [-1], input_nodes=None, batch_size=1024, shuffle=False)


class SAGE(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        self.convs.append(SAGEConv(in_channels, hidden_channels))
        self.convs.append(SAGEConv(hidden_channels, out_channels))

    def forward(self, x, edge_index):
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if i < len(self.convs) - 1:
                x = F.dropout(x.relu_(), p=0.5, training=self.training)
        return x

    @torch.no_grad()
    def inference(self, x_all, subgraph_loader):  # layer by layer, with all edges
        for i, conv in enumerate(self.convs):
            xs = []
            for batch in subgraph_loader:
                x = conv(x_all[batch.n_id], batch.edge_index)
                if i < len(self.convs) - 1:
                    x = x.relu_()
                xs.append(x[: batch.batch_size])
            x_all = torch.cat(xs, dim=0)
        return x_all


model = SAGE(data.num_features, hidden_channels=256, out_channels=int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    total_loss = total_correct = total_examples = 0
    for batch in train_loader:
        optimizer.zero_grad()
        y = batch.y[: batch.batch_size]
        y_hat = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(y_hat, y)
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * len(y)
        total_correct += int((y_hat.argmax(dim=-1) == y).sum())
        total_examples += len(y)
    return total_loss / total_examples, total_correct / total_examples


@torch.no_grad()
def test():
    model.eval()
    y_hat = model.inference(data.x, subgraph_loader).argmax(dim=-1)
    masks = [data.train_mask, data.val_mask, data.test_mask]
    return [int((y_hat[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


for epoch in range(1, args.epochs + 1):
    loss, acc = train()
    print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Approx. Train: {acc:.4f}")
    train_acc, val_acc, test_acc = test()
    print(f"Epoch: {epoch:02d}, Train: {train_acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")
