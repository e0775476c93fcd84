"""An unmodified model on a batch with its supplement: linear path, general path, features whose halo is known."""

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.utils import dropout_edge

from graphs import communities, corner_sets, corners
from topoff.compensation.compensated import Compensated, compensating
from topoff.compensation.embeddings import embed
from topoff.compensation.estimator import Compensation, Compensator
from topoff.compensation.top import TOP
from topoff.forward.convs import Conv, describe
from topoff.forward.structure import structure_of
from topoff.forward.subgraph import Supplement, cut_batch
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator

GCN = Operator(norm="gcn", self_loops=True)


def batch_of(model: nn.Module, data: Data, nodes: Tensor, *, rank: int | None = 20) -> Data:
    """Return a batch with its supplement; the basis holds the model's own embeddings, so that it spans."""
    graph = Graph(data)
    plan = make_plan(model, graph)
    structure, compensation = structure_of(graph, plan, nodes), None
    if rank is not None:
        blocks: list[Tensor] = []
        whole = [graph.induced(torch.arange(graph.num_nodes))]
        embed(model, graph, whole, plan=plan, collect=lambda place, rows: blocks.append(rows))
        compensation = Compensator(rank, ridge=0).fit(graph, plan, blocks=blocks).of(structure)
    batch = graph.induced(nodes)
    batch.supplement, batch.compensation = Supplement(plan, structure), compensation
    return batch


class Dropping(nn.Module):
    """Drop out the input features, then one conv."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(F.dropout(x, 0.5, self.training), edge_index)


class DropEdge(nn.Module):
    """Drop out edges in training."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, dropout_edge(edge_index, p=0.5, training=self.training)[0])


# compensate: one line of mathematics


