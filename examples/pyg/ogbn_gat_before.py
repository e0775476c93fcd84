"""GAT of three layers with OGB's split_idx, after PyG's examples/ogbn_train.py."""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric import typing as installed
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT

from topoff import load

parser = argparse.ArgumentParser()
parser.add_argument("--data", default="wordnet")
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()

if not (installed.WITH_PYG_LIB or installed.WITH_TORCH_SPARSE):
    raise SystemExit(
        "NeighborLoader needs pyg-lib or torch-sparse (got neither): install one, or run ogbn_gat_after.py."
    )
data = load(args.data)
masks = {"train": data.train_mask, "valid": data.val_mask, "test": data.test_mask}
split_idx = {name: mask.nonzero().view(-1) for name, mask in masks.items()}  # as OGB's dataset.get_idx_split()
train_loader = NeighborLoader(data, [10] * 3, input_nodes=split_idx["train"], batch_size=1024, shuffle=True)
val_loader = NeighborLoader(data, [10] * 3, input_nodes=split_idx["valid"], batch_size=1024)
test_loader = NeighborLoader(data, [10] * 3, input_nodes=split_idx["test"], batch_size=1024)

model = GAT(data.num_features, 256, num_layers=3, out_channels=int(data.y.max()) + 1, dropout=0.5, heads=2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)


def train():
    model.train()
    total_loss = total_correct = 0
    for batch in train_loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        y = batch.y[: batch.batch_size]
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        total_correct += int(out.argmax(dim=-1).eq(y).sum())
    return total_loss / len(train_loader), total_correct / len(split_idx["train"])


@torch.no_grad()
def test(loader):
    model.eval()
    total_correct = total_examples = 0
    for batch in loader:
        pred = model(batch.x, batch.edge_index)[: batch.batch_size].argmax(dim=-1)
        y = batch.y[: batch.batch_size]
        total_correct += int((pred == y).sum())
        total_examples += len(y)
    return total_correct / total_examples


for epoch in range(1, args.epochs + 1):
    loss, acc = train()
    val_acc, test_acc = test(val_loader), test(test_loader)
    print(f"Epoch: {epoch:02d}, Loss: {loss:.4f}, Approx. Train: {acc:.4f}, Val: {val_acc:.4f}, Test: {test_acc:.4f}")
