"""LMC: exact histories give exact outputs and gradients that add up; frozen weights make histories exact."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import CLASSES, communities, corner_sets, corners, node_sets, six_nodes
from topoff.forward.subgraph import Subgraph, whole_graph
from topoff.graph.operators import Operator
from topoff.methods.lmc import LMC, SCORES, nodes_around

Both = dict[str, tuple[Tensor, Tensor]]  # by place: h and G of all nodes


class Normed(nn.Module):
    """Surround convs with linear layers and layer norms, and add a residual."""

    def __init__(self, features: int) -> None:
        super().__init__()
        width = zoo.HIDDEN
        self.first, self.last = nn.Linear(features, width), nn.Linear(width, zoo.OUT)
        self.convs = nn.ModuleList([gnn.GCNConv(width, width), gnn.SAGEConv(width, width)])
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x).tanh()
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + norm(conv(x, edge_index)).tanh()
        return self.last(x)


def _stack(name: str, layers: int) -> Callable[[Data], nn.Module]:
    return lambda data: zoo.make(name, data, layers=layers)


MODELS: dict[str, Callable[[Data], nn.Module]] = {
    "gcn 2": _stack("gcn", 2),
    "gcn 3": _stack("gcn_weighted", 3),
    "sage 2": _stack("sage_mean", 2),
    "sage 3": _stack("sage_mean", 3),
    "gin 2": _stack("gin", 2),
    "gin 3": _stack("gin", 3),
    "gcn2": _stack("gcn2", 3),
    "appnp": _stack("appnp", 3),
    "gated": _stack("gated", 3),
    "two operators": _stack("mixed_operators", 3),
    "batch norm, jumping knowledge": _stack("pyg_gcn", 3),
    "normed": lambda data: Normed(data.num_features).double(),
}
GRAPHS = {
    "undirected": lambda: communities(40, weighted=True),
    "directed": lambda: communities(40, weighted=True, directed=True),
}


def sparse() -> Data:
    """Return a directed graph in which a batch and its halo are far from everything."""
    return communities(60, degree=2.5, weighted=True, directed=True)


def prepared(model: nn.Module, data: Data, *, ratio: float = 0.25, **settings: Any) -> LMC:
    """Return LMC with random batches and empty histories, the model in eval mode."""
    method = LMC(model.eval(), data, batches="random", ratio=ratio, **({"filled": False} | settings))
    method.prepare()
    return method


def loss_of(out: Tensor, batch: Data) -> Tensor:
    """Return the weighed loss of a batch's training nodes."""
    mask = batch.train_mask[: len(out)]
    losses = F.cross_entropy(out[mask], batch.y[: len(out)][mask] % CLASSES, reduction="none")
    return (losses * batch.loss_weight[: len(out)][mask]).sum()


def whole_loss(method: LMC, out: Tensor) -> Tensor:
    """Return the mean training loss of the whole graph times the number of batches."""
    data = method.data
    return len(method) * F.cross_entropy(out[data.train_mask], data.y[data.train_mask] % CLASSES)


class Recorder(Subgraph):
    """Run the whole graph, and keep what every propagation reads and returns."""

    before_weights = True

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        out = self.batch.supplement.structure.spots[operator].within @ h
        out.retain_grad()
        self.met = getattr(self, "met", {}) | {place: (h.detach(), out)}
        return out.clone()  # GCN2Conv writes into what it is given


def truth(method: LMC) -> tuple[Tensor, list[Tensor], Both]:
    """Return outputs and gradients of the full batch, by the bare model, and h and G at every propagation."""
    model, data = method.model, method.data
    out = zoo.full_batch(model, data)
    gradients = zoo.gradients(model, whole_loss(method, out))
    recorder, batch = Recorder(method.plan.convs), whole_graph(method.graph, method.plan)
    with recorder.on(batch):
        again = method._run(model, batch)
    whole_loss(method, again).backward()
    zoo.assert_near(again, out, tolerance=1e-12)
    model.zero_grad()
    return out.detach(), gradients, {place: (h, z.grad) for place, (h, z) in recorder.met.items()}


