"""Labels and splits of tables: classes, a quantity, several labels, and nodes that have none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from table_files import one_column, read
from topoff.data.load import load

LABELS: dict[str, tuple[str, list[Any], list[Any], list[str] | None]] = {
    "words": ("label", ["b", "a", "", "b"], [1, 0, -1, 1], ["a", "b"]),
    "integers": ("label", ["10", "9", "", "-1"], [2, 1, -1, 0], ["-1", "9", "10"]),
    "whole floats": ("label", ["1.0", "0.0", "", "1"], [1, 0, -1, 1], ["0", "1"]),
    "booleans": ("label", ["True", "false", "", "TRUE"], [1, 0, -1, 1], ["false", "true"]),
    "some are numbers": ("label", ["1", "x", "1", "2"], [0, 2, 0, 1], ["1", "2", "x"]),
    "fractions": ("label", ["1.5", "2", "", "3"], [1.5, 2, None, 3], None),
    "a target": ("target", ["1", "2", "NA", "3"], [1, 2, None, 3], None),
}


@pytest.mark.parametrize(("name", "values", "y", "classes"), LABELS.values(), ids=LABELS.keys())
def test_labels(tmp_path: Path, name: str, values: list[Any], y: list[Any], classes: list[str] | None) -> None:
    tables = read(tmp_path / "g", one_column(name, values), "source,target\n")
    assert [None if np.isnan(value) else value for value in tables.arrays["y"].tolist()] == y
    assert tables.arrays["y"].dtype == (np.float32 if classes is None else np.int64)
    assert tables.class_names == classes
    assert "train_mask" not in tables.arrays


def test_whole_numbers_for_every_node_are_doubted(tmp_path: Path) -> None:
    tables = read(tmp_path / "g", one_column("label", [10, 20, 30, 40]), "source,target\n")
    assert "label: 4 classes for 4 labelled nodes (if it is a quantity, call the column target)" in tables.notes
    tables = read(tmp_path / "g", one_column("target", [10, 20, 30, 40]), "source,target\n")
    assert "target: a quantity" in tables.notes


def test_several_labels(tmp_path: Path) -> None:
    nodes = "id,f,label:red,label:blue\n0,1,1,0.0\n1,2,true,0.0\n2,3,,1.0\n3,4,FALSE,1.0\n"
    tables = read(tmp_path / "g", nodes, "source,target\n0,1\n")
    assert tables.class_names == ["red", "blue"]
    np.testing.assert_array_equal(tables.arrays["y"], [[1, 0], [1, 0], [np.nan, np.nan], [0, 1]])
    what = "label: 2 labels, of which a node may have several; 1 of 4 nodes have none and are in no mask"
    assert what in tables.notes
    data = load(tmp_path / "g")
    used = data.train_mask | data.val_mask | data.test_mask
    assert used.tolist() == [True, True, False, True]
    assert data.y.tolist() == [[1, 0], [1, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "val", "test", ""],
        ["Train", "valid", "TEST", "NA"],
        ["0", "validation", "2", "-1"],
        ["0.0", "1.0", "2.0", ""],
    ],
)
def test_split_words(tmp_path: Path, words: list[str]) -> None:
    rows = "".join(f"{i},{i},{word},{i % 2}\n" for i, word in enumerate(words))
    tables = read(tmp_path / "g", "id,f,split,label\n" + rows, "source,target\n")
    masks = [tables.arrays[f"{name}_mask"].tolist() for name in ("train", "val", "test")]
    assert masks == [[i == place for i in range(4)] for place in range(3)]


@pytest.mark.parametrize("header", ["train_mask,val_mask", "split,train_mask", "test_mask,split"])
def test_masks_are_no_features(tmp_path: Path, header: str) -> None:
    masks = ", ".join(name for name in header.split(",") if name != "split")
    with pytest.raises(ValueError, match=rf"its split in the column 'split' \(got the columns {masks}\); write train"):
        read(tmp_path / "g", f"id,label,{header}\n0,a,1,1\n1,b,0,0\n", "source,target\n")


def test_split_of_unlabeled_nodes_and_empty_split(tmp_path: Path) -> None:
    tables = read(tmp_path / "g", "id,f,split,label\n0,1,train,a\n1,2,train,\n2,3,test,b\n", "source,target\n")
    assert tables.arrays["train_mask"].tolist() == [True, False, False]
    assert "split: 1 nodes have a split but no label, and are in no mask" in tables.notes
    tables = read(tmp_path / "g", "id,f,split,label\n0,1,,a\n1,2,,b\n", "source,target\n")
    assert "train_mask" not in tables.arrays
    assert "split: no value at all, so that a split is drawn" in tables.notes


@pytest.mark.parametrize("nodes", ["id,f\n5,1\n", "id,f,label\n5,1,\n"])
def test_labels_may_be_missing_for_prediction(tmp_path: Path, nodes: str) -> None:
    first = read(tmp_path / "first", "id,f,label\n0,1,a\n1,3,b\n", "source,target\n")
    second = read(tmp_path / "second", nodes, "source,target\n", encoding=first.encoding)
    assert "y" not in second.arrays
    assert second.class_names == ["a", "b"]
    assert ("label: no value at all, read as a graph without labels" in second.notes) == ("label" in nodes)
    data = load(tmp_path / "second", encoding=first.encoding)
    assert "y" not in data
    assert data.names.node_ids == [5]
