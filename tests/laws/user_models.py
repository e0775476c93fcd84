"""Small models as PyG users write them, in one table: constructor, how it is called, verdict; and how to run them."""

import copy
import inspect
from typing import Any

import torch
import user_convs
import user_edges
import user_features
import user_habits
import user_nodes
import user_outputs
from torch import Tensor, nn
from torch_geometric.data import Data
from user_net import FEATURES, RELATIONS, User

from graphs import communities, corners

ALL: dict[str, User] = {
    **user_convs.TABLE,
    **user_edges.TABLE,
    **user_features.TABLE,
    **user_nodes.TABLE,
    **user_habits.TABLE,
    **user_outputs.RETURNING,
    **user_outputs.REFUSED,
}
EXACT = [name for name, user in ALL.items() if not user.refused]
EITHER = [name for name, user in ALL.items() if user.either]
REFUSED = [name for name, user in ALL.items() if user.refused and not user.either]


def _acyclic() -> Data:
    """Return a graph whose edges all go from a lower number to a higher one."""
    data = communities(30, features=FEATURES, directed=True, degree=8.0, seed=2)
    data.edge_index = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    return data


GRAPHS = {
    "directed": lambda: communities(30, features=FEATURES, directed=True),
    "undirected": lambda: communities(30, features=FEATURES, seed=1),
    "acyclic": _acyclic,
    "corners": corners,
}


def graph_for(name: str, graph: str) -> Data:
    """Return a graph with what the model asks for, and nothing else that could be meant."""
    user, data = ALL[name], GRAPHS[graph]()
    draw = torch.Generator().manual_seed(7)
    edges = data.edge_index.size(1)
    if user.ordered:
        data.edge_index = data.edge_index[:, data.edge_index[1].argsort(stable=True)]
    data.edge_weight = 0.5 + torch.rand(edges, generator=draw, dtype=data.x.dtype)
    data.edge_attr = torch.randn(edges, 2, generator=draw, dtype=data.x.dtype)
    data.edge_type = torch.randint(RELATIONS, (edges,), generator=draw)
    data.pe = torch.randn(len(data.x), 2, generator=draw, dtype=data.x.dtype)
    wanted = {*user.needs, *(inspect.signature(user.make(data).forward).parameters if user.call is None else ())}
    for extra in {"edge_weight", "edge_attr", "edge_type", "pe"} - wanted:
        del data[extra]
    return data


def make(name: str, data: Data, *, dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return the named model with weights that are zero nowhere."""
    torch.manual_seed(1)
    model = ALL[name].make(data).to(dtype)
    with torch.no_grad():
        for parameter in filter(torch.is_floating_point, model.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def run_plain(name: str, model: nn.Module, data: Data) -> Any:
    """Call the model on the whole graph as its author would, on a copy of the graph, without this package."""
    data = copy.copy(data)
    data.x, data.n_id = data.x.clone(), torch.arange(len(data.x))
    call = ALL[name].call
    if call is not None:
        return call(model, data)
    names = list(inspect.signature(model.forward).parameters)
    return model(data) if names == ["data"] else model(**{name: data[name] for name in names})


def tensors(value: Any) -> list[Tensor]:
    """Return the tensors inside an output, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors(item)]
    return [value] if isinstance(value, Tensor) else []


def rows(value: Any, nodes: Tensor, count: int) -> Any:
    """Keep the rows of some nodes in whatever holds a row for each of `count`; leave the rest."""
    if isinstance(value, Tensor):
        return value[nodes] if value.dim() and len(value) == count else value
    if isinstance(value, dict):
        return {key: rows(item, nodes, count) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        kept = [rows(item, nodes, count) for item in value]
        return type(value)(*kept) if hasattr(value, "_fields") else type(value)(kept)
    return value
