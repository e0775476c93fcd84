"""Descriptions of hand-made graphs, number by number, and every warning with the graph that earns it."""

import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.utils import homophily

from graph_files import ring
from graphs import communities, corners, six_nodes
from topoff.data.describe import ClassCount, Degrees, Description, degree_histogram, describe

# ---- the edges


def test_all_corners_are_counted() -> None:
    found = describe(corners())
    assert (found.nodes, found.edges, found.self_loops, found.duplicates) == (14, 32, 3, 4)
    assert (found.undirected, found.weighted, found.negative_weights, found.edge_features) == (False, True, 0, 2)
    assert (found.isolated, found.unreached) == (1, 2)  # node 8; nodes 8 and 13
    assert (found.components, found.largest_component) == (3, 10)
    incoming = [2, 4, 4, 2, 4, 2, 3, 4, 0, 2, 1, 1, 3, 0]
    outgoing = [5, 2, 3, 4, 2, 4, 2, 2, 0, 1, 2, 1, 2, 2]
    assert sum(incoming) == sum(outgoing) == found.edges
    for degree, counted in ((found.degree, incoming), (found.degree_out, outgoing)):
        counts = sorted(counted)
        assert degree == Degrees(min(counts), (counts[6] + counts[7]) / 2, sum(counts) / 14, max(counts))
    assert found.histogram == {"edges": [0, 1, 2, 4, 8], "counts": [2, 2, 6, 4]}


def test_an_undirected_graph_has_one_kind_of_degree() -> None:
    found = describe(six_nodes())
    assert found.undirected
    assert found.degree_out is None
    assert found.degree == Degrees(1, 1.0, 10 / 6, 3)
    assert found.duplicates == found.self_loops == found.isolated == found.unreached == 0
    assert (found.components, found.largest_component) == (1, 6)


def test_a_self_loop_or_a_duplicate_leaves_a_graph_undirected_and_a_missing_reverse_does_not() -> None:
    data = ring()
    data.edge_index = torch.cat([data.edge_index, torch.tensor([[0, 0], [0, 1]])], dim=1)
    found = describe(data)
    assert (found.undirected, found.self_loops, found.duplicates) == (True, 1, 1)
    data.edge_index = torch.cat([data.edge_index, torch.tensor([[0], [5]])], dim=1)
    assert not describe(data).undirected


def test_a_one_way_ring_is_directed() -> None:
    data = ring()
    data.edge_index = data.edge_index[:, :30]
    found = describe(data)
    assert not found.undirected
    assert found.degree == found.degree_out == Degrees(1, 1.0, 1.0, 1)


def test_components_are_weak() -> None:
    data = ring(8, classes=2)
    data.edge_index = torch.tensor([[0, 2, 4], [1, 1, 5]])
    found = describe(data)
    assert (found.components, found.largest_component) == (5, 3)


def test_a_self_loop_alone_leaves_a_node_isolated() -> None:
    data = ring(4, classes=2)
    data.edge_index = torch.tensor([[0, 1, 2], [1, 0, 2]])
    assert describe(data).isolated == 2


def test_no_edges_at_all() -> None:
    data = ring()
    data.edge_index = torch.empty(2, 0, dtype=torch.long)
    found = describe(data)
    assert (found.edges, found.isolated, found.components, found.largest_component) == (0, 30, 30, 1)
    assert found.homophily is None
    assert found.adjusted_homophily is None
    assert found.histogram == {"edges": [0, 1], "counts": [30]}


@pytest.mark.parametrize("top", [0, 1, 2, 3, 4, 7, 8, 9, 1000])
def test_every_degree_is_in_one_bin(top: int) -> None:
    degrees = torch.arange(top + 1)
    found = degree_histogram(degrees)
    bins = list(zip(found["edges"], found["edges"][1:], strict=False))
    assert found["counts"] == [sum(first <= degree < beyond for degree in range(top + 1)) for first, beyond in bins]
    assert sum(found["counts"]) == top + 1
    assert found["counts"][-1] > 0
    assert degree_histogram(torch.empty(0, dtype=torch.long)) == {"edges": [0, 1], "counts": [0]}


