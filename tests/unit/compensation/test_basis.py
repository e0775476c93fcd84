"""Where batches hold few of the nodes, a basis has the features: raw for rows without messages, smoothed for others."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

from graphs import communities
from topoff import TOP, load
from topoff.compensation import basis
from topoff.compensation.estimator import Compensator
from topoff.compensation.sight import incoming
from topoff.forward.call import evaluating

FIRST = "first/0/0"


class LinearFirst(nn.Module):
    """A linear layer, then two convs: the first of them reads rows that have received no messages."""

    def __init__(self, conv: Any = GCNConv, *, linear: bool = True, features: int = 5) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 16) if linear else nn.Identity()
        self.first, self.second = conv(16 if linear else features, 16), conv(16, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.linear(x)
        h = h.relu() if isinstance(self.linear, nn.Linear) else h
        out: Tensor = self.second(self.first(h, edge_index).relu(), edge_index)
        return out


def graph(nodes: int = 600, *, features: int = 5) -> Data:
    """Return a graph of communities with noisy features, a thirtieth of whose nodes are for training."""
    data = communities(nodes, groups=6, degree=20.0, features=features, dtype=torch.float32)
    data.train_mask, data.val_mask = torch.arange(nodes) % 30 == 0, torch.arange(nodes) % 30 == 1
    data.test_mask = ~(data.train_mask | data.val_mask)
    return data


def prepared(
    model: nn.Module, *, nodes: int = 600, features: int = 5, data: Data | None = None, **settings: Any
) -> TOP:
    """Return a TOP on a graph, by default such a one, that batches its training nodes alone."""
    data = load(graph(nodes, features=features) if data is None else data)
    given: dict[str, Any] = {"ratio": 0.5, "rank": 8, "batches": "random", "train_only": True}
    given["tolerance"] = float("inf")
    top = TOP(model, data, **given | settings)
    top.prepare()
    return top


@pytest.mark.parametrize("conv", [GCNConv, GATConv])
def test_rows_that_have_received_no_messages_are_estimated_apart(conv: Any) -> None:
    for batch in prepared(LinearFirst(conv)).cover():
        assert batch.compensation.apart.keys() == {FIRST}


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (LinearFirst(linear=False), {}),  # it reads the features, which are known
        (LinearFirst(), {"refresh": "never"}),
        (LinearFirst(), {"estimator": "paper"}),
        (LinearFirst(), {"rank": 0}),
        (LinearFirst(), {"train_only": False}),
    ],
    ids=["known", "never", "paper", "rank 0", "all nodes"],
)
def test_elsewhere_all_places_share_their_factors(model: nn.Module, settings: dict[str, Any]) -> None:
    assert all(batch.compensation.apart == {} for batch in prepared(model, **settings).cover())


@pytest.mark.parametrize("conv", [GCNConv, GATConv])
def test_a_batch_runs_by_the_factors_of_the_place(conv: Any) -> None:
    top = prepared(LinearFirst(conv))
    batch = top.cover()[0]
    with evaluating(top.model):
        exact = top(batch)
        assert torch.allclose(exact, top.predict()[batch.n_id], atol=1e-4)  # as their own offset belongs to them
        del batch.compensation.apart[FIRST]
        assert not torch.allclose(top(batch), exact, atol=1e-3)


def drifted(top: TOP, place: str, change: float) -> dict[str, float]:
    """Return how much of a drift of messages the place's own factors and the shared ones miss; of its norm."""
    before: dict[str, Tensor] = {}
    now: dict[str, Tensor] = {}
    top.basis.embed(top.model, before.__setitem__)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in top.model.linear.parameters():
            parameter += change * torch.randn(parameter.shape, generator=generator)
    top.basis.embed(top.model, now.__setitem__)
    moved, errors = now[place] - before[place], {"own": 0.0, "shared": 0.0, "all": 0.0}
    for batch in top.cover():
        structure, compensation = batch.supplement.structure, batch.compensation
        (way,) = structure.spots
        messages = incoming(structure, way, moved)
        errors["all"] += float(messages.square().sum())
        for name, factors in (("own", compensation.apart.get(place, compensation)), ("shared", compensation)):
            said = factors.factor(way) @ factors.summary(moved[structure.nodes])
            errors[name] += float((said - messages).square().sum())
    return {name: (errors[name] / errors["all"]) ** 0.5 for name in ("own", "shared")}


