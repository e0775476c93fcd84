"""A model on a part of a graph: the operators of the whole, the halo left out, or nothing outside at all."""

import pytest
import torch
import torch_geometric.nn as gnn
from torch import nn

from graphs import communities
from topoff.forward.subgraph import Subgraph, closed, cut_batch, cut_inside, whole_graph
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph

MODELS = {
    "linear": lambda: gnn.GCN(5, 6, num_layers=2, out_channels=3),
    "general": lambda: gnn.GAT(5, 6, num_layers=2, out_channels=3),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return MODELS[request.param]().double().eval()


def test_the_whole_graph_equals_the_full_forward(model: nn.Module) -> None:
    data, graph = communities(), Graph(communities())
    plan = make_plan(model, graph)
    batch = whole_graph(graph, plan)
    with Subgraph(plan.convs).on(batch):
        out = model(batch.x, batch.edge_index)
    assert torch.allclose(out, model(data.x, data.edge_index), atol=1e-12)


def test_a_closed_subgraph_is_a_graph_of_its_own(model: nn.Module) -> None:
    graph, nodes = Graph(communities()), torch.arange(20)
    plan = make_plan(model, graph)
    batch = closed(graph.induced(nodes), plan)
    with Subgraph(plan.convs).on(batch):
        out = model(batch.x, batch.edge_index)
    assert torch.equal(batch.n_id, nodes)
    assert torch.allclose(out, model(batch.x, batch.edge_index), atol=1e-12)


def test_a_batch_keeps_the_weights_of_the_whole_graph_and_knows_the_raw_features_of_its_halo() -> None:
    data, nodes = communities(), torch.arange(20)
    model, graph = gnn.GCNConv(5, 3).double(), Graph(data)
    plan = make_plan(model, graph)
    truth = model(data.x, data.edge_index)[nodes]
    outputs = []
    for batch in (cut_batch(graph, plan, nodes), cut_inside(graph, plan.in_batch_only(), nodes)):
        with Subgraph(plan.convs).on(batch):
            outputs.append(model(batch.x, batch.edge_index))
    assert torch.allclose(outputs[0], truth, atol=1e-12)
    assert not torch.allclose(outputs[1], truth)


def test_a_handler_asks_for_what_it_needs() -> None:
    model, graph = gnn.GCN(5, 6, num_layers=2).double(), Graph(communities())
    handler = Subgraph(make_plan(model, graph).convs)
    with pytest.raises(ValueError, match=r"a batch of a TOP or Loader \(got a Data without its supplement\)"):
        handler.on(graph.induced(torch.arange(4))).__enter__()
