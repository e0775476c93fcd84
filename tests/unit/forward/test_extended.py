"""A general conv with rows for the halo: what each argument is extended to, and what is refused."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F

from graphs import corners
from topoff.forward.convs import describe
from topoff.forward.extended import Extended, check_dense, is_alias, is_dropped_out
from topoff.forward.foreign import ForeignInputError
from topoff.forward.intercept import ConvCall
from topoff.graph.graph import AROUND, Graph


@dataclass
class Extension:
    """Run a general conv on a batch of the corners graph with its true halo: twice the features."""

    conv: nn.Module
    nodes: tuple[int, ...] = (0, 1, 2, 3)
    flow: str = "source_to_target"
    options: dict[str, Any] = field(default_factory=dict)
    seen: list[Tensor] = field(default_factory=list)  # embeddings whose halo was asked for

    def __post_init__(self) -> None:
        data = corners()
        data.kind = torch.arange(14)
        graph, nodes = Graph(data), torch.tensor(self.nodes)
        self.batch, self.around = graph.induced(nodes), graph.neighborhood(nodes, flow=self.flow)

    def extended(self, forward: Callable[..., Any], *args: Any, known: int = 0, **kwargs: Any) -> Extended:
        call = ConvCall(describe(self.conv)[0], forward, args, kwargs, args[0], 0, known=known)
        return Extended(call, self.batch, len(self.nodes), self.around, self.halo_rows, **self.options)

    def run(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.extended(forward, *args, **kwargs).run()

    def halo_rows(self, h: Tensor) -> Tensor:
        self.seen.append(h)
        return (2 * corners().x)[self.around.halo][..., : h.size(-1)].to(h.dtype)


def given(run: Extension, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Return what a conv is given in place of some arguments."""
    kept: list[Any] = []

    def forward(*args: Any) -> Tensor:
        kept.extend(args)
        return args[0]

    run.run(forward, *args, **kwargs)
    return tuple(kept)


# exact with the true halo


@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_with_the_true_halo_it_is_exact(flow: str) -> None:
    loops = flow == "source_to_target"  # PyG fills in the features of added self-loops from the other side's edges
    data, conv = corners(), gnn.GATv2Conv(4, 3, edge_dim=2, flow=flow, add_self_loops=loops).double()
    run = Extension(conv, flow=flow)
    out = run.run(conv.forward, 2 * run.batch.x, run.batch.edge_index, edge_attr=run.batch.edge_attr)
    expected = conv(2 * data.x, data.edge_index, edge_attr=data.edge_attr)[:4]
    assert torch.allclose(out, expected, atol=1e-12)


def test_with_all_edges_around_a_conv_that_reads_degrees_is_exact() -> None:
    data, conv = corners(), gnn.GCNConv(4, 3, aggr="max").double()
    near, around = Extension(conv, nodes=(12, 8)), Extension(conv, nodes=(12, 8), flow=AROUND)
    expected = conv(2 * data.x, data.edge_index)[[12, 8]]
    outputs = [run.run(conv.forward, 2 * run.batch.x, run.batch.edge_index) for run in (near, around)]
    assert not torch.allclose(outputs[0], expected)
    assert torch.allclose(outputs[1], expected, atol=1e-12)


def test_raw_features_bring_their_own_halo() -> None:
    data, conv = corners(), gnn.GATConv(4, 3).double()
    run = Extension(conv)
    out = run.run(conv.forward, run.batch.x, run.batch.edge_index)
    assert torch.allclose(out, conv(data.x, data.edge_index)[:4], atol=1e-12)
    assert run.seen == []


def test_pairs_are_extended_item_by_item() -> None:
    data, conv = corners(), gnn.SAGEConv(4, 3, aggr="max").double()
    run = Extension(conv)
    x = 2 * run.batch.x
    out = run.run(conv.forward, (x, x), run.batch.edge_index)
    assert torch.allclose(out, conv(2 * data.x, data.edge_index)[:4], atol=1e-12)


def test_several_outputs_keep_the_batchs_rows_where_they_have_rows() -> None:
    run = Extension(gnn.GATConv(4, 3))
    out, (edges, number) = run.run(lambda x, e: (x, (e, torch.tensor(1))), run.batch.x, run.batch.edge_index)
    assert torch.equal(out, run.batch.x)
    assert torch.equal(edges, run.around.edge_index)
    assert number == 1


