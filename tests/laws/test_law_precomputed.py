"""Where a model propagates the features only, rows of A X, ..., A^K X stand for the whole graph, exactly."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities, corners
from topoff import TOP
from topoff.forward.blocks import Layered
from topoff.forward.convs import describe
from topoff.forward.neighbours import Chosen, Ints, Neighbors
from topoff.methods.precomputed import Precomputed, Sgc, Sign
from topoff.models.decoupled import SGC, SIGN
from topoff.models.networks import GCN

OUT = 3


class Hybrid(nn.Module):
    """Read the features by two convs with operators of their own, and once more without any."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.far, self.near, self.own = gnn.TAGConv(features, OUT, K=2), gnn.SAGEConv(features, OUT), nn.Linear(4, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.far(x, edge_index, edge_weight).tanh() * self.near(x, edge_index) + self.own(x[:, :4])


class Bare(nn.Module):
    """Leave the edge weights out."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv = gnn.SGConv(features, OUT, K=2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index)


class Changed(nn.Module):
    """Drop features before they are propagated."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv = gnn.SGConv(features, OUT, K=2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(F.dropout(x, 0.5, training=self.training), edge_index)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "sgc": lambda f: SGC(f, out_channels=OUT, num_layers=3),
    "sign": lambda f: SIGN(f, 6, out_channels=OUT, num_layers=2, dropout=0.0),
    "one_gcn": lambda f: GCN(f, 6, out_channels=OUT, num_layers=1),
    "cached": lambda f: gnn.SGConv(f, OUT, K=2, cached=True),
    "ssg": lambda f: gnn.SSGConv(f, OUT, alpha=0.2, K=3),
    "backwards": lambda f: gnn.SGConv(f, OUT, K=2, flow="target_to_source"),
    "hybrid": Hybrid,
    "bare": Bare,
}
GRAPHS: dict[str, Callable[[], Data]] = {
    "corners": corners,  # isolated node, self-loops, duplicates, directed, weighted
    "directed": lambda: communities(40, directed=True, weighted=True),
    "undirected": lambda: communities(40, weighted=True),
}


def made(name: str, data: Data, *, seed: int = 0, ratio: float = 0.3) -> Precomputed:
    """Return a prepared method with a model in float64."""
    torch.manual_seed(1)
    method = (Sign if name == "sign" else Sgc)(MODELS[name](data.num_features).double(), data, ratio=ratio, seed=seed)
    method.prepare()
    return method


def loss_of(out: Tensor, batch: Data) -> Tensor:
    return F.cross_entropy(out, batch.y % OUT)


def dense(data: Data) -> Tensor:
    """Return D^-1/2 (A + I) D^-1/2, A[i, j] being the weight from j to i and self-loops kept, by hand."""
    n, (source, target) = int(data.num_nodes or 0), data.edge_index
    matrix = torch.zeros(n, n, dtype=torch.float64)
    loops = torch.ones(n, dtype=torch.float64)
    for j, i, weight in zip(source.tolist(), target.tolist(), data.edge_weight.tolist(), strict=True):
        if i == j:
            loops[i] = weight  # PyG: a self-loop that is there keeps its weight
        else:
            matrix[i, j] += weight
    matrix += loops.diag()
    scale = matrix.sum(1).rsqrt()
    return scale.view(-1, 1) * matrix * scale


# ---- exactness


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ["sgc", "sign"])
def test_inputs_are_the_powers_computed_densely(name: str, graph: str) -> None:
    data = GRAPHS[graph]()
    method, seen = made(name, data), []
    module = method.model.conv.lin if name == "sgc" else method.model.powers
    module.register_forward_hook(lambda module, args, out: seen.append(args[0] if name == "sgc" else out))
    batch = method.batch(0, 1)
    method.forward(batch)
    powers = [data.x]
    for _ in range(3 if name == "sgc" else 2):
        powers.append(dense(data) @ powers[-1])
    expected = powers[-1] if name == "sgc" else torch.cat(powers, dim=1)
    assert len(seen) == 1
    zoo.assert_near(seen[0], expected[batch.n_id], tolerance=1e-12)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_batches_are_the_full_forward(name: str, graph: str) -> None:
    data = GRAPHS[graph]()
    method = made(name, data)
    truth = zoo.full_batch(method.model, data)
    zoo.assert_near(method.outputs(), truth, tolerance=1e-12)
    zoo.assert_near(method.exact()[0], truth, tolerance=1e-12)
    for batch in method.batches():
        zoo.assert_near(method.forward(batch), truth[batch.n_id], tolerance=1e-12)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_of_one_whole_batch_is_full_batch(name: str, graph: str) -> None:
    data = GRAPHS[graph]()
    method = made(name, data, ratio=1.0)
    (batch,) = method.batches()
    train = data.train_mask
    truth = F.cross_entropy(zoo.full_batch(method.model, data)[train], data.y[train] % OUT)
    expected = zoo.gradients(method.model, truth)
    loss = method.learn(batch, loss_of)
    zoo.assert_near(loss, truth, tolerance=1e-12)
    zoo.assert_near([parameter.grad for parameter in method.parameters()], expected, tolerance=1e-12)


