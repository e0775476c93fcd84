"""Batches that are graphs of their own, for models that read their edges themselves."""

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import subgraph

from graphs import communities
from topoff.methods.cluster import Cluster
from topoff.methods.drop import Drop
from topoff.methods.shadow import Shadow
from topoff.models.networks import GCN


class Heavy(nn.Module):
    """Use the edges of large weight alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(width, 4), GCNConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        kept = edge_weight > edge_weight.new_tensor(0.6)
        edge_index, edge_weight = edge_index[:, kept], edge_weight[kept]
        out: Tensor = self.second(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)
        return out


def plain(model: nn.Module, data: Data, nodes: Tensor) -> Tensor:
    """Return the model's output on the graph of some nodes alone."""
    edges, weights = subgraph(nodes, data.edge_index, data.edge_weight, relabel_nodes=False)
    local = torch.full((data.num_nodes,), -1)
    local[nodes] = torch.arange(len(nodes))
    out: Tensor = model(data.x[nodes], local[edges], weights)
    return out


@pytest.mark.parametrize("seed", range(3))
def test_a_cluster_is_a_graph_of_its_own(seed: int) -> None:
    data = communities(40, weighted=True)
    model = Heavy(data.num_features).double()
    cluster = Cluster(model, data, ratio=0.25, batches="random", seed=seed)
    cluster.prepare()
    for batch in cluster.batches():
        assert torch.allclose(cluster.forward(batch), plain(model, data, batch.n_id), atol=1e-10)


@pytest.mark.parametrize("kind", [Cluster, Drop, Shadow])
def test_models_that_drop_edges_are_trained(kind: type) -> None:
    data = communities(40)
    model = GCN(data.num_features, 4, out_channels=3, num_layers=2, edge_dropout=0.5).double()
    method = kind(model, data, ratio=0.25)
    method.prepare()
    for batch in method.batches():
        assert bool(torch.isfinite(method.forward(batch)).all())
