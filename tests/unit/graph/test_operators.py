"""The global operator: equal to what PyG's own layers do on the whole graph, and differentiable."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from graphs import communities, corner_sets, corners
from topoff.forward.convs import describe
from topoff.graph.aggregation import Aggregation, aggregation
from topoff.graph.operators import Operator, multiply_along, to_sparse

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}

WEIGHTED: dict[str, Callable[..., MessagePassing]] = {
    "GCNConv": lambda **kw: gnn.GCNConv(4, 3, **kw),
    "GCNConv improved": lambda **kw: gnn.GCNConv(4, 3, improved=True, **kw),
    "GCNConv without self-loops": lambda **kw: gnn.GCNConv(4, 3, add_self_loops=False, **kw),
    "GCNConv without normalisation": lambda **kw: gnn.GCNConv(4, 3, normalize=False, **kw),
    "GCNConv mean": lambda **kw: gnn.GCNConv(4, 3, aggr="mean", **kw),
    "GCN2Conv": lambda **kw: gnn.GCN2Conv(4, alpha=0.3, **kw),
    "SGConv": lambda **kw: gnn.SGConv(4, 3, K=2, **kw),
    "SSGConv": lambda **kw: gnn.SSGConv(4, 3, alpha=0.2, K=2, **kw),
    "MixHopConv": lambda **kw: gnn.MixHopConv(4, 3, **kw),
    "TAGConv": lambda **kw: gnn.TAGConv(4, 3, K=2, **kw),
    "TAGConv without normalisation": lambda **kw: gnn.TAGConv(4, 3, K=1, normalize=False, **kw),
    "LGConv": lambda **kw: gnn.LGConv(**kw),
    "APPNP": lambda **kw: gnn.APPNP(K=2, alpha=0.1, **kw),
    "APPNP without self-loops": lambda **kw: gnn.APPNP(K=2, alpha=0.1, add_self_loops=False, **kw),
    "SimpleConv sum": lambda **kw: gnn.SimpleConv(aggr="sum", **kw),
    "SimpleConv mean with self-loops": lambda **kw: gnn.SimpleConv(aggr="mean", combine_root="self_loop", **kw),
    "GraphConv add": lambda **kw: gnn.GraphConv(4, 3, **kw),
    "GraphConv mean": lambda **kw: gnn.GraphConv(4, 3, aggr="mean", **kw),
    "GatedGraphConv": lambda **kw: gnn.GatedGraphConv(4, num_layers=2, **kw),
}
UNWEIGHTED: dict[str, Callable[..., MessagePassing]] = {
    "SAGEConv mean": lambda **kw: gnn.SAGEConv(4, 3, **kw),
    "SAGEConv sum": lambda **kw: gnn.SAGEConv(4, 3, aggr="sum", **kw),
    "SAGEConv projected": lambda **kw: gnn.SAGEConv(4, 3, project=True, **kw),
    "GINConv": lambda **kw: gnn.GINConv(nn.Linear(4, 3), **kw),
    "ClusterGCNConv": lambda **kw: gnn.ClusterGCNConv(4, 3, **kw),
    "ClusterGCNConv lambda 1": lambda **kw: gnn.ClusterGCNConv(4, 3, diag_lambda=1.0, **kw),
}
CASES = [
    *((name, make, weight) for name, make in WEIGHTED.items() for weight in (None, "edge_weight")),
    *((name, make, None) for name, make in UNWEIGHTED.items()),
]
IDS = [f"{name}{', weighted' if weight else ''}" for name, _, weight in CASES]


def propagations(conv: MessagePassing, data: Data, weight: str | None) -> list[tuple[Tensor, Tensor]]:
    """Run PyG's own layer on the whole graph; return the operand and the result of every propagation inside it."""
    steps: list[tuple[Tensor, Tensor]] = []

    def note(_: Any, inputs: Any, out: Tensor) -> None:
        operand = inputs[-1]["x"]
        steps.append((operand[0] if isinstance(operand, tuple) else operand, out.clone()))  # GCN2Conv writes into it

    hook = conv.register_propagate_forward_hook(note)
    given: dict[str, Any] = {"x": data.x, "edge_index": data.edge_index}
    if weight:
        given["edge_weight"] = data[weight]
    if isinstance(conv, gnn.GCN2Conv):
        given["x_0"] = data.x
    with torch.no_grad():
        conv(**given)
    hook.remove()
    return steps


def operator_of(conv: MessagePassing, weight: str | None = None) -> Operator:
    return describe(conv)[0].operators[weight]


def dense(aggregated: Aggregation) -> Tensor:
    return torch.from_numpy(aggregated.matrix.toarray())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize(("name", "make", "weight"), CASES, ids=IDS)
