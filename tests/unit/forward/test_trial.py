"""What a model needs of its batches, found by one run on a piece of the graph, and what cannot be batched."""

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, global_mean_pool
from torch_geometric.utils import add_self_loops, degree

from graphs import communities, corners
from topoff.forward.plan import TRIED, Plan, make_plan
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator

GCN = Operator(norm="gcn", self_loops=True)
MEAN = Operator(aggr="mean")


class Model(nn.Module):
    """Layers by name, and a forward given as a function of (layers, x, edge_index)."""

    def __init__(self, forward: Callable[..., Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.run = nn.ModuleDict(layers), forward

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(self.layers, x, edge_index)


def plan_of(model: nn.Module, data: Data | None = None, **kwargs: object) -> Plan:
    return make_plan(model.double(), Graph(data or communities(24)), **kwargs)


def stacked(first: nn.Module, second: nn.Module) -> Model:
    return Model(lambda m, x, e: m["second"](m["first"](x, e).relu(), e), first=first, second=second)


# what is found


@pytest.mark.parametrize(
    ("conv", "hops"),
    [
        (gnn.GCNConv(5, 6), 1),
        (gnn.SAGEConv(5, 6), 1),
        (gnn.GraphConv(5, 6), 1),
        (gnn.GINConv(nn.Linear(5, 6)), 1),
        (gnn.ClusterGCNConv(5, 6), 1),
        (gnn.SGConv(5, 6, K=3), 3),
        (gnn.TAGConv(5, 6, K=2), 2),
        (gnn.SSGConv(5, 6, alpha=0.1, K=2), 2),
        (gnn.GATConv(5, 6), 1),
        (gnn.PNAConv(5, 6, ["mean", "max"], ["identity"], torch.tensor([0, 4, 4])), 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_leading_propagations_of_the_raw_features_are_constant(conv: nn.Module, hops: int) -> None:
    plan = plan_of(stacked(conv, gnn.GCNConv(6, 3)))
    assert plan.known_hops["layers.first"] == (hops,)
    assert plan.is_constant(plan.convs[0], hops - 1)
    assert not plan.is_constant(plan.convs[0], hops)
    assert not plan.is_constant(plan.convs[1], 0)


def test_appnp_on_the_features_has_one_constant_hop_because_it_mixes_them_in_after_each() -> None:
    plan = plan_of(gnn.APPNP(4, 0.1))
    assert plan.known_hops == {"": (1,)}
    assert plan.chains == ((GCN,),)


def test_chains_are_the_operators_applied_to_the_features() -> None:
    plan = plan_of(gnn.SGConv(5, 3, K=3))
    assert plan.chains == ((GCN,), (GCN, GCN), (GCN, GCN, GCN))


def test_a_projected_or_transformed_input_is_not_constant() -> None:
    assert plan_of(gnn.SAGEConv(5, 3, project=True)).known_hops == {"": (0,)}
    assert plan_of(Model(lambda m, x, e: m["c"](2 * x, e), c=gnn.GCNConv(5, 3))).known_hops == {"layers.c": (0,)}


def test_dropout_of_the_features_keeps_them_constant() -> None:
    model = Model(lambda m, x, e: m["c"](F.dropout(x, 0.5, training=m.training), e), c=gnn.GCNConv(5, 3))
    assert model.training
    assert plan_of(model).known_hops == {"layers.c": (1,)}
    assert model.training


def test_a_shared_conv_is_constant_only_in_the_call_that_reads_the_features() -> None:
    plan = plan_of(Model(lambda m, x, e: m["c"](m["c"](x, e).relu(), e), c=gnn.GCNConv(5, 5)))
    assert list(plan.known_hops.values()) == [(1, 0)]
    assert not plan.is_constant(plan.convs[0], 0)
    assert plan.chains == ((GCN,),)


def test_operators_and_flows_are_listed_once_in_the_order_of_the_forward() -> None:
    layers = {"a": gnn.SAGEConv(5, 5), "b": gnn.GCNConv(5, 5), "c": gnn.GCNConv(5, 5), "d": gnn.GATConv(5, 5)}
    plan = plan_of(Model(lambda m, x, e: m["d"](m["c"](m["b"](m["a"](x, e), e), e), e), **layers))
    assert plan.operators == (MEAN, GCN)
    assert plan.flows == ("source_to_target",)


def test_convs_that_the_forward_does_not_use_ask_for_nothing() -> None:
    plan = plan_of(Model(lambda m, x, e: m["a"](x, e), a=gnn.SAGEConv(5, 3), unused=gnn.GATConv(5, 3)))
    assert plan.operators == (MEAN,)
    assert plan.flows == ()


@pytest.mark.parametrize("name", ["edge_weight", "edge_attr"])
def test_the_weight_of_an_operator_is_the_attribute_that_the_conv_was_given(name: str) -> None:
    data = communities(24, weighted=True)
    data.edge_attr = 2 * data.edge_weight
    conv = gnn.GCNConv(5, 3)
    plan = plan_of(conv, data, call=lambda model, batch: model(batch.x, batch.edge_index, batch[name]))
    assert plan.operators == (Operator(norm="gcn", self_loops=True, weight=name),)


def test_a_graph_larger_than_the_piece_is_tried_on_a_piece() -> None:
    seen: list[int] = []

    def forward(layers: nn.ModuleDict, x: Tensor, edge_index: Tensor) -> Tensor:
        seen.append(len(x))
        return layers["c"](x, edge_index)

    plan_of(Model(forward, c=gnn.GCNConv(5, 3)), communities(4 * TRIED))
    assert TRIED <= max(seen) <= TRIED + 2


@pytest.mark.parametrize("data", [corners(), communities(1), communities(2, degree=0.0)], ids=["corners", "one", "two"])
def test_graphs_with_corners_are_planned(data: Data) -> None:
    assert plan_of(gnn.SAGEConv(data.num_features, 3), data).operators == (MEAN,)


def test_a_plan_without_anything_outside_the_batch() -> None:
    plan = plan_of(stacked(gnn.SGConv(5, 6, K=2), gnn.GCNConv(6, 3)))
    alone = plan.in_batch_only()
    assert plan.exact_features
    assert not alone.exact_features
    assert alone.known_hops == {}
    assert alone.chains == ()
    assert alone.operators == plan.operators


# what cannot be batched


class TwoHops(MessagePassing):
    """An unknown conv that propagates twice."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.propagate(edge_index, x=x))


class NoHop(MessagePassing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


class OneHop(MessagePassing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)


class DividedByDegree(OneHop):
    """Weighs a message by the degree of its sender, which a batch does not know."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x / degree(edge_index[1], len(x), x.dtype).clamp(min=1).unsqueeze(1))


def test_an_unknown_conv_that_propagates_once_is_general() -> None:
    plan = plan_of(OneHop())
    assert plan.convs[0].path == "general"
    assert plan.flows == ("source_to_target",)


@pytest.mark.parametrize(("conv", "times"), [(TwoHops(), 2), (NoHop(), 0)], ids=["twice", "never"])
def test_an_unknown_conv_must_propagate_once(conv: nn.Module, times: int) -> None:
    with pytest.raises(ValueError, match=rf"{type(conv).__name__} '' to propagate once \(got {times} times\).*per hop"):
        plan_of(conv)


def test_norms_over_all_nodes_are_refused() -> None:
    model = Model(lambda m, x, e: m["n"](m["c"](x, e)), c=gnn.GCNConv(5, 3), n=gnn.LayerNorm(3))
    with pytest.raises(ValueError, match=r"act per node \(got LayerNorm 'layers.n', which .* mode='graph'\)"):
        plan_of(model)


def faconv(layers: nn.ModuleDict, x: Tensor, edge_index: Tensor) -> Tensor:
    h = layers["lin"](x)
    return layers["c"](h, h, edge_index)


@pytest.mark.parametrize(
    "model",
    [
        Model(
            lambda m, x, e: m["c"](x, e) + global_mean_pool(x, torch.zeros(len(x), dtype=torch.int64))[:, :3],
            c=gnn.GCNConv(5, 3),
        ),
        Model(lambda m, x, e: F.normalize(m["c"](x, e), dim=0), c=gnn.GCNConv(5, 3)),
        Model(faconv, lin=nn.Linear(5, 4), c=gnn.FAConv(4)),
        DividedByDegree(),
    ],
    ids=["global pool added", "normalised over nodes", "FAConv", "degree of the sender"],
)
def test_the_self_check_catches_what_no_list_knows(model: nn.Module) -> None:
    with pytest.raises(ValueError, match=r"depend only on that node and its neighbours \(got a relative difference of"):
        plan_of(model)


def test_leconv_is_right_on_the_general_path() -> None:
    assert plan_of(stacked(gnn.LEConv(5, 6), gnn.LEConv(6, 3))).flows == ("source_to_target",)


def test_self_loops_added_in_the_model_are_refused() -> None:
    model = Model(lambda m, x, e: m["c"](x, add_self_loops(e)[0]), c=gnn.SAGEConv(5, 3))
    with pytest.raises(ValueError, match=r"SAGEConv 'layers.c' to receive the batch's own 'edge_index'"):
        plan_of(model)


def test_self_loops_added_in_the_model_are_refused_on_the_general_path() -> None:
    model = Model(lambda m, x, e: m["c"](x, add_self_loops(e)[0]), c=gnn.GATConv(5, 3))
    with pytest.raises(ValueError, match=r"GATConv 'layers.c' to receive the batch's own 'edge_index'"):
        plan_of(model)


def test_home_made_edge_weights_are_refused() -> None:
    model = Model(lambda m, x, e: m["c"](x, e, torch.ones(e.size(1), dtype=x.dtype)), c=gnn.GraphConv(5, 3))
    with pytest.raises(ValueError, match=r"GraphConv 'layers.c' to receive the batch's own 'edge_weight'"):
        plan_of(model)


def test_a_model_without_convs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one PyG MessagePassing layer"):
        plan_of(nn.Linear(5, 3))


def test_appnp_with_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="APPNP without edge dropout"):
        plan_of(Model(lambda m, x, e: m["c"](x, e), c=gnn.APPNP(2, 0.1, dropout=0.2)))


def test_attention_weights_are_refused() -> None:
    model = Model(lambda m, x, e: m["c"](x, e, return_attention_weights=True)[0], c=gnn.GATConv(5, 3))
    with pytest.raises(ValueError, match="call it without return_attention_weights"):
        plan_of(model)


def test_pooling_is_refused() -> None:
    model = Model(lambda m, x, e: m["c"](x, e).mean(0, keepdim=True), c=gnn.GCNConv(5, 3))
    with pytest.raises(ValueError, match=r"one row per node of the batch \(got \(1, 3\) for 8 nodes\)"):
        plan_of(model)


def test_outputs_with_rows_left_out_are_refused() -> None:
    def call(model: nn.Module, batch: Data) -> Tensor:
        return model(batch.x, batch.edge_index)[:10]  # all of a small batch, not all of the piece

    with pytest.raises(ValueError, match=r"return one row per node \(got \(10, 3\) for 24 nodes\)"):
        plan_of(gnn.GCNConv(5, 3), call=call)


def test_a_tuple_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one row per node of the batch \(got tuple"):
        plan_of(Model(lambda m, x, e: (m["c"](x, e), x), c=gnn.GCNConv(5, 3)))


# the bare model is left alone


def test_planning_leaves_mode_and_generator_alone() -> None:
    model = gnn.GCN(5, 8, num_layers=2, out_channels=3, dropout=0.5)
    before = torch.get_rng_state()
    plan_of(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def two_components() -> Data:
    """Two rings without a connection, so that the piece is not the whole graph."""
    ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    return Data(x=torch.rand(8, 5, dtype=torch.float64), edge_index=torch.cat([ring, ring + 4], dim=1))


def test_planning_does_not_fill_the_cache_of_a_conv() -> None:
    data, model = two_components(), gnn.GCN(5, 8, num_layers=2, cached=True).double()
    twin = gnn.GCN(5, 8, num_layers=2).double()
    twin.load_state_dict(model.state_dict())
    plan_of(model, data)
    assert torch.allclose(model(data.x, data.edge_index), twin(data.x, data.edge_index))


def test_planning_does_not_use_the_cache_of_a_conv() -> None:
    data, model = two_components(), gnn.GCN(5, 8, num_layers=2, cached=True).double()
    model(data.x, data.edge_index)
    assert plan_of(model, data).operators == (GCN,)


def test_a_model_in_another_type_than_the_features_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"Expected the model in the type of the features, torch.float64 \(got torch.float32"
    ):
        make_plan(gnn.GCN(5, 6, num_layers=2), Graph(communities()))
