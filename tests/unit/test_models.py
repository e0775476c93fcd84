"""The paper's models: every option changes something."""

import pytest
import torch
from torch import Tensor, nn

from graphs import communities, corners
from topoff.models import GCN


def output(**options: object) -> Tensor:
    """Return the output of a model whose weights come from one seed, in training mode."""
    torch.manual_seed(5)
    model = GCN(5, 8, out_channels=3, **options).double()
    data = communities(20)
    torch.manual_seed(6)
    return model(data.x, data.edge_index)


@pytest.mark.parametrize("option", [{"num_layers": 2}, {"dropout": 0.0}, {"norm": False}, {"residual": False}], ids=str)
def test_every_option_changes_the_output(option: dict[str, object]) -> None:
    assert not torch.allclose(output(), output(**option))


def test_the_same_options_give_the_same_output() -> None:
    assert torch.equal(output(), output())


def test_the_edge_weight_is_used() -> None:
    data, model = corners(), GCN(4, 8, out_channels=3).double().eval()
    assert not torch.allclose(model(data.x, data.edge_index), model(data.x, data.edge_index, data.edge_weight))


def test_dropout_acts_in_training_only() -> None:
    data, model = corners(), GCN(4, 8, out_channels=3, dropout=0.5).double()
    assert not torch.equal(model(data.x, data.edge_index), model(data.x, data.edge_index))
    model.eval()
    assert torch.equal(model(data.x, data.edge_index), model(data.x, data.edge_index))


def test_one_layer_is_a_conv() -> None:
    data, model = corners(), GCN(4, 8, out_channels=3, num_layers=1).double()
    assert torch.equal(model(data.x, data.edge_index), model.convs[0](data.x, data.edge_index))
    assert model.convs[0].out_channels == 3


def test_the_residual_is_added_where_shapes_match() -> None:
    data, model = communities(20), GCN(5, 5, out_channels=3, num_layers=2, norm=False, dropout=0.0).double()
    hidden = (model.convs[0](data.x, data.edge_index) + data.x).relu()
    assert torch.allclose(model(data.x, data.edge_index), model.convs[1](hidden, data.edge_index))


def test_norms_act_per_node() -> None:
    assert all(isinstance(norm, nn.LayerNorm) for norm in GCN(4, 8, out_channels=3).norms)


@pytest.mark.parametrize("norm", [True, False])
def test_parameters_are_drawn_anew(norm: bool) -> None:  # noqa: FBT001
    model = GCN(4, 8, out_channels=3, norm=norm)
    before = model.convs[0].lin.weight.detach().clone()
    model.reset_parameters()
    assert not torch.equal(model.convs[0].lin.weight, before)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_layers to be at least 1 \(got 0\)"):
        GCN(4, 8, out_channels=3, num_layers=0)


def test_repr_names_the_widths() -> None:
    assert repr(GCN(4, 8, out_channels=3)) == "GCN(4, 8, 3, num_layers=3)"