# argument by argument


def test_edges_are_recognized_by_object_and_by_value() -> None:
    run = Extension(gnn.GATConv(4, 3))
    _, own, equal = given(run, run.batch.x, run.batch.edge_index, run.batch.edge_index.clone())
    assert own is equal is run.around.edge_index


def test_node_and_edge_attributes_bring_their_rows_detached_or_not() -> None:
    run = Extension(gnn.GATConv(4, 3))
    batch, around = run.batch, run.around
    x, kind, value = given(run, batch.x.detach(), batch.kind, batch.edge_attr.detach())
    assert torch.equal(x, torch.cat([batch.x, corners().x[around.halo], corners().x.new_zeros(around.others, 4)]))
    assert torch.equal(kind[: 4 + around.halo.numel()], torch.cat([torch.arange(4), around.halo]))
    assert value is around.values["edge_attr"]
    assert run.seen == []


def test_without_exact_features_only_integers_bring_their_halo() -> None:
    run = Extension(gnn.GATConv(4, 3), options={"exact_features": False})
    x, kind = given(run, run.batch.x, run.batch.kind)
    assert torch.equal(x[4 : 4 + run.around.halo.numel()], 2 * corners().x[run.around.halo])
    assert torch.equal(kind[4 : 4 + run.around.halo.numel()], run.around.halo)
    assert len(run.seen) == 1


def test_features_after_dropout_have_a_known_halo() -> None:
    run = Extension(gnn.GATConv(4, 3))
    (x,) = given(run, 2 * run.batch.x, known=1)
    assert torch.equal(x[4 : 4 + run.around.halo.numel()], corners().x[run.around.halo])
    assert run.seen == []


def test_what_lies_beyond_the_halo_is_zero() -> None:
    run = Extension(gnn.GATConv(4, 3), nodes=(12, 8), flow=AROUND)
    (x,) = given(run, 2 * run.batch.x)
    assert torch.equal(x[:-1], 2 * corners().x[[12, 8, 0, 3, 5]])
    assert run.around.others == 1
    assert not x[-1].any()


def test_rows_along_the_convs_own_axis_are_extended_there() -> None:
    conv = gnn.GATConv(4, 3)
    conv.node_dim = -2
    run, h, kept = Extension(conv), torch.rand(2, 4, 4, dtype=torch.float64), []
    call = ConvCall(describe(conv)[0], lambda x: kept.append(x) or x, (h,), {}, h, 0)
    halo = run.around.halo.numel()
    out = Extended(call, run.batch, 4, run.around, lambda rows: rows.new_ones(halo, *rows.shape[1:])).run()
    assert torch.equal(out, h)
    assert kept[0].shape == (2, 4 + halo + run.around.others, 4)
    assert torch.equal(kept[0][:, 4 : 4 + halo], torch.ones(2, halo, 4, dtype=torch.float64))


def test_other_arguments_pass_through() -> None:
    scale, ids = torch.tensor(3.0), torch.arange(5)

    def forward(x: Tensor, edge_index: Tensor, *, scale: Tensor, ids: Tensor, name: str) -> Tensor:
        assert name == "n"
        assert ids.numel() == 5
        return x * scale

    run = Extension(gnn.GATConv(4, 3))
    out = run.run(forward, run.batch.x, run.batch.edge_index, scale=scale, ids=ids, name="n")
    assert torch.equal(out, 3 * run.batch.x)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda batch: batch.edge_index.flip(0), "edge_index"),
        (lambda batch: 2 * batch.edge_attr, "edge_attr"),
        (lambda batch: batch.kind + 1, "node attributes"),
    ],
    ids=["other edges", "other edge values", "other integers of nodes"],
)
def test_what_is_not_the_batchs_own_is_refused(change: Callable[[Any], Tensor], name: str) -> None:
    run = Extension(gnn.GATConv(4, 3))
    with pytest.raises(ForeignInputError, match=rf"GATConv '' to receive the batch's own '{name}'"):
        given(run, run.batch.x, change(run.batch))


