"""GAS, and GraphFM-OB where it does the same: what is pushed and pulled around dropout, and how batches are kept."""

import copy
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F

from graphs import communities
from topoff.methods.cluster import Cluster
from topoff.methods.gas import Gas
from topoff.methods.graphfm import GraphFMOB


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))


def prepared(kind: type[Gas], model: nn.Module, **settings: object) -> Gas:
    method = kind(model, settings.pop("data", communities(40)), **({"ratio": 0.5, "batches": "random"} | settings))
    method.prepare()
    return method


# ---- dropout in a model


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


# ---- batches


@pytest.mark.parametrize("kind", [Gas, GraphFMOB])
def test_fixed_batches_are_cut_once_and_regrouped_ones_every_epoch(kind: type[Gas]) -> None:
    for regroup in (False, True):
        method = prepared(kind, gnn.GCN(5, 6, num_layers=2).double(), regroup=regroup)
        assert (method.batch(0, 1) is method.batch(1, 1)) is not regroup
        assert method.batch(0, 1).n_id.equal(method.batch(0, 1).n_id)
        assert method.batch(0, 1).n_id.equal(method.batch(1, 1).n_id) is not regroup


@pytest.mark.parametrize("kind", [Cluster, Gas, GraphFMOB])
def test_batches_are_regrouped_unless_there_is_one(kind: type[Cluster]) -> None:
    method = prepared(kind, gnn.GCN(5, 6, num_layers=2).double(), regroup=True)
    assert method.regroups
    method = prepared(kind, gnn.GCN(5, 6, num_layers=2).double(), regroup=True, ratio=1.0)
    assert method.batch(0, 0) is method.batch(1, 0)
