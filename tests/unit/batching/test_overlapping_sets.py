"""Overlapping node sets: what they hold, how their losses are weighed, and that they are compensated like any other."""

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from graphs import communities, corners
from topoff import TOP
from topoff.batching.overlapping_sets import SAMPLERS, SampledSets

pytestmark = pytest.mark.filterwarnings("ignore:The compensation misses")


def gcn(data: Data) -> GCN:
    torch.manual_seed(0)
    return GCN(data.num_features, 8, num_layers=2, out_channels=4).to(data.x.dtype)


@pytest.mark.parametrize("method", SAMPLERS)
def test_sets_hold_nodes_once_and_depend_on_the_seed(method: str) -> None:
    data = communities()
    sets = SampledSets(method=method, ratio=0.25).fit(data).of(0)
    assert len(sets) == 4
    assert all(len(nodes.unique()) == len(nodes) > 0 for nodes in sets)
    again, other = (SampledSets(method=method, ratio=0.25, seed=seed).fit(data).of(0) for seed in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(sets, again, strict=True))
    assert method == "ibmb" or any(not torch.equal(a, b) for a, b in zip(sets, other, strict=True))


@pytest.mark.parametrize("method", ["saint-node", "saint-edge", "saint-walk"])
def test_sets_have_their_share_of_the_nodes(method: str) -> None:
    sets = SampledSets(method=method, ratio=0.25).fit(communities()).of(0)
    assert 11 <= sum(map(len, sets)) / len(sets) <= 19  # of 60 nodes


@pytest.mark.parametrize("method", ["shadow", "ibmb"])
def test_sets_hold_every_training_node(method: str) -> None:
    data = communities()
    held = torch.cat(SampledSets(method=method, ratio=0.25).fit(data).of(0)).unique()
    assert set(data.train_mask.nonzero().view(-1).tolist()) <= set(held.tolist())


@pytest.mark.parametrize("method", SAMPLERS)
def test_sets_are_drawn_anew_where_that_is_wanted(method: str) -> None:
    fixed, fresh = (SampledSets(method=method, ratio=0.25, regroup=regroup).fit(communities()) for regroup in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(fixed.of(0), fixed.of(1), strict=True))
    same = all(torch.equal(a, b) for a, b in zip(fresh.of(0), fresh.of(1), strict=True))
    assert same == (method == "ibmb")  # which draws nothing


@pytest.mark.parametrize("method", SAMPLERS)
def test_the_cover_holds_every_node_once(method: str) -> None:
    data = corners()
    cover = SampledSets(method=method, ratio=0.25).fit(data).cover()
    assert torch.cat(cover).sort().values.tolist() == list(range(data.num_nodes))


@pytest.mark.parametrize("method", SAMPLERS)
def test_losses_are_weighed_to_the_mean_over_the_training_nodes_that_occur(method: str) -> None:
    data = communities()
    top = TOP(gcn(data), data, batches=method, ratio=0.25, rank=4)
    batches = top.prepare().batches()
    losses = torch.arange(60, dtype=torch.float64)
    total = sum(float((batch.loss_weight * losses[batch.n_id])[batch.train_mask].sum()) for batch in batches) / len(
        batches
    )
    held = torch.cat([batch.n_id[batch.train_mask] for batch in batches]).unique()
    assert total == pytest.approx(float(losses[held].mean()))


@pytest.mark.parametrize("method", SAMPLERS)
def test_compensation_serves_any_sampler(method: str) -> None:
    data = communities()
    model = gcn(data)
    top, bare = (TOP(model, data, batches=method, ratio=0.4, rank=rank, refresh="never") for rank in (12, 0))
    assert top.fidelity().relative_error < 0.7 * bare.fidelity().relative_error
    exact = model.eval()(data.x, data.edge_index)
    assert torch.allclose(top.predict(), exact, atol=1e-10)
    assert torch.allclose(top.refresh(), exact, atol=1e-10)


@pytest.mark.parametrize("method", SAMPLERS)
def test_training_lowers_the_loss(method: str) -> None:
    data = communities()
    model = gcn(data)
    top, optimizer = TOP(model, data, batches=method, ratio=0.25, rank=8), torch.optim.Adam(model.parameters(), lr=0.05)
    totals = []
    for _ in range(20):
        total = 0.0
        for batch in top:
            losses = F.cross_entropy(top(batch)[batch.train_mask], batch.y[batch.train_mask], reduction="none")
            loss = (losses * batch.loss_weight[batch.train_mask]).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        totals.append(total)
    assert totals[-1] < 0.8 * totals[0]


def test_refusals() -> None:
    data = communities()
    with pytest.raises(ValueError, match=r"Expected the sampler to be one of saint-node, .* \(got 'walks'\)"):
        SampledSets(method="walks").fit(data)
    with pytest.raises(ValueError, match=r"Expected 'ratio' to be in \(0, 1\] \(got 2\)"):
        len(SampledSets(method="ibmb", ratio=2))
    with pytest.raises(RuntimeError, match="Expected 'SampledSets' to be fitted before of"):
        SampledSets(method="ibmb").of(0)
    with pytest.raises(ValueError, match="Expected batches 'shadow' without parts, train_only and reach"):
        TOP(gcn(data), data, batches="shadow", train_only=True)
    with pytest.raises(ValueError, match=r"Expected 'ratio' to give at most \d+ batches, one per training node"):
        SampledSets(method="shadow", ratio=0.01).fit(data)
