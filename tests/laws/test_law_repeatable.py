"""Looking changes nothing, and a seed is a run: losses are compared bit by bit."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
import zoo
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN

from graphs import communities
from topoff import TOP

MODELS = {
    "gcn": lambda d: GCN(d.num_features, 8, 3, 4, dropout=0.5, norm="batch_norm"),
    "gat": lambda d: GAT(d.num_features, 8, 2, 4, dropout=0.3, heads=2),
}


def losses(
    kind: str,
    data: Data,
    *,
    between: Callable[[TOP], object] = lambda top: None,
    within: Callable[[TOP], object] = lambda top: None,
    seed: int = 0,
    epochs: int = 3,
    **settings: object,
) -> list[float]:
    """Train with dropout, call `between` after every epoch and `within` after every batch; return every loss."""
    torch.manual_seed(seed)
    model = MODELS[kind](data).double()
    top = TOP(model, data, ratio=0.25, rank=4, seed=seed, tolerance=9.0, **settings)
    optimizer, found = torch.optim.Adam(model.parameters(), lr=0.01), []
    model.train()
    for _ in range(epochs):
        for batch in top:
            out = top(batch)
            loss = F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
            within(top)
        between(top)
    return found


SETTINGS = {
    "fixed": {"batches": "metis", "refresh": "never"},
    "refreshed": {"batches": "kaminpar", "refresh": "every=2"},
    "regrouped": {"batches": "random", "regroup": True, "refresh": "every=2"},
    "train_only": {"batches": "random", "train_only": True, "refresh": "every=3"},
}
LOOKS: dict[str, Callable[[TOP], object]] = {
    "evaluate": lambda top: top.evaluate(),
    "fidelity": lambda top: top.fidelity(gradients=True),
    "outputs": lambda top: top.outputs(),
    "certificate": lambda top: top.certificates_,
}


@cache
def undisturbed(kind: str, settings: str) -> list[float]:
    return losses(kind, communities(48), **SETTINGS[settings])


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_looking_leaves_later_losses_bitwise_unchanged(settings, look):
    looked = losses("gcn", communities(48), between=LOOKS[look], **SETTINGS[settings])
    assert looked == undisturbed("gcn", settings)


@pytest.mark.parametrize("look", LOOKS)
def test_looking_leaves_later_losses_of_the_general_path_bitwise_unchanged(look):
    looked = losses("gat", communities(48), between=LOOKS[look], **SETTINGS["refreshed"])
    assert looked == undisturbed("gat", "refreshed")


@pytest.mark.parametrize("settings", SETTINGS)
def test_looking_in_the_middle_of_an_epoch_leaves_later_losses_bitwise_unchanged(settings):
    looked = losses("gcn", communities(48), within=LOOKS["evaluate"], **SETTINGS[settings])
    assert looked == undisturbed("gcn", settings)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_seed_is_a_run(kind, settings):
    assert losses(kind, communities(48), **SETTINGS[settings]) == undisturbed(kind, settings)
    assert losses(kind, communities(48), seed=1, **SETTINGS[settings]) != undisturbed(kind, settings)


def test_a_refresh_does_change_later_losses():
    """The laws above can fail."""
    looked = losses("gcn", communities(48), between=lambda top: top.evaluate(refresh=True), **SETTINGS["fixed"])
    assert looked != undisturbed("gcn", "fixed")


def test_preparing_draws_nothing_from_the_global_generator():
    data = communities(48, groups=3)
    model = zoo.make("pyg_gcn", data).train()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    top = TOP(model, data, ratio=0.25, rank=4, refresh="never", tolerance=9.0)
    top.prepare()
    top.evaluate(refresh=True)
    top.fidelity(gradients=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
