"""What each conv needs, the interception that stands in for it and leaves no trace, and what is refused."""

from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.typing import OptTensor
from torch_geometric.utils import add_self_loops, dropout_edge

from graphs import communities, corners
from topoff.forward.call import evaluating, plain
from topoff.forward.convs import Conv, describe
from topoff.forward.intercept import Interception, edge_values_of, extended, first_input
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator


class Echo:
    """A handler that notes what it is asked and lets the convs do their own work."""

    def __init__(self) -> None:
        self.convolved: list[str] = []
        self.propagated: list[str] = []

    def convolve(self, conv: Conv, forward: Any, args: Any, kwargs: Any) -> Any:
        self.convolved.append(conv.name)
        return forward(*args, **kwargs)

    def propagate(self, conv: Conv, operand: Tensor) -> Tensor:
        self.propagated.append(conv.name)
        return operand


class Failing(Echo):
    def convolve(self, conv: Conv, forward: Any, args: Any, kwargs: Any) -> Any:
        raise ArithmeticError("no")


class Layered(nn.Module):
    """A conv, a norm of one's choice, a conv."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.second = gnn.GCNConv(4, 8), norm, gnn.GCNConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


# describe


@pytest.mark.parametrize(
    ("conv", "operator"),
    [
        (gnn.GCNConv(4, 4), Operator(norm="gcn", self_loops=True)),
        (gnn.GCNConv(4, 4, improved=True), Operator(norm="gcn", self_loops=True, improved=True)),
        (gnn.GCNConv(4, 4, add_self_loops=False), Operator(norm="gcn")),
        (gnn.GCNConv(4, 4, normalize=False), Operator()),
        (gnn.GCN2Conv(4, 0.1), Operator(norm="gcn", self_loops=True)),
        (gnn.SGConv(4, 4), Operator(norm="gcn", self_loops=True)),
        (gnn.SSGConv(4, 4, 0.1), Operator(norm="gcn", self_loops=True)),
        (gnn.MixHopConv(4, 4), Operator(norm="gcn", self_loops=True)),
        (gnn.TAGConv(4, 4), Operator(norm="gcn")),
        (gnn.LGConv(), Operator(norm="gcn")),
        (gnn.APPNP(2, 0.1), Operator(norm="gcn", self_loops=True)),
        (gnn.ClusterGCNConv(4, 4, diag_lambda=0.5), Operator(norm="cluster", self_loops=True, diag_lambda=0.5)),
        (gnn.SimpleConv(aggr="mean"), Operator(aggr="mean")),
        (gnn.SimpleConv(combine_root="self_loop"), Operator(self_loops=True)),
        (gnn.SAGEConv(4, 4), Operator(aggr="mean")),
        (gnn.SAGEConv(4, 4, aggr="sum"), Operator()),
        (gnn.GraphConv(4, 4), Operator()),
        (gnn.GINConv(nn.Linear(4, 4)), Operator()),
        (gnn.GatedGraphConv(4, 1), Operator()),
        (gnn.SAGEConv(4, 4, flow="target_to_source"), Operator(aggr="mean", flow="target_to_source")),
    ],
    ids=str,
)
def test_linear_convs_and_their_operators(conv: nn.Module, operator: Operator) -> None:
    (described,) = describe(conv)
    assert described.path == "linear"
    assert described.operators[None] == operator
    assert {name: op.weight for name, op in described.operators.items()} == {
        None: None,
        "edge_weight": "edge_weight",
        "edge_attr": "edge_attr",
    }


class OtherMessages(gnn.GCNConv):
    def message(self, x_j: Tensor, edge_weight: OptTensor) -> Tensor:
        return x_j.relu()


class SameMessages(gnn.GCNConv):
    """A subclass that changes nothing of the message passing."""


@pytest.mark.parametrize(
    "conv",
    [
        gnn.GATConv(4, 4),
        gnn.GATv2Conv(4, 4),
        gnn.TransformerConv(4, 4),
        gnn.PNAConv(4, 4, ["mean"], ["identity"], torch.tensor([0, 3, 4])),
        gnn.GENConv(4, 4),
        gnn.SAGEConv(4, 4, aggr="max"),
        gnn.SAGEConv(4, 4, aggr=["mean", "max"]),
        gnn.GraphConv(4, 4, aggr="max"),
        gnn.GINEConv(nn.Linear(4, 4)),
        gnn.LEConv(4, 4),
        OtherMessages(4, 4),
    ],
    ids=str,
)
def test_other_convs_take_the_general_path(conv: nn.Module) -> None:
    (described,) = describe(conv)
    assert described.path == "general"
    assert described.operators == {}


def test_a_subclass_that_keeps_the_messages_stays_linear() -> None:
    assert describe(SameMessages(4, 4))[0].path == "linear"


def test_convs_are_named_as_in_the_model_and_shared_ones_appear_once() -> None:
    shared = gnn.GCNConv(4, 4)
    model = nn.ModuleDict({"a": nn.Sequential(shared, nn.ReLU()), "b": shared, "c": gnn.GATConv(4, 4)})
    assert [conv.name for conv in describe(model)] == ["a.0", "c"]
    assert repr(describe(model)[0]) == "GCNConv 'a.0'"


def test_only_gcn_conv_transforms_before_it_propagates() -> None:
    assert describe(gnn.GCNConv(4, 4))[0].transforms_first
    assert not describe(gnn.SAGEConv(4, 4))[0].transforms_first


def test_a_model_without_convs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at least one PyG MessagePassing layer \(got Linear with none\).*DataLoader"):
        describe(nn.Linear(2, 2))


def test_appnp_with_edge_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match=r"APPNP without edge dropout \(got dropout=0.5\).*set dropout=0"):
        describe(gnn.APPNP(2, 0.1, dropout=0.5))


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (gnn.LayerNorm(8), "normalises over all nodes with mode='graph'"),
        (gnn.GraphNorm(8), "normalises over all nodes"),
        (gnn.PairNorm(), "normalises over all nodes"),
        (gnn.InstanceNorm(8), "normalises over all nodes"),
        (gnn.MeanSubtractionNorm(), "subtracts the mean over all nodes"),
        (gnn.DiffGroupNorm(8, groups=2), "normalises over all nodes"),
        (gnn.GraphSizeNorm(), "divides by the number of nodes"),
        (gnn.GPSConv(8, gnn.GCNConv(8, 8)), "attends over all nodes"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_over_all_nodes_are_refused_with_the_reason(norm: nn.Module, reason: str) -> None:
    expected = rf"act per node \(got {type(norm).__name__} 'norm', which {reason}\): use a per-node norm"
    with pytest.raises(ValueError, match=expected):
        describe(Layered(norm))


@pytest.mark.parametrize("norm", [gnn.LayerNorm(8, mode="node"), nn.LayerNorm(8), gnn.BatchNorm(8), nn.BatchNorm1d(8)])
def test_norms_per_node_are_welcome(norm: nn.Module) -> None:
    assert len(describe(Layered(norm))) == 2


class GraphNorm(nn.Identity):
    """A user's own layer that has the name of a global one."""


