"""Histories (GAS, GraphFM): exact where they must be, after the passes they need, and constants of the gradient."""

import copy
import itertools
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities, corner_sets, corners, node_sets
from topoff.batching.position import Position
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator
from topoff.methods.gas import Gas
from topoff.methods.graphfm import GraphFMIB, GraphFMOB

GCN = Operator(norm="gcn", self_loops=True)
# passes that a model needs: its propagations one after the other that read no raw features
PASSES = {
    "gcn": 2, "gcn_weighted": 2, "sage_mean": 2, "gin": 2, "gcn2": 3, "gat": 2, "pna": 2, "appnp": 3, "sg": 6,
    "nested": 2, "shared": 2, "shared_linear": 2, "mixed_operators": 2,
}  # fmt: skip
WHOLE = ["gcn_weighted", "sage_mean", "gin", "gcn2", "gat", "pna", "appnp", "pyg_gcn"]
LINEAR = ["gcn", "sage_mean", "gcn2", "appnp", "shared_linear", "pyg_gcn"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))


class SharedLinear(nn.Module):
    """Call one conv twice on embeddings."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.conv, self.last = gnn.GCNConv(features, features), nn.Linear(features, zoo.OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for _ in range(3):
            x = self.conv(x, edge_index).tanh()
        return self.last(x)


def graph() -> Data:
    return all_trained(communities(40, directed=True, weighted=True, edge_features=2))


def all_trained(data: Data) -> Data:
    """Make every node a training node, so that every batch is visited."""
    data.train_mask[:] = True
    data.val_mask[:] = data.test_mask[:] = False
    return data


def make(name: str, data: Data) -> nn.Module:
    if name == "shared_linear":
        torch.manual_seed(0)
        return SharedLinear(data.num_features).double()
    return zoo.make(name, data, layers=3)


def prepared(kind: type[Gas], model: nn.Module, data: Data, **settings: object) -> Gas:
    empty = {"filled": False} if issubclass(kind, Gas) else {}
    method = kind(model, data, **({"ratio": 0.25, "batches": "random", "seed": 3} | empty | settings))
    method.prepare()
    return method


def one_pass(method: Gas) -> None:
    """Run every batch once in training mode, weights frozen."""
    with torch.no_grad():
        for batch in method.batches():
            method.forward(batch)


def error(method: Gas, data: Data) -> float:
    """Return the relative error of what training sees, over all nodes."""
    plain = copy.deepcopy(method.model).eval()
    with torch.no_grad():
        truth = zoo.full_batch(plain, data)
    return float((method.outputs() - truth).norm() / truth.norm())


# one batch


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in (Gas, GraphFMOB) for name in WHOLE if kind is Gas or name not in zoo.GENERAL],
)
def test_one_batch_is_the_full_batch(kind: type[Gas], name: str) -> None:
    data = graph()
    model = make(name, data)
    plain = copy.deepcopy(model)
    method = prepared(kind, model, data, ratio=1.0)
    (batch,) = method.batches()
    out, truth = method.forward(batch), zoo.full_batch(plain, data)[batch.n_id]
    zoo.assert_near(out, truth, tolerance=1e-12)
    pull = torch.randn_like(truth)
    found, wanted = zoo.gradients(model, (out * pull).sum()), zoo.gradients(plain, (truth * pull).sum())
    zoo.assert_near(found, wanted, tolerance=1e-10)


# passes with frozen weights


@pytest.mark.parametrize("name", PASSES)
def test_gas_is_exact_after_as_many_passes_as_propagations_and_not_before(name: str) -> None:
    data = graph()
    method = prepared(Gas, make(name, data), data)
    found = []
    for _ in range(PASSES[name]):
        found.append(error(method, data))
        one_pass(method)
    assert min(found) > 1e-4
    assert error(method, data) < 1e-10


@pytest.mark.parametrize("sets", ["corners", "one node each"])
@pytest.mark.parametrize("name", ["gcn_weighted", "gat"])
def test_gas_becomes_exact_on_every_corner(name: str, sets: str) -> None:
    data = all_trained(corners())
    method = prepared(Gas, make(name, data), data, ratio=1 / 6)
    method.sets = node_sets(corner_sets() if sets == "corners" else list(torch.arange(14).split(1)))
    method.ratio, method._cut_for = method.sets.ratio, -1
    for _ in range(PASSES[name]):
        one_pass(method)
    assert error(method, data) < 1e-10


@pytest.mark.parametrize("name", ["gcn", "gcn2", "gat", "appnp"])
def test_fill_makes_histories_exact_at_once_whatever_they_were(name: str) -> None:
    data = communities(40, weighted=True)
    method = prepared(Gas, make(name, data), data, train_only=True)
    one_pass(method)
    for table in method.weights().values():
        table.normal_()
    method.fill()
    assert method.model.training
    seen, truth = method.outputs(), zoo.full_batch(copy.deepcopy(method.model).eval(), data)
    zoo.assert_near(seen[data.train_mask], truth[data.train_mask], tolerance=1e-10)


@pytest.mark.parametrize("name", ["gcn", "sage_mean", "gin", "shared_linear", "pyg_gcn"])
def test_without_mixing_graphfm_ob_is_gas(name: str) -> None:
    data = graph()
    gas, other = (prepared(kind, make(name, data), data, **more) for kind, more in [(Gas, {}), (GraphFMOB, {"mix": 0})])
    pull = torch.randn(10, zoo.OUT, dtype=torch.float64)
    for _ in range(2):
        for one, two in zip(gas.batches(), other.batches(), strict=True):
            outs = gas.forward(one), other.forward(two)
            zoo.assert_near(outs[1], outs[0], tolerance=1e-12)
            wanted = zoo.gradients(gas.model, (outs[0] * pull).sum())
            zoo.assert_near(zoo.gradients(other.model, (outs[1] * pull).sum()), wanted, tolerance=1e-10)
    zoo.assert_near(list(other.weights().values()), list(gas.weights().values()), tolerance=1e-12)
    for mine, theirs in zip(other.model.buffers(), gas.model.buffers(), strict=True):
        zoo.assert_near(mine.double(), theirs.double(), tolerance=1e-12)  # batch norms learn from the batch alone


@pytest.mark.parametrize("name", LINEAR)
def test_graphfm_ob_settles_where_weights_are_frozen(name: str) -> None:
    data = graph()
    method = prepared(GraphFMOB, make(name, data).requires_grad_(requires_grad=False), data, mix=0.8)
    for norm in method.model.modules():
        if isinstance(norm, nn.BatchNorm1d):
            norm.momentum = 0.0
    steps, before = [], None
    for _ in range(15):
        method.position = Position()  # the same order
        one_pass(method)
        now = torch.cat([table.view(-1) for table in method.weights().values()])
        steps.append(1.0 if before is None else float((now - before).norm() / now.norm()))
        before = now
    assert steps[1] > 1e-6
    assert steps[-1] < 1e-7


# the gradient


def by_hand(model: nn.Module, data: Data, nodes: Tensor, table: Tensor) -> Tensor:
    """Run a GCN of two layers with the halo's rows of the second layer as constants, on dense matrices."""
    A = torch.from_numpy(Graph(data).aggregation(GCN).matrix.toarray())
    first, second = model.convs
    own = (A[nodes] @ data.x @ first.lin.weight.T + first.bias).tanh()
    rows = table.detach().clone().index_put((nodes,), own)
    return A[nodes] @ rows @ second.lin.weight.T + second.bias


