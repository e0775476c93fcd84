"""Histories, and the methods that keep them: dropout, what a batch carries, sampled neighbours, refusals."""

import copy
import gc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities
from topoff.graph.graph import Graph
from topoff.methods.gas import Gas
from topoff.methods.graphfm import GraphFMIB, GraphFMOB
from topoff.methods.histories import Histories
from topoff.models.dropout import Dropout, DropoutNotes, dropout


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))


# tables


def test_what_was_never_pushed_is_zero_and_makes_no_table() -> None:
    histories = Histories(4)
    rows = histories.pull("a", torch.tensor([1, 3]), like=torch.ones(1, 2, dtype=torch.float64))
    assert torch.equal(rows, torch.zeros(2, 2, dtype=torch.float64))
    assert histories.tables == {}


def test_pushed_rows_have_no_gradient_and_pulled_ones_are_copies() -> None:
    histories, nodes = Histories(4), torch.tensor([3, 0])
    rows = torch.rand(2, 2, requires_grad=True)
    histories.push("a", nodes, rows)
    pulled = histories.pull("a", nodes, like=rows)
    assert torch.equal(pulled, rows)
    assert not pulled.requires_grad
    pulled.zero_()
    assert torch.equal(histories.pull("a", nodes, like=rows), rows)
    assert torch.equal(histories.table("a", like=rows)[[1, 2]], torch.zeros(2, 2))


# notes of dropout


@pytest.mark.parametrize("way", [F.dropout, dropout, nn.Dropout(0.5), Dropout(0.5)], ids=["F", "own", "nn", "fast"])
def test_dropout_is_noted_with_its_source_and_probability(way: nn.Module) -> None:
    x = torch.ones(2000, 4)
    with DropoutNotes() as notes:
        out = way(x)
        other = out + 1
    note = notes.of(out)
    assert note is not None
    assert note.source is x
    assert notes.of(other) is None
    assert notes.of(x) is None
    again = note.again(torch.full((2000, 4), 3.0))
    assert sorted(again.unique().tolist()) == [0.0, 6.0]
    assert 0.45 < float((again == 0).double().mean()) < 0.55
    assert not torch.equal(again == 0, out == 0)
    with DropoutNotes() as notes:
        pass
    assert notes.of(way(x)) is None  # outside nothing is noted


@pytest.mark.parametrize("kind", [nn.Dropout, Dropout])
def test_dropout_in_place_is_noted_too(kind: type[nn.Dropout]) -> None:
    x = torch.rand(50, 4) + 1
    before = x.clone()
    with DropoutNotes() as notes:
        out = kind(0.5, inplace=True)(x)
    assert out is x
    assert not torch.equal(x, before)
    note = notes.of(out)
    assert note is not None
    assert torch.equal(note.source, before)


@pytest.mark.parametrize("way", [F.dropout, dropout], ids=["F", "own"])
def test_dropout_that_does_nothing_is_not_noted(way: nn.Module) -> None:
    x = torch.ones(5)
    with DropoutNotes() as notes:
        assert way(x, 0.5, training=False) is x
        assert way(x, 0.0) is x
    assert notes.of(x) is None


def test_the_draws_are_those_without_notes() -> None:
    x = torch.rand(100, 8)
    for way in (F.dropout, dropout):
        torch.manual_seed(5)
        plain = way(x, 0.3)
        torch.manual_seed(5)
        with DropoutNotes():
            assert torch.equal(way(x, 0.3), plain)


def test_a_note_ends_with_its_tensor() -> None:
    with DropoutNotes() as notes:
        out = F.dropout(torch.ones(5))
    assert len(notes._notes) == 1
    del out
    gc.collect()
    assert len(notes._notes) == 0


# dropout in a model


class Dropping(nn.Module):
    """Drop out before the second conv, and note what was there."""

    def __init__(self, conv: type[nn.Module], drop: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.drop = conv(5, 6), conv(6, 3), drop
        self.before = self.after = torch.empty(0)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x, edge_index).relu()
        self.before = h.detach().clone()
        h = self.drop(h)
        self.after = h.detach().clone()
        return self.second(h, edge_index)


def prepared(kind: type[Gas], model: nn.Module, **settings: object) -> Gas:
    method = kind(model, settings.pop("data", communities(40)), ratio=0.5, **({"batches": "random"} | settings))
    method.prepare()
    return method


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("kind", "conv"),
    [(Gas, gnn.GCNConv), (Gas, gnn.SAGEConv), (Gas, gnn.GATConv), (GraphFMOB, gnn.GCNConv), (GraphFMOB, gnn.SAGEConv)],
)
def test_histories_hold_embeddings_before_dropout(kind: type[Gas], conv: type[nn.Module], fast: bool) -> None:  # noqa: FBT001
    method = prepared(kind, Dropping(conv, nn.Dropout(0.5)).double(), fast_dropout=fast)
    (batch, *_) = method.batches()
    method.forward(batch)
    (table,) = method.weights().values()
    own = batch.n_id[: batch.batch_size]
    assert not torch.equal(method.model.before, method.model.after)
    assert torch.equal(table[own], method.model.before[: len(own)])


