"""How far batches are from the whole graph."""

import math

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import communities
from topoff.compensation.fidelity import (
    Fidelity,
    LayerErrors,
    RelativeError,
    compare_gradients,
    fidelity_of,
    gradient,
    known_rows,
    output_error,
)
from topoff.forward.convs import describe
from topoff.graph.graph import Graph
from topoff.tasks.task import default_loss


def halves(data: Data) -> list[Data]:
    graph = Graph(data)
    return [graph.induced(torch.arange(0, 60, 2)), graph.induced(torch.arange(1, 60, 2))]


# the errors


def test_the_relative_error_is_pooled_over_batches() -> None:
    error = RelativeError()
    error.add(torch.tensor([3.0, 0.0]), torch.tensor([3.0, 1.0]))
    error.add(torch.tensor([4.0]), torch.tensor([2.0]))
    assert error.value() == pytest.approx(math.sqrt(5) / 5)


def test_the_error_relative_to_nothing_is_nought_or_infinite() -> None:
    error = RelativeError()
    assert error.value() == 0
    error.add(torch.zeros(2), torch.zeros(2))
    assert error.value() == 0
    error.add(torch.zeros(2), torch.ones(2))
    assert error.value() == math.inf


def test_outputs_are_returned_in_the_order_of_the_nodes() -> None:
    batches, exact = halves(communities()), torch.rand(60, 2, dtype=torch.float64)
    error, outputs = output_error(lambda batch: exact[batch.n_id] * 1.1, batches, exact)
    assert error == pytest.approx(0.1)
    assert torch.allclose(outputs, exact * 1.1)


def test_nodes_in_no_batch_are_nan_and_do_not_count() -> None:
    batches, exact = halves(communities())[:1], torch.ones(60, 2, dtype=torch.float64)
    error, outputs = output_error(lambda batch: exact[batch.n_id], batches, exact)
    assert error == 0
    assert bool(outputs[1::2].isnan().all())
    assert bool((outputs[::2] == 1).all())


def test_layers_are_compared_one_by_one_and_named_by_conv_and_hop() -> None:
    conv = describe(gnn.SGConv(4, 4, K=2))[0]
    named = describe(gnn.GCN(4, 4, num_layers=1))[0]
    layers, rows = LayerErrors(), torch.ones(6, 2)
    layers.add_exact(f"{named.name}/0/0", rows)
    layers.add_exact(f"{conv.name}/0/1", rows)
    for nodes in (torch.arange(3), torch.arange(3, 6)):
        collect = layers.comparing(nodes)
        collect(named, 0, rows[nodes])
        collect(conv, 1, 1.5 * rows[nodes])
    (first, exact), (second, half) = layers.values()
    assert (first, second) == ("convs.0", "[1]")
    assert exact == 0
    assert half == pytest.approx(0.5)


# losses and gradients


def test_the_loss_follows_the_labels() -> None:
    out = torch.randn(4, 3)
    classes, several, target = torch.tensor([0, 2, 1, 1]), torch.rand(4, 3).round(), torch.rand(4)
    assert torch.equal(default_loss(classes)(out, classes), F.cross_entropy(out, classes, reduction="sum"))
    expected = F.binary_cross_entropy_with_logits(out, several, reduction="sum")
    assert torch.equal(default_loss(several)(out, several), expected)
    assert torch.equal(default_loss(target)(out[:, :1], target), F.mse_loss(out[:, 0], target, reduction="sum"))


class Unused(nn.Module):
    """A layer with a parameter that the output does not depend on, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.unused, self.frozen = nn.Linear(5, 4), nn.Linear(2, 2), nn.Linear(2, 2)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.lin(x), 0.5, self.training)


def test_the_gradient_of_the_batches_adds_up_to_that_of_the_mean_loss() -> None:
    data, model = communities(), Unused().double()
    total = gradient(model, lambda batch: model(batch.x), halves(data), loss=default_loss(data.y))
    model.eval()
    F.cross_entropy(model(data.x)[data.train_mask], data.y[data.train_mask]).backward()
    expected = torch.cat([model.lin.weight.grad.reshape(-1), model.lin.bias.grad, torch.zeros(6)])
    assert torch.allclose(total, expected)


def test_the_gradient_leaves_mode_and_gradients_alone() -> None:
    data, model = communities(), Unused().double()
    gradient(model, lambda batch: model(batch.x), halves(data), loss=default_loss(data.y))
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_batches_without_training_nodes_add_nothing() -> None:
    data, model = communities(), Unused().double()
    data.train_mask[1::2] = False
    both = gradient(model, lambda batch: model(batch.x), halves(data), loss=default_loss(data.y))
    first = gradient(model, lambda batch: model(batch.x), halves(data)[:1], loss=default_loss(data.y))
    assert torch.equal(both, first)


def test_gradients_are_compared_by_length_and_direction() -> None:
    exact = torch.tensor([3.0, 4.0])
    error, cosine = compare_gradients(2 * exact, exact)
    assert error == pytest.approx(1)
    assert cosine == pytest.approx(1)
    assert compare_gradients(torch.tensor([-4.0, 3.0]), exact)[1] == pytest.approx(0)


def test_fidelity_reads_well() -> None:
    assert str(Fidelity(0.981, 0.019)) == "fidelity 98.1%"
    full = Fidelity(0.981, 0.019, (), 0.05, 0.9988, 0.1234)
    assert str(full) == "fidelity 98.1%, gradient error 5.0% (cosine 0.999), certificate 0.123"


@pytest.mark.parametrize("step", [1, 2, 3, 40])
def test_the_fidelity_of_the_rows_that_are_known_is_that_of_all(step: int) -> None:
    exact, seen = torch.rand(40, 3), torch.full((40, 3), float("nan"))
    seen[::step] = exact[::step] + 0.1
    nodes, rows = known_rows(seen)
    assert (nodes is None) == (step < 3)
    assert fidelity_of(exact if nodes is None else exact[nodes], rows) == fidelity_of(exact, seen)
