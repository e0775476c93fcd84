"""How a user's model is called on a batch."""

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import corners
from topoff.forward.call import caller, evaluating
from topoff.forward.subgraph import Subgraph, whole_graph
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph


class Recorder(nn.Module):
    """A model that notes the features that it is called with."""

    given: Tensor

    def forward(self, edge_index: Tensor, x: Tensor) -> None:
        self.given = x


def test_the_users_own_call_comes_first() -> None:
    data, model = corners(), gnn.GCN(4, 8, num_layers=1).double()

    def own(module: nn.Module, batch: Data) -> Tensor:
        return 2 * module(batch.x, batch.edge_index)

    assert caller(model, own) is own
    assert torch.equal(caller(model, own)(model, data), 2 * model(data.x, data.edge_index))


def test_a_copy_of_the_model_can_be_called() -> None:
    data, model, copy = corners(), Recorder(), Recorder()
    caller(model)(copy, data)
    assert copy.given is data.x
    assert not hasattr(model, "given")


def test_a_conv_that_is_the_model_can_be_called_while_it_is_bound() -> None:
    data, model = corners(), gnn.GCNConv(4, 3).double()
    run, plan = caller(model), make_plan(model, Graph(data))  # the first call decides, and then forward is another
    with Subgraph(plan.convs).on(whole := whole_graph(Graph(data), plan)):
        assert torch.allclose(run(model, whole), model(data.x, data.edge_index, data.edge_weight))


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