def test_the_gradient_of_a_batch_takes_the_halo_for_constant() -> None:
    data = communities(40)
    model = zoo.make("gcn", data)
    method = prepared(Gas, model, data)
    one_pass(method)
    (batch, *_) = method.batches()
    table = method.weights()["convs.1/0/0"].mul_(1.5)  # stale
    pull = torch.randn(10, zoo.OUT, dtype=torch.float64)
    expected = by_hand(model, data, batch.n_id, table)
    wanted = zoo.gradients(model, (expected * pull).sum())
    out = method.forward(batch)
    zoo.assert_near(out, expected, tolerance=1e-12)
    zoo.assert_near(zoo.gradients(model, (out * pull).sum()), wanted, tolerance=1e-10)
    exact = zoo.gradients(model, (zoo.full_batch(model, data)[batch.n_id] * pull).sum())
    assert float((exact[0] - wanted[0]).norm()) > 1e-2 * float(exact[0].norm())


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_graphfm_ob_mixes_what_the_batch_makes_of_its_halo(mix: float) -> None:
    data = communities(40)
    model = zoo.make("gcn", data)
    method = prepared(GraphFMOB, model, data, mix=mix)
    one_pass(method)
    (batch, *_) = method.batches()
    nodes, halo = batch.n_id.split([batch.batch_size, len(batch.n_id) - batch.batch_size])
    A = torch.from_numpy(Graph(data).aggregation(GCN).matrix.toarray())
    assert sorted(halo.tolist()) == sorted(set(A[nodes].nonzero()[:, 1].tolist()) - set(nodes.tolist()))
    table, first = method.weights()["convs.1/0"].clone(), model.convs[0]
    fresh = (A[halo][:, nodes] @ data.x[nodes] @ first.lin.weight.T + first.bias).tanh()
    mixed = table.index_put((halo,), (1 - mix) * table[halo] + mix * fresh)
    pull = torch.randn(10, zoo.OUT, dtype=torch.float64)
    expected = by_hand(model, data, nodes, mixed)
    out = method.forward(batch)
    zoo.assert_near(out, expected, tolerance=1e-12)
    own = (A[nodes] @ data.x @ first.lin.weight.T + first.bias).tanh()
    zoo.assert_near(method.weights()["convs.1/0"], mixed.index_put((nodes,), own), tolerance=1e-12)
    wanted = zoo.gradients(model, (expected * pull).sum())
    zoo.assert_near(zoo.gradients(model, (out * pull).sum()), wanted, tolerance=1e-10)


