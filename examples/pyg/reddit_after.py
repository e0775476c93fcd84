"""GraphSAGE of two layers, after PyG's examples/reddit.py."""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

from topoff import TOP, load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="wordnet")
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

data = load(args.data)


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


model = SAGE(data.num_features, hidden_channels=256, out_channels=int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
top = TOP(model, data)


def train():
    model.train()
    total_loss = total_correct = total_examples = 0
    for batch in top:
        optimizer.zero_grad()
        y = batch.y[batch.train_mask]
        y_hat = top(batch)[batch.train_mask]
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
    y_hat = top.predict().argmax(dim=-1)
    masks = [data.train_mask, data.val_mask, data.test_mask]
    return [int((y_hat[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


for epoch in range(1, args.epochs + 1):
    loss, acc = train()
    print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Approx. Train: {acc:.4f}")
    train_acc, val_acc, test_acc = test()
    print(f"Epoch: {epoch:02d}, Train: {train_acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")
print(top.evaluate(), top.fidelity())
