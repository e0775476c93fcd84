"""With an offset batches are exact at every refresh, at any rank; where the basis spans, both forms agree."""

import copy

import pytest
import torch
import torch_geometric.nn as gnn
import zoo
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities
from topoff import TOP
from topoff.forward.call import evaluating
from topoff.methods.gas import Gas

SAMPLERS = ["kaminpar", "random", "saint-walk", "ibmb"]
QUIET = float("inf")  # so small a basis earns warnings


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))


def graph(seed: int = 0) -> Data:
    return communities(60, directed=bool(seed % 2), weighted=True, edge_features=2, features=3, seed=seed)


def truth_of(model: nn.Module, data: Data) -> Tensor:
    """Return the full-batch forward in eval mode."""
    plain = copy.deepcopy(model)
    with evaluating(plain):
        return zoo.full_batch(plain, data)


def moved(model: nn.Module, *, by: float = 0.3) -> None:
    """Change the weights, as training would."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += by * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)


def outputs(top: TOP, data: Data, truth: Tensor) -> Tensor:
    """Return what the batches say of every node that is in one; NaN elsewhere."""
    out = torch.full_like(truth, float("nan"))
    with evaluating(top.model):
        for batch in top.cover():
            out[batch.n_id] = top(batch)
    return out


def assert_exact(top: TOP, data: Data) -> None:
    truth = truth_of(top.model, data)
    out = outputs(top, data, truth)
    seen = ~out.isnan().any(dim=1)
    assert bool(seen.any())
    zoo.assert_near(out[seen], truth[seen], tolerance=1e-9)


@pytest.mark.parametrize("name", zoo.ALL)
def test_exact_at_every_refresh(name):
    data = graph(len(name))
    model, rank = zoo.make(name, data, layers=3), len(name) % 3
    top = TOP(model, data, ratio=0.25, rank=rank, batches="random", offset=True, tolerance=QUIET)
    assert_exact(top, data)
    moved(model)
    top.refresh()
    assert_exact(top, data)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("rank", [0, 1, 8])
@pytest.mark.parametrize("name", ["gcn_weighted", "gat", "gcn2"])
def test_exact_for_every_sampler_and_rank(name, rank, sampler):
    data = graph()
    model = zoo.make(name, data, layers=3)
    top = TOP(model, data, ratio=0.25, rank=rank, batches=sampler, offset=True, tolerance=QUIET)
    top.prepare()
    moved(model)
    top.refresh()
    assert_exact(top, data)


def test_exact_with_batches_that_change():
    data = graph()
    model = zoo.make("gcn", data, layers=3)
    top = TOP(model, data, ratio=0.25, rank=2, parts=12, regroup=True, refresh="every=3", tolerance=QUIET)
    for _ in range(3):
        assert_exact(top, data)
        for batch in top:
            top(batch)


@pytest.mark.parametrize("name", ["gcn_weighted", "sage_mean", "gat", "gcn2", "appnp"])
def test_rank_0_is_a_history_as_old_as_the_refresh(name):
    data = graph()
    model = zoo.make(name, data, layers=3)
    top = TOP(model, data, ratio=0.25, rank=0, batches="random", offset=True, seed=3)
    gas = Gas(model, data, ratio=0.25, batches="random", seed=3)
    top.prepare()
    gas.prepare()
    moved(model)
    with evaluating(model):
        for one, other in zip(top.cover(), gas.cover(), strict=True):
            assert torch.equal(one.n_id, other.n_id)
            zoo.assert_near(top(one), gas.forward(other), tolerance=1e-9)


@pytest.mark.parametrize("name", ["gcn_weighted", "gat", "gcn2"])
def test_both_forms_agree_where_the_basis_spans(name):
    data = graph()
    model = zoo.make(name, data, layers=2)
    found = []
    for offset in (True, False):
        top = TOP(model, data, ratio=0.5, rank=24, ridge=0.0, batches="random", offset=offset, tolerance=QUIET)
        found.append(outputs(top, data, truth_of(model, data)))
    zoo.assert_near(found[0], found[1], tolerance=1e-7)


def test_nothing_of_the_offset_is_differentiated_but_the_weights_behind_it():
    data = graph()
    model = zoo.make("gcn", data, layers=2)
    top = TOP(model, data, ratio=0.25, rank=0, batches="random", offset=True)
    batch = next(iter(top))
    pull = torch.linspace(-1, 1, batch.num_nodes * zoo.OUT).view(-1, zoo.OUT).double()
    ours = zoo.gradients(model, (top(batch) * pull).sum())
    step, slope = 1e-6, 0.0
    ways = [torch.randn_like(each) for each in model.parameters()]
    values = []
    for move in (step, -2 * step):
        for each, way in zip(model.parameters(), ways, strict=True):
            each.data += move * way
        values.append(float((top(batch) * pull).sum().detach()))
    slope = sum(float((each * way).sum()) for each, way in zip(ours, ways, strict=True))
    assert slope == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize(("estimator", "refresh", "offset"), [("ridge", "every=5", True), ("ridge", "never", False),
                                                               ("paper", "every=5", False)])  # fmt: skip
def test_an_offset_is_kept_where_a_basis_is_refreshed(estimator, refresh, offset):
    data = graph()
    top = TOP(zoo.make("gcn", data), data, estimator=estimator, refresh=refresh, batches="random", tolerance=QUIET)
    assert top.offset is offset


@pytest.mark.parametrize("kind", [gnn.GCN, gnn.GraphSAGE, gnn.GAT, gnn.GIN], ids=lambda kind: kind.__name__)
def test_what_training_nodes_reach_is_all_that_counts_for_them(kind):
    data = communities(60, features=3)
    data.train_mask = torch.arange(60) % 30 == 3
    data.val_mask, data.test_mask = ~data.train_mask, torch.zeros(60, dtype=torch.bool)
    torch.manual_seed(1)
    model = kind(3, 5, num_layers=3, out_channels=2).double()
    top = TOP(model, data, ratio=1.0, reach=2, rank=1, batches="random", refresh="every=9", tolerance=QUIET)
    (batch,) = top.cover()
    assert len(batch.n_id) < 60
    moved(model)  # nothing is refreshed: what lies outside is wrong by now, and counts for nobody
    truth = truth_of(model, data)[batch.n_id]
    with evaluating(model):
        out = top(batch)
    zoo.assert_near(out[batch.train_mask], truth[batch.train_mask], tolerance=1e-9)
    assert not torch.allclose(out, truth, rtol=1e-3)