# where histories live


def test_histories_are_kept_by_place() -> None:
    data = graph()
    places = {
        "gcn": ["convs.1/0/0", "convs.2/0/0"],
        "gat": ["convs.1/0/0", "convs.2/0/0"],
        "shared_linear": ["conv/1/0", "conv/2/0"],
        "appnp": ["convs.0/0/0", "convs.0/0/1", "convs.0/0/2"],
    }
    for name, wanted in places.items():
        method = prepared(Gas, make(name, data), data)
        one_pass(method)
        tables = method.weights()
        assert sorted(tables) == wanted
        for one, two in itertools.combinations(tables.values(), 2):
            assert not torch.allclose(one, two, atol=1e-3)


def test_an_sgc_of_embeddings_has_a_history_per_hop() -> None:
    data = graph()
    model = zoo.Weighted([gnn.SGConv(5, 6, K=2), gnn.SGConv(6, zoo.OUT, K=2)]).double()
    method = prepared(Gas, model, data)
    one_pass(method)
    assert sorted(method.weights()) == ["convs.1/0/0", "convs.1/0/1"]
    assert error(method, data) > 1e-4
    one_pass(method)
    assert error(method, data) < 1e-10


@pytest.mark.parametrize("kind", [Gas, GraphFMOB, GraphFMIB])
def test_eval_mode_pushes_nothing(kind: type[Gas]) -> None:
    data = graph()
    settings = {} if kind is GraphFMIB else {"batches": "random", "filled": False}
    method = kind(make("gcn", data), data, ratio=0.25, **settings)
    method.prepare()
    method.outputs()
    assert method.weights() == {}
    one_pass(method)
    before = {place: table.clone() for place, table in method.weights().items()}
    assert len(before) == 2
    generator = torch.get_rng_state()
    method.outputs()
    method.sample(1)
    method.freeze()
    method.exact()
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(table, before[place]) for place, table in method.weights().items())


LINEAR = ["gcn", "sage_mean", "gin", "gcn2", "appnp", "tag", "shared_linear", "pyg_gcn"]


@pytest.mark.parametrize(
    ("kind", "name"), [(Gas, "gat"), *((kind, name) for kind in (Gas, GraphFMOB) for name in LINEAR)]
)
def test_an_exact_evaluation_makes_the_histories_exact(kind: type[Gas], name: str) -> None:
    data = graph()
    method = prepared(kind, make(name, data), data)
    one_pass(method)
    assert method.weights()
    for table in method.weights().values():
        table.normal_()
    out, refreshed = method.exact()
    assert refreshed
    if kind is GraphFMOB:
        method.handler.mix = 0.0  # the histories as they are
    seen, truth = method.outputs(), zoo.full_batch(copy.deepcopy(method.model).eval(), data)
    zoo.assert_near(out, truth, tolerance=1e-10)
    zoo.assert_near(seen, truth, tolerance=1e-10)


# GraphFM-IB


def test_graphfm_ib_with_all_neighbors_and_no_memory_is_exact() -> None:
    data = graph()
    for name in ("gcn_weighted", "sage_mean", "gin"):
        method = GraphFMIB(make(name, data), data, ratio=0.25, fanout=40, mix=1.0)
        method.prepare()
        assert error(method, data) < 1e-10


