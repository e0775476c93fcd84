"""What the first propagation reads is estimated apart where it has received no messages, and only there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv

from graphs import communities
from topoff import TOP, load
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


def prepared(model: nn.Module, *, features: int = 5, **settings: Any) -> TOP:
    """Return a TOP on a graph of communities with noisy features."""
    data = communities(600, groups=6, degree=20.0, features=features, dtype=torch.float32)
    data.train_mask, data.val_mask = torch.arange(600) % 30 == 0, torch.arange(600) % 30 == 1
    data.test_mask = ~(data.train_mask | data.val_mask)
    data = load(data)
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


def test_what_changes_at_noisy_rows_is_followed_better_than_by_shared_factors() -> None:
    """The drift of messages, after the first weights have moved: rows of features are averaged, not echoed."""
    model = LinearFirst(features=64)
    top = prepared(model, features=64)
    before: dict[str, Tensor] = {}
    now: dict[str, Tensor] = {}
    top.basis.embed(model, before.__setitem__)
    with torch.no_grad():
        model.linear.weight += 0.3 * torch.randn(16, 64, generator=torch.Generator().manual_seed(1))
    top.basis.embed(model, now.__setitem__)
    change, errors = now[FIRST] - before[FIRST], {"apart": 0.0, "shared": 0.0}
    for batch in top.cover():
        structure, compensation = batch.supplement.structure, batch.compensation
        (way,) = structure.spots
        messages = incoming(structure, way, change)
        for name, factors in (("apart", compensation.apart[FIRST]), ("shared", compensation)):
            said = factors.factor(way) @ factors.summary(change[structure.nodes])
            errors[name] += float((said - messages).square().sum())
    assert errors["apart"] < 0.7 * errors["shared"]
