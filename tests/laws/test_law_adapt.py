"""AS-GCN: probabilities as in the paper, right on average for any sampler, and a variance that teaches the sampler."""

import numpy as np
import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities, corners
from topoff.methods.asgcn import Adapt, LastDraws

RECEIVERS = np.array([12, 2, 8, 0, 4, 7, 13])  # self-loops, a duplicate, an isolated node, one that hears nobody
CONVS = ["gcn_weighted", "sage_mean"]


def made(data: Data, conv: str, *, draws: int | None = None, **settings: object) -> Adapt:
    """Return a prepared method, which draws `draws` nodes per step."""
    method = Adapt(zoo.make(conv, data), data, **{"ratio": 0.25, **settings})
    method.prepare()
    if draws is not None:
        method.nodes_per_step = draws
    return method


def others(method: Adapt) -> Tensor:
    """Return the operator of a method's model without its diagonal; (n, n)."""
    (operator,) = method.plan.operators
    matrix = torch.from_numpy(method.graph.aggregation(operator).matrix.toarray())
    return matrix - matrix.diag().diag()


def formula(method: Adapt, receivers: np.ndarray) -> Tensor:
    """Return q(u), proportional to the sum of p(u | v) over the receivers times g(x(u)); (n,), differentiable."""
    sizes = others(method).abs()
    p = sizes / sizes.sum(1, keepdim=True).clamp(min=1e-300)
    importance = p[torch.from_numpy(receivers)].sum(0) * ((method.data.x @ method.sampler).clamp(min=0) + 1)
    return importance / importance.sum()


def true_variance(method: Adapt, receivers: np.ndarray, h: Tensor) -> Tensor:
    """Return the mean variance of the aggregation of h (n, d) at the receivers, from all nodes."""
    rows = others(method)[torch.from_numpy(receivers)]
    q = formula(method, receivers)
    heard = q > 0
    seconds = (rows[:, heard] ** 2 / q[heard]) @ h[heard] ** 2
    return (seconds - (rows @ h) ** 2).mean() / method.nodes_per_step


def loss_of(out: Tensor, batch: Data) -> Tensor:
    return F.cross_entropy(out, batch.y)


@pytest.mark.parametrize("conv", [*CONVS, "graph_mean", "gcn_backwards"])
def test_probabilities_are_those_of_the_paper(conv: str) -> None:
    data, rounds = corners(), 300
    method = made(data, conv, draws=1)
    truth = formula(method, RECEIVERS).detach().numpy()
    count = np.zeros(data.num_nodes)
    for seed in range(rounds):
        chosen = method.choose(RECEIVERS, 0, np.random.default_rng(seed))
        (drawn,) = np.unique(method.neighbors.ids[chosen.positions])
        count[drawn] += 1
        np.testing.assert_allclose(chosen.scale, 1 / truth[drawn], rtol=1e-12)
    assert (np.abs(count / rounds - truth) <= 4.5 * np.sqrt(truth * (1 - truth) / rounds)).all()


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("factor", [0.0, 5.0])
def test_one_aggregation_is_right_on_average_for_any_sampler(conv: str, factor: float) -> None:
    data, rounds = corners(), 500
    method = made(data, conv, draws=3)
    with torch.no_grad():
        method.sampler *= factor
    (weights,) = method.neighbors.weights.values()
    seen = torch.zeros(rounds, len(RECEIVERS), data.num_nodes, dtype=torch.float64)
    for seed in range(rounds):
        chosen = method.choose(RECEIVERS, 0, np.random.default_rng(seed))
        values = torch.from_numpy(weights[chosen.positions] * chosen.scale)
        seen[seed, chosen.rows, method.neighbors.ids[chosen.positions]] = values
    truth = others(method)[torch.from_numpy(RECEIVERS)]
    for values, exact in ((seen, truth), (seen @ data.x, truth @ data.x)):
        assert ((values.mean(0) - exact).abs() <= 4.5 * values.std(0) / rounds**0.5 + 1e-12).all()