@pytest.mark.parametrize("mix", [0.0, 0.25, 1.0])
def test_graphfm_ib_averages_what_arrives(mix: float) -> None:
    data = graph()
    method = GraphFMIB(zoo.make("sage_mean", data), data, ratio=1.0, fanout=40, mix=mix, exact_first=False)
    method.prepare()
    A = torch.from_numpy(Graph(data).aggregation(Operator(aggr="mean")).matrix.toarray())
    first, second = method.model.convs
    messages = torch.zeros(40, 5, dtype=torch.float64), torch.zeros(40, zoo.HIDDEN, dtype=torch.float64)
    pull = torch.randn(40, zoo.OUT, dtype=torch.float64)
    for _ in range(3):
        one = (1 - mix) * messages[0] + mix * (A @ data.x)
        h = (first.lin_l(one) + first.lin_r(data.x)).tanh()
        two = (1 - mix) * messages[1] + mix * (A @ h)
        expected = second.lin_l(two) + second.lin_r(h)
        messages = one.detach(), two.detach()
        (batch,) = method.batches()
        out = method.forward(batch)
        zoo.assert_near(out, expected[batch.n_id], tolerance=1e-12)
        found = zoo.gradients(method.model, (out * pull[batch.n_id]).sum())
        zoo.assert_near(found, zoo.gradients(method.model, (expected * pull).sum()), tolerance=1e-10)
    zoo.assert_near([method.weights()["step 0"], method.weights()["step 1"]], list(messages), tolerance=1e-12)


def test_graphfm_ib_averages_nothing_that_is_known() -> None:
    data = graph()
    method = GraphFMIB(zoo.make("gcn", data, layers=1), data, ratio=0.25, fanout=1, mix=0.1)
    method.prepare()
    one_pass(method)
    assert method.weights() == {}
    assert error(method, data) < 1e-10


def test_averages_of_sampled_messages_come_near_the_true_ones() -> None:
    data = graph()
    model = zoo.make("gcn", data, layers=1)
    method = GraphFMIB(model, data, ratio=1.0, fanout=2, mix=0.04, exact_first=False)
    method.prepare()
    for _ in range(150):
        one_pass(method)
    truth = torch.from_numpy(Graph(data).aggregation(GCN).matrix.toarray()) @ data.x
    assert float((method.weights()["step 0"] - truth).norm() / truth.norm()) < 0.15


# training


@pytest.mark.parametrize("kind", [Gas, GraphFMOB, GraphFMIB])
def test_a_restored_run_goes_on_to_the_bit(kind: type[Gas]) -> None:
    data = communities(60, dtype=torch.float32)
    settings = {"ratio": 0.25, "seed": 1} | ({} if kind is GraphFMIB else {"batches": "random", "regroup": True})

    def steps(method: Gas, optimizer: torch.optim.Optimizer, count: int) -> list[float]:
        """Take some steps, and return their losses."""
        losses: list[float] = []
        while len(losses) < count:
            for batch in method.batches():
                optimizer.zero_grad()
                losses.append(float(method.learn(batch, loss_of)))
                optimizer.step()
                if len(losses) == count:
                    break
        return losses

    def started() -> tuple[Gas, torch.optim.Optimizer]:
        """Make a method and an optimiser."""
        model = gnn.GCN(5, 16, num_layers=3, out_channels=4, dropout=0.5, norm="batch_norm")
        return kind(model, data, **settings), torch.optim.SGD(model.parameters(), lr=0.1)

    method, optimizer = started()
    method.prepare()
    losses = steps(method, optimizer, 30)
    assert sum(losses[-8:]) < 0.9 * sum(losses[:8])
    weights = {place: table.clone() for place, table in method.weights().items()}
    saved = copy.deepcopy(method.model.state_dict()), method.state(), torch.get_rng_state()
    again, other = started()
    again.model.load_state_dict(saved[0])
    again.restore(saved[1], weights)
    method.position.resumed = True  # both go on in the middle of the epoch
    torch.set_rng_state(saved[2])
    expected = steps(method, optimizer, 10)
    torch.set_rng_state(saved[2])
    assert steps(again, other, 10) == expected
    assert all(torch.equal(table, again.weights()[place]) for place, table in method.weights().items())
    assert not all(torch.equal(table, weights[place]) for place, table in method.weights().items())


def loss_of(out: Tensor, batch: Data) -> Tensor:
    mask = batch.train_mask[: len(out)]
    return F.cross_entropy(out[mask], batch.y[: len(out)][mask])


def test_histories_are_filled_before_the_first_epoch() -> None:
    data = graph()
    assert error(prepared(Gas, make("gcn", data), data, filled=True), data) < 1e-10
    assert error(prepared(Gas, make("gcn", data), data, filled=False), data) > 1e-4
