"""Each fault of a graph earns its warning with a remedy, and a sound graph none."""

import re
from collections.abc import Callable

import pytest
import torch
from torch_geometric.data import Data

from graph_files import ring
from graphs import six_nodes
from topoff.data.describe import describe


def test_a_sound_graph_earns_no_warning() -> None:
    assert describe(ring()).warnings == []


def isolate(data: Data) -> None:
    data.edge_index = data.edge_index[:, (data.edge_index != 4).all(dim=0)]


def direct(data: Data) -> None:
    data.edge_index = data.edge_index[:, data.edge_index[0] != 4]


def double(data: Data) -> None:
    data.edge_index = torch.cat([data.edge_index, data.edge_index[:, :3]], dim=1)


def negate(data: Data) -> None:
    data.edge_weight = torch.ones(60)
    data.edge_weight[:2] = -1


def gather(data: Data) -> None:
    spokes = torch.stack([torch.arange(3, 11), torch.zeros(8, dtype=torch.long)])
    data.edge_index = torch.cat([data.edge_index, spokes, spokes.flip(0)], dim=1)


def shed_validation(data: Data) -> None:
    data.val_mask = torch.zeros_like(data.val_mask)


def shed_test(data: Data) -> None:
    data.test_mask = torch.zeros_like(data.test_mask)


def divide(data: Data) -> None:
    data.y = torch.arange(30)


def lose_class(data: Data) -> None:
    data.train_mask &= data.y != 1


def shrink_class(data: Data) -> None:
    data.train_mask[2:10] = False


def unbalance(data: Data) -> None:
    data.y = (torch.arange(30) == 0).long()
    data.train_mask = torch.arange(30) < 22
    data.val_mask = (torch.arange(30) >= 22) & (torch.arange(30) < 26)
    data.test_mask = torch.arange(30) >= 26


def flatten(data: Data) -> None:
    data.x = torch.ones(30, 2)


def stretch(data: Data) -> None:
    data.x[:, 2] *= 1e5


WARNINGS: dict[str, tuple[Callable[[Data], None], str]] = {
    "isolated": (isolate, r"Isolated nodes get no messages \(1 of 30 nodes\): give them edges"),
    "directed": (direct, r"Edges are directed: .*0 of 30 nodes get none.*convert GRAPH NEW --undirected` and use NEW"),
    "duplicates": (
        double,
        r"Duplicate edges count again .*\(3 of 63 edges\).*GRAPH NEW --remove-duplicates` and use",
    ),
    "negative weights": (negate, r"Negative weights .*\(2 of 60 edges\): shift them"),
    "hub": (gather, r"One node has 10 edges in a graph of 30 nodes: .*hub; remove it if"),
    "no validation": (shed_validation, "no validation nodes, so no early stopping .*mark some"),
    "no test": (shed_test, "no test nodes, so no score .*mark some"),
    "more classes than nodes": (divide, r"more classes \(30\) than training nodes \(15\): .*regression"),
    "class without nodes": (lose_class, r"Without training nodes, a class is never predicted \(1\): label some"),
    "tiny class": (shrink_class, r"fewer than 5 training nodes, a class is hardly learnt \(0\): label more"),
    "imbalance": (unbalance, "largest class has 21 times the training nodes .*weight the classes in the loss"),
    "constant": (flatten, "All features are constant.*add features"),
    "scales": (stretch, r"very different scales \(.* factor of [\d.e+,]+\): standardise"),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_each_fault_earns_its_warning_with_a_remedy(name: str) -> None:
    spoil, pattern = WARNINGS[name]
    data = ring()
    spoil(data)
    said = describe(data).warnings
    (own,) = [sentence for sentence in said if re.search(pattern, sentence)]
    assert own.endswith(".")


def test_a_long_list_of_classes_is_cut() -> None:
    data = ring()
    divide(data)
    (said,) = [sentence for sentence in describe(data).warnings if "never predicted" in sentence]
    assert "(1, 3, 5, 7, 9 and 10 more)" in said


def test_a_tiny_graph_has_no_hub() -> None:
    assert not any("hub" in sentence for sentence in describe(six_nodes()).warnings)


def test_rare_labels_of_many_are_no_imbalance() -> None:
    data = ring()
    unbalance(data)
    data.y = torch.nn.functional.one_hot(data.y, 2).float()
    assert not any("largest class" in sentence for sentence in describe(data).warnings)


def test_one_class_only() -> None:
    data = ring()
    data.y = torch.zeros_like(data.y)
    assert any("one class only" in warning for warning in describe(data).warnings)
    assert not any("one class only" in warning for warning in describe(ring()).warnings)
