"""The paper's models: written once for whole graphs and batches, and every option changes something."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.utils import to_dense_adj

from graphs import communities, corners, normalized
from topoff import TOP, predict
from topoff.models.decoupled import SGC, SIGN
from topoff.models.networks import GAT, GCN, GCNII, PNA, ClusterGCN, GraphSAGE, LinearGNN, Network, degree_histogram

WEIGHTED = (GCN, GCNII, LinearGNN, SGC, SIGN)  # these use edge weights
KINDS = (*WEIGHTED, GraphSAGE, GAT, PNA, ClusterGCN)
NETWORK = {"norm", "residual", "jk", "linear", "edge_dropout"}
REFUSED = {  # options that a model does not take
    LinearGNN: NETWORK,
    GCNII: {"linear"},
    SIGN: NETWORK,
    SGC: {*NETWORK, "dropout", "input_dropout"},
}
VARIANTS: list[tuple[type[nn.Module], dict[str, Any]]] = [
    (GCN, {}),
    (GCN, {"norm": "batch", "residual": False}),
    (GCN, {"linear": True, "norm": "batch"}),
    (GCN, {"jk": True}),
    (GCNII, {}),
    (GCNII, {"norm": "batch", "shared_weights": False}),
    (GCNII, {"jk": True, "norm": "layer", "residual": True}),
    (GraphSAGE, {}),
    (GraphSAGE, {"linear": True}),
    (GAT, {"heads": 2, "out_heads": 3}),
    (GAT, {"heads": 2, "jk": True}),
    (PNA, {}),
    (PNA, {"aggregators": ("mean",), "scalers": ("identity",), "jk": True, "linear": True}),
    (LinearGNN, {}),
    (ClusterGCN, {}),
    (ClusterGCN, {"diag_lambda": 0.5, "linear": True, "jk": True}),
    (SGC, {}),
    (SGC, {"num_layers": 1}),
    (SIGN, {}),
    (SIGN, {"num_layers": 1}),
]


def named(variant: Any) -> str:
    """Name a variant in the list of tests."""
    return variant.__name__ if isinstance(variant, type) else "-".join(variant) or "plain"


def make(kind: type[nn.Module], data: Data, **options: Any) -> nn.Module:
    """Return a model in float64 whose weights come from one seed."""
    torch.manual_seed(5)
    if kind is SGC:
        return SGC(data.num_features, out_channels=3, **options).double()
    if kind is PNA:
        options.setdefault("deg", degree_histogram(data.edge_index, data.num_nodes))
    return kind(data.num_features, 6, out_channels=3, **options).double()


def dropping(kind: type[nn.Module], **options: float) -> dict[str, float]:
    """Return the dropout of a model, nothing where it takes none."""
    return {} if kind is SGC else options


def output(kind: type[nn.Module] = GCN, **options: Any) -> Tensor:
    """Return the output of a model in training mode, with dropout from one seed."""
    data = communities(20)
    model = make(kind, data, **options)
    torch.manual_seed(6)
    return model(data.x, data.edge_index)


def graph_for(kind: type[nn.Module], data: Data) -> Data:
    """Return the graph, without edge weights where a model does not use them."""
    if kind not in WEIGHTED:
        del data.edge_weight
    return data


# ---- whole graphs and batches


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=named)
def test_one_batch_of_everything_is_the_whole_graph(kind: type[nn.Module], options: dict[str, Any]) -> None:
    data = graph_for(kind, communities(40, weighted=True))
    model = make(kind, data, **dropping(kind, dropout=0.0), **options)
    top = TOP(model, data, ratio=1.0, batches="random")
    (batch,) = top
    out = top(batch)
    expected = model(data.x, data.edge_index, data.get("edge_weight"))[batch.n_id]
    assert float((out - expected).detach().abs().max()) < 1e-10
    names, parameters = zip(*model.named_parameters(), strict=True)
    weights = torch.randn_like(out)
    for name, one, other in zip(
        names, *(torch.autograd.grad((part * weights).sum(), parameters) for part in (out, expected)), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-10), name


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=named)
@pytest.mark.parametrize("graph", [corners, lambda: communities(40, weighted=True)], ids=["corners", "communities"])
def test_exact_inference_is_the_plain_forward(
    kind: type[nn.Module], options: dict[str, Any], graph: Callable[[], Data]
) -> None:
    data = graph_for(kind, graph())
    model = make(kind, data, **dropping(kind, dropout=0.5, input_dropout=0.5), **options)
    if options.get("norm") == "batch":  # running statistics other than those it starts with
        model(data.x, data.edge_index)
    model.eval()
    expected = model(data.x, data.edge_index, data.get("edge_weight"))
    out = predict(model, data, ratio=0.3, batches="random")
    assert float((out - expected).detach().abs().max()) < 1e-10


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=named)
def test_gradients_reach_all_parameters(kind: type[nn.Module], options: dict[str, Any]) -> None:
    data = communities(40)
    model = make(kind, data, **options)
    model(data.x, data.edge_index).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name  # noqa: PT018


@pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=named)
def test_all_parameters_are_drawn_anew(kind: type[nn.Module], options: dict[str, Any]) -> None:
    model = make(kind, communities(20), **options)
    for parameter in model.parameters():
        parameter.data.fill_(7.0)
    model.reset_parameters()
    assert not any((parameter == 7).any() for parameter in model.parameters())


# ---- options


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "option",
    [
        {"num_layers": 2},
        {"dropout": 0.6},
        {"input_dropout": 0.3},
        {"norm": "layer"},
        {"norm": "batch"},
        {"residual": True},
        {"jk": True},
        {"linear": True},
        {"edge_dropout": 0.5},
    ],
    ids=str,
)
def test_every_common_option_changes_the_output(kind: type[nn.Module], option: dict[str, Any]) -> None:
    refused = REFUSED.get(kind, set())
    if refused & option.keys():
        with pytest.raises(TypeError, match=next(iter(option))):
            make(kind, communities(20), **option)
        return
    usual = {} if "norm" in refused else {"norm": "none", "residual": False}
    if kind is SGC:  # two layers are its default
        usual = {"num_layers": 3}
    assert not torch.allclose(output(kind, **usual), output(kind, **(usual | option)))


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (GCNII, {"alpha": 0.3}),
        (GCNII, {"theta": 0.9}),
        (GCNII, {"shared_weights": False}),
        (GAT, {"heads": 2}),
        (GAT, {"out_heads": 2}),
        (ClusterGCN, {"diag_lambda": 0.3}),
        (PNA, {"aggregators": ["mean", "std"]}),
        (PNA, {"scalers": ["identity", "attenuation"]}),
        (PNA, {"deg": torch.tensor([0, 1, 5, 9])}),
        (GCN, {"norm": False}),
        (GCN, {"residual": False}),
    ],
    ids=named,
)
def test_every_option_of_one_model_changes_the_output(kind: type[nn.Module], option: dict[str, Any]) -> None:
    assert not torch.allclose(output(kind), output(kind, **option))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_options_give_the_same_output(kind: type[nn.Module]) -> None:
    assert torch.equal(output(kind), output(kind))


def test_norms_by_truth_are_layer_norms() -> None:
    assert torch.equal(output(norm=True), output(norm="layer"))
    assert torch.equal(output(norm=False), output(norm="none"))
    assert all(isinstance(norm, nn.LayerNorm) for norm in GCN(4, 8, out_channels=3).norms)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not SGC])
def test_dropout_acts_in_training_only(kind: type[nn.Module]) -> None:
    data = communities(20)
    model = make(kind, data, dropout=0.5)
    assert not torch.equal(model(data.x, data.edge_index), model(data.x, data.edge_index))
    model.eval()
    assert torch.equal(model(data.x, data.edge_index), model(data.x, data.edge_index))


@pytest.mark.parametrize("kind", [GCN, GraphSAGE])
def test_edges_are_dropped_in_training_only(kind: type[nn.Module]) -> None:
    data = graph_for(kind, communities(40, weighted=True))
    model, seen = make(kind, data, dropout=0.0, edge_dropout=0.8), []
    model.convs[0].register_forward_pre_hook(lambda conv, args: seen.append(args[1:]))
    edges = set(map(tuple, data.edge_index.t().tolist()))
    weights = () if kind is GraphSAGE else (data.edge_weight,)
    for _ in range(50):
        model(data.x, data.edge_index, *weights)
    kept = [edge_index.size(1) / data.edge_index.size(1) for edge_index, *_ in seen]
    assert abs(sum(kept) / len(kept) - 0.2) < 0.05
    assert all(set(map(tuple, edge_index.t().tolist())) < edges for edge_index, *_ in seen)
    assert all(len(weight) == edge_index.size(1) for edge_index, *given in seen for weight in given)
    model.eval()
    assert torch.equal(model(data.x, data.edge_index, *weights), model(data.x, data.edge_index, *weights))


@pytest.mark.parametrize("kind", [GCN, GCNII, GraphSAGE])
def test_batches_of_a_model_that_drops_edges_compute_it_around_them(kind: type[nn.Module]) -> None:
    data = communities(40)
    model = make(kind, data, dropout=0.0, edge_dropout=0.5)
    top = TOP(model, data, ratio=0.25, rank=6, batches="random")
    outputs = [top(batch) for batch in top]
    assert all(bool(torch.isfinite(out).all()) and out.requires_grad for out in outputs)
    model.eval()
    expected = model(data.x, data.edge_index)
    assert torch.allclose(predict(model, data, ratio=0.25, batches="random"), expected, atol=1e-10)


@pytest.mark.parametrize("kind", WEIGHTED)
def test_edge_weights_are_used(kind: type[nn.Module]) -> None:
    data = corners()
    model = make(kind, data).eval()
    assert not torch.allclose(model(data.x, data.edge_index), model(data.x, data.edge_index, data.edge_weight))


@pytest.mark.parametrize("kind", [GraphSAGE, GAT, PNA, ClusterGCN])
def test_edge_weights_that_are_not_used_warn(kind: type[nn.Module]) -> None:
    data = corners()
    model = make(kind, data).eval()
    with pytest.warns(UserWarning, match=f"{kind.__name__} does not use edge weights"):
        out = model(data.x, data.edge_index, data.edge_weight)
    assert torch.equal(out, model(data.x, data.edge_index))


# ---- what the models compute


@pytest.mark.parametrize("kind", [GCN, GraphSAGE, PNA, LinearGNN, ClusterGCN])
def test_one_layer_is_a_conv(kind: type[nn.Module]) -> None:
    data = corners()
    model = make(kind, data, num_layers=1)
    assert torch.equal(model(data.x, data.edge_index), model.convs[0](data.x, data.edge_index))
    assert model.convs[0].out_channels == 3


def test_the_residual_is_added_where_shapes_match() -> None:
    data, model = communities(20), GCN(5, 5, out_channels=3, num_layers=2, norm=False, dropout=0.0).double()
    hidden = (model.convs[0](data.x, data.edge_index) + data.x).relu()
    assert torch.allclose(model(data.x, data.edge_index), model.convs[1](hidden, data.edge_index))


@pytest.mark.parametrize("shared_weights", [True, False])
def test_gcnii_is_its_formula(shared_weights: bool) -> None:  # noqa: FBT001
    data, alpha, theta = communities(20), 0.2, 0.6
    model = make(GCNII, data, num_layers=3, alpha=alpha, theta=theta, shared_weights=shared_weights, dropout=0.0)
    matrix, eye = normalized(data), torch.eye(6, dtype=torch.float64)
    h = root = model.first(data.x).relu()
    for layer, conv in enumerate(model.convs, start=1):
        beta = math.log(theta / layer + 1)
        own = (1 - beta) * eye + beta * conv.weight1
        other = own if shared_weights else (1 - beta) * eye + beta * conv.weight2
        h = ((1 - alpha) * matrix @ h @ own + alpha * root @ other).relu()
    assert torch.allclose(model(data.x, data.edge_index), model.last(h), atol=1e-12)


def test_gcnii_reads_the_first_embedding_before_dropout() -> None:
    data = communities(20)
    model, seen = make(GCNII, data, dropout=0.5), []
    model.convs[0].register_forward_pre_hook(lambda conv, args: seen.extend(args[:2]))
    model(data.x, data.edge_index)
    assert torch.equal(seen[1], model.first(data.x).relu())
    assert torch.equal(seen[0], torch.where(seen[0] == 0, 0, 2 * seen[1]))
    assert not torch.equal(seen[0], 2 * seen[1])


@pytest.mark.parametrize("kind", [GCN, GCNII])
def test_jumping_knowledge_is_the_papers_formula(kind: type[nn.Module]) -> None:
    data = communities(20)
    model = make(kind, data, jk=True, num_layers=3, norm="none", residual=False, dropout=0.0)
    x = data.x if model.first is None else model.first(data.x).relu()
    states = [x]
    for conv in model.convs:
        h = conv(states[-1], x, data.edge_index) if kind is GCNII else conv(states[-1], data.edge_index)
        states.append(h.relu())
    mean = torch.stack([jump(h).relu() for jump, h in zip(model.jumps, states, strict=True)]).mean(0)
    expected = model.last(model.mix(mean).relu())
    assert torch.allclose(model(data.x, data.edge_index), expected, atol=1e-12)


def test_linear_layers_stand_before_and_after() -> None:
    data = communities(20)
    model = make(GCN, data, linear=True, num_layers=2, norm="none", dropout=0.0)
    x = model.first(data.x).relu()
    for conv in model.convs:
        x = (conv(x, data.edge_index) + x).relu()
    assert torch.allclose(model(data.x, data.edge_index), model.last(x), atol=1e-12)


def test_sage_averages_neighbors() -> None:
    data = communities(20)
    model = make(GraphSAGE, data, num_layers=1)
    matrix = to_dense_adj(data.edge_index, max_num_nodes=20)[0].double()
    mean = matrix.t() @ data.x / matrix.sum(0).clamp(min=1).view(-1, 1)
    conv = model.convs[0]
    assert torch.allclose(model(data.x, data.edge_index), conv.lin_l(mean) + conv.lin_r(data.x), atol=1e-12)


def test_gat_averages_its_output_heads() -> None:
    data = communities(20)
    model = make(GAT, data, num_layers=2, heads=2, out_heads=3, norm="none", dropout=0.0)
    assert [conv.heads for conv in model.convs] == [2, 3]
    hidden = nn.functional.elu(model.convs[0](data.x, data.edge_index))
    assert hidden.shape == (20, 12)
    conv = model.convs[1]
    out, conv.bias, conv.concat = model(data.x, data.edge_index), None, True
    heads = conv(hidden, data.edge_index).view(20, 3, 3)
    assert torch.allclose(out, heads.mean(1), atol=1e-12)


def test_gat_drops_attention_too() -> None:
    assert {conv.dropout for conv in make(GAT, communities(20), dropout=0.6).convs} == {0.6}


def test_pna_aggregates_and_scales() -> None:
    data = communities(20)
    model = make(PNA, data, num_layers=1, aggregators=["mean"], scalers=["identity", "amplification"])
    conv, (source, target) = model.convs[0], data.edge_index
    messages = conv.pre_nns[0](torch.cat([data.x[target], data.x[source]], dim=1))
    mean = torch.zeros(20, 5, dtype=torch.float64).index_add(0, target, messages)
    degrees = torch.bincount(target, minlength=20).double().view(-1, 1)
    mean = mean / degrees.clamp(min=1)
    scaled = mean * (degrees + 1).log() / (degrees + 1).log().mean()
    expected = conv.lin(conv.post_nns[0](torch.cat([data.x, mean, scaled], dim=1)))
    assert torch.allclose(model(data.x, data.edge_index), expected, atol=1e-6)  # PyG's mean of logarithms is float32


def test_linear_models_are_linear() -> None:
    data = communities(20)
    model, other = make(LinearGNN, data), torch.randn_like(data.x)
    zero = model(torch.zeros_like(data.x), data.edge_index)
    one, two, both = (model(x, data.edge_index) - zero for x in (data.x, other, data.x + 2 * other))
    assert torch.allclose(both, one + 2 * two, atol=1e-12)


def test_cluster_gcn_enhances_the_diagonal() -> None:
    data = communities(20)
    model = make(ClusterGCN, data, num_layers=1, diag_lambda=0.7)
    matrix = to_dense_adj(data.edge_index, max_num_nodes=20)[0].double() + torch.eye(20)
    matrix = matrix / matrix.sum(1, keepdim=True)
    matrix, conv = matrix + 0.7 * matrix.diag().diag(), model.convs[0]
    expected = conv.lin_out(matrix @ data.x) + conv.lin_root(data.x)
    assert torch.allclose(model(data.x, data.edge_index), expected, atol=1e-6)  # PyG's degrees are float32
    assert {conv.diag_lambda for conv in make(ClusterGCN, data).convs} == {1.0}


def test_degrees_are_counted_at_the_receiver() -> None:
    assert degree_histogram(torch.tensor([[0, 1, 2, 3], [1, 0, 0, 0]]), 5).tolist() == [3, 1, 0, 1]


# ---- refusals and looks


@pytest.mark.parametrize(
    ("kind", "option", "message"),
    [
        (GCN, {"num_layers": 0}, r"num_layers to be at least 1 \(got 0\)"),
        (SGC, {"num_layers": 0}, r"num_layers to be at least 1 \(got 0\)"),
        (SIGN, {"num_layers": 0}, r"num_layers to be at least 1 \(got 0\)"),
        (GAT, {"heads": 0}, r"heads to be at least 1 \(got 0\)"),
        (GAT, {"out_heads": -1}, r"out_heads to be at least 1 \(got -1\)"),
        (GCN, {"norm": "graph"}, r"norm to be one of none, layer, batch \(got 'graph'\)"),
        (PNA, {"aggregators": ["median"]}, r"aggregators to be a list of sum, mean, .* \(got \['median'\]\)"),
        (PNA, {"aggregators": "mean"}, r"aggregators to be a list of sum, mean, .* \(got 'mean'\)"),
        (PNA, {"scalers": []}, r"scalers to be a list of identity, .* \(got \[\]\)"),
        (PNA, {"deg": torch.tensor([5])}, r"deg to be the histogram of in-degrees of a graph with edges \(got \[5\]\)"),
    ],
    ids=str,
)
def test_impossible_options_are_refused(kind: type[nn.Module], option: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Expected {message}"):
        make(kind, communities(20), **option)


def test_the_base_is_no_model() -> None:
    with pytest.raises(NotImplementedError, match="Expected Network to define _conv"):
        Network(4, 8, out_channels=3)


@pytest.mark.parametrize("kind", KINDS)
def test_repr_names_the_widths(kind: type[nn.Module]) -> None:
    widths = "5, 3" if kind is SGC else "5, 6, 3"
    assert repr(make(kind, communities(20), num_layers=3)) == f"{kind.__name__}({widths}, num_layers=3)"