def fill(method: LMC, known: Both) -> None:
    """Make both histories exact."""
    everyone = torch.arange(method.graph.num_nodes)
    for place, (h, grad) in known.items():
        method.histories.push(f"embeddings/{place}", everyone, h)
        method.histories.push(f"gradients/{place}", everyone, grad)


def learnt(method: LMC, batch: Data) -> list[Tensor]:
    """Return the gradients that one batch puts into the parameters."""
    method.model.zero_grad()
    method.learn(batch, loss_of)
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in method.model.parameters()]


def epoch(method: LMC) -> list[Tensor]:
    """Return the sum of the batches' gradients over an epoch, the weights frozen."""
    return [
        torch.stack(found).sum(0) for found in zip(*(learnt(method, batch) for batch in method.batches()), strict=True)
    ]


def relative(found: list[Tensor], true: list[Tensor]) -> float:
    """Return the relative distance of all gradients together."""
    one, other = torch.cat([t.flatten() for t in found]), torch.cat([t.flatten() for t in true])
    return float((one - other).norm() / other.norm())


# ---- exact histories


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_exact_histories_give_the_full_gradient(name: str, graph: str) -> None:
    data = GRAPHS[graph]()
    method = prepared(MODELS[name](data), data, mix=0.0)
    out, gradients, known = truth(method)
    assert relative(epoch(method), gradients) > 1e-3  # from zero histories
    fill(method, known)
    zoo.assert_near(method.outputs(), out, tolerance=1e-12)
    assert relative(epoch(method), gradients) < 1e-10
    for place, (h, grad) in known.items():  # what the epoch pushed
        zoo.assert_near(method.histories.tables[f"embeddings/{place}"], h, tolerance=1e-12)
        zoo.assert_near(method.histories.tables[f"gradients/{place}"], grad, tolerance=1e-12)
    batches = [method.batch(0, number) for number in range(len(method))]
    without = []
    for batch in batches:  # GAS: histories of embeddings alone
        for place in known:
            method.histories.tables.pop(f"gradients/{place}", None)
        without.append(learnt(method, batch))
    assert relative([torch.stack(g).sum(0) for g in zip(*without, strict=True)], gradients) > 1e-3


@pytest.mark.parametrize("name", ["gcn 3", "sage 2", "gin 3", "gcn2"])
def test_corners_give_the_full_gradient(name: str) -> None:
    data = corners()
    method = prepared(MODELS[name](data), data, mix=0.0, ratio=1 / 6)
    method.sets, method._cut_for = node_sets(corner_sets()), -1
    out, gradients, known = truth(method)
    fill(method, known)
    assert sum(not bool(batch.train_mask.any()) for batch in method.batches()) == 2  # they are trained on too
    zoo.assert_near(method.outputs(), out, tolerance=1e-12)
    assert relative(epoch(method), gradients) < 1e-10


@pytest.mark.parametrize("mix", [0.0, 0.7])
@pytest.mark.parametrize("name", ["gcn 3", "normed"])
def test_one_batch_is_the_full_batch(name: str, mix: float) -> None:
    data = GRAPHS["directed"]()
    method = prepared(MODELS[name](data), data, mix=mix, ratio=1.0)
    out, gradients, _ = truth(method)
    zoo.assert_near(method.outputs(), out, tolerance=1e-12)
    assert relative(epoch(method), gradients) < 1e-10


