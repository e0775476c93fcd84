"""The running average of weights: the formula, what is averaged, and a model that is left as it was."""

import pytest
import torch
from torch import nn

from topoff.training.average import MEMORY, Average


def walked(model: nn.Module, steps: int, **options: bool) -> tuple[Average, list[torch.Tensor]]:
    """Move a model's first weight at random, averaging; return the average and where the weight was."""
    average, path = Average(model, **options), []
    weight = next(model.parameters())
    for step in range(1, steps + 1):
        weight.data += torch.randn_like(weight)
        path.append(weight.detach().double().clone())
        average.add(step)
    return average, path


def test_recent_steps_count_by_a_power_of_their_number() -> None:
    """Unrolled, step t has the weight of a product: t^MEMORY, but for lower orders."""
    model = nn.Linear(3, 2).double()
    average, path = walked(model, 40)
    weights = torch.ones(40, dtype=torch.float64)
    for t in range(2, 41):
        share = (MEMORY + 1) / (MEMORY + t)
        weights[: t - 1] *= 1 - share
        weights[t - 1] = share
    assert float(weights.sum()) == pytest.approx(1)
    expected = (weights.view(-1, 1, 1) * torch.stack(path)).sum(dim=0)
    torch.testing.assert_close(average.means["weight"], expected, rtol=0, atol=1e-13)
    assert float(weights[-5:].sum()) > 0.8  # of 40 steps


def test_the_model_is_as_before_even_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model(torch.randn(5, 3))
    average, _ = walked(model, 3)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="inside"), average.in_place():  # noqa: PT012 - looks inside, too
        torch.testing.assert_close(model[0].weight, average.means["0.weight"], rtol=0, atol=0)
        assert not torch.equal(model[0].weight, before["0.weight"])
        raise RuntimeError("inside")
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_running_statistics_are_averaged_and_counts_are_not() -> None:
    model = nn.BatchNorm1d(2)
    average = Average(model)
    for step in range(1, 4):
        model(torch.randn(50, 2) + step)
        average.add(step)
    assert average.means.keys() == {"weight", "bias", "running_mean", "running_var"}
    assert bool((average.means["running_mean"] < model.running_mean).all())


def test_half_precision_is_averaged_in_full() -> None:
    """A share of 1 / 1000 of a small change would be rounded away."""
    model = nn.Linear(1, 1, bias=False).half()
    average = Average(model)
    for step in range(1, 3000):
        model.weight.data.fill_(1.0 if step < 1000 else 1.001)
        average.add(step)
    assert average.means["weight"].dtype == torch.float32
    assert float(average.means["weight"]) == pytest.approx(1.001, abs=1e-4)
    with average.in_place():
        assert model.weight.dtype == torch.float16


def test_weights_that_a_step_has_made_join_the_average() -> None:
    """Lazy layers have no weights before their first call."""
    model = nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(1))
    average = Average(model)
    average.add(1)
    assert average.means.keys() == {"0.weight", "0.bias"}
    before = model[0].weight.detach().clone()
    model(torch.randn(4, 2))
    model[0].weight.data += 1
    average.add(2)
    assert average.means.keys() == set(model.state_dict())
    assert torch.equal(average.means["1.weight"], model[1].weight)
    assert bool(((before < average.means["0.weight"]) & (average.means["0.weight"] < model[0].weight)).all())


class Buffers(nn.Module):
    """Buffers that no average could be taken of: infinite, sparse, of another shape with every batch, expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("sparse", torch.eye(2).to_sparse())
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.register_buffer("wide", torch.zeros(1, 1).expand(3, 3))

    def step(self) -> None:
        self.weight.data += 1
        self.seen = torch.zeros(len(self.seen) + 1)


def test_buffers_of_other_kinds_stay_as_the_model_has_them() -> None:
    model = Buffers()
    average = Average(model)
    for step in range(1, 4):
        model.step()
        average.add(step)
    assert average.means.keys() == {"weight"}
    with average.in_place():
        assert 1 < model.weight.item() < 3
        assert model.mask.tolist() == [0.0, -torch.inf]
        assert len(model.seen) == 4


def test_what_a_checkpoint_keeps_is_enough() -> None:
    model = nn.Linear(2, 2)
    average, _ = walked(model, 5)
    other = Average(model)
    other.restore(average.tensors())
    average.add(6)
    other.add(6)
    assert torch.equal(average.means["weight"], other.means["weight"])


def test_nothing_is_averaged_unless_it_is_wanted() -> None:
    model = nn.Linear(2, 2)
    average, path = walked(model, 5, wanted=False)
    assert average.tensors() == {}
    with average.in_place():
        torch.testing.assert_close(model.weight.double(), path[-1], rtol=0, atol=0)