def test_sums_of_batch_gradients_are_full_batch() -> None:
    data = GRAPHS["directed"]()
    method, train = made("sign", data), data.train_mask
    truth = F.cross_entropy(zoo.full_batch(method.model, data)[train], data.y[train] % OUT, reduction="sum")
    expected = zoo.gradients(method.model, truth)
    for batch in method.batches():
        method.learn(batch, lambda out, batch: F.cross_entropy(out, batch.y % OUT, reduction="sum"))
    zoo.assert_near([parameter.grad for parameter in method.parameters()], expected, tolerance=1e-12)


def test_sign_drops_features_of_a_batch_after_their_propagation() -> None:
    data = communities(40)
    torch.manual_seed(1)
    model = SIGN(5, 6, out_channels=OUT, num_layers=2, input_dropout=0.5).double()
    method, seen = Sign(model, data, ratio=1.0), []
    method.prepare()
    (batch,) = method.batches()
    for branch in model.branches:
        branch.register_forward_pre_hook(lambda branch, args: seen.append(args[0]))
    method.forward(batch)
    found, powers = torch.cat(seen, dim=1), model.powers(data.x, data.edge_index)[batch.n_id]
    assert 0.3 < float((found == 0).double().mean()) < 0.7
    assert torch.allclose(found, torch.where(found == 0, 0, 2 * powers), atol=1e-12)


# ---- what a batch is


def test_a_batch_touches_no_neighbor() -> None:
    data = corners()
    method = made("sign", data)
    batch = method.batch(0, 0)
    assert batch.num_nodes == batch.batch_size == len(batch.n_id) == len(batch.x) == len(batch.y)
    assert (batch.num_edges, len(batch.edge_weight), len(batch.edge_attr)) == (0, 0, 0)
    spots = batch.supplement.structure.spots.values()
    assert [(spot.within.shape, spot.halo.shape, len(spot.boundary)) for spot in spots] == [((0, 0), (0, 0), 0)]
    assert {len(rows) for rows in batch.supplement.structure.constants.values()} == {batch.num_nodes}
    moved = batch.to("cpu")  # as for another device
    assert torch.equal(method.forward(moved), method.forward(batch))


@pytest.mark.parametrize("ratio", [0.3, 0.25, 1.0, 0.01])
def test_an_epoch_holds_every_training_node_once(ratio: float) -> None:
    data = communities(40)
    method = made("sgc", data, ratio=ratio)
    training = data.train_mask.nonzero().view(-1).tolist()
    assert len(method) == {0.3: 3, 0.25: 4, 1.0: 1, 0.01: 20}[ratio]
    orders = []
    for _ in range(2):
        batches = list(method.batches())
        assert len(batches) == len(method)
        assert max(batch.batch_size for batch in batches) <= -(-len(training) // len(method))
        orders.append([node for batch in batches for node in batch.n_id.tolist()])
        assert sorted(orders[-1]) == training
    assert orders[0] != orders[1] != training


def test_a_cover_holds_every_node_once() -> None:
    method = made("sgc", communities(40))
    pieces = list(method.cover())
    assert len(pieces) == len(method) == 3
    assert torch.cat([piece.n_id for piece in pieces]).tolist() == list(range(40))
    nodes, out = method.sample(4)
    assert torch.equal(nodes, method.batch(0, 1).n_id)
    assert torch.allclose(out, method.outputs()[nodes])
    many = made("sgc", corners(), ratio=0.01)  # more batches than nodes: some pieces are empty
    zoo.assert_near(many.outputs(), many.exact()[0], tolerance=1e-12)


def test_batches_are_a_function_of_seed_epoch_and_number() -> None:
    data = communities(40)
    one, two, other = made("sgc", data, seed=4), made("sgc", data, seed=4), made("sgc", data, seed=5)
    places = list(itertools.product(range(2), range(3)))
    found = {place: one.batch(*place).n_id.tolist() for place in places}
    assert {place: two.batch(*place).n_id.tolist() for place in reversed(places)} == found
    assert len({tuple(nodes) for nodes in found.values()}) == len(places)
    assert found[0, 0] != other.batch(0, 0).n_id.tolist()


# ---- training


def trained(method: Precomputed, *, steps: int, optimizer: torch.optim.Optimizer) -> list[float]:
    """Take some steps, through as many epochs as they need, and return their losses."""
    losses: list[float] = []
    while len(losses) < steps:
        for batch in method.batches():
            optimizer.zero_grad()
            losses.append(float(method.learn(batch, loss_of)))
            optimizer.step()
            if len(losses) == steps:
                break
    return losses


@pytest.mark.parametrize("name", ["sgc", "sign"])
def test_training_lowers_the_loss(name: str) -> None:
    method = made(name, communities(60, groups=3))
    losses = trained(method, steps=90, optimizer=torch.optim.Adam(method.parameters(), lr=0.05))
    assert np.mean(losses[-6:]) < 0.5 * np.mean(losses[:6])


def test_a_restored_run_goes_on_bitwise() -> None:
    data = communities(60, groups=3)
    whole, before = made("sign", data), made("sign", data)
    losses = trained(whole, steps=9, optimizer=torch.optim.SGD(whole.parameters(), lr=0.1))
    first = trained(before, steps=4, optimizer=torch.optim.SGD(before.parameters(), lr=0.1))
    after = Sign(MODELS["sign"](5).double(), data, ratio=0.3, seed=0)
    after.model.load_state_dict(before.model.state_dict())
    after.restore(before.state(), before.weights())
    assert after.state() == before.state() == {"epoch": 1, "position": 1}  # in the middle of the second epoch
    assert first + trained(after, steps=5, optimizer=torch.optim.SGD(after.parameters(), lr=0.1)) == losses
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), after.parameters(), strict=True))