class OneHop(nn.Module):
    """Apply one conv without weights before it, so that its aggregated rows are the features."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_weight)


@pytest.mark.parametrize("conv", ["gcn_weighted", "graph_mean", "gcn_backwards"])
def test_variance_is_that_of_the_drawn_messages(conv: str) -> None:
    data = corners()
    method = Adapt(OneHop(zoo.make(conv, data, layers=1).convs[0]), data, ratio=0.25, exact_first=False)
    method.prepare()
    q, exact = formula(method, RECEIVERS), others(method)[torch.from_numpy(RECEIVERS)]
    (weights,) = method.neighbors.weights.values()
    for seed in range(5):
        batch = method._sampled(RECEIVERS, np.random.default_rng(seed))
        method.forward(batch)
        chosen, drawn = method.choose(RECEIVERS, 0, np.random.default_rng(seed)), torch.zeros_like(exact)
        values = torch.from_numpy(weights[chosen.positions] * chosen.scale)
        drawn[chosen.rows, method.neighbors.ids[chosen.positions]] = values
        heard = q > 0
        seconds = (exact * drawn)[:, heard] / q[heard] @ data.x[heard] ** 2
        truth = (seconds - (drawn @ data.x) ** 2).mean() / method.nodes_per_step
        zoo.assert_near(method.variance(batch), truth, tolerance=1e-12)


@pytest.mark.parametrize("conv", ["gcn_weighted", "graph_mean"])
def test_variance_and_its_gradient_are_those_of_the_estimate(conv: str) -> None:
    data = communities(60, degree=8.0, weighted=True)
    method = Adapt(OneHop(zoo.make(conv, data, layers=1).convs[0]), data, ratio=0.25, exact_first=False)
    method.prepare()
    method.nodes_per_step = draws = 5
    targets, rounds = np.arange(3, 15), 200
    truth = true_variance(method, targets, data.x)
    (slope,) = torch.autograd.grad(truth, method.sampler)
    values, slopes, messages = [], [], []
    for seed in range(rounds):
        batch = method._sampled(targets, np.random.default_rng(seed))
        method.forward(batch)
        value = method.variance(batch)
        assert value > 0
        (found,) = torch.autograd.grad(value, method.sampler)
        values.append(value.detach() * draws / (draws - 1))
        slopes.append(found)
        messages.append(method.handler.last[2].detach())
    assert abs(torch.stack(values).mean() - truth) <= 4.5 * torch.stack(values).std() / rounds**0.5
    error = torch.stack(slopes).std(0) / rounds**0.5
    assert ((torch.stack(slopes).mean(0) - slope).abs() <= 4.5 * error).all()
    assert (slope.abs() > 2 * error).any()
    assert abs(torch.stack(messages).var(0).mean() / truth - 1) < 0.15


@pytest.mark.parametrize("conv", CONVS)
def test_steps_on_one_batch_lower_its_variance(conv: str) -> None:
    data = communities(80, degree=8.0, weighted=True)
    method = made(data, conv, draws=10)
    method.model.eval()
    batch = method.batch(0, 0)
    optimizer = torch.optim.SGD([method.sampler], lr=0.2)
    values = []
    for _ in range(12):
        optimizer.zero_grad()
        method.forward(batch)
        variance = method.variance(batch)
        variance.backward()
        assert float(method.sampler.grad.abs().max()) > 0
        optimizer.step()
        values.append(variance.item())
    assert values == sorted(values, reverse=True)
    assert values[-1] < 0.99 * values[0]


def test_steps_on_many_draws_lower_the_true_variance() -> None:
    data = communities(60, degree=8.0, weighted=True)
    data.x[::4] *= 4  # some rows matter more
    method = Adapt(OneHop(zoo.make("graph_mean", data, layers=1).convs[0]), data, ratio=0.25, exact_first=False)
    method.prepare()
    targets = np.arange(3, 15)
    before = true_variance(method, targets, data.x).item()
    optimizer = torch.optim.Adam([method.sampler], lr=0.05)
    for seed in range(60):
        batch = method._sampled(targets, np.random.default_rng(seed))
        optimizer.zero_grad()
        method.forward(batch)
        method.variance(batch).backward()
        optimizer.step()
    assert true_variance(method, targets, data.x).item() < 0.9 * before


def test_loss_alone_does_not_reach_the_sampler() -> None:
    data = communities(80, groups=3, degree=8.0)
    for weight, reached in ((0.0, False), (0.5, True)):
        method = made(data, "gcn", draws=6, weight=weight)
        batch = method.batch(0, 0)
        loss = method.learn(batch, loss_of)
        assert bool(method.sampler.grad.abs().max() > 0) == reached
        assert torch.equal(loss, loss_of(method.forward(batch), batch).detach())
        gradients = [parameter.grad.clone() for parameter in method.model.parameters()]
        total = loss_of(method.forward(batch), batch) + weight * method.variance(batch)
        zoo.assert_near(gradients, zoo.gradients(method.model, total), tolerance=1e-12)


def test_few_neighbors_are_all_taken() -> None:
    data = corners()
    for conv in ("gcn_weighted", "sage_mean", "gin", "gcn2"):
        method = made(data, conv, ratio=1.0)
        method.model.eval()
        zoo.assert_near(method.outputs(), zoo.full_batch(method.model, data), tolerance=1e-12)
        batch = method.batch(0, 0)
        assert "last_draws" not in batch
        method.forward(batch)
        assert float(method.variance(batch)) == 0


@pytest.mark.parametrize("conv", ["gcn_weighted", "sage_mean", "gin", "gcn2", "mixed_operators"])
def test_training_lowers_the_loss_and_moves_the_sampler(conv: str) -> None:
    data = communities(120, groups=3, degree=6.0, weighted=True)
    method = made(data, conv, ratio=0.2, weight=0.02 if conv == "gin" else 0.5)
    optimizer = torch.optim.Adam(method.parameters(), lr=0.01)
    before, first = F.cross_entropy(method.exact()[0], data.y), method.weights()["sampler"]
    for _ in range(6):
        for batch in method.batches():
            optimizer.zero_grad()
            assert method.learn(batch, loss_of).isfinite()
            optimizer.step()
    assert F.cross_entropy(method.exact()[0], data.y) < 0.9 * before
    assert not torch.equal(method.sampler, first)


def test_restoring_goes_on_bitwise() -> None:
    data = communities(100, groups=3, degree=8.0)

    def started() -> tuple[Adapt, torch.optim.Optimizer]:
        method = Adapt(zoo.make("gcn", data), data, ratio=0.1)
        return method, torch.optim.SGD(method.parameters(), lr=0.5)

    def run(method: Adapt, optimizer: torch.optim.Optimizer, *, steps: int) -> list[tuple[list[int], float]]:
        seen = []
        for batch, _ in zip(method.batches(), range(steps), strict=False):
            optimizer.zero_grad()
            seen.append((batch.n_id.tolist(), float(method.learn(batch, loss_of))))
            optimizer.step()
            if len(seen) == steps:
                break
        return seen

    method, optimizer = started()
    method.prepare()
    run(method, optimizer, steps=4)
    state, weights = method.state(), method.weights()
    model = {name: value.clone() for name, value in method.model.state_dict().items()}
    resumed, other = started()
    resumed.model.load_state_dict(model)
    resumed.restore(state, weights)
    assert torch.equal(resumed.sampler, weights["sampler"])
    fresh, _ = started()
    assert not torch.equal(fresh.sampler, weights["sampler"])
    again = run(resumed, other, steps=5)
    method.position.resumed = True  # the first run stopped in the middle of an epoch: it goes on there
    assert run(method, optimizer, steps=5) == again
    assert torch.equal(method.sampler, resumed.sampler)


def test_the_first_sampler_depends_on_the_seed() -> None:
    data = communities()
    one, same, other = (Adapt(zoo.make("gcn", data), data, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(one.sampler, same.sampler)
    assert not torch.equal(one.sampler, other.sampler)
    assert one.parameters()[-1] is one.sampler
    assert one.sampler.dtype == data.x.dtype


def test_draws_move_with_their_batch() -> None:
    data = communities(80, degree=8.0)
    method = made(data, "gcn", draws=6)
    batch = method.batch(0, 0)
    moved = batch.to("meta").last_draws
    assert isinstance(moved, LastDraws)
    for name, value in vars(moved).items():
        values = list(value.values()) if isinstance(value, dict) else [value]
        assert all(tensor.device.type == "meta" for tensor in values), name


def test_general_convs_are_refused() -> None:
    data = corners()
    with pytest.raises(ValueError, match=r"Expected a model of linear convs for AS-GCN.*GATConv 'convs.0'.*ladies"):
        made(data, "gat")


def test_a_negative_weight_is_refused() -> None:
    data = corners()
    with pytest.raises(ValueError, match=r"Expected weight to be at least 0 \(got -1"):
        made(data, "gcn", weight=-1.0)


def test_a_known_propagation_is_neither_sampled_nor_learnt_from() -> None:
    data = communities(60, degree=6.0)
    method = Adapt(zoo.make("gcn", data, layers=1).eval(), data, ratio=0.05)
    method.prepare()
    zoo.assert_near(method.outputs(), zoo.full_batch(method.model, data), tolerance=1e-12)
    assert "last_draws" not in method.batch(0, 0)