def test_a_sparse_matrix_of_edges_is_refused() -> None:
    conv, x, edges = gnn.GATConv(4, 3), torch.ones(4, 4), torch.tensor([[0], [1]])
    check_dense(ConvCall(describe(conv)[0], conv.forward, (x, edges), {}, x, 0))
    with pytest.raises(ValueError, match=r"GATConv '' to receive edges as edge_index \(got a sparse matrix, torch"):
        check_dense(ConvCall(describe(conv)[0], conv.forward, (x,), {"edge_index": torch.eye(4).to_sparse()}, x, 0))


# rows of its own, healed, kept or appended


def test_healing_replaces_the_halos_rows_alone() -> None:
    run = Extension(gnn.GATConv(4, 3))
    extended = run.extended(lambda x: x, run.batch.x)
    x, ids = torch.full((extended.rows, 4), torch.nan, dtype=torch.float64), torch.arange(extended.rows)
    x[:4] = 1
    healed = extended.heal(x)
    assert torch.equal(healed[:4], x[:4])
    assert torch.equal(healed[4 : 4 + run.around.halo.numel()], 2 * corners().x[run.around.halo])
    assert extended.heal(ids) is ids
    assert extended.heal(run.batch.x) is run.batch.x  # no rows for the halo


def test_narrow_and_widen_are_each_others_inverse_on_the_batchs_rows() -> None:
    run = Extension(gnn.GATConv(4, 3))
    extended = run.extended(lambda x: x, run.batch.x)
    wide = extended.widen({"x": run.batch.x, "scale": torch.tensor(2.0)}, value=7.0)
    assert len(wide["x"]) == extended.rows
    assert wide["x"][4:].eq(7).all()
    narrow = extended.narrow(wide)
    assert torch.equal(narrow["x"], run.batch.x)
    assert narrow["scale"] == 2


@pytest.mark.parametrize("known", [0, 1])
def test_a_wide_model_has_all_rows_and_only_those_not_known_are_replaced(known: int) -> None:
    run = Extension(gnn.GATConv(4, 3), nodes=(12, 8), flow=AROUND, options={"wide": True})
    rows = 2 + 3 + 1  # batch, halo, and one for all others
    h = torch.full((rows, 4), 5.0, dtype=torch.float64)
    out = run.run(lambda x, e: x, h, run.around.edge_index, known=known)
    assert len(out) == rows
    assert torch.equal(out[:2], h[:2])
    assert torch.equal(out[2:5], h[2:5] if known else 2 * corners().x[[0, 3, 5]])


# is it the same, is it dropout?


def test_an_alias_is_the_object_or_detached_from_it() -> None:
    x = torch.rand(3, 2, requires_grad=True)
    assert is_alias(x, x)
    assert is_alias(x.detach(), x)
    assert is_alias(x.view(3, 2), x)
    assert not is_alias(x.clone(), x)
    assert not is_alias(x[:2], x)
    assert not is_alias(x.t(), torch.rand(2, 3))
    empty = torch.empty(0, 2)
    assert is_alias(empty, empty)
    assert not is_alias(empty, torch.empty(0, 2))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_of_the_features_is_recognized(p: float) -> None:
    x = torch.rand(200, 10)
    x[0] = 0
    assert is_dropped_out(F.dropout(x, p), x)
    assert is_dropped_out(x.clone(), x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: 0.5 * x,
        lambda x: 2 * x,
        lambda x: x + 1,
        lambda x: x * (torch.arange(10) > 4),  # masked columns, not scaled
        lambda x: F.dropout(x, 0.5).sqrt(),
        lambda x: torch.zeros_like(x),
        lambda x: F.dropout(x, 0.5).double(),
        lambda x: F.dropout(x, 0.5)[:9],
        lambda x: None,
    ],
    ids=["halved", "doubled", "shifted", "masked", "rooted", "all dropped", "type", "shape", "none"],
)
def test_other_changes_are_no_dropout(change: Callable[[Tensor], Any]) -> None:
    x = torch.rand(200, 10) + 0.1
    assert not is_dropped_out(change(x), x)


def test_features_of_zeros_may_always_be_dropped_out() -> None:
    assert is_dropped_out(torch.zeros(3, 2), torch.zeros(3, 2))
