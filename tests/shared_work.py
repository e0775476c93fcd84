"""What tests let one process and several do: train by settings, predict with a model of PyG, send this and that."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities
from topoff import TOP, NodeSets
from topoff.batching.together import fit_together
from topoff.forward.share import Share
from topoff.machine.gradients import sum_gradients
from topoff.machine.ranks import Ranks
from topoff.training.build import make_setup
from topoff.training.config import make_config
from topoff.training.followers import Unwritten, check_same_origin
from topoff.training.joint import check_same_weights
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
    """Train, with `few` on a sixth of more nodes; return all losses, the last weights, scores and what was sent."""
    settings = dict(settings)
    few = settings.pop("few", False)
    heard, data = Losses(), graph(600 if few else 120, dtype=dtype, directed=True, weighted=True)
    if few:
        turn = torch.arange(600) % 6
        data.train_mask, data.val_mask, data.test_mask = turn == 0, turn == 1, turn > 1
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
    given: dict[str, Any] = {"ratio": 0.2, "batches": "random", "rank": 4, "tolerance": 99.0} | settings
    top = TOP(model, data, ranks=ranks, **given)
    top.refresh()
    out: tuple[Tensor, Tensor] = top.predict()
    return out


# ---- parts of it


def at_work(ranks: Ranks) -> dict[str, Any]:
    """Send something in every way."""
    found: dict[str, Any] = {}
    wanted = [torch.tensor([ranks.rank]) if other != ranks.rank else torch.empty(0).long() for other in range(3)]
    routes, said = ranks.routes(wanted), ("rank 0", "rank 1, \u00e4", "rank 2")
    with ranks.counting("sum"):
        found["sum"] = ranks.sum(torch.tensor([2.0, float(ranks.rank)])).tolist()
    with ranks.counting("rows"):
        rows = (10.0 * ranks.rank + torch.arange(3)).view(3, 1)[routes.give]
        found["rows"] = ranks.exchange(rows, routes).tolist()
    with ranks.counting("gathered"):
        own = torch.full((ranks.rank + 1,), float(ranks.rank))
        found["gathered"] = [each.tolist() for each in ranks.gather(own, counts=[1, 2, 3])]
    with ranks.counting("told"):
        found["told"] = ranks.tell(b"the first" if ranks.is_first else b"nobody listens")
    return found | {"texts": ranks.texts(said[ranks.rank]), "sent": ranks.counts}


def ended_early(ranks: Ranks) -> None:
    """Let the second process end before it has added its number."""
    if not ranks.is_first:
        raise OSError("the second ends")
    ranks.sum(torch.ones(1))


def summed(ranks: Ranks) -> dict[str, Any]:
    """Add up gradients of several kinds."""
    number = float(ranks.rank + 1)
    parameters = {
        "weight": nn.Parameter(torch.zeros(2, 2)),
        "flipped": nn.Parameter(torch.zeros(2, 2)),
        "one": nn.Parameter(torch.zeros(1)),
        "none": nn.Parameter(torch.zeros(3)),
        "complex": nn.Parameter(torch.zeros(1, dtype=torch.complex64)),
        "half": nn.Parameter(torch.zeros(1, dtype=torch.bfloat16)),
    }
    parameters["weight"].grad = torch.full((2, 2), number)
    parameters["flipped"].grad = number * torch.tensor([[0.0, 2.0], [1.0, 3.0]]).t()
    parameters["one"].grad = None if ranks.is_first else torch.full((1,), number)
    parameters["complex"].grad = torch.full((1,), number + number * 1j)
    parameters["half"].grad = torch.full((1,), number, dtype=torch.bfloat16)
    other = torch.tensor([1.0, 10.0], dtype=torch.float64) * number
    sum_gradients(list(parameters.values()), [other], ranks=ranks)
    grads = {name: parameter.grad for name, parameter in parameters.items()}
    return {name: None if grad is None else grad.tolist() for name, grad in grads.items()} | {"other": other.tolist()}


def partitioned(ranks: Ranks) -> list[int]:
    """Return the parts of a graph; those of others but the first must not be computed."""
    sets = NodeSets(method="metis", ratio=0.5, parts=6, seed=ranks.rank)  # alone, they would differ
    fit_together(sets, graph(), ranks=ranks)
    assert sets.parts_ is not None
    return sets.parts_.tolist()


def filled(ranks: Ranks) -> dict[str, Any]:
    """Fill in what other processes have; of four nodes the first process has two."""
    reads = torch.tensor([[False, False, False, True], [True, False, True, False]])[ranks.rank]
    share = Share(ranks, torch.tensor([0, 0, 1, 1]), reads=reads)
    own = torch.full((4,), -1.0)
    own[share.nodes] = share.nodes.float()
    rows, numbers = own.view(4, 1).repeat(1, 2), torch.full((4,), -1)
    numbers[share.nodes] = share.nodes
    found = {"filled": share.fill(own.clone()).tolist(), "complete": share.complete(rows).tolist()}
    return found | {"numbers": share.complete(numbers).tolist()}


def apart(ranks: Ranks) -> None:
    """Compare weights that differ in one bias."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(ranks.rank)
    check_same_weights(model, ranks)


def told_versions(ranks: Ranks, what: str) -> None:
    """Compare graphs, or versions, that are those of the process."""
    origin: dict[str, Any] = {"data": "same", "versions": {"torch": "same"}}
    check_same_origin(origin | {what: str(ranks.rank) if what == "data" else {"torch": str(ranks.rank)}}, ranks)
