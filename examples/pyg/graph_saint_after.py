"""GraphSAINT's random walks with normalised losses, after PyG's examples/graph_saint.py."""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphConv
from torch_geometric.utils import degree

from topoff import TOP, load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="wordnet")
parser.add_argument("--epochs", type=int, default=50)
args = parser.parse_args()

data = load(args.data)
row, col = data.edge_index
data.edge_weight = 1.0 / degree(col, data.num_nodes)[col]  # norm by in-degree: weighted sums are means


class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = GraphConv(in_channels, hidden_channels)
        self.conv2 = GraphConv(hidden_channels, hidden_channels)
        self.conv3 = GraphConv(hidden_channels, hidden_channels)
        self.lin = torch.nn.Linear(3 * hidden_channels, out_channels)

    def forward(self, x0, edge_index, edge_weight=None):
        x1 = F.relu(self.conv1(x0, edge_index, edge_weight))
        x1 = F.dropout(x1, p=0.2, training=self.training)
        x2 = F.relu(self.conv2(x1, edge_index, edge_weight))
        x2 = F.dropout(x2, p=0.2, training=self.training)
        x3 = F.relu(self.conv3(x2, edge_index, edge_weight))
        x3 = F.dropout(x3, p=0.2, training=self.training)
        return self.lin(torch.cat([x1, x2, x3], dim=-1)).log_softmax(dim=-1)


model = Net(data.num_features, hidden_channels=256, out_channels=int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
top = TOP(model, data, batches="saint-walk", call=lambda net, batch: net(batch.x, batch.edge_index, batch.edge_weight))


def train():
    model.train()
    total_loss = total_examples = 0
    for batch in top:
        optimizer.zero_grad()
        out = top(batch)
        loss = F.nll_loss(out[batch.train_mask], batch.y[batch.train_mask], reduction="none")
        loss = (loss * batch.loss_weight[batch.train_mask]).sum()
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * batch.num_nodes
        total_examples += batch.num_nodes
    return total_loss / total_examples


@torch.no_grad()
def test():
    model.eval()
    pred = top.predict().argmax(dim=-1)
    masks = [data.train_mask, data.val_mask, data.test_mask]
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


for epoch in range(1, args.epochs + 1):
    loss = train()
    train_acc, val_acc, test_acc = test()
    print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Train: {train_acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")
print(top.evaluate(), top.fidelity())
