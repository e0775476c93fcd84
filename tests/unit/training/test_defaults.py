"""What is chosen where the user leaves it open, with its reason."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN

from topoff import TOP
from topoff.training.config import Config, make_config
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


def test_clusters_in_little_memory_where_there_is_little(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(5_000)[0].batches == "kaminpar"
    monkeypatch.setattr("topoff.batching.partition.free_memory", lambda: 100_000)
    result, choices = chosen(5_000)
    assert result.batches == "ldg"
    assert choices["batches"].why == "clusters in little memory: KaMinPar takes about 156 KiB, and 98 KiB are free"
    assert chosen(5_000, batches="metis")[0].batches == "metis"


def test_nothing_is_left_open() -> None:
    result, choices = chosen(100)
    kept = {"average", "eval_every"}
    assert set(choices) == {"batches", "ratio", "train_only", "rank", "refresh", "late", "regroup"} | kept
    assert all(getattr(result, name) is not None for name in choices)


@pytest.mark.parametrize(
    ("nodes", "ratio", "why"),
    [
        (100, 1.0, "100 nodes fit in one batch"),
        (1_000, 1.0, "1,000 nodes fit in one batch"),
        (1_001, 0.5, "at least about 400"),
        (5_500, 0.0769, "at least about 400"),
        (13_199, 0.0312, "at least about 400"),
        (13_200, 0.03, "33 batches"),
        (100_000, 0.03, "33 batches"),
        (100_001, 0.029412, "at most 3,000"),
        (120_000, 0.025, "at most 3,000"),
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
        (100_000, {"batches": "random"}, 64),
        (100_000, {"batches": "ibmb"}, 64),
        (1_000, {"batches": "random", "ratio": 0.1}, 12),
        (1_000, {}, 16),
        (100_000, {}, 16),
        (100_000, {"refresh": "never"}, 64),
        (100_000, {"offset": False}, 64),
        (100_000, {"estimator": "paper"}, 64),
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
    assert choose(config(ratio=0.2), data)[0].rank == 16
    assert choose(config(ratio=0.2, train_only=True), data)[0].rank == 4
    assert choose(config(ratio=0.2, train_only=True), graph(1_000))[0].rank == 25  # a graph without masks


@pytest.mark.parametrize(
    ("nodes", "ratio", "settings", "rank"),
    [
        (12_000, 0.5, {}, 128),
        (12_000, 0.5, {"batches": "kaminpar"}, 128),
        (8_000, 0.5, {}, 64),  # batches hold a quarter of the nodes
        (12_000, 0.2, {}, 51),  # too few of them for as many
        (12_000, 0.5, {"offset": False}, 64),
        (12_000, 0.5, {"refresh": "never"}, 64),
        (12_000, 0.5, {"rank": 3}, 3),
    ],
    ids=str,
)
def test_large_batches_of_few_of_the_nodes_have_more_directions(
    nodes: int, ratio: float, settings: dict[str, object], rank: int
) -> None:
    data = graph(nodes)
    data.train_mask = torch.arange(nodes) < 2_000 + 48
    made, _ = choose(config(ratio=ratio, train_only=True, **settings), data)
    assert made.rank == rank
    given = {"batches": "random"} | settings | {"ratio": ratio, "train_only": True}
    top = TOP(GCN(1, 2, num_layers=1), data, **given)
    assert top.compensator.rank == max(rank, 64 if "rank" not in settings else 0)  # who writes a loop is warned


@pytest.mark.parametrize(("labels", "ratio"), [(60, 1.0), (130, 0.5), (1_000, 0.0667)])
def test_a_batch_has_some_training_nodes(labels: int, ratio: float) -> None:
    data = graph(20_000)
    data.train_mask = torch.arange(20_000) < labels
    assert choose(config(method="cluster"), data)[0].ratio == ratio
    assert TOP(GCN(1, 2, num_layers=1), data).sets.ratio == ratio


def test_nodes_that_count_for_no_training_node_are_left_out() -> None:
    data = graph(20_000)
    data.train_mask = torch.arange(20_000) < 5_000
    made, choices = choose(config(), data)
    assert made.reach == made.layers - 1 == 2
    assert "5,000 of 20,000 nodes are near enough" in next(each.why for each in choices if each.what == "reach")
    assert made.ratio == 0.0833  # of those
    assert choose(config(reach=0), data)[0].ratio == 0.0833
    data.train_mask = torch.arange(20_000) < 15_000  # most are near
    assert choose(config(), data)[0].reach is None
    assert choose(config(train_only=True), data)[0].reach is None
    assert choose(config(method="cluster"), data)[0].reach is None


def chain(nodes: int, *, labels: int) -> Data:
    """Return paths of ten nodes each, the first so many of which begin with a training node."""
    source = torch.arange(nodes - 1)
    source = source[source % 10 != 9]
    data = Data(x=torch.ones(nodes, 1), edge_index=torch.stack([source, source + 1]))
    data.train_mask = (torch.arange(nodes) % 10 == 0) & (torch.arange(nodes) < 10 * labels)
    return data


def test_with_few_labels_their_neighbours_are_batched_alone_where_that_halves_the_rows() -> None:
    few = chain(20_000, labels=500)
    made, choices = choose(config(layers=5), few)
    assert made.reach == 1
    why = "1,000 of 20,000 nodes are training nodes or next to one: what lies behind is followed"
    assert next(choice.why for choice in choices if choice.what == "reach") == why
    assert choose(config(layers=4), few)[0].reach == 1
    assert choose(config(layers=3), few)[0].reach == 2  # 1,500 nodes, and exact
    assert choose(config(layers=2), few)[0].reach == 1
    assert choose(config(layers=1), few)[0].reach == 0
    for given in ({"offset": False}, {"refresh": "never"}, {"rank": 0}, {"estimator": "paper"}, {"model": "gat"}):
        assert choose(config(layers=5, **given), few)[0].reach == 4  # nothing behind would be followed
    assert choose(config(layers=5, reach=3), few)[0].reach == 3
    assert choose(config(layers=5, ratio=0.5), few)[0].reach == 4  # a part of what was always batched
    assert choose(config(layers=5), few, processes=2)[0].reach == 4
    assert choose(config(layers=9), chain(10_000, labels=250))[0].reach == 1  # 500 nodes, instead of 2,250
    many = chain(3_000, labels=300)
    many.train_mask |= torch.arange(3_000) % 10 == 5  # 1,200 nodes are next to one or are one, and all within four
    assert choose(config(layers=5), many)[0].reach is None


def labelled(nodes: int, *, labels: int, each: int) -> Data:
    """Return a graph with so many training nodes, and so many messages per node."""
    data = graph(nodes, edges=each * nodes)
    data.train_mask = torch.arange(nodes) < labels
    return data


def alone(data: Data, **settings: object) -> tuple[Config, str]:
    """Choose whether the training nodes are batched alone; return the settings and the reason."""
    made, choices = choose(config(**settings), data)
    return made, next((choice.why for choice in choices if choice.what == "train_only"), "")


def test_training_nodes_are_batched_alone_where_nodes_have_many_messages() -> None:
    made, why = alone(labelled(20_000, labels=12_000, each=30))
    assert made.train_only is True
    assert why == "30 messages per node: their means are compensated well, and a batch has more labels"
    assert (made.reach, made.ratio, made.rank) == (None, 0.0333, 50)  # of 12,000 nodes
    assert alone(labelled(20_000, labels=12_000, each=24))[0].train_only is True
    assert alone(labelled(20_000, labels=12_000, each=23))[0].train_only is False


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"reach": 1}, "nodes in reach of a training node are batched, too"),
        ({"batches": "saint-node"}, "all nodes are batched"),
        ({"ratio": 0.1}, "all nodes are batched"),  # of which it is a part
        ({"offset": False}, "what changes outside is not followed"),
        ({"refresh": "never", "offset": True}, "what changes outside is not followed"),
        ({"rank": 0}, "what changes outside is not followed"),
        ({"model": "gat"}, "it was not tried with model gat"),
        ({"model": "my:Net"}, "it was not tried with model my:Net"),
        ({"method": "cluster"}, "usual for cluster"),
        ({"method": "drop"}, "usual for drop"),
    ],
    ids=str,
)
def test_all_nodes_are_batched_where_those_outside_could_not_be_followed(settings: dict[str, Any], why: str) -> None:
    made, found = alone(labelled(20_000, labels=12_000, each=30), **settings)
    assert (made.train_only, found) == (False, why)


def batched(data: Data, *, processes: int = 1, **settings: object) -> tuple[str | None, str]:
    """Choose which nodes go together; return the choice and its reason."""
    made, choices = choose(config(**settings), data, processes=processes)
    return made.batches, next((choice.why for choice in choices if choice.what == "batches"), "")


def test_training_nodes_alone_are_not_clustered_where_they_have_many_messages() -> None:
    many = labelled(20_000, labels=12_000, each=24)
    why = "24 messages per node, compensated whatever goes together: no time for clusters"
    assert batched(many) == ("random", why)
    assert batched(many, train_only=False)[0] == "kaminpar"
    assert batched(labelled(20_000, labels=12_000, each=23), train_only=True)[0] == "kaminpar"


def test_parts_that_are_there_are_used() -> None:
    data = labelled(20_000, labels=12_000, each=30)
    data.names = SimpleNamespace(parts=np.zeros(20_000, np.int32))
    assert batched(data) == ("stored", "the nodes of the store lie by part")


@pytest.mark.parametrize(
    "settings",
    [
        {"parts": 40},
        {"regroup": True},
        {"model": "gat"},
        {"rank": 0},
        {"refresh": "never"},
        {"method": "cluster"},
        {"method": "drop"},
    ],
    ids=str,
)
def test_training_nodes_alone_are_clustered_where_random_ones_were_not_tried(settings: dict[str, Any]) -> None:
    data = labelled(20_000, labels=12_000, each=30)
    assert batched(data, train_only=True)[0] == "random"
    assert batched(data, train_only=True, **settings)[0] == "kaminpar"


def test_several_processes_keep_clusters_and_so_does_one_that_does_their_work() -> None:
    data = labelled(20_000, labels=12_000, each=30)
    assert batched(data, train_only=True, processes=2)[0] == "kaminpar"
    assert batched(data, train_only=True, accumulate=2)[0] == "kaminpar"


def test_all_nodes_are_batched_where_training_nodes_are_few() -> None:
    made, why = alone(labelled(20_000, labels=1_000, each=30))
    assert (made.train_only, why) == (False, "1,000 training nodes are too few to follow all others")
    data = labelled(20_000, labels=2_000, each=30)
    assert choose(config(), data)[0].train_only is True
    assert choose(config(), data, processes=2)[0].train_only is False  # each wants a batch of its own
    assert alone(graph(20_000, edges=600_000))[0].train_only is False  # no masks


def test_a_graph_without_edges_is_not_clustered() -> None:
    result, choices = chosen(100, edges=0)
    assert result.batches == "random"
    assert choices["batches"].why == "no edges, nothing to cluster"
    assert chosen(100)[0].batches == "kaminpar"


def test_what_the_user_says_is_kept() -> None:
    given = {"batches": "metis", "ratio": 0.3, "rank": 5, "refresh": "never", "late": False, "train_only": False}
    given |= {"regroup": True, "eval_every": 7, "average": False}
    result, choices = chosen(100, **given)
    assert choices == {}
    assert result == config(**given)


@pytest.mark.parametrize(
    ("method", "regroup"),
    [("cluster", False), ("gas", False), ("graphfm-ob", False), ("lmc", False), ("top", False), ("drop-ax", False)],
)
def test_a_method_regroups_as_is_usual_for_it_unless_it_is_told(method: str, regroup: bool) -> None:  # noqa: FBT001
    result, choices = chosen(100, method=method)
    assert result.regroup is regroup
    assert choices["regroup"].why == f"usual for {method}"
    assert chosen(100, method=method, regroup=not regroup)[0].regroup is not regroup


def test_no_choice_is_made_for_a_method_without_clusters() -> None:
    assert "regroup" not in chosen(100, method="ns")[1]


def test_the_whole_graph_needs_no_batches() -> None:
    result, choices = chosen(100, method="full")
    assert set(choices) == {"average", "eval_every"}
    assert result.ratio is None


@pytest.mark.parametrize(
    ("nodes", "settings", "every"),
    [
        (20_000, {}, 1),
        (20_001, {}, 5),
        (20_001, {"refresh": "every=8"}, 8),
        (20_001, {"refresh": "auto"}, 5),
        (20_001, {"refresh": "never"}, 5),
        (20_001, {"epochs": 3}, 3),
    ],
    ids=str,
)
def test_evaluations_coincide_with_refreshes_on_large_graphs(
    nodes: int, settings: dict[str, object], every: int
) -> None:
    assert chosen(nodes, **settings)[0].eval_every == every


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


def test_an_evaluation_is_called_a_refresh_only_where_it_is_one() -> None:
    ring = torch.stack([torch.arange(30_000), torch.arange(30_000).roll(1)])
    data = Data(x=torch.ones(30_000, 1), edge_index=ring)
    reasons = {}
    for method in ("top", "ns", "full"):
        _, choices = choose(make_config({"dataset": "x", "method": method}), data)
        reasons[method] = next(choice.why for choice in choices if choice.what == "eval_every")
    assert reasons["top"] == "an evaluation is also a refresh"
    assert reasons["ns"] == reasons["full"] == "an exact evaluation is a forward pass over the whole graph"


@pytest.mark.parametrize(
    ("given", "late"),
    [
        ({}, True),
        ({"seconds": 3.0}, True),
        ({"epochs": 9}, False),  # most of a short run would be an epoch that nothing compensates
        ({"refresh": "every=5"}, False),
        ({"refresh": "never"}, False),
        ({"offset": False}, False),
        ({"inits": 2}, False),  # a late estimate has the current weights alone
        ({"late": False}, False),
    ],
    ids=str,
)
def test_the_first_estimate_waits_in_runs_that_are_long_enough(given: dict[str, Any], late: bool) -> None:  # noqa: FBT001
    assert chosen(5_000, **given)[0].late is late
