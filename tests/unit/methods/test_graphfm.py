"""GraphFM: what a batch carries, mixed halos, sampled neighbours, refusals."""

import copy
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


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))


def prepared(kind: type[Gas], model: nn.Module, **settings: object) -> Gas:
    method = kind(model, settings.pop("data", communities(40)), ratio=0.5, **({"batches": "random"} | settings))
    method.prepare()
    return method


# ---- halos


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


# ---- sampled neighbours


def test_graphfm_ib_draws_that_many_different_neighbors_all_alike() -> None:
    data = communities(40, directed=True)
    method = GraphFMIB(gnn.SAGEConv(5, 3).double(), data, fanout=2)
    method.prepare()
    nodes, counts = np.arange(40), Counter()
    for seed in range(300):
        chosen = method.choose(nodes, 0, np.random.default_rng(seed))
        pairs = list(zip(chosen.rows.tolist(), method.neighbors.ids[chosen.positions].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        counts.update(pairs)
    degree = method.neighbors.degree
    assert np.array_equal(np.bincount(chosen.rows, minlength=40), np.minimum(degree, 2))
    assert np.allclose(chosen.scale, np.maximum(degree, 2)[chosen.rows] / 2)
    assert len(counts) == degree.sum()
    busiest = int(degree.argmax())
    shares = np.array([count for (row, _), count in counts.items() if row == busiest]) / 300
    assert np.abs(shares - 2 / degree.max()).max() < 0.12


# ---- refusals


@pytest.mark.parametrize("mix", [-0.1, 1.5])
@pytest.mark.parametrize("kind", [GraphFMIB, GraphFMOB])
def test_a_share_outside_of_its_range_is_refused(kind: type[Gas], mix: float) -> None:
    with pytest.raises(ValueError, match="Expected mix to be between 0 and 1"):
        kind(gnn.GCN(5, 6, num_layers=2), communities(), mix=mix)


def test_no_neighbors_at_all_are_refused() -> None:
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
