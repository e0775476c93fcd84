"""What stands in for message passing: bound without a trace, given the batch's own edges."""

import gc
import weakref
from collections import namedtuple
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.utils import add_self_loops, dropout_edge

from graphs import corners
from topoff.forward.convs import Conv, describe
from topoff.forward.foreign import ForeignInputError, raise_foreign
from topoff.forward.intercept import ConvCall, Handler, inner, map_tensors, uncached


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
        call.general = call.conv.path == "general"
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


def test_a_model_that_writes_into_its_features_is_refused_and_unbound() -> None:
    data, conv = corners(dtype=torch.float32), gnn.GCNConv(4, 8)
    handler = Echo(describe(conv))

    def write() -> None:
        with handler.on(data):
            data.x[:, 0] = 0

    with pytest.raises(ValueError, match=r"leave its input features alone \(got 'x' changed in place\): write"):
        write()
    assert "forward" not in vars(conv)


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
    with pytest.raises(ForeignInputError, match=r"GCNConv '' to receive the batch's own 'edge_index' \(got another"):
        given(gnn.GCNConv(4, 3), corners().x, edges)


def test_home_made_weights_are_refused() -> None:
    data = corners()
    with pytest.raises(ForeignInputError, match=r"own 'edge_weight' \(got another tensor, .*before wrapping it"):
        given(gnn.GCNConv(4, 3), data.x, data.edge_index, 2 * data.edge_weight)


def test_weights_that_want_a_gradient_are_refused_on_the_linear_path() -> None:
    data = corners()
    weight = data.edge_weight.clone().requires_grad_()
    with pytest.raises(ForeignInputError, match="own 'edge_weight'"):
        given(gnn.GCNConv(4, 3), data.x, data.edge_index, weight)


def owns(*args: Any, **kwargs: Any) -> bool:
    conv = gnn.GCNConv(4, 3)
    return ConvCall(describe(conv)[0], conv.forward, args, kwargs, args[0], 0).has_equal_edges(corners())


def test_own_edges_are_told_from_others_beforehand() -> None:
    data = corners()
    assert owns(data.x, data.edge_index)
    assert owns(data.x, data.edge_index.clone(), edge_weight=data.edge_weight.clone())
    assert not owns(data.x, data.edge_index.flip(0))
    assert not owns(data.x, data.edge_index, 2 * data.edge_weight)
    assert not owns(data.x, data.edge_index, data.edge_weight.clone().requires_grad_())
    assert not owns(data.x, data.edge_index.tolist())


def test_weights_other_than_those_of_the_trial_are_refused() -> None:
    data, conv = corners(), gnn.GCNConv(4, 3)
    described = describe(conv)[0]
    call = ConvCall(described, conv.forward, (data.x, data.edge_index, data.edge_weight), {}, data.x, 0)
    with pytest.raises(ValueError, match=r"GCNConv '' to weigh its edges in training as in eval mode \(got other edge"):
        call.linear(data, among=[described.operators[None]])


def test_a_linear_conv_gets_no_edges() -> None:
    data, conv = corners(), gnn.GCNConv(4, 3)
    call = ConvCall(describe(conv)[0], conv.forward, (data.x, data.edge_index, data.edge_weight), {}, data.x, 0)
    found = call.linear(data)
    assert found["x"] is data.x
    assert found["edge_index"].shape == (2, 0)
    assert found["edge_weight"].shape == (0,)


def test_what_is_not_the_batchs_own_is_named() -> None:
    with pytest.raises(ForeignInputError, match=r"GATConv '' to receive the batch's own 'pe' \(got another tensor"):
        raise_foreign(describe(gnn.GATConv(4, 3))[0], "pe")


def test_a_batch_must_carry_what_the_handler_needs() -> None:
    data = corners()
    del data.edge_index
    with pytest.raises(ValueError, match=r"a batch of a TOP or Loader \(got a Data without its edge_index\)"):
        Echo(describe(gnn.GCNConv(4, 3))).on(data).__enter__()


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