# ---- homophily


@pytest.mark.parametrize("seed", range(3))
def test_edge_homophily_is_pygs(seed: int) -> None:
    data = communities(seed=seed)
    assert describe(data).homophily == pytest.approx(homophily(data.edge_index, data.y, method="edge"))


def test_adjusted_homophily_is_its_formula() -> None:
    data = communities(80, groups=3, seed=4)
    degree = torch.bincount(data.edge_index[1], minlength=80)
    expected = sum((float(degree[data.y == k].sum()) / float(degree.sum())) ** 2 for k in range(3))
    found = describe(data)
    assert found.adjusted_homophily == pytest.approx((found.homophily - expected) / (1 - expected))


def test_adjusted_homophily_of_labels_that_say_nothing_is_near_zero() -> None:
    data = communities(600, groups=3, degree=20.0)
    data.y = (torch.rand(600, generator=torch.Generator().manual_seed(1)) < 0.1).long()
    found = describe(data)
    assert found.homophily > 0.7  # high, only because one class is large
    assert abs(found.adjusted_homophily) < 0.05


def test_homophily_leaves_out_self_loops_and_unlabeled_nodes() -> None:
    data = ring(4, classes=2)
    data.y = torch.tensor([0, 0, 1, -1])
    data.test_mask = torch.zeros(4, dtype=torch.bool)
    data.edge_index = torch.tensor([[0, 1, 2, 3, 2, 2], [1, 2, 3, 0, 2, 2]])
    found = describe(data)
    assert found.homophily == 0.5  # 0-1 is inside a class, 1-2 is not
    assert found.unlabelled == 1


def test_adjusted_homophily_of_one_class_is_not_defined() -> None:
    data = ring(classes=1)
    found = describe(data)
    assert (found.homophily, found.adjusted_homophily, found.task, found.balance) == (1.0, None, "classes", None)


# ---- the labels


def test_classes_are_counted_per_split_and_named() -> None:
    data = corners()
    found = describe(data)
    assert [asdict(one) for one in found.classes] == [
        {"name": str(k), "count": int((data.y == k).sum())}
        | {name: int((data.y[data[f"{name}_mask"]] == k).sum()) for name in ("train", "val", "test")}
        for k in range(3)
    ]
    assert found.splits == {"train": 7, "val": 4, "test": 3, "none": 0}
    data.names = SimpleNamespace(node_ids=None, class_names=["ant", "bee", "cow", "dog"], notes=())
    named = describe(data)
    assert [one.name for one in named.classes] == ["ant", "bee", "cow", "dog"]
    assert named.classes[3] == ClassCount("dog", 0, 0, 0, 0)


def test_balance_is_relative_entropy_and_majority_the_share_of_the_largest_class() -> None:
    data = ring(8, classes=2)
    data.y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])  # training nodes 0, 2, 4, 6
    found = describe(data)
    assert found.majority == 0.75
    assert found.balance == pytest.approx(-(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)))
    data.y = torch.tensor([0, 0, 1, 0, 0, 0, 1, 1])
    assert describe(data).balance == pytest.approx(1.0)


def test_the_task_is_read_off_the_labels() -> None:
    data = ring()
    assert describe(data).task == "classes"
    data.y = (data.y > 0).long()
    assert describe(data).task == "binary"
    data.y = torch.nn.functional.one_hot(data.y, 2).double()
    found = describe(data)
    assert found.task == "multilabel"
    assert [one.count for one in found.classes] == [10, 20]
    assert found.homophily is found.balance is found.majority is found.target is None
    data.names = SimpleNamespace(class_names=["no", "yes"])
    assert [one.name for one in describe(data).classes] == ["no", "yes"]