def test_a_linear_layer_of_the_features_is_followed_exactly() -> None:
    """Its rows are combinations of features and a constant, however they change."""
    model = LinearFirst()
    model.forward = lambda x, edge_index: model.second(model.first(model.linear(x), edge_index).relu(), edge_index)
    assert drifted(prepared(model), FIRST, 1.0)["own"] < 1e-3


def test_what_changes_at_noisy_rows_is_followed_better_than_by_shared_factors() -> None:
    """The drift of messages, after the first weights have moved: rows of features are averaged, not echoed."""
    missed = drifted(prepared(LinearFirst(features=8), nodes=2_400, features=8), FIRST, 0.3)
    assert missed["own"] < 0.7 * missed["shared"]


class Linear(nn.Module):
    """A linear layer narrower than the features, and convs, without activations."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 4)
        self.first, self.second = GCNConv(4, 4), GCNConv(4, 2)
        nn.init.normal_(self.first.bias)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(self.linear(x), edge_index), edge_index)
        return out


@pytest.mark.parametrize("rank", [24, 0.9999999])
def test_where_batches_hold_few_nodes_a_basis_has_what_a_linear_network_reads(
    rank: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missed() -> float:
        """Return what is missed when the weights have become others."""
        data = graph(2_400, features=20)
        data.x = data.x.double()
        top = prepared(Linear(20).double(), data=data, rank=rank, ridge=0.0)
        return drifted(top, "second/0/0", 1.0)["own"]

    with monkeypatch.context() as before:
        before.setattr(basis, "MOST_HOPS", 0)
        assert missed() > 0.1
    assert missed() < 1e-6


@pytest.mark.parametrize("rank", [4, 0.9])
def test_wide_features_are_read_in_their_leading_directions(rank: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compensator, "let_go", lambda self: None)
    compensator = prepared(LinearFirst(features=64), features=64, rank=rank).prepare().compensator
    assert compensator is not None
    assert compensator.rank_ < 32
    assert compensator.encoded is not None
    assert [block.size(1) for block in compensator.encoded.blocks] == [2 * compensator.rank_ + 1, 16]


class Coded(LinearFirst):
    """A model whose first layer is no function of the features as numbers: it looks codes up."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Embedding(12, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(self.linear(codes(x)), edge_index).relu(), edge_index)  # type: ignore[no-any-return]


def codes(x: Tensor) -> Tensor:
    """Return a number below 12 for every row, which features tell only in an unsteady way."""
    return (x[:, 0] * 1e4).long().remainder(12)


def test_a_layer_of_something_else_than_the_features_is_followed_by_its_own_rows() -> None:
    assert drifted(prepared(Coded(), nodes=2_400, rank=32), FIRST, 0.3)["own"] < 0.6


class Normed(LinearFirst):
    """A model that brings its features to one scale first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(self.norm(x), edge_index)


@pytest.mark.parametrize(
    ("scales", "mean"),
    [([1.0, 1.0, 1.0, 1.0, 1e4], 0.0), ([1.0] * 5, 1e3), ([0.0] * 5, 0.0)],
    ids=["one column is large", "far from zero", "all are zero"],
)
def test_features_of_any_scale_count_alike(scales: list[float], mean: float) -> None:
    model = Normed() if any(scales) else LinearFirst()
    data = graph(2_400)
    data.x = data.x * torch.tensor(scales) + mean
    with evaluating(model):
        statistics(model, data.x)
    assert drifted(prepared(model, data=data), FIRST, 0.3)["own"] < (0.4 if any(scales) else 1e-2)


def statistics(model: nn.Module, x: Tensor) -> None:
    """Give a batch norm the statistics of the features."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean, module.running_var = x.mean(0), x.var(0)