@pytest.mark.parametrize("name", ["gcn 3", "sage 3", "gcn2"])
def test_up_to_date_values_are_exact_where_the_neighborhood_is_everything(name: str) -> None:
    data = communities(20, weighted=True, directed=True)
    hub = torch.arange(1, 20)
    more = torch.stack([hub, torch.zeros_like(hub)])
    data.edge_index = torch.cat([data.edge_index, more, more.flip(0)], dim=1)
    data.edge_weight = torch.cat([data.edge_weight, torch.full((38,), 0.3, dtype=torch.float64)])
    method = prepared(MODELS[name](data), data, mix=1.0, ratio=0.5)
    out, gradients, known = truth(method)
    with_hub = next(batch for batch in method.batches() if 0 in batch.n_id)
    assert len(with_hub.n_id) + len(with_hub.vicinity.halo) == 20
    zoo.assert_near(method.forward(with_hub), out[with_hub.n_id], tolerance=1e-12)  # from zero histories
    found = learnt(method, with_hub)
    for place, (_, grad) in known.items():
        zoo.assert_near(
            method.histories.tables[f"gradients/{place}"][with_hub.n_id], grad[with_hub.n_id], tolerance=1e-12
        )
    fill(method, known)
    method.mix = 0.0
    rest = learnt(method, method.cut(with_hub.vicinity.halo))  # the other half of the gradient, histories alone
    assert relative([one + other for one, other in zip(found, rest, strict=True)], gradients) < 1e-10


# ---- frozen weights


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", ["gcn 3", "sage 3", "gcn2", "normed"])
def test_repeated_passes_make_histories_exact(name: str, graph: str) -> None:
    data = GRAPHS[graph]()
    method = prepared(MODELS[name](data), data, mix=0.0)
    out, gradients, known = truth(method)
    errors = []
    for number in range(2 * method.plan.depth):
        errors.append(relative(epoch(method), gradients))
        if number + 1 == method.plan.depth:
            zoo.assert_near(method.outputs(), out, tolerance=1e-12)
    assert errors[0] > 1e-3
    assert relative(epoch(method), gradients) < 1e-10
    for place, (_, grad) in known.items():
        zoo.assert_near(method.histories.tables[f"gradients/{place}"], grad, tolerance=1e-12)


def test_up_to_date_values_help_while_histories_are_old() -> None:
    data = GRAPHS["undirected"]()
    errors = {}
    for mix in (0.0, 1.0):
        method = prepared(MODELS["gcn 3"](data), data, mix=mix)
        out, gradients, _ = truth(method)
        errors[mix] = float((method.outputs() - out).norm() / out.norm()), relative(epoch(method), gradients)
    assert errors[1.0] < errors[0.0]


# ---- filled histories


@pytest.mark.parametrize("name", ["gcn 3", "sage 3", "gcn2", "appnp", "normed"])
def test_histories_of_embeddings_are_filled_before_the_first_epoch_and_by_evaluations(name: str) -> None:
    data = GRAPHS["directed"]()
    method = prepared(MODELS[name](data), data, mix=0.0, filled=True)
    out, _, known = truth(method)
    assert set(method.weights()) == {f"embeddings/{place}" for place in known}
    zoo.assert_near(method.outputs(), out, tolerance=1e-10)
    for table in method.weights().values():
        table.normal_()
    assert method.exact()[1]
    zoo.assert_near(method.outputs(), out, tolerance=1e-10)


# ---- what a step costs


def test_a_step_runs_every_row_once_and_differentiates_weights_in_the_batch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = sparse()
    method = prepared(zoo.make("gcn", data, layers=3), data, mix=0.5, ratio=1 / 6)
    rows: list[tuple[int, bool]] = []
    run = gnn.Linear.forward

    def counted(layer: gnn.Linear, x: Tensor) -> Tensor:
        rows.append((len(x), layer.weight.requires_grad))
        return run(layer, x)

    monkeypatch.setattr(gnn.Linear, "forward", counted)
    batch = method.batch(0, 0)
    learnt(method, batch)
    b, c = len(batch.n_id), len(batch.vicinity.halo)
    assert sorted(rows) == sorted([(b, True), (c, False)] * 3)