def test_equals_what_the_layer_of_pyg_does_on_a_graph_with_all_corners(
    name: str, make: Callable[..., MessagePassing], weight: str | None, flow: str, dtype: torch.dtype
) -> None:
    data, conv = corners(dtype=dtype), make(flow=flow).to(dtype)
    steps = propagations(conv, data, weight)
    A = aggregation(data, operator_of(conv, weight)).all()
    assert steps
    for operand, expected in steps:
        out = A @ operand
        assert out.dtype == dtype
        assert (out - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max().clamp(min=1)


def test_cluster_operator_with_any_lambda_equals_pyg_which_rounds_its_weights_to_float32() -> None:
    data, conv = corners(), gnn.ClusterGCNConv(4, 3, diag_lambda=0.3).double()
    (operand, expected), *_ = propagations(conv, data, None)
    assert torch.allclose(aggregation(data, operator_of(conv)).all() @ operand, expected, rtol=0, atol=1e-6)


def test_undirected_graphs_give_a_symmetric_gcn_operator_that_stores_no_transpose() -> None:
    A = aggregation(communities(20), Operator(aggr="sum")).all()
    assert A.ids_t is A.ids
    assert A.values_t is A.values


def test_directed_graphs_store_the_transpose() -> None:
    A = aggregation(corners(), Operator()).all()
    assert A.ids_t is not A.ids


def test_duplicate_edges_add_up() -> None:
    A = dense(aggregation(corners(), Operator()))
    assert A[1, 0] == 2  # 0 -> 1 twice
    assert A[7, 3] == 3  # 3 -> 7 three times


def test_weights_are_those_of_the_named_attribute() -> None:
    data = Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]), edge_attr=torch.tensor([[3.0]]))
    assert dense(aggregation(data, Operator(weight="edge_attr"))).tolist() == [[0, 0], [3, 0]]


def test_target_to_source_is_the_transpose_of_the_sum() -> None:
    forward = dense(aggregation(corners(), Operator()))
    backward = dense(aggregation(corners(), Operator(flow="target_to_source")))
    assert torch.equal(backward, forward.T)


def test_a_graph_without_edges_sends_nothing() -> None:
    data = Data(x=torch.rand(3, 2), edge_index=torch.empty(2, 0, dtype=torch.int64))
    assert (aggregation(data, Operator()).all() @ data.x).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("nodes", corner_sets(), ids=lambda nodes: str(nodes.tolist()))
def test_rows_within_and_across_cut_one_matrix(nodes: Tensor) -> None:
    data = corners()
    A = aggregation(data, Operator(norm="gcn", self_loops=True, weight="edge_weight"))
    whole = dense(A)
    halo = torch.ones(14, dtype=torch.bool)
    halo[nodes] = False
    _, boundary, across = A.cut(nodes)
    outside = torch.zeros(len(nodes), 4, dtype=torch.float64)
    outside[boundary] = across @ data.x
    assert torch.allclose(A.rows(nodes) @ data.x, whole[nodes] @ data.x)
    assert torch.allclose(A.within(nodes) @ data.x[nodes], whole[nodes][:, nodes] @ data.x[nodes])
    assert torch.allclose(outside, whole[nodes][:, halo] @ data.x[halo])
    assert boundary.tolist() == (whole[nodes][:, halo] != 0).any(1).nonzero().view(-1).tolist()


def test_within_follows_the_order_of_the_nodes() -> None:
    A = aggregation(corners(), Operator())
    nodes = torch.tensor([3, 0, 2])
    assert torch.equal(A.within(nodes) @ torch.eye(3, dtype=torch.float64), dense(A)[nodes][:, nodes])


def test_an_empty_batch_has_empty_products() -> None:
    A = aggregation(corners(), Operator(aggr="mean"))
    none = torch.empty(0, dtype=torch.int64)
    _, boundary, across = A.cut(none)
    assert (A.rows(none) @ corners().x).shape == (0, 4)
    assert (A.within(none) @ corners().x[none]).shape == (0, 4)
    assert (across @ corners().x).shape == (0, 4)
    assert boundary.numel() == 0


def test_a_cut_is_both_at_once() -> None:
    A, nodes = aggregation(corners(), Operator()), torch.tensor([3, 0, 2, 1])
    within, boundary, halo = A.cut(nodes)
    assert all(torch.equal(a, b) for a, b in zip(within.tensors, A.within(nodes).tensors, strict=True))
    assert boundary.tolist() == [0, 2, 3]  # 12 -> 3, 5 -> 2, 4 -> 1 and 13 -> 1; nobody outside sends to 0
    outside = dense(A)[nodes[boundary]]
    outside[:, nodes] = 0
    assert torch.equal(halo @ torch.eye(14, dtype=torch.float64), outside)


def test_a_piece_of_a_matrix_that_is_not_symmetric_has_its_own_transpose() -> None:
    A = aggregation(corners(), Operator())
    assert not A.symmetric
    assert A.within(torch.tensor([0, 1, 2, 3])).ids_t is not A.within(torch.tensor([0, 1, 2, 3])).ids


