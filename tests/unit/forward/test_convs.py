"""What each conv and each norm of a model needs, and by which of its properties that is known."""

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.typing import OptTensor

from topoff.forward.call import plain
from topoff.forward.convs import describe
from topoff.graph.operators import Operator


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
        gnn.APPNP(2, 0.1, dropout=0.5),
        gnn.GCNConv(4, 4, aggr="max"),
        OtherMessages(4, 4),
    ],
    ids=str,
)
def test_other_convs_take_the_general_path(conv: nn.Module) -> None:
    described = describe(conv)[0]
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
    with pytest.raises(ValueError, match=r"at least one PyG MessagePassing layer \(got Linear with none\)"):
        describe(nn.Linear(2, 2))


def replaced(lin: nn.Module) -> nn.Module:
    conv = gnn.GCNConv(4, 4)
    conv.lin = lin
    return conv


class Hooked(nn.Linear):
    """A matrix that somebody listens to."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.register_forward_hook(lambda module, given, out: out.relu())


@pytest.mark.parametrize(
    ("lin", "path"),
    [
        (nn.Linear(4, 4, bias=False), "linear"),
        (gnn.Linear(4, 4, bias=False), "linear"),
        (nn.Linear(4, 4), "general"),
        (nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU()), "general"),
        (Hooked(), "general"),
    ],
    ids=["matrix", "PyG's matrix", "bias", "MLP", "hook"],
)
def test_a_gcn_conv_is_linear_only_while_it_multiplies_with_a_matrix(lin: nn.Module, path: str) -> None:
    assert describe(replaced(lin))[0].path == path


class OtherForward(gnn.GATConv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index) / edge_index.size(1)


@pytest.mark.parametrize(
    ("conv", "local"),
    [
        (gnn.GATConv(4, 4), True),
        (gnn.SAGEConv(4, 4), True),
        (gnn.SAGEConv(4, 4, aggr="max"), True),
        (gnn.GCNConv(4, 4), False),
        (gnn.FAConv(4), False),
        (OtherForward(4, 4), False),
        (OtherMessages(4, 4), False),
    ],
    ids=str,
)
def test_only_convs_whose_source_was_read_are_known_to_be_local(conv: nn.Module, local: object) -> None:
    assert describe(conv)[0].local is local


@pytest.mark.parametrize(
    ("norm", "path"),
    [
        (gnn.LayerNorm(8), "norm"),
        (gnn.GraphNorm(8), "norm"),
        (gnn.PairNorm(), "norm"),
        (gnn.InstanceNorm(8), "norm"),
        (gnn.MeanSubtractionNorm(), "norm"),
        (gnn.GraphSizeNorm(), "norm"),
        (nn.BatchNorm1d(8), "batch"),
        (gnn.BatchNorm(8), "batch"),
        (gnn.DiffGroupNorm(8, groups=2), "batch"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_norms_over_nodes_are_described_beside_the_convs(norm: nn.Module, path: str) -> None:
    first, found, second = describe(Layered(norm))
    assert [conv.path for conv in (first, found, second)] == ["linear", path, "linear"]
    assert found.name.split(".")[0] == "norm"
    assert found.parameters[0] in ("x", "input")


@pytest.mark.parametrize("norm", [gnn.LayerNorm(8, mode="node"), nn.LayerNorm(8), gnn.MessageNorm(), nn.Identity()])
def test_norms_of_a_row_need_nothing(norm: nn.Module) -> None:
    assert len(describe(Layered(norm))) == 2


class GraphNorm(nn.Identity):
    """A user's own layer that has the name of a global one."""


def test_names_of_users_own_layers_do_not_matter() -> None:
    assert len(describe(Layered(GraphNorm()))) == 2


def test_layers_that_no_batch_can_reproduce_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"got TopKPooling 'norm', which pools nodes into fewer ones"):
        describe(Layered(gnn.TopKPooling(8)))


def test_attention_is_described_as_it_may_not_run() -> None:
    found = describe(Layered(gnn.GPSConv(8, gnn.GCNConv(8, 8), heads=1)))
    assert "norm.conv" in [conv.name for conv in found]


def test_plain_unwraps_a_compiled_model() -> None:
    model = gnn.GCN(4, 4, num_layers=1)
    wrapper = nn.Module()
    wrapper._orig_mod = model
    assert plain(wrapper) is model
    assert plain(model) is model