def test_regression_has_a_target_and_no_classes() -> None:
    data = ring(8)
    data.y = torch.tensor([1.0, 9, 3, 9, 5, 9, 7, float("nan")])
    data.test_mask = torch.zeros(8, dtype=torch.bool)
    found = describe(data)
    assert (found.task, found.classes, found.homophily, found.balance, found.majority) == (
        *("regression", [], None, None, None),
    )
    assert asdict(found.target) == {"min": 1.0, "mean": 4.0, "std": pytest.approx(math.sqrt(5)), "max": 7.0}
    assert found.unlabelled == 1
    assert found.splits["none"] == 2


# ---- the features


def test_features_are_described_column_by_column() -> None:
    data = ring()
    data.x = torch.zeros(30, 4)
    data.x[:, 1] = 7
    data.x[0, 2] = -2
    data.x[:, 3] = torch.arange(30)
    found = describe(data)
    features = found.features
    assert (features.count, features.dtype, features.min, features.max, features.constant) == (4, "float32", -2, 29, 2)
    assert features.zeros == pytest.approx(1 - (30 + 1 + 29) / 120)
    deviations = data.x[:, 2:].double().std(dim=0, correction=0)
    assert features.scale_ratio == pytest.approx(float(deviations[1] / deviations[0]))
    assert found.memory == {"x": 30 * 4 * 4, "edges": 60 * 2 * 8}


def test_many_columns_are_described_as_few() -> None:
    data = ring()
    data.x = torch.randn(30, 150) * torch.logspace(-1, 1, 150)
    deviations = data.x.double().std(dim=0, correction=0)
    assert describe(data).features.scale_ratio == pytest.approx(float(deviations.max() / deviations.min()))


def test_enormous_features_stay_finite() -> None:
    data = ring()
    data.x[:, 0] *= 1e153
    data.x[:, 1] *= 1e-153
    found = describe(data)
    assert math.isfinite(found.features.scale_ratio)
    json.dumps(asdict(found), allow_nan=False)


def test_edge_memory_counts_weights_and_features() -> None:
    assert describe(corners()).memory["edges"] == 32 * (2 * 8 + 8 + 2 * 8)


# ---- the whole


@pytest.mark.parametrize("data", [corners(), communities(), six_nodes(), ring()], ids=str)
def test_a_description_is_plain_json(data: Data) -> None:
    found = asdict(describe(data))
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_a_graph_of_one_node() -> None:
    one = torch.ones(1, dtype=torch.bool)
    data = Data(x=torch.ones(1, 1), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.zeros(1, dtype=torch.long))
    found = describe(Data(**data.to_dict(), train_mask=one, val_mask=~one, test_mask=~one))
    assert (found.nodes, found.components, found.majority, found.features.scale_ratio) == (1, 1, 1.0, 1.0)


def test_the_numbers_of_nodes_do_not_matter() -> None:
    data = corners()
    order = torch.randperm(14)
    place = order.argsort()
    moved = Data(
        x=data.x[order],
        edge_index=place[data.edge_index],
        edge_weight=data.edge_weight,
        edge_attr=data.edge_attr,
        y=data.y[order],
        **{f"{name}_mask": data[f"{name}_mask"][order] for name in ("train", "val", "test")},
    )
    assert without_rounding(describe(moved)) == without_rounding(describe(data))


def without_rounding(found: Description) -> Description:
    """Round what is summed in another order."""
    return replace(found, features=replace(found.features, scale_ratio=round(found.features.scale_ratio, 9)))


def test_the_graph_is_left_as_it_was() -> None:
    data = corners()
    before = data.clone()
    describe(data)
    assert data.keys() == before.keys()
    assert all(torch.equal(data[key], before[key]) for key in before.keys())  # noqa: SIM118


def test_what_is_no_valid_graph_is_refused() -> None:
    data = ring()
    del data.val_mask
    with pytest.raises(ValueError, match="Expected 'val_mask' to be given"):
        describe(data)
    data = ring()
    data.x[3, 1] = float("nan")
    with pytest.raises(ValueError, match="Expected 'x' to be finite"):
        describe(data)


def test_features_of_more_dimensions_are_columns() -> None:
    data = communities()
    flat = describe(data).features
    data.x = data.x.view(60, 5, 1)
    assert describe(data).features == flat