# ---- one step by hand


def by_hand(method: LMC, batch: Data, known: Both, beta: tuple[Tensor, Tensor]) -> tuple[list[Tensor], Both]:
    """Return the gradients of a GCN with tanh, layer by layer with dense matrices, and what B pushes."""
    near = torch.cat([batch.n_id, batch.vicinity.halo])
    b, c, layers = len(batch.n_id), near[len(batch.n_id) :], list(method.model.convs)
    whole = torch.from_numpy(method.graph.aggregation(method.plan.operators[0]).matrix.todense())
    matrix, x = whole[near][:, near], method.data.x
    weights = [layer.lin.weight.detach() for layer in layers]
    z, h = [(whole @ x)[near]], []
    for number, layer in enumerate(layers[:-1]):
        h.append((z[-1] @ weights[number].T + layer.bias.detach()).tanh())
        history = known[f"convs.{number + 1}/0/0"][0][c]
        z.append(matrix @ torch.cat([h[-1][:b], (1 - beta[0]) * history + beta[0] * h[-1][b:]]))
    out = (z[-1] @ weights[-1].T + layers[-1].bias.detach()).requires_grad_()
    mask, weight = method.data.train_mask[near], len(method) / int(method.data.train_mask.sum())
    loss = weight * F.cross_entropy(out[mask], (method.data.y[near] % CLASSES)[mask], reduction="sum")
    (delta,) = torch.autograd.grad(loss, out)
    found: list[Tensor] = []
    pushed: Both = {}
    for number in reversed(range(len(layers))):
        found = [delta[:b].sum(0), delta[:b].T @ z[number][:b], *found]
        if number:
            place, grad = f"convs.{number}/0/0", delta @ weights[number]
            pushed[place] = h[number - 1][:b], grad[:b]
            grad = torch.cat([grad[:b], (1 - beta[1]) * known[place][1][c] + beta[1] * grad[b:]])
            delta = (matrix.T @ grad) * (1 - h[number - 1] ** 2)
    return found, pushed


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mix", [0.0, 0.6])
def test_a_step_is_the_paper_by_hand(mix: float, score: str) -> None:
    data = sparse()
    method = prepared(zoo.make("gcn", data, layers=3), data, mix=mix, score=score, ratio=1 / 6)
    _, _, known = truth(method)
    known = {place: (h + torch.randn_like(h), g + torch.randn_like(g)) for place, (h, g) in known.items()}
    fill(method, known)
    batch = method.batch(0, 1)
    patch = batch.vicinity.patches[method.plan.operators[0]]
    if mix and score != "constant":  # both ways count, or the comparison would say little
        assert float((patch.fresh - patch.fresh_back).abs().mean()) > 0.01
        assert patch.fresh.unique().numel() > 3
    expected, pushed = by_hand(method, batch, known, (patch.fresh, patch.fresh_back))
    assert relative(learnt(method, batch), expected) < 1e-12
    for place, (h, grad) in pushed.items():
        zoo.assert_near(method.histories.tables[f"embeddings/{place}"][batch.n_id], h, tolerance=1e-12)
        zoo.assert_near(method.histories.tables[f"gradients/{place}"][batch.n_id], grad, tolerance=1e-12)
        halo = batch.vicinity.halo  # nothing of C is pushed
        assert torch.equal(method.histories.tables[f"embeddings/{place}"][halo], known[place][0][halo])
        assert torch.equal(method.histories.tables[f"gradients/{place}"][halo], known[place][1][halo])