def test_what_is_no_output_of_dropout_is_pushed_as_it_is() -> None:
    class Scaled(nn.Module):
        """Drop out, then do something else."""

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5, self.training) * 2

    method = prepared(Gas, Dropping(gnn.GCNConv, Scaled()).double())
    (batch, *_) = method.batches()
    method.forward(batch)
    assert torch.equal(method.weights()["second/0/0"][batch.n_id], method.model.after)


@pytest.mark.parametrize("conv", [gnn.GCNConv, gnn.SAGEConv])
def test_pulled_rows_are_dropped_out_with_the_models_probability(conv: type[nn.Module]) -> None:
    method = prepared(Gas, Dropping(conv, nn.Dropout(0.75)).double())
    batches = list(method.batches())
    for batch in batches:
        method.forward(batch)
    method.handler.histories.tables["second/0/0"].fill_(1.0)
    seen: list[Tensor] = []
    handler, exchange = method.handler, method.handler.exchange

    def listening(place: str, h: Tensor, *, halo: Tensor) -> Tensor:
        """Note what is pulled."""
        seen.append(exchange(place, h, halo=halo))
        return seen[-1]

    handler.exchange = listening  # type: ignore[method-assign]
    method.forward(batches[0])
    (rows,) = seen
    assert set(rows.unique().tolist()) == {0.0, 4.0}
    assert 0.6 < float((rows == 0).double().mean()) < 0.9
    with torch.no_grad():
        method.model.eval()
        handler.histories.tables["second/0/0"].fill_(1.0)
        method.forward(batches[0])
    assert set(seen[1].unique().tolist()) == {1.0}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of the compiler's own
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", [Gas, GraphFMOB])
def test_a_compiled_model_remembers_as_the_plain_one_does(kind: type[Gas], fast: bool) -> None:  # noqa: FBT001
    torch._dynamo.reset()
    model = gnn.GCN(5, 6, num_layers=2, out_channels=3, dropout=0.5, norm="batch_norm").double()
    plain = prepared(kind, copy.deepcopy(model), fast_dropout=fast)
    compiled = prepared(kind, torch.compile(model, backend="aot_eager"), fast_dropout=fast)
    for one, two in zip(plain.batches(), compiled.batches(), strict=True):
        outs = []
        for method, batch in ((plain, one), (compiled, two)):
            torch.manual_seed(7)
            outs.append(method.forward(batch))
        assert torch.allclose(*outs, atol=1e-12)
    assert list(plain.weights()) == list(compiled.weights())
    for place, table in plain.weights().items():
        assert torch.allclose(compiled.weights()[place], table, atol=1e-12)


# batches


@pytest.mark.parametrize("kind", [Gas, GraphFMOB])
def test_fixed_batches_are_cut_once_and_regrouped_ones_every_epoch(kind: type[Gas]) -> None:
    for regroup in (False, True):
        method = prepared(kind, gnn.GCN(5, 6, num_layers=2).double(), regroup=regroup)
        assert method.batch(0, 1) is method.batch(0, 1)
        assert (method.batch(0, 1) is method.batch(1, 1)) is not regroup


def test_a_batch_of_graphfm_ob_carries_its_halo_and_moves_as_one() -> None:
    data = communities(40, directed=True)
    method = prepared(GraphFMOB, gnn.SAGEConv(5, 3).double(), data=data)
    batch = method.batch(0, 0)
    own, halo = batch.n_id[: batch.batch_size], batch.n_id[batch.batch_size :]
    assert torch.equal(batch.halo.nodes, halo)
    assert batch.num_nodes == len(own) + len(halo)
    (operator,) = method.plan.operators
    A = torch.from_numpy(Graph(data).aggregation(operator).matrix.toarray())
    moved = copy.copy(batch).to("meta")
    assert moved.halo.nodes.device.type == "meta"
    assert moved.halo.outward[operator].values.device.type == "meta"
    assert moved.halo.inward[operator].values.device.type == "meta"
    h = torch.rand(len(own), 3, dtype=torch.float64)
    assert torch.allclose(batch.halo.outward[operator] @ h, A[halo][:, own] @ h)
    rows = torch.rand(len(halo), 3, dtype=torch.float64)
    boundary = own[batch.supplement.structure.spots[operator].boundary]
    assert torch.allclose(batch.halo.inward[operator] @ rows, A[boundary][:, halo] @ rows)


