"""What a model needs of its batches, found by a trial on a piece of the graph, and what cannot be batched."""

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, global_mean_pool
from torch_geometric.utils import add_self_loops, degree, dropout_edge

from graphs import communities, corners
from topoff.forward.piece import TRIED
from topoff.forward.plan import Plan
from topoff.forward.trial import make_plan, recheck
from topoff.graph.graph import APART, AROUND, Graph
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

    plan = plan_of(Model(forward, c=gnn.GCNConv(5, 3)), communities(4 * TRIED))
    assert {count for count in seen if count > 3 * TRIED} == {4 * TRIED}  # once, beside nodes without edges
    assert seen.count(4 * TRIED) == 1
    assert plan.num_nodes == 4 * TRIED


@pytest.mark.parametrize("data", [corners(), communities(1), communities(2, degree=0.0)], ids=["corners", "one", "two"])
def test_graphs_with_corners_are_planned(data: Data) -> None:
    assert plan_of(gnn.SAGEConv(data.num_features, 3), data).operators == (MEAN,)


# convs and models that read more than rows of neighbours


class OneHop(MessagePassing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)


class TwoHops(OneHop):
    """An unknown conv whose second propagation reads the result of the first."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.propagate(edge_index, x=x))


class TwiceTheSame(OneHop):
    """An unknown conv whose two propagations read the same rows."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x) + self.propagate(edge_index, x=2 * x)