def dense_parts(
    *, every_row: bool = False, anchors: Tensor | None = None
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Return `aggregate` on a batch with random factors, and the same product with dense matrices."""
    data = communities(30) if every_row else Data(x=corners().x, edge_index=corners().edge_index)
    nodes = torch.arange(0, 30, 3) if every_row else torch.tensor([0, 1, 2, 3])
    graph, model = Graph(data), gnn.GCNConv(data.num_features, 4).double()
    plan = make_plan(model, graph)
    structure = structure_of(graph, plan, nodes)
    spot = structure.spots[GCN]
    assert (spot.boundary.numel() == len(nodes)) == every_row
    read = torch.randn(2, len(nodes) if anchors is None else len(anchors), dtype=torch.float64)
    spread = torch.randn(spot.boundary.numel(), 2, dtype=torch.float64)
    compensation = Compensation(read, anchors, {GCN: spread}, {}, 2, 1.0)
    inside = torch.from_numpy(graph.aggregation(GCN).matrix.toarray())[nodes][:, nodes]

    def dense(h: Tensor) -> Tensor:
        extra = torch.zeros(len(nodes), h.size(1), dtype=h.dtype)
        extra[spot.boundary] = spread @ (read @ (h if anchors is None else h[anchors]))
        return inside @ h + extra

    handler, batch = Compensated(plan.convs), graph.induced(nodes)
    batch.supplement, batch.compensation = Supplement(plan, structure), compensation
    handler.batch = batch
    return lambda h: handler.aggregate("conv/0/0", GCN, h), dense


@pytest.mark.parametrize("anchors", [None, torch.tensor([1, 3])], ids=["all", "anchors"])
@pytest.mark.parametrize("every_row", [False, True], ids=["some rows", "every row"])
def test_compensate_is_the_dense_product_and_so_is_its_gradient(every_row: bool, anchors: Tensor | None) -> None:  # noqa: FBT001
    fast, dense = dense_parts(every_row=every_row, anchors=anchors)
    h = torch.randn(10 if every_row else 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(fast(h), dense(h), atol=1e-12)
    assert torch.autograd.gradcheck(fast, h)


@pytest.mark.parametrize("anchors", [None, torch.tensor([1, 3])], ids=["all", "anchors"])
@pytest.mark.parametrize("every_row", [False, True], ids=["some rows", "every row"])
def test_compensate_takes_trailing_dimensions_as_columns(every_row: bool, anchors: Tensor | None) -> None:  # noqa: FBT001
    fast, dense = dense_parts(every_row=every_row, anchors=anchors)
    h = torch.randn(10 if every_row else 4, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(fast(h), dense(h.flatten(1)).view(h.shape), atol=1e-12)
    assert torch.autograd.gradcheck(fast, h)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float32])
def test_compensate_keeps_its_own_digits_in_mixed_precision(half: torch.dtype) -> None:
    fast, _ = dense_parts()
    h = torch.randn(4, 3).to(half).requires_grad_()
    exact = h.detach().double().requires_grad_()
    with torch.autocast("cpu"):
        out, truth = fast(h), fast(exact)
        assert out.dtype == torch.float64, "that of the weights of the messages, as in PyG"
        assert torch.equal(out, truth)
        out.sum().backward()
        truth.sum().backward()
    assert torch.equal(h.grad, exact.grad.to(half))


@pytest.mark.parametrize("nodes", [torch.tensor([9, 10, 11]), torch.tensor([8])], ids=["component", "isolated"])
def test_an_empty_halo_adds_nothing(nodes: Tensor) -> None:
    data, model = corners(), gnn.GCN(4, 6, num_layers=2, out_channels=3).double()
    batch = batch_of(model, data, nodes, rank=3 if len(nodes) == 3 else 1)
    with compensating(model, batch):
        out = model(batch.x, batch.edge_index, batch.edge_weight)
    assert torch.allclose(out, model(data.x, data.edge_index, data.edge_weight)[nodes], atol=1e-10)


# a model on a batch


MODELS = {
    "GCN": lambda: gnn.GCN(5, 6, num_layers=3, out_channels=3),
    "GraphSAGE": lambda: gnn.GraphSAGE(5, 6, num_layers=2, out_channels=3),
    "GIN": lambda: gnn.GIN(5, 6, num_layers=2, out_channels=3),
    "GAT": lambda: gnn.GAT(5, 6, num_layers=2, out_channels=3, heads=2),
    "GAT of several heads, averaged": lambda: gnn.GATConv(5, 6, heads=2, concat=False),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_basis_that_spans_gives_the_output_of_the_whole_graph(name: str) -> None:
    data, nodes = communities(40), torch.arange(0, 40, 4).repeat_interleave(3) + torch.arange(3).repeat(10)
    model = MODELS[name]().double().eval()
    batch = batch_of(model, data, nodes)
    with compensating(model, batch):
        out = model(batch.x, batch.edge_index)
    assert torch.allclose(out, model(data.x, data.edge_index)[nodes], atol=1e-8)


@pytest.mark.parametrize("kind", [gnn.GCN, gnn.GAT], ids=["linear", "general"])
def test_without_a_compensation_the_halo_is_left_out_but_for_the_features(kind: type[nn.Module]) -> None:
    data, nodes = communities(40), torch.arange(20)
    model = kind(5, 6, num_layers=2, out_channels=3).double().eval()
    batch = batch_of(model, data, nodes, rank=None)
    with compensating(model, batch):
        out = model(batch.x, batch.edge_index)
        first = model.convs[0](batch.x, batch.edge_index)
    assert torch.allclose(first, model.convs[0](data.x, data.edge_index)[nodes], atol=1e-12)
    assert not torch.allclose(out, model(data.x, data.edge_index)[nodes], atol=1e-3)
    if kind is gnn.GCN:
        A = torch.from_numpy(Graph(data).aggregation(GCN).matrix.toarray())[:20, :20]
        expected = model.convs[1].lin(A @ first.relu()) + model.convs[1].bias
        assert torch.allclose(out, expected, atol=1e-12)


def test_the_bare_model_is_as_before_after_the_block_and_after_an_error() -> None:
    data, model = communities(40), gnn.GCN(5, 6, num_layers=2).double()
    batch, before = batch_of(model, data, torch.arange(20)), [dict(vars(conv)) for conv in model.convs]
    with compensating(model, batch):
        model(batch.x, batch.edge_index)
    with pytest.raises(ArithmeticError, match="no"), compensating(model, batch):
        raise ArithmeticError("no")
    assert [dict(vars(conv)) for conv in model.convs] == before


def test_every_corner_of_the_graph_runs_forward_and_backward() -> None:
    data, model = corners(), gnn.GCN(4, 6, num_layers=2, out_channels=3).double()
    for nodes in corner_sets():
        batch = batch_of(model, data, nodes, rank=1)
        with compensating(model, batch):
            model(batch.x, batch.edge_index, batch.edge_weight).sum().backward()
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters())


@pytest.mark.parametrize("path", ["linear", "general"])
def test_collect_is_told_what_each_conv_reads(path: str) -> None:
    data, nodes = communities(40), torch.arange(20)
    model = (gnn.GCN if path == "linear" else gnn.GAT)(5, 6, num_layers=3, out_channels=3).double().eval()
    batch, seen = batch_of(model, data, nodes), []
    compensated = Compensated(describe(model))

    def collect(conv: Conv, hop: int, rows: Tensor) -> None:
        seen.append((conv.name, hop, tuple(rows.shape)))

    compensated.collect = collect
    with compensated.on(batch):
        model(batch.x, batch.edge_index)
    assert seen == [("convs.1", 0, (20, 6)), ("convs.2", 0, (20, 6))]


# dropped-out features: the halo's part is known


ONE_HOP = {
    "GCNConv": lambda: gnn.GCNConv(5, 3),
    "GCNConv without bias": lambda: gnn.GCNConv(5, 3, bias=False),
    "SAGEConv": lambda: gnn.SAGEConv(5, 3),
    "GraphConv": lambda: gnn.GraphConv(5, 3),
    "GINConv": lambda: gnn.GINConv(nn.Linear(5, 3)),
    "ClusterGCNConv": lambda: gnn.ClusterGCNConv(5, 3),
    "GATConv": lambda: gnn.GATConv(5, 3),
    "SAGEConv max": lambda: gnn.SAGEConv(5, 3, aggr="max"),
}


@pytest.mark.parametrize("name", ONE_HOP)
def test_input_dropout_acts_on_the_batch_while_the_halo_stays_known(name: str) -> None:
    data, nodes = communities(24), torch.arange(10)
    model = Dropping(ONE_HOP[name]()).double()
    batch = batch_of(model, data, nodes, rank=None)
    torch.manual_seed(1)
    with compensating(model, batch):
        out = model(batch.x, batch.edge_index)
    torch.manual_seed(1)
    dropped = torch.cat([F.dropout(batch.x, 0.5), data.x[10:]])
    assert not torch.equal(dropped, data.x)
    assert torch.allclose(out, model.conv(dropped, data.edge_index)[:10], atol=1e-12)


def test_input_dropout_before_several_hops_takes_the_known_halo_of_each() -> None:
    data, nodes = communities(24), torch.arange(10)
    model = Dropping(gnn.SGConv(5, 3, K=2)).double()
    batch = batch_of(model, data, nodes, rank=None)
    torch.manual_seed(1)
    with compensating(model, batch):
        out = model(batch.x, batch.edge_index)
    A = torch.from_numpy(Graph(data).aggregation(GCN).matrix.toarray())
    torch.manual_seed(1)
    once = A[:10, :10] @ F.dropout(batch.x, 0.5) + A[:10, 10:] @ data.x[10:]
    twice = A[:10, :10] @ once + A[:10, 10:] @ (A @ data.x)[10:]
    assert torch.allclose(out, model.conv.lin(twice), atol=1e-12)


def test_gradients_flow_through_dropped_out_features() -> None:
    data, model = communities(24), Dropping(gnn.GCNConv(5, 3)).double()
    batch = batch_of(model, data, torch.arange(10), rank=None)
    with compensating(model, batch):
        model(batch.x, batch.edge_index).square().sum().backward()
    assert float(model.conv.lin.weight.grad.abs().sum()) > 0


# what would be silently wrong


@pytest.mark.parametrize("conv", [gnn.GCNConv(5, 3), gnn.GATConv(5, 3)], ids=["linear", "general"])
def test_dropped_out_edges_are_those_of_the_neighbourhood(conv: nn.Module) -> None:
    model = DropEdge(conv).double()
    graph = Graph(communities(24))
    batch = cut_batch(graph, make_plan(model, graph), torch.arange(0, 24, 2))
    with compensating(model, batch) as seen:
        out = model(seen.x, seen.edge_index)
    assert len(out) == seen.num_nodes > batch.num_nodes
    with compensating(model, batch), pytest.raises(ValueError, match=r"compensating\(model, batch\) as seen"):
        model(batch.x, batch.edge_index)


class InPlace(nn.Module):
    """Write into what `propagate` returned, as GCN2Conv does by itself."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if isinstance(self.conv, gnn.GCN2Conv):
            return self.conv(x, x, edge_index)
        return self.conv(x, edge_index).mul_(0.5)


@pytest.mark.parametrize("conv", [gnn.GCN2Conv(5, 0.3), gnn.LGConv()], ids=["GCN2Conv", "LGConv"])
def test_a_conv_may_write_into_its_messages(conv: nn.Module) -> None:
    data, model = communities(24), InPlace(conv).double().eval()
    batch = batch_of(model, data, torch.arange(10), rank=None)
    with torch.no_grad(), compensating(model, batch):
        outputs = [model(batch.x, batch.edge_index) for _ in range(2)]
    assert torch.equal(outputs[0], outputs[1])
    assert torch.allclose(outputs[1], model(data.x, data.edge_index)[:10])


class Attending(gnn.MessagePassing):
    """Messages of two arguments; the second is an embedding."""

    def forward(self, x: Tensor, h: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, h=h)

    def message(self, x_j: Tensor, h_j: Tensor) -> Tensor:
        return x_j * h_j


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.conv = nn.Linear(5, 5), Attending()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, self.lin(x), edge_index)


