"""What the table of PyG's own convs and models is made of: variants with their verdicts, and the graphs to try them on.

The table itself is `pyg_convs.CONVS` and `pyg_models.MODELS`: class -> variants. `test_law_zoo` holds every row to its
verdict, `scripts/models.py` writes docs/models.md from it.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pyg_calls import WIDTH, Run, plainly
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Data
from torch_geometric.utils import degree

from graphs import communities, corners

EDGE_WIDTH, RELATIONS, KINDS, CLASSES = 2, 3, 2, 3
EDGES = ("edge_weight", "edge_attr", "edge_type")
NODES = ("node_type", "pos", "normal", "batch")

EXACT, REFUSED, ABSENT, ASIDE = "exact", "refused", "cannot run here", "no model of nodes"  # the verdicts

Build = Callable[[Data], nn.Module]
Call = Callable[[nn.Module, Data], Any]


@dataclass(frozen=True)
class Variant:
    """Hold one way to build and call a class, and what is decided about it."""

    what: str  # its settings, in words
    verdict: str
    build: Build | None = None  # the model, where it can be built
    reason: str = ""  # why it is refused or left aside, for the reader of the page
    match: str = ""  # what the message of the refusal must say; a regex
    needs: tuple[str, ...] = ()  # attributes that the graph has besides features, edges, labels and masks
    call: Call | None = None  # how the model is called, where not by the names of its arguments
    alter: Callable[[Data], Data] | None = None  # makes the graph one that the class can read
    not_on: tuple[str, ...] = ()  # graphs on which PyG itself fails

    def model(self, data: Data) -> nn.Module:
        """Return the model in the type of the features, every parameter moved away from its initial value."""
        assert self.build is not None
        model = self.build(data).to(data.x.dtype)
        for parameter in model.parameters():
            if not is_lazy(parameter):
                parameter.data += 0.3 * torch.randn_like(parameter)
        return model.eval()

    def full_batch(self, model: nn.Module, data: Data) -> Any:
        """Call the model on the whole graph as its author would, without this package."""
        names = inspect.signature(model.forward).parameters
        if self.call is not None:
            return self.call(model, data)
        if "args" in names:
            return model(data.x, data.edge_index)
        if list(names) in (["data"], ["batch"]):
            return model(data)
        return model(**{name: data[name] for name in names if name in data})

    def graph(self, name: str) -> Data:
        """Return a graph by its name, with the attributes that are needed and no others."""
        data = copy.copy(GRAPHS[name]())
        data = self.alter(data) if self.alter else data
        for key in (*EDGES, *NODES):
            if key not in self.needs:
                del data[key]
        return data


class Stack(nn.Module):
    """Apply two convs with tanh between them; a wider output is folded to the width of the input."""

    def __init__(self, layer: Build, run: Run, data: Data, *, encode: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH) if encode else nn.Identity()
        self.convs, self.run = nn.ModuleList(layer(data) for _ in range(2)), run

    def forward(self, data: Data) -> Any:
        """Call every conv by `run`, which finds the first embedding in `data.root`."""
        data = copy.copy(data)
        x = data.root = self.first(data.x)
        for conv in self.convs:
            x = self.run(conv, x.tanh() if x is not data.root else x, data)
            x = x.reshape(len(x), -1, WIDTH).sum(1) if isinstance(x, Tensor) else x
        return x


def exact(what: str, layer: Build, run: Run = plainly, *, encode: bool = False, **settings: Any) -> Variant:
    """Return two layers of a conv that must be exact."""
    build: Build = lambda data: Stack(layer, run, data, encode=encode)  # noqa: E731
    return Variant(what, EXACT, build, needs=(*EDGES, *NODES), **settings)


def refused(what: str, layer: Build, run: Run = plainly, *, encode: bool = False, **settings: Any) -> Variant:
    """Return two layers of a conv that must be refused, with `reason` for people and `match` for the message."""
    build: Build = lambda data: Stack(layer, run, data, encode=encode)  # noqa: E731
    return Variant(what, REFUSED, build, needs=(*EDGES, *NODES), **settings)


def absent(layer: Build, run: Run = plainly, *, reason: str) -> Variant:
    """Return what cannot run without an optional package: PyG itself says so."""
    return Variant("", ABSENT, lambda data: Stack(layer, run, data), reason=reason, needs=(*EDGES, *NODES))


def aside(reason: str) -> Variant:
    """Return what is no model of nodes and their neighbours, with the reason."""
    return Variant("", ASIDE, reason=reason)


def mlp(width: int = WIDTH, out: int = WIDTH) -> nn.Module:
    """Return two linear layers."""
    return nn.Sequential(nn.Linear(width, out), nn.Tanh(), nn.Linear(out, out))


def degrees(data: Data) -> Tensor:
    """Return the histogram of the degrees, for PNA."""
    return torch.bincount(degree(data.edge_index[1], data.num_nodes, dtype=torch.long))


# ---- the graphs


def dressed(data: Data, *, seed: int) -> Data:
    """Return a graph with the same edges, labels and masks, and every attribute that a conv of PyG may read."""
    generator, (n, count) = torch.Generator().manual_seed(seed), (data.num_nodes, data.num_edges)

    def drawn(rows: int, *shape: int) -> Tensor:
        return torch.randn(rows, *shape, generator=generator, dtype=torch.float64)

    masks = {name: data[name] for name in ("train_mask", "val_mask", "test_mask")}
    return Data(
        x=drawn(n, WIDTH),
        edge_index=data.edge_index,
        y=data.y % CLASSES,
        edge_weight=0.5 + drawn(count).abs(),
        edge_attr=drawn(count, EDGE_WIDTH).sigmoid(),
        edge_type=torch.randint(RELATIONS, (count,), generator=generator),
        node_type=torch.randint(KINDS, (n,), generator=generator),
        pos=drawn(n, 3),
        normal=nn.functional.normalize(drawn(n, 3)),
        batch=torch.zeros(n, dtype=torch.long),
        **masks,
    )


def acyclic() -> Data:
    """Return a directed graph whose edges lead from lower to higher ids."""
    data = communities(30, directed=True, seed=2)
    source, target = data.edge_index
    data.edge_index = data.edge_index[:, source < target]
    return data


def lonely() -> Data:
    """Return the graph with all corners and two more nodes, the last ones, without edges."""
    data = corners()
    more = torch.zeros(2, dtype=torch.bool)
    return Data(
        x=torch.zeros(data.num_nodes + 2, 1),
        edge_index=data.edge_index,
        y=torch.cat([data.y, data.y[:2]]),
        train_mask=torch.cat([data.train_mask, ~more]),
        val_mask=torch.cat([data.val_mask, more]),
        test_mask=torch.cat([data.test_mask, more]),
    )


# Sparse, so that small batches leave nodes beyond their halo.
GRAPHS: dict[str, Callable[[], Data]] = {
    "directed": lambda: dressed(communities(30, directed=True, degree=2.5, seed=0), seed=0),
    "undirected": lambda: dressed(communities(30, degree=2.5, seed=1), seed=1),
    "acyclic": lambda: dressed(acyclic(), seed=2),
    "lonely": lambda: dressed(lonely(), seed=3),  # self-loops, duplicate edges, isolated nodes
}
