"""How a user's model is called on a batch."""

from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import corners
from topoff.forward.call import caller, evaluating


class Recorder(nn.Module):
    """A model that notes what it is called with; subclasses give `forward` its signature."""

    given: dict[str, Any]

    def note(self, given: dict[str, Any]) -> None:
        self.given = {name: value for name, value in given.items() if name not in ("self", "__class__")}


class ByName(Recorder):
    def forward(self, edge_index: Tensor, x: Tensor) -> None:
        self.note(locals())


class WithWeight(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, scale: float = 2.0) -> None:
        self.note(locals())


class WithLabels(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> None:
        self.note(locals())


class WithOptionalLabels(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor | None = None) -> None:
        self.note(locals())


class OnBatch(Recorder):
    def forward(self, data: Data) -> None:
        self.note(locals())


class OnFeatures(Recorder):
    def forward(self, x: Tensor) -> None:
        self.note(locals())


class OnBatchWithOptions(Recorder):
    def forward(self, batch: Data, verbose: int = 0) -> None:
        self.note(locals())


class WithRest(Recorder):
    def forward(self, x: Tensor, edge_index: Tensor, *args: Any, **kwargs: Any) -> None:
        self.note(locals())


def call(model: Recorder, data: Data) -> dict[str, Any]:
    caller(model)(model, data)
    return model.given


def test_arguments_are_filled_by_name() -> None:
    data = corners()
    given = call(ByName(), data)
    assert given["x"] is data.x
    assert given["edge_index"] is data.edge_index


def test_edge_values_are_filled_where_the_graph_has_them() -> None:
    data = corners()
    assert call(WithWeight(), data)["edge_weight"] is data.edge_weight
    del data.edge_weight
    assert call(WithWeight(), data)["edge_weight"] is None


def test_defaults_of_other_arguments_stay() -> None:
    data = corners()
    data.scale = 7.0
    assert call(WithWeight(), data)["scale"] == 2.0
    assert call(WithOptionalLabels(), data)["y"] is None


def test_other_arguments_without_default_are_filled_too() -> None:
    data = corners()
    assert call(WithLabels(), data)["y"] is data.y


@pytest.mark.parametrize("model", [OnBatch(), OnBatchWithOptions()], ids=["alone", "with options"])
def test_a_single_argument_gets_the_batch(model: Recorder) -> None:
    data = corners()
    assert data in call(model, data).values()


def test_a_single_argument_named_x_gets_the_features() -> None:
    data = corners()
    assert call(OnFeatures(), data)["x"] is data.x


def test_args_and_kwargs_are_not_filled() -> None:
    given = call(WithRest(), corners())
    assert given["args"] == ()
    assert given["kwargs"] == {}


def test_an_argument_that_the_graph_lacks_is_named_with_the_remedy() -> None:
    data, model = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]])), WithLabels()
    run = caller(model)
    with pytest.raises(ValueError, match=r"have 'y', an argument of WithLabels.forward \(got edge_index, x\).*call="):
        run(model, data)


def test_the_users_own_call_comes_first() -> None:
    data, model = corners(), gnn.GCN(4, 8, num_layers=1).double()

    def own(module: nn.Module, batch: Data) -> Tensor:
        return 2 * module(batch.x, batch.edge_index)

    assert caller(model, own) is own
    assert torch.equal(caller(model, own)(model, data), 2 * model(data.x, data.edge_index))


def test_a_copy_of_the_model_can_be_called() -> None:
    data, model, copy = corners(), ByName(), ByName()
    caller(model)(copy, data)
    assert copy.given["x"] is data.x
    assert not hasattr(model, "given")


# evaluating


def test_evaluating_restores_the_mode_of_every_module() -> None:
    model = gnn.GCN(4, 8, num_layers=2, norm="batch_norm")
    model.norms[0].eval()  # frozen by its user
    with evaluating(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
    assert model.training
    assert not model.norms[0].training
    assert torch.is_grad_enabled()


def test_evaluating_restores_the_mode_after_an_error() -> None:
    model = gnn.GCN(4, 8, num_layers=2)
    with pytest.raises(ArithmeticError, match="no"), evaluating(model):
        raise ArithmeticError("no")
    assert model.training