def test_progress_is_told() -> None:
    told: list[Any] = []
    data = communities(40)
    method = Sgc(SGC(5, out_channels=OUT).double(), data, progress=lambda *what: told.append(what))
    method.prepare()
    assert told == [("propagating features", 0, 2), ("propagating features", 1, 2)]


# ---- other methods


def test_compensated_batches_are_exact_too() -> None:
    data = communities(40, directed=True, weighted=True)
    for name in ("sgc", "sign"):
        torch.manual_seed(1)
        model = MODELS[name](5).double()
        assert [conv.path for conv in describe(model)] == ["linear"]
        top, truth = TOP(model, data, ratio=0.3, rank=2, batches="random"), zoo.full_batch(model, data)
        for batch in top:
            zoo.assert_near(top(batch), truth[batch.n_id], tolerance=1e-12)


@pytest.mark.parametrize("name", ["sgc", "sign"])
def test_sampled_layers_with_all_neighbors_are_exact(name: str) -> None:
    data = corners()
    method = made(name, data)
    neighbors = Neighbors(method.graph, operators=method.plan.operators)
    layered = Layered(method.plan.convs)

    def everything(nodes: Ints, step: int) -> Chosen:
        return neighbors.all_of(nodes)

    batch = neighbors.batch(np.array([3, 8, 12]), depth=method.plan.depth, choose=everything)
    truth = zoo.full_batch(method.model, data)[[3, 8, 12]]
    for layered.trims in (False, True):
        with layered.on(batch):
            out = method.model(batch.x, batch.edge_index, batch.edge_weight)
        assert len(out) == (3 if layered.trims else batch.num_nodes) < data.num_nodes
        zoo.assert_near(out[:3], truth, tolerance=1e-12)


# ---- refusals


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (GCN(5, 6, out_channels=OUT, num_layers=3), r"GCN, where 2 of 3 read embeddings"),
        (nn.Sequential(), None),
        (gnn.APPNP(K=3, alpha=0.1), r"APPNP, where 2 of 3 read embeddings"),
        (gnn.GATConv(5, OUT), r"GATConv, with messages that are not linear"),
    ],
    ids=["gcn", "none", "appnp", "gat"],
)
def test_other_models_are_refused(model: nn.Module, reason: str | None) -> None:
    method = Sgc(model.double(), communities(40))
    message = "at least one PyG MessagePassing" if reason is None else rf"all act on the raw .* \(got {reason}\); use"
    with pytest.raises(ValueError, match=message):
        method.prepare()


def test_dropout_before_the_propagation_is_refused() -> None:
    method = Sgc(Changed(5).double(), communities(40))
    method.prepare()
    batch = method.batch(0, 0)
    method.model.eval()
    zoo.assert_near(method.forward(batch), zoo.full_batch(method.model, method.data)[batch.n_id], tolerance=1e-12)
    method.model.train()
    with pytest.raises(ValueError, match=r"Expected SGConv 'conv' to read the raw features in training, too \(got a"):
        method.forward(batch)


def test_own_models_are_named() -> None:
    assert (Sgc.own_model, Sign.own_model, Sgc.settings) == ("sgc", "sign", ("ratio",))
