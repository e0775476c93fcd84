"""Norms over all nodes from sums: PyG's own numbers, wherever the rows are, and what is refused."""

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn

from graphs import communities
from topoff.forward.convs import ALL_NODES, describe
from topoff.forward.exact import exact
from topoff.forward.intercept import ConvCall
from topoff.forward.norms import Moments, apply_to_own, check_one_graph, is_over_all, normalized, sums_of
from topoff.forward.subgraph import Subgraph, cut_batch, whole_graph
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph

WIDTH = 6
NORMS = {
    "GraphNorm": lambda: gnn.GraphNorm(WIDTH),
    "PairNorm": lambda: gnn.PairNorm(),
    "PairNorm, scaled": lambda: gnn.PairNorm(scale=2.5),
    "PairNorm, row by row": lambda: gnn.PairNorm(scale_individually=True),
    "InstanceNorm": lambda: gnn.InstanceNorm(WIDTH),
    "InstanceNorm, affine": lambda: gnn.InstanceNorm(WIDTH, affine=True),
    "MeanSubtractionNorm": lambda: gnn.MeanSubtractionNorm(),
    "GraphSizeNorm": lambda: gnn.GraphSizeNorm(),
    "LayerNorm": lambda: gnn.LayerNorm(WIDTH),
    "LayerNorm, not affine": lambda: gnn.LayerNorm(WIDTH, affine=False),
    "BatchNorm1d, no statistics": lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False),
}


def made(name: str) -> nn.Module:
    """Return a norm in float64 whose weights are nothing special."""
    norm = NORMS[name]().double()
    for parameter in norm.parameters():
        nn.init.uniform_(parameter, 0.5, 2.0)
    return norm.eval()


def rows(count: int = 40) -> Tensor:
    return 2 * torch.randn(count, WIDTH, dtype=torch.float64) + torch.arange(WIDTH)


def test_every_norm_over_all_nodes_is_tried() -> None:
    assert {name.split(",")[0] for name in NORMS} == {*ALL_NODES, "LayerNorm", "BatchNorm1d"}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("count", [2, 40])