def test_names_of_users_own_layers_do_not_matter() -> None:
    assert len(describe(Layered(GraphNorm()))) == 2


def test_plain_unwraps_a_compiled_model() -> None:
    model = gnn.GCN(4, 4, num_layers=1)
    wrapper = nn.Module()
    wrapper._orig_mod = model
    assert plain(wrapper) is model
    assert plain(model) is model


# interception


def test_interception_hands_every_call_to_the_handler_and_leaves_no_trace() -> None:
    data, model = corners(dtype=torch.float32), gnn.GCN(4, 8, num_layers=2, out_channels=3)
    before = [dict(vars(conv)) for conv in model.convs]
    expected, handler = model(data.x, data.edge_index), Echo()
    interception = Interception(describe(model), handler)
    assert torch.equal(model(data.x, data.edge_index), expected)
    with interception:
        assert not torch.equal(model(data.x, data.edge_index), expected)
    assert handler.convolved == handler.propagated == ["convs.0", "convs.1"]
    assert [dict(vars(conv)) for conv in model.convs] == before
    assert torch.equal(model(data.x, data.edge_index), expected)


def test_interception_lets_general_convs_propagate_themselves() -> None:
    data, model = corners(dtype=torch.float32), gnn.GAT(4, 8, num_layers=2, out_channels=3)
    expected, handler = model(data.x, data.edge_index), Echo()
    with Interception(describe(model), handler):
        assert torch.equal(model(data.x, data.edge_index), expected)
    assert handler.propagated == []


def test_interception_ends_when_the_model_fails() -> None:
    data, model = corners(dtype=torch.float32), gnn.GCN(4, 8, num_layers=2)
    with pytest.raises(ArithmeticError, match="no"), Interception(describe(model), Failing()):
        model(data.x, data.edge_index)
    assert "forward" not in vars(model.convs[0])
    assert "propagate" not in vars(model.convs[0])


def test_interception_keeps_what_was_bound_to_the_instance() -> None:
    conv = gnn.GCNConv(4, 8, decomposed_layers=2)
    before = dict(vars(conv))
    assert "propagate" in before
    with Interception(describe(conv), Echo()):
        pass
    assert dict(vars(conv)) == before


def test_interception_can_be_entered_again() -> None:
    data, model, handler = corners(dtype=torch.float32), gnn.GCN(4, 8, num_layers=1), Echo()
    interception = Interception(describe(model), handler)
    for _ in range(2):
        with interception:
            model(data.x, data.edge_index)
    assert len(handler.convolved) == 2