class NoHop(MessagePassing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


class DividedByDegree(OneHop):
    """Weighs a message by the degree of its sender."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x / degree(edge_index[1], len(x), x.dtype).clamp(min=1).unsqueeze(1))


def faconv(layers: nn.ModuleDict, x: Tensor, edge_index: Tensor) -> Tensor:
    h = layers["lin"](x)
    return layers["c"](h, h, edge_index)


def test_an_unknown_conv_that_propagates_once_is_general() -> None:
    plan = plan_of(OneHop())
    assert plan.convs[0].path == "general"
    assert plan.flows == ("source_to_target",)
    assert (plan.degrees, plan.deep, plan.wide) == (frozenset(), {}, False)


@pytest.mark.parametrize(
    ("conv", "deep"),
    [(NoHop(), {}), (OneHop(), {}), (TwiceTheSame(), {}), (TwoHops(), {"": frozenset({1})})],
    ids=["never", "once", "twice the same", "twice"],
)
def test_propagations_that_read_anothers_result_are_noted(conv: nn.Module, deep: object) -> None:
    assert plan_of(conv).deep == deep


@pytest.mark.parametrize(
    "model",
    [
        Model(faconv, lin=nn.Linear(5, 4), c=gnn.FAConv(4)),
        Model(lambda m, x, e: m["c"](x, e), c=DividedByDegree()),
        Model(lambda m, x, e: m["c"](x, e), c=gnn.GCNConv(5, 3, aggr="max")),
        Model(lambda m, x, e: m["c"](x, e), c=gnn.ChebConv(5, 3, K=3)),
    ],
    ids=["FAConv", "degree of the sender", "GCNConv with max", "ChebConv"],
)
def test_convs_that_compute_with_the_edges_get_all_around(model: nn.Module) -> None:
    plan = plan_of(model)
    assert plan.degrees == {"layers.c"}
    assert plan.flows == (AROUND,)
    assert not plan.wide


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x, e: m["c"](x, add_self_loops(e, num_nodes=len(x))[0]),
        lambda m, x, e: m["c"](x / degree(e[1], len(x), x.dtype).clamp(min=1).unsqueeze(1), e),
        lambda m, x, e: m["c"](x, dropout_edge(e, p=0.5, training=m.training)[0]),
        lambda m, x, e: m["c"](0.5 * x if m.training else x, e),
    ],
    ids=["self-loops", "degrees", "dropout of edges", "features changed in training"],
)
@pytest.mark.parametrize("conv", [gnn.SAGEConv, gnn.GATConv])
def test_a_model_that_reads_edges_itself_or_changes_features_is_wide(
    forward: Callable[..., Tensor], conv: type[nn.Module]
) -> None:
    plan = plan_of(Model(forward, c=conv(5, 3)))
    assert plan.wide
    assert plan.flows == (AROUND,)
    assert plan.chains == ()


def test_a_linear_conv_that_is_given_other_edges_is_rewired() -> None:
    model = Model(lambda m, x, e: m["c"](x, add_self_loops(e, num_nodes=len(x))[0]), c=gnn.SAGEConv(5, 3))
    assert plan_of(model).rewired == {"layers.c"}
    assert plan_of(gnn.SAGEConv(5, 3)).rewired == frozenset()


def test_edges_that_are_sorted_keep_the_nodes_beyond_apart() -> None:
    model = Model(lambda m, x, e: m["c"](x, e.unique(dim=1)), c=gnn.SAGEConv(5, 3))
    plan = plan_of(model, corners_of_five())
    assert plan.apart
    assert plan.flows == (APART,)


def corners_of_five() -> Data:
    data = corners()
    data.x = torch.cat([data.x, data.x[:, :1]], dim=1)
    return data


def test_edge_features_encoded_by_the_model_make_it_wide() -> None:
    class Encoded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.conv = nn.Linear(2, 4), gnn.GATConv(5, 3, edge_dim=4)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            return self.conv(x, edge_index, self.encode(edge_attr))

    plan = plan_of(Encoded(), communities(24, edge_features=2))
    assert plan.wide
    assert plan.known_hops == {"conv": (1,)}


def test_in_a_wide_model_what_is_computed_from_features_alone_is_known() -> None:
    def forward(layers: nn.ModuleDict, x: Tensor, edge_index: Tensor) -> Tensor:
        edges = add_self_loops(edge_index, num_nodes=len(x))[0]
        return layers["b"](layers["a"](layers["lin"](x).relu(), edges).relu(), edges)

    plan = plan_of(Model(forward, lin=nn.Linear(5, 5), a=gnn.SAGEConv(5, 5), b=gnn.SAGEConv(5, 3)))
    assert plan.known_hops == {"layers.a": (1,), "layers.b": (0,)}


def test_norms_over_all_nodes_are_in_the_plan_and_batch_norms_only_inside_of_convs() -> None:
    layers = {"c": gnn.GCNConv(5, 3), "n": gnn.GraphNorm(3), "b": nn.BatchNorm1d(3), "g": gnn.GENConv(3, 3)}
    plan = plan_of(Model(lambda m, x, e: m["g"](m["b"](m["n"](m["c"](x, e))), e), **layers))
    assert [conv.name for conv in plan.convs if conv.path == "norm"] == ["layers.n"]
    assert all(conv.name.startswith("layers.g.") for conv in plan.convs if conv.path == "batch")
    assert "batch" in [conv.path for conv in plan.convs]


def test_convs_of_the_plan_are_those_of_the_model_not_of_its_copy() -> None:
    model = stacked(gnn.GCNConv(5, 6), gnn.GATConv(6, 3))
    assert [conv.module for conv in plan_of(model).convs] == [model.layers["first"], model.layers["second"]]


def test_lazy_convs_are_made() -> None:
    model = stacked(gnn.GCNConv(-1, 6), gnn.SAGEConv(-1, 3))
    plan = make_plan(model, Graph(communities(24, dtype=torch.float32)))
    assert plan.operators == (GCN, MEAN)
    assert model.layers["first"].lin.in_channels == 5


# what cannot be batched


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            Model(
                lambda m, x, e: m["c"](x, e) + global_mean_pool(x, torch.zeros(len(x), dtype=torch.int64))[:, :3],
                c=gnn.GCNConv(5, 3),
            ),
            r"got another one after 48 nodes .* norm, softmax or order over all nodes",
        ),
        (
            Model(lambda m, x, e: m["c"](x, e) + x.sum(0)[:3], c=gnn.GCNConv(5, 3)),
            r"neighbours alone \(got another one after 48 nodes .*, behind its last layer",
        ),
        (
            Model(lambda m, x, e: m["c"](m["a"](x + x.sum(0)), e), a=nn.Linear(5, 5), c=gnn.GCNConv(5, 3)),
            r"another one after 48 nodes .*, first at the output of Linear 'layers.a'",
        ),
    ],
    ids=["mean", "sum behind the convs", "sum before a layer"],
)
def test_the_comparison_catches_what_no_list_knows(model: nn.Module, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        plan_of(model)


def test_a_norm_of_rows_by_all_rows_is_named_by_its_number_of_nodes() -> None:
    model = Model(lambda m, x, e: m["c"](x, e).softmax(0), c=gnn.GCNConv(5, 3))
    with pytest.raises(ValueError, match=r"another one after .* norm, softmax or order over all nodes"):
        plan_of(model)


def test_weights_that_are_zero_count() -> None:
    """A gate that is closed at first opens in training."""
    gate = nn.Linear(5, 3, bias=False)
    nn.init.zeros_(gate.weight)
    model = Model(lambda m, x, e: m["c"](x, e) + m["g"](x.sum(0)), c=gnn.GCNConv(5, 3), g=gate)
    with pytest.raises(ValueError, match="the node and its neighbours alone"):
        plan_of(model)
    assert not gate.weight.any()


def test_leconv_is_right_on_the_general_path() -> None:
    assert plan_of(stacked(gnn.LEConv(5, 6), gnn.LEConv(6, 3))).flows == ("source_to_target",)


def test_a_model_without_convs_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one PyG MessagePassing layer"):
        plan_of(nn.Linear(5, 3))


def test_attention_over_all_nodes_is_refused_where_it_runs() -> None:
    conv = gnn.GPSConv(5, gnn.GCNConv(5, 5), heads=1)
    idle = Model(lambda m, x, e: m["c"](x, e), c=gnn.GCNConv(5, 5), idle=conv)
    assert plan_of(idle).operators == (GCN,)
    with pytest.raises(ValueError, match=r"got GPSConv 'layers.c', which attends over all nodes\): use its local conv"):
        plan_of(Model(lambda m, x, e: m["c"](x, e), c=conv))


def test_pooling_is_refused() -> None:
    model = Model(lambda m, x, e: m["c"](x, e).mean(0, keepdim=True), c=gnn.GCNConv(5, 3))
    with pytest.raises(ValueError, match=r"the output in eval mode to have one row per node \(got shape \(1, 3\)"):
        plan_of(model)


def test_outputs_with_rows_left_out_are_refused() -> None:
    def call(model: nn.Module, batch: Data) -> Tensor:
        return model(batch.x, batch.edge_index)[:10]  # all of a small batch, not all of the piece

    with pytest.raises(ValueError, match=r"one row per node \(got shape \(10, 3\) for a batch of 24 nodes"):
        plan_of(gnn.GCNConv(5, 3), call=call)


@pytest.mark.parametrize("count", [24, 4 * TRIED])
def test_edges_of_its_own_are_refused(count: int) -> None:
    edges = communities(count).edge_index
    model = Model(lambda m, x, e: m["c"](x, edges), c=gnn.GATConv(5, 3))
    with pytest.raises(
        ValueError, match=r"run on a part of the graph \(got .*IndexError.*edges or tables of the whole"
    ):
        plan_of(model, communities(count))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_sparse_matrix_of_edges_is_refused() -> None:
    def call(model: nn.Module, batch: Data) -> Tensor:
        dense = batch.x.new_zeros(len(batch.x), len(batch.x))
        dense[batch.edge_index[1], batch.edge_index[0]] = 1
        return model(batch.x, dense.to_sparse_csr())

    with pytest.raises(ValueError, match=r"GCNConv '' to receive edges as edge_index \(got a sparse matrix"):
        plan_of(gnn.GCNConv(5, 3), call=call)


def test_rows_that_a_wide_model_mixes_in_training_are_refused() -> None:
    def forward(layers: nn.ModuleDict, x: Tensor, edge_index: Tensor) -> Tensor:
        h = layers["c"](x, add_self_loops(edge_index, num_nodes=len(x))[0])
        return F.batch_norm(h, None, None, training=True) if layers.training else h

    model = Model(forward, c=gnn.SAGEConv(5, 3))
    with pytest.raises(ValueError, match=r"each row alone in training mode, .*\(got rows that read those of other"):
        plan_of(model)


# looking again


def test_looking_again_tells_where_all_nodes_are_read() -> None:
    model, graph = gnn.GraphSAGE(5, 4, num_layers=3).double(), Graph(communities(24))
    read = recheck(model, graph, make_plan(model, graph))
    assert list(read)[-2:] == ["convs.1/0/0", "convs.2/0/0"]
    assert {rows.size(1) for rows in read.values()} == {4}


def test_looking_again_finds_what_was_switched_on() -> None:
    model = Model(
        lambda m, x, e: m["c"](x, e) + (x.sum(0)[:3] if m["c"].bias[0] > 5 else 0), c=gnn.GCNConv(5, 3)
    ).double()
    graph = Graph(communities(24))
    plan = make_plan(model, graph)
    assert not recheck(model, graph, plan)  # the features alone are read, and they are known
    with torch.no_grad():
        model.layers["c"].bias += 10
    with pytest.raises(ValueError, match="the node and its neighbours alone"):
        recheck(model, graph, plan)


def test_looking_again_looks_elsewhere() -> None:
    seen = []

    def forward(layers: nn.ModuleDict, x: Tensor, edge_index: Tensor) -> Tensor:
        seen.append(x)
        return layers["c"](x, edge_index)

    model, graph = Model(forward, c=gnn.GCNConv(5, 3)).double(), Graph(communities(4 * TRIED))
    plan = make_plan(model, graph)
    for seed in (1, 2):
        seen.append(None)
        recheck(model, graph, plan, seed=seed)
    first, second = (seen[i + 1] for i, x in enumerate(seen) if x is None)
    assert first.shape != second.shape or not torch.equal(first, second)


def test_looking_again_keeps_the_weights_and_an_error_of_the_model() -> None:
    def forward(layers: nn.ModuleDict, x: Tensor, edge_index: Tensor) -> Tensor:
        if layers["c"].bias[0] > 5:
            raise ArithmeticError("the model's own trouble")
        return layers["c"](x, edge_index)

    model, graph = Model(forward, c=gnn.GCNConv(5, 3)).double(), Graph(communities(24))
    plan = make_plan(model, graph)
    with torch.no_grad():
        model.layers["c"].bias += 10
    with pytest.raises(ArithmeticError, match="the model's own trouble"):
        recheck(model, graph, plan)


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
