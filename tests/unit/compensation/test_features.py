"""What a basis has of the features, besides embeddings."""

from pathlib import Path

import pytest
import torch

from graphs import communities
from topoff.compensation.features import Features, smoothed
from topoff.compensation.sight import Sight
from topoff.forward.plan import Plan
from topoff.forward.structure import structure_of
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator
from topoff.machine.shelf import Shelf

SUM, MEAN = Operator(), Operator(aggr="mean")


def test_smoothed_features_have_norm_one_after_every_hop() -> None:
    """A sum grows with every hop: unscaled, the last would be all that counts."""
    graph = Graph(communities(20, weighted=True))
    x, steps = graph.data.x.clone(), list(smoothed(graph, Operator(), graph.data.x, hops=3))
    wanted, whole = x, graph.aggregation(Operator())
    for _ in range(3):
        wanted = whole.product(wanted, dtype=x.dtype)
    assert [float(step.norm()) for step in steps] == pytest.approx([1.0] * 3)
    torch.testing.assert_close(steps[2], wanted / wanted.norm())
    assert torch.equal(graph.data.x, x)
    assert not any(step.any() for step in smoothed(graph, Operator(), torch.zeros(20, 2).double(), hops=2))


def test_every_operator_is_smoothed_by_and_all_hops_share_the_rank() -> None:
    graph = Graph(communities(60, directed=True))
    plan = Plan([], (SUM, MEAN), ())
    (joining,) = Features(graph, plan, width=6).joining(hops=3)
    assert joining.shape == (60, 6)
    (whole,) = Features(graph, plan, width=30).joining(hops=3)  # as many as there are: 2 x 3 x 5
    for operator in (SUM, MEAN):
        for rows in smoothed(graph, operator, graph.data.x, hops=3):
            found = whole @ torch.linalg.lstsq(whole, rows).solution
            torch.testing.assert_close(found, rows, rtol=1e-6, atol=1e-8)
    assert Features(graph, Plan([], (), ()), width=6).joining(hops=3) == []  # general convs alone


def test_columns_are_centred_and_at_one_scale() -> None:
    data = communities(60)
    data.x[:, 0] = 3.0
    data.x[:, 1] = 2000.0 + 1e-3 * data.x[:, 1]
    columns = Features(Graph(data), Plan([], (), ()), width=6).columns(most=5)
    torch.testing.assert_close(columns[:, 0], torch.zeros(60, dtype=torch.float64))
    torch.testing.assert_close(columns[:, 1:5].mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(columns[:, 1:].square().mean(0), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("most", [3, 5])
def test_what_batches_see_of_the_columns_is_centred_alike(most: int) -> None:
    graph, plan = Graph(communities(60)), Plan([], (SUM,), ())
    structure = structure_of(graph, plan, torch.arange(9))
    sight = Sight([structure])
    whole = Features(graph, plan, width=6).columns(most=most)
    seen = Features(graph, plan, width=6, sight=sight).columns(most=most)
    torch.testing.assert_close(seen, sight.of(whole))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("most", [3, 5])
def test_out_of_core_nothing_of_all_nodes_is_in_memory(*, half: bool, most: int, tmp_path: Path) -> None:
    data = communities(60, dtype=torch.float16 if half else torch.float32)
    graph = Graph(data)
    memory = Features(graph, Plan([], (SUM,), ()), width=4)
    wanted = memory.columns(most=most), memory.joining(hops=2)[0]
    graph = Graph(data)
    graph.shelf = Shelf(0, folder=tmp_path)
    away = Features(graph, Plan([], (SUM,), ()), width=4)
    for rows, truth in zip((away.columns(most=most), away.joining(hops=2)[0]), wanted, strict=True):
        assert graph.shelf.is_away(rows)
        assert torch.equal(rows, truth)


def test_one_set_of_columns_is_kept() -> None:
    features = Features(Graph(communities(60)), Plan([], (), ()), width=6)
    first = features.columns(most=3)
    assert features.columns(most=3) is first
    assert features.columns(most=5).shape == (60, 6)
    assert len(features._columns) == 1


def test_features_are_found_again_for_other_batches() -> None:
    graph, plan = Graph(communities(60)), Plan([], (SUM,), ())
    one, other = (structure_of(graph, plan, torch.arange(size)) for size in (9, 12))
    features = Features(graph, plan, width=6, sight=Sight([one]))
    assert features.are_of(graph, plan, Sight([one]))
    for sight in (None, Sight([other]), Sight([one, other])):
        assert not features.are_of(graph, plan, sight)
    assert not features.are_of(Graph(communities(60)), plan, Sight([one]))


def test_features_of_several_dimensions_are_read_as_rows() -> None:
    data = communities(60)
    data.x = torch.rand(60, 3, 4).double()
    features = Features(Graph(data), Plan([], (), ()), width=6)
    assert features.columns(most=12).shape == (60, 13)
    assert features.columns(most=4).shape == (60, 5)
