"""What the laws let one process and several do: train by settings, and predict with a model of PyG."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities
from topoff import TOP
from topoff.machine.ranks import Ranks
from topoff.training.build import make_setup
from topoff.training.config import make_config
from topoff.training.followers import Unwritten
from topoff.training.listener import Listener
from topoff.training.loop import Training
from topoff.training.run_folder import RunFolder

BASE = {"dataset": "communities", "ratio": 0.2, "rank": 6, "hidden": 8, "epochs": 3, "refresh": "every=1",
        "batches": "metis", "dropout": 0.3, "eval_every": 1}  # fmt: skip


class Losses(Listener):
    """Note the losses."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        self.found.append(loss)


def graph(n: int = 120, *, dtype: torch.dtype = torch.float64, **kind: Any) -> Data:
    return communities(n, dtype=dtype, **kind)


def trained(ranks: Ranks, settings: dict[str, Any], dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Train; return the losses of all steps, the last weights, scores and what was sent."""
    heard, data = Losses(), graph(dtype=dtype, directed=True, weighted=True)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run").create() if ranks.is_first else Unwritten()
        setup = make_setup(make_config(BASE | settings), data, processes=ranks.size)
        training = Training(setup, folder=folder, listener=heard, ranks=ranks)
        training.run()
    progress, state = training.progress, training.model.state_dict()
    return {"losses": heard.found, "weights": state, "best": progress.best, "fidelity": progress.fidelity,
            "report": training.method.report(), "counts": ranks.counts}  # fmt: skip


class Net(nn.Module):
    """Two convs with something between them."""

    def __init__(self, first: nn.Module, between: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.between, self.last = first, between, last

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = self.between(self.first(x, edge_index).relu())
        return self.last(h, edge_index), h


MODELS = {
    "gcn": lambda: Net(gnn.GCNConv(5, 8), nn.BatchNorm1d(8), gnn.GCNConv(8, 3)),
    "gat": lambda: Net(gnn.GATConv(5, 4, heads=2), nn.Identity(), gnn.GATConv(8, 3)),
    "graph norm": lambda: Net(gnn.SAGEConv(5, 8), gnn.GraphNorm(8), gnn.GINConv(nn.Linear(8, 3))),
    "tag": lambda: Net(gnn.TAGConv(5, 8), nn.Identity(), gnn.TransformerConv(8, 3)),
    "degrees": lambda: Net(gnn.GCNConv(5, 8), nn.Identity(), gnn.ChebConv(8, 3, K=2)),
    "both ways": lambda: Net(gnn.SAGEConv(5, 8), nn.Identity(), gnn.SAGEConv(8, 3, flow="target_to_source")),
}


def predicted(ranks: Ranks, kind: str, settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the exact outputs of all nodes."""
    torch.manual_seed(0)
    model, data = MODELS[kind]().double(), graph(directed=True)
    given = {"ratio": 0.2, "batches": "random", "rank": 4, "tolerance": 99.0} | settings
    top = TOP(model, data, ranks=ranks, **given)
    top.refresh()
    out: tuple[Tensor, Tensor] = top.predict()
    return out
