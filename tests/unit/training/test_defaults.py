"""What is chosen where the user leaves it open, with its reason, and what an epoch is estimated to cost."""

from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from topoff.training.config import Config, make_config
from topoff.training.cost import estimate
from topoff.training.defaults import Choice, choose, unused


def graph(nodes: int, *, edges: int = 10, features: int = 1) -> Data:
    return Data(x=torch.ones(nodes, features), edge_index=torch.zeros(2, edges, dtype=torch.long))


def config(**settings: object) -> Config:
    return make_config({"dataset": "graph", **settings})


def chosen(nodes: int, *, edges: int = 10, **settings: object) -> tuple[Config, dict[str, Choice]]:
    """Choose, and return the choices by name."""
    result, choices = choose(config(**settings), graph(nodes, edges=edges))
    assert all(choice.why and getattr(result, choice.what) == choice.value for choice in choices)
    return result, {choice.what: choice for choice in choices}


def test_nothing_is_left_open() -> None:
    result, choices = chosen(100)
    assert set(choices) == {"batches", "ratio", "rank", "refresh", "eval_every"}
    assert all(getattr(result, name) is not None for name in choices)


@pytest.mark.parametrize(
    ("nodes", "ratio", "why"),
    [
        (100, 1.0, "100 nodes fit in one batch"),
        (1_000, 1.0, "1,000 nodes fit in one batch"),
        (1_001, 0.5, "at least about 1,000"),
        (5_500, 0.2, "at least about 1,000"),
        (9_999, 0.1111, "at least about 1,000"),
        (10_000, 0.1, "ten batches"),
        (1_000_000, 0.1, "ten batches"),
        (1_000_001, 0.090909, "at most 100,000"),
        (2_000_000, 0.05, "at most 100,000"),
    ],
)
def test_the_ratio_by_the_size_of_the_graph(nodes: int, ratio: float, why: str) -> None:
    result, choices = chosen(nodes)
    assert result.ratio == ratio
    assert why in choices["ratio"].why


@pytest.mark.parametrize(
    ("nodes", "settings", "rank"),
    [
        (5, {}, 1),
        (100, {}, 12),
        (100_000, {"batches": "random"}, 128),
        (1_000, {"batches": "random", "ratio": 0.1}, 12),
        (1_000, {}, 64),
        (100_000, {}, 64),
        (1_000, {"ratio": 0.1}, 12),
        (40, {"ratio": 0.1}, 1),
    ],
    ids=str,
)
def test_the_rank_leaves_several_nodes_per_direction(nodes: int, settings: dict[str, object], rank: int) -> None:
    assert chosen(nodes, **settings)[0].rank == rank


def test_the_rank_counts_training_nodes_where_they_alone_are_batched() -> None:
    data = graph(1_000)
    data.train_mask = torch.arange(1_000) < 160
    assert choose(config(ratio=0.5), data)[0].rank == 62
    assert choose(config(ratio=0.5, train_only=True), data)[0].rank == 10
    assert choose(config(ratio=0.5, train_only=True), graph(1_000))[0].rank == 62  # a graph without masks


def test_a_graph_without_edges_is_not_clustered() -> None:
    result, choices = chosen(100, edges=0)
    assert result.batches == "random"
    assert choices["batches"].why == "no edges, nothing to cluster"
    assert chosen(100)[0].batches == "kaminpar"


def test_what_the_user_says_is_kept() -> None:
    given = {"batches": "metis", "ratio": 0.3, "rank": 5, "refresh": "never", "eval_every": 7}
    result, choices = chosen(100, **given)
    assert choices == {}
    assert result == config(**given)


def test_the_whole_graph_needs_no_batches() -> None:
    result, choices = chosen(100, method="full")
    assert set(choices) == {"eval_every"}
    assert result.ratio is None


@pytest.mark.parametrize(
    ("nodes", "settings", "every"),
    [
        (20_000, {}, 1),
        (20_001, {}, 5),
        (20_001, {"refresh": "every=8"}, 8),
        (20_001, {"refresh": "adaptive"}, 5),
        (20_001, {"refresh": "never"}, 5),
        (20_001, {"epochs": 3}, 3),
    ],
    ids=str,
)
def test_evaluations_coincide_with_refreshes_on_large_graphs(
    nodes: int, settings: dict[str, object], every: int
) -> None:
    assert chosen(nodes, **settings)[0].eval_every == every


# what it costs


def cost(nodes: int, *, edges: int = 100, width: int = 32, **settings: object) -> tuple[float, int, int, int]:
    found = estimate(config(**settings), graph(nodes, edges=edges, features=16), nn.Linear(16, width))
    return found.epoch_seconds, found.memory, found.batches, found.batch_nodes


@pytest.fixture(autouse=True)
def same_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let estimates be compared: the machine's rates vary."""
    monkeypatch.setattr("topoff.training.cost._rates", lambda: (1e10, 1e10))


def test_the_cost_by_hand() -> None:
    seconds, memory, batches, nodes = cost(1_000, method="full")
    flops = 6 * 1_000 * 16 * 32
    moved = 2 * 4 * (100 + 1_000) * 32 + 30 * 4 * 1_000 * 32
    assert seconds == pytest.approx((flops + moved) / 1e10)
    held = 1_000 * 16 * 4 * 3 + 100 * 60 + 1_000 * 32 * 4 * 10 + 5 * 4 * (16 * 32 + 32)
    assert memory == 450 * 2**20 + held
    assert (batches, nodes) == (1, 1_000)


def test_more_of_everything_costs_more() -> None:
    settings = {"ratio": 0.1, "rank": 16}
    base = cost(1_000, **settings)
    for more in (cost(2_000, **settings), cost(1_000, edges=9_000, **settings), cost(1_000, width=64, **settings)):
        assert more[0] > base[0]
        assert more[1] > base[1]
    higher = cost(1_000, ratio=0.1, rank=64)
    assert higher[0] > base[0]
    assert higher[1] > base[1]


def test_smaller_batches_take_less_memory() -> None:
    small, large = cost(10_000, ratio=0.1, rank=16), cost(10_000, ratio=0.5, rank=16)
    assert small[1] < large[1]
    assert (small[2], small[3], large[2], large[3]) == (10, 1_000, 2, 5_000)


def test_a_rank_by_energy_is_left_out_of_the_estimate() -> None:
    assert cost(1_000, ratio=0.1, rank=0.9)[0] == cost(1_000, ratio=0.1, rank=0)[0]


def test_the_rates_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = estimate(config(method="full"), graph(100, features=16), nn.Linear(16, 4))
    assert 0 < found.epoch_seconds < 60


@pytest.mark.parametrize(
    ("keys", "reasons"),
    [
        ({"model": "gcn", "heads": 2}, ["heads has no effect on model gcn"]),
        ({"model": "gat", "heads": 2, "out_heads": 2}, []),
        ({"model": "linear", "norm": "none"}, ["norm has no effect on model linear"]),
        ({"model": "my:Net", "heads": 2}, []),
        ({"method": "full", "rank": 8}, ["rank has no effect on method full"]),
        ({"method": "gas", "fanout": 8}, ["fanout has no effect on method gas"]),
        ({"method": "sgc", "model": "sage"}, ["model has no effect on method sgc"]),
        ({"method": "sgc", "dropout": 0.5}, ["dropout has no effect on model sgc"]),
        ({"method": "sign", "dropout": 0.5}, []),
    ],
)
def test_settings_that_nothing_reads_are_named(keys: dict[str, Any], reasons: list[str]) -> None:
    assert unused(make_config({"dataset": "x"}, keys), keys) == reasons