@pytest.mark.filterwarnings("ignore:The compensation misses")
@pytest.mark.parametrize("estimator", ["paper", "released"])
def test_estimators_of_the_paper_keep_all_places_in_one_basis(estimator: str) -> None:
    top = prepared(LinearFirst(), nodes=2_400, rank=16, estimator=estimator, offset=True)
    assert not any(batch.compensation.apart for batch in top.cover())
    assert drifted(top, FIRST, 0.3)["own"] < 0.6


def test_a_model_of_one_propagation_is_compensated() -> None:
    class Once(nn.Module):
        """A linear layer and a conv."""

        def __init__(self) -> None:
            super().__init__()
            self.linear, self.first = nn.Linear(5, 16), GCNConv(16, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.first(self.linear(x), edge_index)
            return out

    top = prepared(Once())
    assert top.compensator.rank_ == 8
    with torch.no_grad():
        top.model.linear.weight += torch.randn(16, 5, generator=torch.Generator().manual_seed(1))
    with evaluating(top.model):
        batch = top.cover()[0]
        torch.testing.assert_close(top(batch), top.predict()[batch.n_id], atol=1e-3, rtol=1e-3)


class Branches(nn.Module):
    """Two convs side by side, which read the same rows, and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(5, 16), GCNConv(16, 4)
        self.first, self.beside = GCNConv(16, 16), GCNConv(16, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.linear(x).relu()
        out: Tensor = self.last((self.first(h, edge_index) + self.beside(h, edge_index)).relu(), edge_index)
        return out


def test_all_places_that_read_encoded_features_are_estimated_apart_and_one_hop_is_behind_them() -> None:
    top = prepared(Branches(), nodes=2_400)
    assert top.basis.passes.encoded == [FIRST, "beside/0/0"]
    assert top.basis.passes.hops == 1
    for batch in top.cover():
        apart = batch.compensation.apart
        assert apart.keys() == {FIRST, "beside/0/0"}
        assert apart[FIRST] is apart["beside/0/0"]
    assert drifted(top, "beside/0/0", 0.3)["own"] < 0.6


def test_features_of_several_dimensions_are_followed() -> None:
    class Averaged(LinearFirst):
        """A model of features (n, t, d), of which it takes the mean over t."""

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(x.mean(1), edge_index)

    data = graph()
    data.x = torch.rand(600, 3, 5, generator=torch.Generator().manual_seed(0))
    top = prepared(Averaged(), data=data)
    top.refresh()
    assert drifted(top, FIRST, 0.3)["own"] < 0.8


class Zeroed(nn.Module):
    """A residual network that begins with factors of zero: at first all convs read the same rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.share = nn.Linear(5, 16), nn.Parameter(torch.zeros(1))
        self.first, self.second = GCNConv(16, 16), GCNConv(16, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.linear(x).relu()
        h = h + self.share * self.first(h, edge_index).relu()
        out: Tensor = self.second(h, edge_index)
        return out


def test_places_that_read_the_same_rows_by_chance_are_told_apart() -> None:
    passes = prepared(Zeroed()).basis.passes
    assert (passes.encoded, passes.hops) == ([FIRST], 1)


def test_encoded_rows_weigh_as_much_as_the_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own columns have the scale of the features', with and without sight, whatever their messages are."""
    monkeypatch.setattr(Compensator, "let_go", lambda self: None)
    for accumulate in (None, 2):
        top = prepared(LinearFirst(), accumulate=accumulate)
        compensator = top.compensator
        assert compensator is not None
        assert compensator.encoded is not None
        assert (compensator.sight is None) == bool(accumulate)
        own = compensator.encoded.blocks[1]
        if compensator.sight is not None:
            own = torch.cat([compensator.sight.own(each, own) for each in compensator.sight.structures])
        assert float(own.square().mean()) == pytest.approx(1.0, rel=1e-3)
