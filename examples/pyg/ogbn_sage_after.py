"""GraphSAGE of three layers with OGB's split_idx, after PyG's examples/ogbn_train.py."""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

from topoff import TOP, load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="wordnet")
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

data = load(args.data)
masks = {"train": data.train_mask, "valid": data.val_mask, "test": data.test_mask}
split_idx = {name: mask.nonzero().view(-1) for name, mask in masks.items()}  # as OGB's dataset.get_idx_split()

model = GraphSAGE(data.num_features, 256, num_layers=3, out_channels=int(data.y.max()) + 1, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
top = TOP(model, data)


def train():
    model.train()
    total_loss = total_correct = 0
    for batch in top:
        optimizer.zero_grad()
        out = top(batch)[batch.train_mask]
        y = batch.y[batch.train_mask]
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        total_correct += int(out.argmax(dim=-1).eq(y).sum())
    return total_loss / len(top), total_correct / len(split_idx["train"])


@torch.no_grad()
def test():
    model.eval()
    correct = top.predict().argmax(dim=-1) == data.y
    return [float(correct[split_idx[name]].float().mean()) for name in ("valid", "test")]


for epoch in range(1, args.epochs + 1):
    loss, acc = train()
    val_acc, test_acc = test()
    print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Approx. Train: {acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")
print(top.evaluate(), top.fidelity())
