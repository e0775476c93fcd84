"""What stands in for message passing: bound without a trace, given the batch's own edges, with rows for the halo."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.utils import add_self_loops, dropout_edge

from graphs import communities, corners
from topoff.forward.convs import Conv, describe
from topoff.forward.intercept import ConvCall, Handler, extended
from topoff.graph.graph import Graph


class Echo(Handler):
    """A handler that notes what it is asked and lets the convs do their own work."""

    def __init__(self, convs: list[Conv]) -> None:
        super().__init__(convs)
        self.convolved: list[str] = []
        self.propagated: list[str] = []
        self.read: list[Any] = []

    def convolve(self, call: ConvCall) -> Any:
        self.convolved.append(call.conv.name)
        self.read.append(call.x)
        return call.forward(*call.args, **call.kwargs)

    def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
        self.propagated.append(call.conv.name)
        return operand


class Failing(Echo):
    def convolve(self, call: ConvCall) -> Any:
        raise ArithmeticError("no")


# interception


def test_a_handler_hands_every_call_to_the_handler_and_leaves_no_trace() -> None:
    data, model = corners(dtype=torch.float32), gnn.GCN(4, 8, num_layers=2, out_channels=3)
    before = [dict(vars(conv)) for conv in model.convs]
    expected, handler = model(data.x, data.edge_index), Echo(describe(model))
    assert torch.equal(model(data.x, data.edge_index), expected)
    with handler.on(data):
        assert not torch.equal(model(data.x, data.edge_index), expected)
    assert handler.convolved == handler.propagated == ["convs.0", "convs.1"]
    assert [dict(vars(conv)) for conv in model.convs] == before
    assert torch.equal(model(data.x, data.edge_index), expected)


def test_a_handler_lets_general_convs_propagate_themselves() -> None:
    data, model = corners(dtype=torch.float32), gnn.GAT(4, 8, num_layers=2, out_channels=3)
    expected, handler = model(data.x, data.edge_index), Echo(describe(model))
    with handler.on(data):
        assert torch.equal(model(data.x, data.edge_index), expected)
    assert handler.propagated == []


def test_a_handler_ends_when_the_model_fails() -> None:
    data, model = corners(dtype=torch.float32), gnn.GCN(4, 8, num_layers=2)
    with pytest.raises(ArithmeticError, match="no"), Failing(describe(model)).on(data):
        model(data.x, data.edge_index)
    assert "forward" not in vars(model.convs[0])
    assert "propagate" not in vars(model.convs[0])


def test_a_handler_keeps_what_was_bound_to_the_instance() -> None:
    conv = gnn.GCNConv(4, 8, decomposed_layers=2)
    before = dict(vars(conv))
    assert "propagate" in before
    with Echo(describe(conv)).on(corners()):
        pass
    assert dict(vars(conv)) == before


def test_a_handler_can_be_entered_again() -> None:
    data, model = corners(dtype=torch.float32), gnn.GCN(4, 8, num_layers=1)
    handler = Echo(describe(model))
    for _ in range(2):
        with handler.on(data):
            model(data.x, data.edge_index)
    assert len(handler.convolved) == 2


def test_a_handler_neither_uses_nor_fills_a_cache() -> None:
    data, conv = corners(dtype=torch.float32), gnn.GCNConv(4, 3, cached=True)
    expected = conv(data.x, data.edge_index)
    cache = conv._cached_edge_index
    with Echo(describe(conv)).on(data):
        conv(data.x[:4], torch.tensor([[0], [1]]))
        assert not conv.cached
        assert conv._cached_edge_index is None
    assert conv.cached
    assert conv._cached_edge_index is cache
    assert torch.equal(conv(data.x, data.edge_index), expected)


def test_a_handler_is_freed_at_once_with_all_that_it_holds() -> None:
    data, model = corners(dtype=torch.float32), gnn.GCN(4, 8, num_layers=1)
    handler = Echo(describe(model))
    with handler.on(data):
        model(data.x, data.edge_index)
    alive = weakref.ref(handler)
    gc.disable()  # exact inference would hold its matrices until some collection
    try:
        del handler
        assert alive() is None
    finally:
        gc.enable()


# the batch's own edges


def given(conv: nn.Module, *args: Any, **kwargs: Any) -> str | None:
    """Return which edge values weigh the messages of a conv that is called with some arguments."""
    described = describe(conv)[0]
    call = ConvCall(described, conv.forward, args, kwargs, args[0], 0)
    call.linear(corners())
    return call.operator.weight


def test_the_edge_values_of_a_conv_are_recognized_by_value_and_by_name() -> None:
    data = corners()
    assert given(gnn.GCNConv(4, 3), data.x, data.edge_index) is None
    assert given(gnn.GCNConv(4, 3), data.x, data.edge_index, data.edge_weight) == "edge_weight"
    assert given(gnn.GCNConv(4, 3), data.x, edge_index=data.edge_index, edge_weight=data.edge_attr) == "edge_attr"


@pytest.mark.parametrize(
    "edges",
    [
        dropout_edge(corners().edge_index, p=0.5)[0],
        add_self_loops(corners().edge_index)[0],
        corners().edge_index.flip(0),
        corners().edge_index.int(),
        corners().edge_index.tolist(),
    ],
    ids=["dropped", "self-loops", "flipped", "another type", "no tensor"],
)
def test_other_edges_are_refused(edges: Any) -> None:
    with pytest.raises(ValueError, match=r"GCNConv '' to receive the batch's own 'edge_index' \(got another tensor\)"):
        given(gnn.GCNConv(4, 3), corners().x, edges)


def test_home_made_weights_are_refused() -> None:
    data = corners()
    with pytest.raises(ValueError, match=r"own 'edge_weight' \(got another tensor\).*before wrapping it"):
        given(gnn.GCNConv(4, 3), data.x, data.edge_index, 2 * data.edge_weight)


def test_the_input_is_found_by_position_by_name_and_in_a_pair() -> None:
    data, conv = corners(dtype=torch.float32), gnn.SAGEConv(4, 3)
    handler, x = Echo(describe(conv)), data.x
    with handler.on(data):
        conv(x, data.edge_index)
        conv(x=x, edge_index=data.edge_index)
        conv((x, x + 1), data.edge_index)
    assert [seen is x for seen in handler.read] == [True] * 3


def test_a_conv_inside_another_one_leaves_the_outer_call_as_it_was() -> None:
    class Outer(gnn.GCNConv):
        """A linear conv that asks another one first."""

        def __init__(self) -> None:
            super().__init__(4, 4)
            self.inner = gnn.GCNConv(4, 4)

    class Nested(Echo):
        """Run the inner conv in the middle of the outer one."""

        def convolve(self, call: ConvCall) -> Any:
            out = super().convolve(call) if call.conv.name else None
            if out is None:
                call.conv.module.inner(*call.args)
                out = super().convolve(call)
            return out

    data, model = corners(dtype=torch.float32), Outer()
    handler = Nested(describe(model))
    with handler.on(data):
        model(data.x, data.edge_index)
    assert handler.propagated == ["inner", ""]


# the general path


@dataclass
class Extension:
    """Run a general conv on the first batch of the corners graph with its true halo."""

    conv: nn.Module
    flow: str = "source_to_target"
    seen: list[Tensor] = field(default_factory=list)  # embeddings whose halo was asked for

    def __post_init__(self) -> None:
        graph, nodes = Graph(corners()), torch.tensor([0, 1, 2, 3])
        self.batch, self.around = graph.induced(nodes), graph.neighborhood(nodes, flow=self.flow)

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        call = ConvCall(describe(self.conv)[0], forward, args, kwargs, args[0], 0)
        return extended(call, self.batch, self.around, self.halo_rows).run()

    def halo_rows(self, h: Tensor) -> Tensor:
        self.seen.append(h)
        return (2 * corners().x)[self.around.halo]


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_the_general_path_with_the_true_halo_is_exact(flow: str) -> None:
    loops = flow == "source_to_target"  # PyG fills in the features of added self-loops from the other side's edges
    data, conv = corners(), gnn.GATv2Conv(4, 3, edge_dim=2, flow=flow, add_self_loops=loops).double()
    run = Extension(conv, flow=flow)
    batch = run.batch
    out = run.run(conv.forward, (2 * batch.x, batch.edge_index), {"edge_attr": batch.edge_attr})
    expected = conv(2 * data.x, data.edge_index, edge_attr=data.edge_attr)[:4]
    assert torch.allclose(out, expected, atol=1e-12)


def test_raw_features_bring_their_own_halo() -> None:
    data, conv = corners(), gnn.GATConv(4, 3).double()
    run = Extension(conv)
    out = run.run(conv.forward, (run.batch.x, run.batch.edge_index), {})
    assert torch.allclose(out, conv(data.x, data.edge_index)[:4], atol=1e-12)
    assert run.seen == []


def test_pairs_and_lists_are_extended_item_by_item() -> None:
    data, conv = corners(), gnn.SAGEConv(4, 3, aggr="max").double()
    run = Extension(conv)
    x = 2 * run.batch.x
    out = run.run(conv.forward, ((x, x), run.batch.edge_index), {})
    assert torch.allclose(out, conv(2 * data.x, data.edge_index)[:4], atol=1e-12)


def test_other_arguments_pass_through() -> None:
    scale, ids = torch.tensor(3.0), torch.arange(4)

    def forward(x: Tensor, edge_index: Tensor, *, scale: Tensor, ids: Tensor, name: str) -> Tensor:
        assert name == "n"
        assert ids.numel() == 4
        return x * scale

    run = Extension(gnn.GATConv(4, 3))
    out = run.run(forward, (run.batch.x, run.batch.edge_index), {"scale": scale, "ids": ids, "name": "n"})
    assert torch.equal(out, 3 * run.batch.x)


def test_foreign_edges_are_refused_on_the_general_path() -> None:
    conv = gnn.GATConv(4, 3).double()
    run = Extension(conv)
    with pytest.raises(ValueError, match="GATConv '' to receive the batch's own 'edge_index'"):
        run.run(conv.forward, (run.batch.x, run.batch.edge_index[:, 1:]), {})


def test_convs_that_return_more_than_one_tensor_are_refused() -> None:
    conv = gnn.GATConv(4, 3).double()
    run = Extension(conv)
    with pytest.raises(ValueError, match=r"return one tensor \(got tuple\).*return_attention_weights"):
        run.run(conv.forward, (run.batch.x, run.batch.edge_index), {"return_attention_weights": True})


# integer edge values and encoded edge features


class Relational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.FastRGCNConv(5, 3, num_relations=2).double()

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_type)


class Encoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.conv = nn.Linear(2, 4).double(), gnn.GATConv(5, 3, edge_dim=4).double()

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.conv(x, edge_index, self.encode(edge_attr))


def test_integer_edge_values_are_extended() -> None:
    from topoff import predict

    data, model = communities(20), Relational()
    data.edge_type = torch.arange(data.num_edges) % 2
    out = predict(model, data, ratio=0.5, batches="random")
    assert torch.allclose(out, model(data.x, data.edge_index, data.edge_type))


def test_edge_features_encoded_by_the_model_are_refused_clearly() -> None:
    from topoff.forward.trial import make_plan

    with pytest.raises(ValueError, match="batch's own"):
        make_plan(Encoded(), Graph(communities(20, edge_features=2)))