def test_only_the_features_of_a_general_conv_bring_the_halos_features() -> None:
    data, model = communities(24), TwoInputs().double().eval()
    graph, nodes = Graph(data), torch.arange(18)
    plan = make_plan(model, graph)
    structure = structure_of(graph, plan, nodes)
    rows = [model.lin(data.x).detach()]
    batch = graph.induced(nodes)
    batch.supplement = Supplement(plan, structure)
    batch.compensation = Compensator(20, ridge=0).fit(graph, plan, blocks=rows).of(structure)
    with compensating(model, batch):
        out = model(batch.x, batch.edge_index)
    assert torch.allclose(out, model(data.x, data.edge_index)[nodes], atol=1e-8)


# the supplement


def test_supplement_and_compensation_move_with_their_batch() -> None:
    model = gnn.GCN(5, 6, num_layers=2).double()
    batch = batch_of(model, communities(40), torch.arange(20), rank=2).to("meta")
    assert batch.x.device.type == "meta"
    assert batch.supplement.structure.nodes.device.type == "meta"
    assert batch.compensation.read.device.type == "meta"
    assert "compensation" not in batch_of(model, communities(40), torch.arange(20), rank=None).to("meta")


class WeighsInTrainingOnly(nn.Module):
    """Give its conv the edge weights in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(5, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_weight if self.training else None)


def test_edge_weights_that_only_training_uses_are_used_there() -> None:
    data = communities()
    data.edge_weight = torch.rand(data.edge_index.size(1), dtype=data.x.dtype)
    model = WeighsInTrainingOnly().double()
    top = TOP(model, data, ratio=1.0, rank=4, batches="random", tolerance=10.0)
    (batch,) = top
    truth = model(data.x, data.edge_index, data.edge_weight)[batch.n_id]
    assert torch.allclose(top(batch), truth)


def test_compensating_refuses_a_batch_from_elsewhere() -> None:
    data = communities()
    with pytest.raises(ValueError, match="got a Data without its supplement"), compensating(gnn.GCN(5, 4, 2), data):
        pass