def test_graphfm_ob_knows_its_halo_behind_a_linear_layer() -> None:
    class Behind(nn.Module):
        """Put a linear layer before the first conv."""

        def __init__(self) -> None:
            super().__init__()
            self.linear, self.first, self.second = nn.Linear(5, 6), gnn.GCNConv(6, 6), gnn.GCNConv(6, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.second(self.first(self.linear(x).tanh(), edge_index).tanh(), edge_index)

    method = prepared(GraphFMOB, Behind().double())
    (batch, *_) = method.batches()
    method.forward(batch)
    assert list(method.weights()) == ["second/0"]
    data = method.data
    exact = method.model.first(method.model.linear(data.x).tanh(), data.edge_index).tanh()
    own = batch.n_id[: batch.batch_size]
    assert torch.allclose(method.weights()["second/0"][own], exact[own], atol=1e-12)


def test_the_root_of_a_halo_row_is_the_mixed_one() -> None:
    data = communities(40)
    model = gnn.GraphSAGE(5, 4, num_layers=3, out_channels=3).double()
    method = prepared(GraphFMOB, model, mix=0.0)
    for batch in method.batches():
        method.forward(batch)
    tables = {place: table.normal_() for place, table in method.weights().items()}
    (batch, *_) = method.batches()
    method.handler.mix = 1.0  # the second layer's halo becomes fresh, from the first layer's mixed one
    halo, own = batch.n_id[batch.batch_size :], batch.n_id[: batch.batch_size]
    method.forward(batch)
    A = torch.from_numpy(Graph(data).aggregation(method.plan.operators[0]).matrix.toarray())
    first, second, _ = model.convs
    one = (first.lin_l(A[halo][:, own] @ data.x[own]) + first.lin_r(data.x[halo])).relu()
    assert torch.allclose(tables["convs.1/0"][halo], one, atol=1e-12)
    two = (second.lin_l(A[halo][:, own] @ tables["convs.1/0"][own]) + second.lin_r(one)).relu()
    assert torch.allclose(tables["convs.2/0"][halo], two, atol=1e-12)


# sampled neighbours


def test_graphfm_ib_draws_that_many_different_neighbours_all_alike() -> None:
    data = communities(40, directed=True)
    method = GraphFMIB(gnn.SAGEConv(5, 3).double(), data, fanout=2)
    method.prepare()
    nodes, counts = np.arange(40), Counter()
    for seed in range(300):
        chosen = method.choose(nodes, 0, np.random.default_rng(seed))
        pairs = list(zip(chosen.rows.tolist(), method.neighbours.ids[chosen.positions].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        counts.update(pairs)
    degree = method.neighbours.degree
    assert np.array_equal(np.bincount(chosen.rows, minlength=40), np.minimum(degree, 2))
    assert np.allclose(chosen.scale, np.maximum(degree, 2)[chosen.rows] / 2)
    assert len(counts) == degree.sum()
    busiest = int(degree.argmax())
    shares = np.array([count for (row, _), count in counts.items() if row == busiest]) / 300
    assert np.abs(shares - 2 / degree.max()).max() < 0.12


# refusals


@pytest.mark.parametrize("mix", [-0.1, 1.5])
@pytest.mark.parametrize("kind", [GraphFMIB, GraphFMOB])
def test_a_share_outside_of_its_range_is_refused(kind: type[Gas], mix: float) -> None:
    with pytest.raises(ValueError, match="Expected mix to be between 0 and 1"):
        kind(gnn.GCN(5, 6, num_layers=2), communities(), mix=mix)


def test_no_neighbours_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected fanout to be at least 1"):
        GraphFMIB(gnn.GCN(5, 6, num_layers=2), communities(), fanout=0)


@pytest.mark.parametrize(("kind", "name"), [(GraphFMIB, "GraphFM-IB"), (GraphFMOB, "GraphFM-OB")])
def test_general_convs_are_refused(kind: type[Gas], name: str) -> None:
    with pytest.raises(ValueError, match=f"linear convs for {name}.*got GATConv 'convs.0'.*use the method gas"):
        kind(gnn.GAT(5, 6, num_layers=2).double(), communities()).prepare()


def test_batches_need_no_labels_of_the_halo() -> None:
    method = prepared(GraphFMOB, gnn.GCN(5, 6, num_layers=2, out_channels=4).double())

    def loss_of(out: Tensor, batch: Data) -> Tensor:
        """Score the targets alone."""
        assert len(out) == batch.batch_size < batch.num_nodes
        return F.cross_entropy(out, batch.y[: batch.batch_size])

    (batch, *_) = method.batches()
    assert float(method.learn(batch, loss_of)) > 0