def test_the_whole_graph_has_no_boundary() -> None:
    _, boundary, across = aggregation(corners(), Operator()).cut(torch.arange(14))
    assert boundary.numel() == 0
    assert across.shape == (0, 14)


@pytest.mark.parametrize("norm", ["none", "gcn"])
def test_gradient_of_the_product_is_the_product_with_the_transpose(norm: str) -> None:
    A = aggregation(corners(), Operator(norm=norm, weight="edge_weight"))
    h = torch.rand(14, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(A.all().__matmul__, h)
    inside = torch.rand(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(A.within(torch.tensor([0, 1, 2, 3])).__matmul__, inside)


def test_gradient_of_a_rectangular_matrix() -> None:
    rows = aggregation(corners(), Operator()).matrix[[1, 4, 6]]
    h = torch.rand(14, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(to_sparse(rows, torch.float64).__matmul__, h)


def test_non_contiguous_operands_are_multiplied_right() -> None:
    A = aggregation(corners(), Operator())
    h = torch.rand(3, 14, dtype=torch.float64).T
    assert torch.allclose(A.all() @ h, dense(A) @ h)


def test_ids_have_32_bits() -> None:
    A = aggregation(corners(), Operator()).all()
    assert (A.ids.dtype, A.offsets.dtype) == (torch.int32, torch.int32)


def test_moving_moves_every_tensor() -> None:
    moved = aggregation(corners(), Operator()).all().to("meta")
    assert {tensor.device.type for tensor in moved.tensors} == {"meta"}
    assert moved.shape == (14, 14)


# ---- more dimensions, fewer digits


@pytest.mark.parametrize("shape", [(14,), (14, 2), (14, 2, 3), (14, 2, 1, 3), (14, 0, 3)])
def test_trailing_dimensions_are_columns(shape: tuple[int, ...]) -> None:
    A, h = aggregation(corners(), Operator(norm="gcn")), torch.randn(shape, dtype=torch.float64, requires_grad=True)
    dense = torch.from_numpy(A.matrix.toarray())
    product = A.all() @ h
    torch.testing.assert_close(product, torch.tensordot(dense, h, dims=1))
    if h.numel():
        assert torch.autograd.gradcheck(lambda h: A.all() @ h, h)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_the_nodes_may_lie_along_any_axis(axis: int) -> None:
    A, sizes = aggregation(corners(), Operator(aggr="mean")), [2, 3, 5]
    sizes[axis] = 14
    h = torch.randn(sizes, dtype=torch.float64, requires_grad=True)
    dense = torch.from_numpy(A.matrix.toarray())
    truth = torch.tensordot(dense, h.movedim(axis, 0), dims=1).movedim(0, axis)
    torch.testing.assert_close(multiply_along(A.all(), h, axis), truth)
    assert torch.autograd.gradcheck(lambda h: multiply_along(A.all(), h, axis), h)


def test_a_static_graph_is_multiplied_as_pyg_does() -> None:
    data, conv = corners(), gnn.GCNConv(4, 3).double()
    h = torch.randn(5, 14, 4, dtype=torch.float64)  # (steps, nodes, features): node_dim is -2
    operand = conv.lin(h)
    A = aggregation(data, Operator(norm="gcn", self_loops=True)).all()
    torch.testing.assert_close(multiply_along(A, operand, conv.node_dim), conv(h, data.edge_index) - conv.bias)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("features", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operator", [Operator(norm="gcn"), Operator(aggr="mean"), Operator(weight="edge_weight")])
def test_a_product_has_the_type_of_pygs_messages(operator: Operator, features: torch.dtype, half: torch.dtype) -> None:
    A = aggregation(corners(dtype=features), operator).all()
    h = torch.randn(14, 3).to(half).requires_grad_()
    with torch.autocast("cpu"):
        out = A @ h
    weighted = operator.norm == "gcn" or operator.weight is not None
    assert out.dtype == ((torch.ones((), dtype=features).view(1) * h).dtype if weighted else half)
    truth = aggregation(corners(dtype=features), operator).matrix.toarray() @ h.detach().double().numpy()
    torch.testing.assert_close(out.detach().double(), torch.from_numpy(truth), rtol=1e-2, atol=1e-2)
    out.float().sum().backward()
    assert h.grad is not None
    assert h.grad.dtype == half


def test_sums_of_half_precision_are_taken_in_float32() -> None:
    star = Data(
        x=torch.ones(4097, 1).bfloat16(), edge_index=torch.stack([torch.arange(1, 4097), torch.zeros(4096).long()])
    )
    out = aggregation(star, Operator()).all() @ star.x
    assert out.dtype == torch.bfloat16
    assert float(out[0]) == 4096, "in bfloat16 a sum of ones stops at 256"