def test_from_the_moments_of_all_rows_it_is_pygs_own(name: str, count: int) -> None:
    norm, x = made(name), rows(count)
    assert torch.allclose(normalized(norm, x, sums_of(x) / count, count), norm(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NORMS)
def test_moments_may_be_summed_over_batches(name: str) -> None:
    norm, x = made(name), rows()
    parts = x.split([1, 14, 25])
    moments = torch.stack([sums_of(part) for part in parts]).sum(0) / len(x)
    out = torch.cat([normalized(norm, part, moments, len(x)) for part in parts])
    assert torch.allclose(out, norm(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NORMS)
def test_gradients_are_pygs_own(name: str) -> None:
    norm, x = made(name), rows().requires_grad_()
    slope = torch.randn(40, WIDTH, dtype=torch.float64)
    inputs = (x, *norm.parameters())
    own = torch.autograd.grad((normalized(norm, x, sums_of(x) / 40, 40) * slope).sum(), inputs)
    expected = torch.autograd.grad((norm(x) * slope).sum(), inputs)
    for found, wanted in zip(own, expected, strict=True):
        assert torch.allclose(found, wanted, rtol=0, atol=1e-10)


def test_the_type_of_the_rows_is_kept_and_sums_are_in_float64() -> None:
    x = rows().float()
    assert sums_of(x).dtype == torch.float64
    assert normalized(gnn.PairNorm(), x, sums_of(x) / 40, 40).dtype == torch.float32


def test_a_column_that_is_constant_has_no_negative_variance() -> None:
    x = torch.full((40, WIDTH), 1e4 + 0.1, dtype=torch.float64)
    assert torch.isfinite(normalized(made("GraphNorm"), x, sums_of(x) / 40, 40)).all()


def test_running_statistics_need_no_other_nodes() -> None:
    assert is_over_all(gnn.InstanceNorm(WIDTH))
    assert not is_over_all(gnn.InstanceNorm(WIDTH, track_running_stats=True))
    assert is_over_all(gnn.GraphNorm(WIDTH))
    batch_norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)
    assert not is_over_all(batch_norm)  # in training, the batch's own
    assert is_over_all(batch_norm.eval())


@pytest.mark.parametrize("by_name", [False, True])
def test_a_norm_per_graph_of_several_is_refused(by_name: object) -> None:
    norm = describe(nn.Sequential(gnn.GCNConv(4, 4), gnn.GraphNorm(4)))[1]
    x, batch = torch.ones(3, 4), torch.zeros(3, dtype=torch.int64)
    check_one_graph(ConvCall(norm, norm.module.forward, (x, None), {}, x, 0), len(x))
    args, kwargs = ((x,), {"batch": batch}) if by_name else ((x, batch), {})
    with pytest.raises(ValueError, match=r"GraphNorm '1' to normalise over one graph \(got a 'batch' vector, too\)"):
        check_one_graph(ConvCall(norm, norm.module.forward, args, kwargs, x, 0), len(x))
    with pytest.raises(ValueError, match=r"rows of nodes \(got \d+ rows for \d+ nodes\): over edges"):
        check_one_graph(ConvCall(norm, norm.module.forward, (x, None), {}, x, 0), len(x) + 1)


# sums of batches


def test_moments_are_those_of_all_rows_and_keep_each_batchs_own() -> None:
    x, parts = rows(), torch.randperm(40).split([10, 30])
    moments = Moments.of([sums_of(x[part]) for part in parts], parts, 40)
    assert torch.allclose(moments.means, sums_of(x) / 40)
    now = x.clone()
    now[parts[0]] += 1
    assert torch.allclose(moments.updated(sums_of(now[parts[0]]), parts[0], 40), sums_of(now) / 40)


def test_a_batch_that_was_grouped_anew_is_added_to_the_mean_of_the_others() -> None:
    x, parts = rows(), torch.arange(40).split([10, 30])
    moments = Moments.of([sums_of(x[part]) for part in parts], parts, 40)
    fresh = torch.arange(5, 25)
    expected = (sums_of(x[fresh]) + 20 * moments.means) / 40
    assert torch.allclose(moments.updated(sums_of(x[fresh]), fresh, 40), expected)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shape", [(9, WIDTH), (9, WIDTH, 4)], ids=["rows", "several per row"])
def test_a_norm_that_learns_from_rows_learns_from_the_batchs_own(shape: tuple[int, ...], affine: object) -> None:
    norm, x = nn.BatchNorm1d(WIDTH, affine=bool(affine)).double(), torch.randn(shape, dtype=torch.float64)
    twin = nn.BatchNorm1d(WIDTH, affine=bool(affine), momentum=1.0).double()
    out, expected = apply_to_own(norm, norm.forward, x, 6), twin(x[:6])
    assert torch.allclose(out[:6], expected)
    assert torch.allclose(norm.running_mean, 0.1 * twin.running_mean)
    count = x[:6].numel() // WIDTH
    twin.running_var *= (count - 1) / count  # batch norm learns the unbiased one, and uses the other
    assert torch.allclose(out[6:], twin.eval()(x[6:]))  # the rest, by the same


def test_a_norm_that_does_not_learn_sees_all_rows() -> None:
    norm, x = nn.BatchNorm1d(WIDTH).double(), rows()
    assert torch.equal(apply_to_own(norm.eval(), norm.forward, x, 6), norm(x))


# in training: the others keep the means of the last exact pass


class Normed(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = gnn.GCNConv(5, WIDTH), norm

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.conv(x, edge_index))


@pytest.mark.parametrize("name", NORMS)
def test_with_the_moments_of_the_others_a_batch_is_exact(name: str) -> None:
    data, model, nodes = communities(24), Normed(made(name)).double(), torch.arange(10)
    graph, h = Graph(data), model.conv(data.x, data.edge_index)
    plan = make_plan(model, graph)
    rest = torch.arange(10, 24)
    sums = [torch.zeros(2, WIDTH).double(), sums_of(h[rest])]  # of the batch itself, what it has now counts
    plan.moments["norm/0/0"] = Moments.of(sums, [nodes, rest], 24)
    batch = cut_batch(graph, plan, nodes)
    with Subgraph(plan.convs).on(batch):
        out = model(batch.x, batch.edge_index)
    assert torch.allclose(out, model(data.x, data.edge_index)[nodes], atol=1e-10)


def test_before_the_first_exact_pass_a_batch_stands_for_all() -> None:
    data, model, nodes = communities(24), Normed(gnn.MeanSubtractionNorm()).double(), torch.arange(10)
    graph = Graph(data)
    plan = make_plan(model, graph)
    batch = cut_batch(graph, plan, nodes)
    with Subgraph(plan.convs).on(batch):
        out = model(batch.x, batch.edge_index)
    assert plan.moments == {}
    assert out.mean(0).abs().max() < 1e-12


@pytest.mark.parametrize("name", NORMS)
def test_the_whole_graph_and_its_exact_batches_are_the_plain_forward(name: str) -> None:
    data, model = communities(24), Normed(made(name)).double().eval()
    graph = Graph(data)
    plan, expected = make_plan(model, graph), model(data.x, data.edge_index)
    batch = whole_graph(graph, plan)
    with Subgraph(plan.convs).on(batch):
        assert torch.allclose(model(batch.x, batch.edge_index), expected, atol=1e-12)
    batches = [graph.induced(nodes) for nodes in torch.arange(24).split([3, 11, 10])]
    assert torch.allclose(exact(model, graph, batches, plan=plan), expected, atol=1e-12)
