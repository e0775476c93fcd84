"""How convs of PyG are called, each as (conv, rows, batch), and the graphs that some of them ask for."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, sort_edge_index

WIDTH = 6  # of features, embeddings and outputs
Run = Callable[[nn.Module, Tensor, Data], Any]


def plainly(conv: nn.Module, x: Tensor, data: Data) -> Any:
    """Call a conv with rows and edges."""
    return conv(x, data.edge_index)


def given(*names: str) -> Run:
    """Return how to call a conv with rows, edges and further attributes of the batch, in this order."""
    return lambda conv, x, data: conv(x, data.edge_index, *(data[name] for name in names))


def before(*names: str) -> Run:
    """Return how to call a conv with rows, attributes of the batch and the edges last."""
    return lambda conv, x, data: conv(x, *(data[name] for name in names), data.edge_index)


def by_target(data: Data) -> Data:
    """Sort the edges by their targets, as aggregations that read sequences want them."""
    edges, values = data.edge_index, [data.edge_weight, data.edge_attr, data.edge_type]
    data.edge_index, (data.edge_weight, data.edge_attr, data.edge_type) = sort_edge_index(
        edges, values, data.num_nodes, sort_by_row=False
    )
    return data


def in_fours(data: Data) -> Data:
    """Give every node four incoming edges, in order, as the edges of a mesh have neighbours."""
    n = int(data.num_nodes or 0)
    targets = torch.arange(n).repeat_interleave(4)
    del data.edge_weight, data.edge_attr, data.edge_type
    data.edge_index = torch.stack([(targets + torch.tensor([1, 2, 5, 7]).repeat(n)) % n, targets])
    return data


def looped(data: Data) -> Data:
    """Let every node receive at least from itself."""
    del data.edge_weight, data.edge_attr, data.edge_type
    data.edge_index, _ = add_self_loops(data.edge_index, num_nodes=data.num_nodes)
    return data


def one_hot(data: Data) -> Data:
    """Replace the features by one-hot colours."""
    data.x = nn.functional.one_hot(data.y, WIDTH).to(data.x.dtype)
    return data


def paired(conv: nn.Module, x: Tensor, data: Data) -> Tensor:
    """Call a conv with its rows twice, as sources and as targets."""
    return conv((x, x), data.edge_index)


def column(conv: nn.Module, x: Tensor, data: Data) -> Tensor:
    """Weigh the messages by a column of the edge features."""
    return conv(x, data.edge_index, data.edge_attr[:, 0])


def signed(conv: nn.Module, x: Tensor, data: Data) -> Tensor:
    """Split the edges into positive and negative ones."""
    positive = data.edge_type > 0
    return conv(x, data.edge_index[:, positive], data.edge_index[:, ~positive])


def typed(conv: nn.Module, x: Tensor, data: Data) -> Tensor:
    """Call a conv for heterogeneous graphs with one node type and one edge type."""
    return conv({"node": x}, {("node", "to", "node"): data.edge_index})["node"]


def layered(conv: nn.Module, x: Tensor, data: Data) -> Tensor:
    """Call DNAConv with all earlier layers, here two."""
    return conv(torch.stack([data.root, x], dim=1), data.edge_index)


def recolored(conv: nn.Module, x: Tensor, data: Data) -> Tensor:
    """Call WLConv with one-hot colours, and return them so."""
    return nn.functional.one_hot(conv((x > 0).to(x.dtype), data.edge_index) % WIDTH, WIDTH).to(x.dtype)
