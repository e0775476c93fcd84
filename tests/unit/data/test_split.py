"""Lists of node ids become masks wherever a graph is read, and scores ask for labels and masks in one sentence."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from graph_files import crooked, same
from topoff import TOP
from topoff.data.check import check, check_graph
from topoff.data.load import load
from topoff.data.split import given_masks


def without_masks(**changes: Any) -> Data:
    return crooked(train_mask=None, val_mask=None, test_mask=None, **changes)


IDS: dict[str, dict[str, Any]] = {
    "OGB": {"split_idx": {"train": torch.tensor([0, 1]), "valid": np.array([2]), "test": [3, 4]}},
    "tensors": {"train_idx": torch.tensor([1, 0]), "valid_idx": torch.tensor([2]), "test_idx": torch.tensor([3, 4])},
    "lists": {"train_idx": [0, 1], "val_idx": [2], "test_idx": [3, 4]},
    "column": {"train_idx": torch.tensor([[0], [1]]), "val_idx": torch.tensor([2]), "test_idx": np.array([4, 3])},
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
def test_node_ids_become_masks(ids: dict[str, Any]) -> None:
    graph = without_masks(**ids)
    for function in (check, check_graph, load, lambda data: TOP(nn.Linear(2, 8), data).data):
        assert same(function(graph), crooked())
    assert all(name in graph for name in ids), "the user's own graph is not changed"


def test_nobody_to_validate_on() -> None:
    graph = without_masks(train_idx=[0, 1], val_idx=[], test_idx=[3])
    assert int(check(graph).val_mask.sum()) == 0
    assert "val_mask" not in check(without_masks(train_idx=[0, 1], test_idx=[3]), labels=False)
    with pytest.raises(ValueError, match="'val_mask' to be given"):
        check(without_masks(train_idx=[0, 1], test_idx=[3]))


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ({"train_idx": [6]}, r"'train_idx' to hold node ids from 0 to 5 \(got 6\)"),
        ({"train_idx": [-1, 2]}, r"'train_idx' to hold node ids from 0 to 5 \(got -1\)"),
        ({"train_idx": torch.ones(6, dtype=torch.bool)}, r"'train_idx' to hold node ids \(got torch.bool\); .*a mask"),
        ({"test_idx": [0.5]}, r"'test_idx' to hold node ids \(got torch.float32\)"),
        ({"split_idx": [[0], [1]]}, r"'split_idx' to be a dict of node ids \(got list\)"),
        ({"split_idx": {}, "train_idx": [1]}, r"one split \(got 'split_idx' and 'train_idx'\); delete one"),
    ],
)
def test_other_lists_are_refused(ids: dict[str, Any], sentence: str) -> None:
    for function in (check, check_graph, load):
        with pytest.raises(ValueError, match=sentence):
            function(without_masks(**ids))


def test_two_splits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one split \(got 'train_idx' and masks\)"):
        check(crooked(train_idx=[0]))


def test_scores_ask_for_labels_and_masks() -> None:
    assert list(given_masks(crooked(), purpose="evaluate()")) == ["train", "val", "test"]
    with pytest.raises(ValueError, match=r"labels and masks for evaluate\(\) \(got a graph without labels, 'y'\); set"):
        given_masks(crooked(y=None), purpose="evaluate()")
    with pytest.raises(ValueError, match=r"\(got a graph without masks\); .*topoff.load draws them"):
        given_masks(without_masks(), purpose="evaluate()")
