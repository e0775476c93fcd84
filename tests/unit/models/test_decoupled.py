"""SGC and SIGN compute their formulas; `test_networks.py` has what they share with the other models."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from graphs import communities, corners, normalized
from topoff.models.decoupled import SGC, SIGN, Powers


def test_sgc_is_its_formula() -> None:
    data = communities(20)
    model, x = SGC(5, out_channels=3, num_layers=3).double(), data.x
    for _ in range(3):
        x = normalized(data) @ x
    assert torch.allclose(model(data.x, data.edge_index), x @ model.conv.lin.weight.T + model.conv.lin.bias, atol=1e-12)


@pytest.mark.parametrize("graph", [corners, lambda: communities(20, directed=True, weighted=True)])
def test_powers_are_those_of_gcns_own_operator(graph: Callable[[], Data]) -> None:
    data = graph()
    conv = GCNConv(data.num_features, data.num_features, bias=False).double()
    conv.lin.weight.data = torch.eye(data.num_features, dtype=torch.float64)
    for edges in ((data.edge_index,), (data.edge_index, data.edge_weight)):
        expected = [data.x]
        for _ in range(3):
            expected.append(conv(expected[-1], *edges))
        assert torch.allclose(Powers(3)(data.x, *edges), torch.cat(expected, dim=1), atol=1e-12)
    assert repr(Powers(3)) == "Powers(3)"
    assert not list(Powers(3).parameters())


def test_sign_is_its_formula() -> None:
    data = communities(20)
    model, powers = SIGN(5, 6, out_channels=3, num_layers=2, dropout=0.0).double(), [data.x]
    for _ in range(2):
        powers.append(normalized(data) @ powers[-1])
    hidden = [branch(power) for branch, power in zip(model.branches, powers, strict=True)]
    expected = model.last(nn.functional.prelu(torch.cat(hidden, dim=1), model.activation.weight))
    assert model.last.in_features == 3 * 6
    assert torch.allclose(model(data.x, data.edge_index), expected, atol=1e-12)


def test_sign_drops_features_after_their_propagation() -> None:
    data = communities(20)
    model, read, seen = SIGN(5, 6, out_channels=3, num_layers=2, input_dropout=0.5).double(), [], []
    model.powers.register_forward_pre_hook(lambda conv, args: read.append(args[0]))
    for branch in model.branches:
        branch.register_forward_pre_hook(lambda branch, args: seen.append(args[0]))
    model(data.x, data.edge_index)
    assert read[0] is data.x
    found, powers = torch.cat(seen, dim=1), model.powers(data.x, data.edge_index)
    assert torch.allclose(found, torch.where(found == 0, 0, 2 * powers))
    assert all(0.2 < float((part == 0).double().mean()) < 0.8 for part in seen)


def test_powers_need_a_hop() -> None:
    with pytest.raises(ValueError, match=r"Expected hops to be at least 1 \(got 0\)"):
        Powers(0)
