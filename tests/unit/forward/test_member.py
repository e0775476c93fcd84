"""One batch among those that run in step: its rows, its edges, and what it hands in."""

from dataclasses import replace

import pytest
import torch
import torch_geometric.nn as gnn

from graphs import corners
from topoff.forward.convs import describe
from topoff.forward.intercept import ConvCall
from topoff.forward.member import Handed, Member
from topoff.forward.plan import Plan
from topoff.forward.runner import Runner
from topoff.forward.subgraph import cut_batch
from topoff.graph.graph import AROUND, Graph
from topoff.graph.operators import Operator

CPU = torch.device("cpu")
NODES = torch.tensor([12, 8])
CONV = describe(gnn.SAGEConv(4, 4))[0]


def member(*, wide: bool = False) -> Member:
    graph, plan = Graph(corners()), Plan([CONV], (), ())
    return Member(graph, graph.induced(NODES), replace(plan, wide=wide), device=CPU)


def test_a_batch_is_called_with_its_own_rows() -> None:
    found = member()
    assert (found.size, found.rows) == (2, 2)
    assert torch.equal(found.data.x, corners().x[NODES])
    assert found.data.edge_index.tolist() == [[0], [0]]


def test_a_wide_model_is_called_with_all_that_is_around() -> None:
    found, near = member(wide=True), Graph(corners()).neighborhood(NODES, flow=AROUND)
    assert (found.size, found.rows) == (2, 2 + near.halo.numel() + near.others)
    assert torch.equal(found.data.x[:5], corners().x[[12, 8, 0, 3, 5]])
    assert torch.equal(found.data.edge_index, near.edge_index)


def test_neighborhoods_are_cut_once() -> None:
    found = member()
    assert found.neighborhood("source_to_target") is found.neighborhood("source_to_target")
    assert found.neighborhood("target_to_source").halo.tolist() == [3]


@pytest.mark.parametrize("at_hand", [False, True], ids=["cut now", "cut before"])
def test_products_take_the_rows_of_the_whole_operator(*, at_hand: bool) -> None:
    graph, mean = Graph(corners()), Operator(aggr="mean")
    plan = Plan([CONV], (mean,), ())
    batch = cut_batch(graph, plan, NODES) if at_hand else graph.induced(NODES)
    found, rows = Member(graph, batch, plan, device=CPU), torch.rand(14, 3, dtype=torch.float64)
    expected = (graph.aggregation(mean).all() @ rows)[NODES]
    for own in (rows[NODES], torch.cat([rows[NODES], rows[:3]])):  # a wide model has more rows
        assert torch.allclose(found.product(mean, own, rows), expected)


def test_propagated_features_are_known_where_they_were_cut() -> None:
    graph, mean = Graph(corners()), Operator(aggr="mean")
    plan = Plan([CONV], (mean,), (), chains=((mean,),))
    found = Member(graph, cut_batch(graph, plan, NODES), plan, device=CPU)
    known = found.known(mean, found.data.x)
    assert known is not None
    assert torch.equal(known, graph.propagated((mean,))[NODES])
    assert found.known(mean, found.data.x.clone()) is None, "other rows are not known"
    assert found.known(Operator(), found.data.x) is None, "another operator"
    assert member().known(mean, member().data.x) is None


def test_an_exchange_hands_rows_in_and_returns_what_all_made_of_them() -> None:
    found = member()
    call = ConvCall(CONV, CONV.module.forward, (), {}, None, 0)
    rows = torch.ones(2, 4)

    def forward(_: object) -> list[torch.Tensor]:
        return [found.exchange(call, rows), found.exchange(call, rows, record=False)]

    found.runner = runner = Runner(found, forward)
    first = runner.step()
    assert (first.conv, first.hop, first.is_sum) == (CONV, 0, False)
    assert first.rows is rows
    found.shared = one = torch.rand(14, 4)
    second = runner.step()
    assert second.hop is None, "nobody is told of it"
    assert call.hop == 1
    found.shared = two = torch.rand(14, 4)
    out = runner.step()
    assert call.hop == 1, "what nobody is told of is no hop"
    assert out[0] is one
    assert out[1] is two
    assert found.shared is None, "the matrix is let go of"


def test_sums_are_handed_in_as_such() -> None:
    found, total = member(), torch.ones(2, 3)
    found.runner = runner = Runner(found, lambda _: found.hand_in(Handed(CONV, 0, total, is_sum=True)))
    assert runner.step().is_sum
    found.shared = total
    assert runner.step() is total