def test_the_mix_follows_the_score() -> None:
    data = sparse()
    formula = {"constant": lambda x: 1.0 + 0 * x, "linear": lambda x: x, "convex": lambda x: x**2}
    formula["concave"] = lambda x: 2 * x - x**2
    for score, shape in formula.items():
        method = prepared(zoo.make("sage_mean", data), data, mix=0.5, score=score, ratio=1 / 6)
        batch = method.batch(0, 0)
        patch, halo = batch.vicinity.patches[method.plan.operators[0]], batch.vicinity.halo
        near = set(batch.n_id.tolist()) | set(halo.tolist())
        pairs = set(map(tuple, data.edge_index.T.tolist()))
        for place, node in enumerate(halo.tolist()):
            senders = {source for source, target in pairs if target == node}
            receivers = {target for source, target in pairs if source == node}
            for others, beta in ((senders, patch.fresh), (receivers, patch.fresh_back)):
                x = torch.tensor(len(others & near) / len(others) if others else 1.0, dtype=torch.float64)
                torch.testing.assert_close(beta[place, 0], 0.5 * torch.as_tensor(shape(x)))
    assert LMC(method.model, data).mix == 0.8
    assert LMC(method.model, data).score == "concave"


def test_the_default_score_counts_the_layers_own_loops() -> None:
    data = six_nodes()
    method = prepared(gnn.GCN(3, 4, num_layers=2, out_channels=2).double(), data, mix=1.0, ratio=0.5)
    patch = method.cut(torch.tensor([0])).vicinity.patches[method.plan.operators[0]]
    x = 2 / 4  # node 2 hears from 0 and itself, not from 1 and 3
    assert patch.fresh.flatten().tolist() == pytest.approx([2 * x - x * x])


def test_the_halo_holds_senders_and_receivers() -> None:
    method = prepared(zoo.make("gcn", corners()), corners())
    assert nodes_around(method.graph, torch.tensor([12])).tolist() == [0, 3, 5]
    assert nodes_around(method.graph, torch.tensor([13])).tolist() == [1, 6]
    assert nodes_around(method.graph, torch.tensor([8])).tolist() == []


# ---- around a step


def test_a_batch_moves_as_a_whole() -> None:
    data = GRAPHS["undirected"]()
    method = prepared(zoo.make("gcn", data, layers=3), data, mix=0.5)
    stays = learnt(method, method.batch(0, 0))
    method.histories.tables.clear()
    assert relative(learnt(method, method.batch(0, 0).clone().to("cpu")), stays) == 0
    around = method.cut(torch.arange(5)).to("meta").vicinity
    patch = around.patches[method.plan.operators[0]]
    moved = [around.nodes, around.halo, around.rows.x, patch.fresh, patch.fresh_back, *patch.around.tensors]
    assert {tensor.device.type for tensor in moved} == {"meta"}


