"""The record of what a model needs: what it says of convs, and for which methods it is too much."""

from dataclasses import replace

import pytest
import torch_geometric.nn as gnn
from torch import nn

from topoff.forward.convs import describe
from topoff.forward.plan import Plan
from topoff.graph.graph import APART, AROUND
from topoff.graph.operators import Operator

GCN = Operator(norm="gcn", self_loops=True)


def plan(*layers: nn.Module, **settings: object) -> Plan:
    convs = describe(nn.Sequential(*(layers or (gnn.SGConv(5, 6, K=2), gnn.GATConv(6, 3)))))
    return replace(Plan(convs, (GCN,), ("source_to_target",), {"0": (2,), "1": (0,)}, ((GCN,), (GCN, GCN))), **settings)


def test_a_plan_without_anything_outside_the_batch() -> None:
    whole = plan()
    alone = whole.in_batch_only()
    assert whole.exact_features
    assert not alone.exact_features
    assert alone.known_hops == {}
    assert alone.chains == ()
    assert alone.operators == whole.operators


def test_a_propagation_is_constant_while_all_calls_read_the_features() -> None:
    first, second = plan().convs
    assert [plan().is_constant(first, hop) for hop in range(3)] == [True, True, False]
    assert not plan().is_constant(second, 0)
    assert not plan(known_hops={"0": (2, 0)}).is_constant(first, 0)
    assert not plan(known_hops={}).is_constant(first, 0)


def test_a_conv_gets_the_edges_of_its_flow_unless_more_is_computed_with_them() -> None:
    conv = plan(gnn.GATConv(2, 2, flow="target_to_source")).convs[0]
    assert plan().flow_of(conv) == "target_to_source"
    assert plan(degrees=frozenset({"0"})).flow_of(conv) == AROUND
    assert plan(degrees=frozenset({"1"})).flow_of(conv) == "target_to_source"
    assert plan(wide=True).flow_of(conv) == AROUND
    assert plan(wide=True, apart=True).flow_of(conv) == APART
    assert plan(apart=True).flow_of(conv) == "target_to_source"


def test_a_local_model_serves_every_method() -> None:
    plan().check_local()


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (plan(wide=True), "one that computes with the edges in its own forward"),
        (plan(degrees=frozenset({"1"})), "GATConv '1'"),
        (plan(deep={"0": frozenset({1})}), "SGConv '0'"),
        (plan(gnn.GCNConv(2, 2), gnn.PairNorm()), "PairNorm '1'"),
    ],
    ids=["wide", "degrees", "deep", "norm"],
)
def test_what_reads_more_than_rows_of_neighbours_is_refused_where_nothing_else_is_given(
    found: Plan, reason: str
) -> None:
    with pytest.raises(ValueError, match=rf"a node's neighbours alone, .* \(got {reason}\).*use top, full, cluster"):
        found.check_local()


def test_remarks_name_what_a_user_should_know() -> None:
    assert plan().remarks() == []
    (wide,) = plan(wide=True, degrees=frozenset({"1"})).remarks()
    assert "the model computes with the edges itself" in wide
    (read,) = plan(degrees=frozenset({"1", "0"})).remarks()
    assert read.startswith("0, 1 read their neighbours' edges")
    (norm,) = plan(gnn.GCNConv(2, 2), gnn.PairNorm()).remarks()
    assert norm.startswith("1 normalise over all nodes")
    (coarse,) = plan(coarse=True).remarks()
    assert "does not run in float64" in coarse


def test_a_plan_knows_norms_over_all_nodes() -> None:
    assert plan(gnn.GCNConv(2, 2), gnn.PairNorm()).normalizes
    assert not plan(gnn.GCNConv(2, 2), nn.BatchNorm1d(2)).normalizes