def test_interception_neither_uses_nor_fills_a_cache() -> None:
    data, conv = corners(dtype=torch.float32), gnn.GCNConv(4, 3, cached=True)
    expected = conv(data.x, data.edge_index)
    cache = conv._cached_edge_index
    with Interception(describe(conv), Echo()):
        conv(data.x[:4], torch.tensor([[0], [1]]))
        assert not conv.cached
        assert conv._cached_edge_index is None
    assert conv.cached
    assert conv._cached_edge_index is cache
    assert torch.equal(conv(data.x, data.edge_index), expected)


# the batch's own edges


def given(conv: nn.Module, *args: Any, **kwargs: Any) -> str | None:
    return edge_values_of(describe(conv)[0], corners(), args, kwargs)


def test_the_edge_values_of_a_conv_are_recognised_by_value_and_by_name() -> None:
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


def test_the_first_input_is_found_by_position_by_name_and_in_a_pair() -> None:
    x, conv = corners().x, describe(gnn.SAGEConv(4, 3))[0]
    assert first_input(conv, (x,), {}) is x
    assert first_input(conv, (), {"x": x}) is x
    assert first_input(conv, ((x, x + 1),), {}) is x


# the general path


def extension(conv: nn.Module, *, flow: str = "source_to_target", seen: list[Tensor] | None = None) -> extended:
    """Extend the first batch of the corners graph by its true halo."""
    data = corners()
    graph, nodes = Graph(data), torch.tensor([0, 1, 2, 3])
    around = graph.neighbourhood(nodes, flow=flow)

    def halo_rows(h: Tensor) -> Tensor:
        if seen is not None:
            seen.append(h)
        return (2 * data.x)[around.halo]

    return extended(describe(conv)[0], graph.induced(nodes), around, halo_rows)


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_the_general_path_with_the_true_halo_is_exact(flow: str) -> None:
    loops = flow == "source_to_target"  # PyG fills in the features of added self-loops from the other side's edges
    data, conv = corners(), gnn.GATv2Conv(4, 3, edge_dim=2, flow=flow, add_self_loops=loops).double()
    run = extension(conv, flow=flow)
    batch = run.batch
    out = run.run(conv.forward, (2 * batch.x, batch.edge_index), {"edge_attr": batch.edge_attr})
    expected = conv(2 * data.x, data.edge_index, edge_attr=data.edge_attr)[:4]
    assert torch.allclose(out, expected, atol=1e-12)


def test_raw_features_bring_their_own_halo() -> None:
    data, conv, seen = corners(), gnn.GATConv(4, 3).double(), []
    run = extension(conv, seen=seen)
    out = run.run(conv.forward, (run.batch.x, run.batch.edge_index), {})
    assert torch.allclose(out, conv(data.x, data.edge_index)[:4], atol=1e-12)
    assert seen == []


def test_pairs_and_lists_are_extended_item_by_item() -> None:
    data, conv = corners(), gnn.SAGEConv(4, 3, aggr="max").double()
    run = extension(conv)
    x = 2 * run.batch.x
    out = run.run(conv.forward, ((x, x), run.batch.edge_index), {})
    assert torch.allclose(out, conv(2 * data.x, data.edge_index)[:4], atol=1e-12)


def test_other_arguments_pass_through() -> None:
    scale, ids = torch.tensor(3.0), torch.arange(4)

    def forward(x: Tensor, edge_index: Tensor, *, scale: Tensor, ids: Tensor, name: str) -> Tensor:
        assert name == "n"
        assert ids.numel() == 4
        return x * scale

    run = extension(gnn.GATConv(4, 3))
    out = run.run(forward, (run.batch.x, run.batch.edge_index), {"scale": scale, "ids": ids, "name": "n"})
    assert torch.equal(out, 3 * run.batch.x)


def test_foreign_edges_are_refused_on_the_general_path() -> None:
    conv = gnn.GATConv(4, 3).double()
    run = extension(conv)
    with pytest.raises(ValueError, match="GATConv '' to receive the batch's own 'edge_index'"):
        run.run(conv.forward, (run.batch.x, run.batch.edge_index[:, 1:]), {})


def test_convs_that_return_more_than_one_tensor_are_refused() -> None:
    conv = gnn.GATConv(4, 3).double()
    run = extension(conv)
    with pytest.raises(ValueError, match=r"return one tensor \(got tuple\).*return_attention_weights"):
        run.run(conv.forward, (run.batch.x, run.batch.edge_index), {"return_attention_weights": True})


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
    from topoff.forward.plan import make_plan

    with pytest.raises(ValueError, match="batch's own"):
        make_plan(Encoded(), Graph(communities(20, edge_features=2)))