def test_epochs_have_their_own_order_and_hold_every_node() -> None:
    data = GRAPHS["undirected"]()
    method = prepared(zoo.make("gcn", data), data, ratio=0.1)
    orders = [[tuple(batch.n_id.tolist()) for batch in method.batches()] for _ in range(2)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert sorted(sum(orders[0], ())) == list(range(40))


def test_looking_pushes_nothing() -> None:
    data = GRAPHS["undirected"]()
    method = prepared(zoo.make("gcn", data, layers=3), data, mix=0.5)
    epoch(method)
    before = {name: table.clone() for name, table in method.weights().items()}
    assert {name.split("/", 1)[0] for name in before} == {"embeddings", "gradients"}
    assert len(before) == 4
    method.freeze()  # else an exact evaluation fills the histories
    method.outputs(), method.sample(2), method.exact()
    method.forward(method.batch(0, 0)).sum().backward()
    assert all(torch.equal(table, before[name]) for name, table in method.weights().items())
    nodes, rows = method.sample(2)
    assert torch.equal(rows, method.outputs()[nodes])


def test_running_statistics_come_from_the_batch_alone() -> None:
    data = GRAPHS["undirected"]()
    torch.manual_seed(0)
    model = gnn.GCN(data.num_features, 6, 3, CLASSES, norm="batch_norm").double()
    method = prepared(model, data, mix=0.7)
    model.train()
    batch = method.batch(0, 0)
    first = (method.graph.propagated((method.plan.operators[0],)) @ model.convs[0].lin.weight.T)[batch.n_id]
    method.learn(batch, loss_of)
    assert all(int(norm.module.num_batches_tracked) == 1 for norm in model.norms[:2])
    zoo.assert_near(model.norms[0].module.running_mean, 0.1 * first.mean(0), tolerance=1e-12)


@pytest.mark.parametrize("mix", [0.0, 0.8])
def test_training_lowers_the_loss(mix: float) -> None:
    data = communities(80, weighted=True)
    data.y = data.y % CLASSES
    torch.manual_seed(0)
    model = gnn.GCN(data.num_features, 16, 3, CLASSES, dropout=0.2).double()
    method = prepared(model, data, mix=mix)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss() -> float:
        return float(whole_loss(method, method.exact()[0])) / len(method)

    before = loss()
    for _ in range(15):
        model.train()
        for batch in method.batches():
            optimizer.zero_grad()
            method.learn(batch, loss_of)
            optimizer.step()
    model.eval()
    assert loss() < 0.6 * before


def test_the_losses_of_an_epoch_are_the_mean_loss() -> None:
    data = GRAPHS["undirected"]()
    method = prepared(zoo.make("gcn", data), data, mix=0.0)
    out, _, known = truth(method)
    fill(method, known)
    losses = [float(method.learn(batch, loss_of)) for batch in method.batches()]
    assert sum(losses) == pytest.approx(float(whole_loss(method, out)), rel=1e-12)


def steps(method: LMC, count: int, *, save_at: int = -1) -> tuple[list[float], Any]:
    """Take steps of plain descent; return their losses, and copies of all that resuming takes after one of them."""
    losses: list[float] = []
    saved: Any = None
    while True:
        for batch in method.batches():
            method.model.zero_grad()
            losses.append(float(method.learn(batch, loss_of)))
            with torch.no_grad():
                for parameter in method.model.parameters():
                    parameter -= 0.05 * parameter.grad
            if len(losses) == save_at:
                saved = copy.deepcopy((method.model, method.state(), method.weights()))
            if len(losses) == count:
                return losses, saved


@pytest.mark.parametrize("regroup", [False, True], ids=["fixed", "regrouped"])
def test_a_resumed_run_goes_on_bitwise(regroup: bool) -> None:  # noqa: FBT001
    data = GRAPHS["directed"]()
    settings: dict[str, Any] = {"batches": "random", "parts": 12, "ratio": 0.25, "mix": 0.5, "regroup": regroup}
    method = LMC(zoo.make("gcn", data, layers=3).eval(), data, **settings)
    method.prepare()
    losses, (model, state, weights) = steps(method, 12, save_at=6)
    other = LMC(model, data, **settings)
    other.restore(state, weights)
    assert other.weights().keys() == weights.keys()
    assert all(torch.equal(table, weights[name]) for name, table in other.weights().items())
    assert steps(other, 6)[0] == losses[6:]
    assert len(set(losses)) == 12
    kept = weights["embeddings/convs.1/0/0"]
    assert not torch.equal(other.histories.tables["embeddings/convs.1/0/0"], kept)  # a copy: what was saved stays


# ---- refusals


def test_refusals() -> None:
    data = six_nodes()
    with pytest.raises(ValueError, match=r"for LMC.*got GATConv 'convs.0'.*use the method gas or top"):
        LMC(gnn.GAT(3, 4, 2, 2).double(), data, batches="random", ratio=0.5).prepare()
    model = gnn.GCN(3, 4, 2, 2).double()
    with pytest.raises(ValueError, match=r"Expected 'mix' to be in .0, 1. .got 1.5."):
        LMC(model, data, mix=1.5)
    with pytest.raises(ValueError, match=r"Expected 'score' to be one of constant, .*got 'sine'"):
        LMC(model, data, score="sine")