def test_calls_of_a_conv_are_counted_and_named_by_place() -> None:
    places = []

    class Places(Echo):
        def convolve(self, call: ConvCall) -> Any:
            call.hop = 2
            places.append(call.place)
            return call.x

    data, conv = corners(dtype=torch.float32), gnn.SAGEConv(4, 3)
    handler = Places(describe(conv))
    for _ in range(2):
        with handler.on(data):
            conv(data.x, data.edge_index)
            conv(data.x, data.edge_index)
    assert places == ["/0/2", "/1/2"] * 2


def test_two_handlers_may_stand_in_for_one_model() -> None:
    data, model = corners(dtype=torch.float32), gnn.GCN(4, 8, num_layers=1)
    outer, within = Echo(describe(model)), Echo(describe(model))
    with outer.on(data):
        with within.on(data):
            model(data.x, data.edge_index)
        model(data.x, data.edge_index)
    assert (len(outer.convolved), len(within.convolved)) == (1, 1)
    assert "forward" not in vars(model.convs[0])


def test_operands_of_more_dimensions_are_flattened_to_rows() -> None:
    class Shapes(Echo):
        def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
            self.read.append(operand.shape)
            return 2 * operand

    data, conv = corners(dtype=torch.float32), gnn.SimpleConv()
    conv.node_dim = 0
    handler, x = Shapes(describe(conv)), torch.rand(14, 3, 2)
    with handler.on(data):
        out = conv(x, data.edge_index)
    assert handler.read[-1] == (14, 6)
    assert torch.equal(out, 2 * x)


# layers inside a general conv


class Rows:
    """What a general conv's arguments were extended to."""

    size, rows = 3, 5


def around(*, extended: Any = None) -> ConvCall:
    conv = gnn.GATConv(4, 4)
    return ConvCall(describe(conv)[0], conv.forward, (), {}, None, 0, extended=extended)


def test_a_norm_over_all_nodes_inside_a_conv_is_refused() -> None:
    norm = describe(nn.Sequential(gnn.GCNConv(4, 4), gnn.GraphNorm(4)))[1]
    with pytest.raises(ValueError, match=r"GATConv '' to act on each message alone \(got GraphNorm '1' inside it"):
        inner(norm, around(), torch.ones(5, 4), lambda x: x)


def test_a_batch_norm_inside_a_conv_sees_the_batchs_own_rows_in_training() -> None:
    norm, x = describe(nn.Sequential(gnn.GCNConv(4, 4), nn.BatchNorm1d(4)))[1], torch.rand(5, 4)
    call = around(extended=Rows())
    out = inner(norm, call, x, norm.module.forward)
    assert torch.allclose(out[:3].mean(0), torch.zeros(4), atol=1e-6)
    assert not torch.allclose(out.mean(0), torch.zeros(4), atol=1e-3)
    assert torch.allclose(norm.module.running_mean, 0.1 * x[:3].mean(0))
    norm.module.eval()
    assert torch.equal(inner(norm, call, x, lambda rows: 2 * rows), 2 * x)
    norm.module.train()
    assert len(inner(norm, call, torch.rand(4, 4), lambda rows: rows)) == 4  # messages, which are no rows of nodes


# helpers


def test_uncached_takes_and_gives_back_caches() -> None:
    data, conv = corners(dtype=torch.float32), gnn.GCNConv(4, 3, cached=True)
    conv(data.x, data.edge_index)
    cache = conv._cached_edge_index
    with uncached(describe(conv)):
        assert not conv.cached
        assert conv._cached_edge_index is None
    assert conv.cached
    assert conv._cached_edge_index is cache


def test_tensors_are_changed_wherever_they_are() -> None:
    pair = namedtuple("pair", "left right")
    one = torch.ones(1)
    found = map_tensors({"a": [one, pair(one, "text")], "b": (None, 3)}, lambda tensor: tensor + 1)
    assert found == {"a": [2, pair(2, "text")], "b": (None, 3)}
    assert isinstance(found["a"][1], pair)
