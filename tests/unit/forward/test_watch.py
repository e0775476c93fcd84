"""Who computes with the edges, and what convs are given: seen without changing the model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import OptTensor
from torch_geometric.utils import add_self_loops, coalesce, degree, softmax

from graphs import corners
from topoff.forward.convs import describe
from topoff.forward.watch import Tracer, Watch
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator

GCN = Operator(norm="gcn", self_loops=True)
MEAN = Operator(aggr="mean")

# readers


def readers(use: Callable[[Tensor], Any]) -> set[str]:
    edges = corners().edge_index
    with Watch([edges, None, "text"]) as watch:
        use(edges)
    return watch.readers


@pytest.mark.parametrize(
    "use",
    [
        lambda e: e[0],
        lambda e: e + 1,
        lambda e: e.size(1),
        lambda e: e.shape,
        lambda e: len(e),
        lambda e: degree(e[1], 14),
        lambda e: add_self_loops(e),
        lambda e: torch.cat([e, e], dim=1),
        lambda e: torch.stack([e.detach()]),
        lambda e: e.contiguous() + 1,
        lambda e: e.tolist(),
    ],
    ids=["row", "sum", "size", "shape", "length", "degree", "loops", "joined", "detached", "contiguous", "list"],
)
def test_whoever_computes_with_the_edges_reads_them(use: Callable[[Tensor], Any]) -> None:
    assert readers(use) == {""}


@pytest.mark.parametrize(
    "use",
    [
        lambda e: torch.ones(3) + 1,
        lambda e: e.detach(),
        lambda e: (e.dtype, e.device, e.requires_grad, e.ndim, e.dim()),
        lambda e: e.is_floating_point(),
        lambda e: [e],
    ],
    ids=["another", "detached", "form", "floating", "handed on"],
)
def test_what_says_nothing_of_the_graph_is_no_reading(use: Callable[[Tensor], Any]) -> None:
    assert readers(use) == set()


def test_what_is_made_of_edges_is_followed() -> None:
    edges, parts = corners().edge_index, []
    watch = Watch([edges])
    with watch:
        watch.as_reader("a", lambda: parts.extend([edges[1], edges[1].double()]))
        watch.as_reader("b", lambda: parts[0] + 1)
        watch.as_reader("c", lambda: parts[1] + 1)  # numbers of their own, no ids of nodes
    assert watch.readers == {"a", "b"}


def test_a_reader_has_a_name_while_it_runs_also_where_it_fails() -> None:
    edges = corners().edge_index
    watch = Watch([edges])

    def fail() -> None:
        raise ArithmeticError("no")

    with watch:
        assert watch.as_reader("conv", lambda: int(edges.sum() * 0)) == 0
        watch.as_reader(None, lambda: edges + 1)
        with pytest.raises(ArithmeticError, match="no"):
            watch.as_reader("other", fail)
    assert watch.readers == {"conv"}
    assert watch.reader == ""


@pytest.mark.parametrize(
    ("use", "sorts"),
    [
        (lambda e: coalesce(e), True),
        (lambda e: e.unique(dim=1), True),
        (lambda e: e[1].sort(), True),
        (lambda e: torch.sort(e[1]), True),
        (lambda e: e[1] + 1, False),
        (lambda e: torch.rand(3).sort(), False),
    ],
    ids=["coalesced", "unique", "sorted", "sorted by torch", "added", "others sorted"],
)
def test_who_sorts_edges_is_noted(use: Callable[[Tensor], Any], sorts: object) -> None:
    edges = corners().edge_index
    with Watch([edges]) as watch:
        use(edges)
    assert watch.sorts is sorts


# the tracer


def traced(model: nn.Module, *, training: bool = False) -> Tracer:
    data = corners()
    watch = Watch([data.edge_index, data.edge_attr, data.edge_weight])
    tracer = Tracer(describe(model), Graph(data), watch)
    model.double().train(training)
    expected = None if training else model(data.x, data.edge_index)
    with torch.no_grad(), tracer.on(data), watch:
        out = model(data.x, data.edge_index)
    assert training or torch.allclose(out, expected, atol=1e-12), "it computes the plain forward"
    return tracer


class Model(nn.Module):
    """Layers by name, and a forward given as a function of (layers, x, edge_index)."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.run = nn.ModuleDict(layers), forward

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(self.layers, x, edge_index)


def alone(conv: nn.Module) -> Model:
    return Model(lambda m, x, e: m["c"](x, e), c=conv)


def test_operators_depth_and_chains_are_noted() -> None:
    layers = {"a": gnn.SGConv(4, 4, K=2), "b": gnn.SAGEConv(4, 4), "c": gnn.GATConv(4, 4)}
    tracer = traced(Model(lambda m, x, e: m["c"](m["b"](m["a"](x, e), e), e), **layers))
    assert tracer.operators == [GCN, MEAN]
    assert tracer.depth == 4
    assert tracer.hops == {"layers.a": [2], "layers.b": [0], "layers.c": [0]}
    assert tracer.chains() == ((GCN,), (GCN, GCN))
    assert tracer.general.keys() == {"layers.c"}


@pytest.mark.parametrize(
    ("change", "hops"),
    [
        (lambda x: F.dropout(x, 0.5), [1]),
        (lambda x: x, [1]),
        (lambda x: x.clone(), [1]),
        (lambda x: 0.5 * x, [0]),
        (lambda x: x * (torch.arange(4) > 1), [0]),
    ],
    ids=["dropout", "as they are", "a copy", "halved", "masked"],
)
def test_in_training_features_after_dropout_are_features(change: Callable[[Tensor], Tensor], hops: list[int]) -> None:
    model = Model(lambda m, x, e: m["c"](change(x), e), c=gnn.GCNConv(4, 3))
    assert traced(model, training=True).hops == {"layers.c": hops}


def test_a_linear_conv_on_other_edges_is_general() -> None:
    model = Model(lambda m, x, e: m["c"](x, add_self_loops(e, num_nodes=14)[0]), c=gnn.SAGEConv(4, 3))
    tracer = traced(model)
    assert tracer.general.keys() == {"layers.c"}
    assert tracer.operators == []
    assert tracer.watch.readers == {""}


class Hop(MessagePassing):
    """An unknown conv that is told nothing but rows."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)


class Degrees(Hop):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x / (1 + degree(edge_index[0], len(x)).view(-1, 1)), edge_index)


class Told(Hop):
    """Its messages are told the edges."""

    def message(self, x_j: Tensor, edge_index: Tensor) -> Tensor:
        return x_j / edge_index.size(1)


class Updates(MessagePassing):
    """Attention by PyG's own edge updater reads nothing but the edges into a node."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        alpha = self.edge_updater(edge_index, x=x)
        return self.propagate(edge_index, x=x, alpha=alpha)

    def edge_update(self, x_j: Tensor, index: Tensor, size_i: OptTensor) -> Tensor:
        return softmax(x_j.sum(1), index, num_nodes=size_i)

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return x_j * alpha.view(-1, 1)


class Nested(Hop):
    """Another conv runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = gnn.SimpleConv()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.inner(x, edge_index))


@pytest.mark.parametrize(
    ("conv", "reads"),
    [
        (Hop(), False),
        (Updates(), False),
        (gnn.GATConv(4, 3), False),
        (gnn.SAGEConv(4, 3, aggr="max"), False),
        (Degrees(), True),
        (Told(), True),
        (Nested(), True),
        (gnn.GCNConv(4, 3, aggr="max"), True),
        (gnn.ARMAConv(4, 3), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_convs_that_read_more_than_rows_of_neighbours_are_found(conv: nn.Module, reads: object) -> None:
    tracer = traced(alone(conv))
    assert tracer.degrees() == ({"layers.c"} if reads else set())
    assert "" not in tracer.watch.readers, "the model itself reads nothing"


def test_the_tracer_leaves_no_trace() -> None:
    conv = Updates()
    before = dict(vars(conv))
    traced(alone(conv))
    assert dict(vars(conv)) == before | {"training": False}
