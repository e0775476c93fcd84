"""What is written to tables and .npz files: names, labels, splits, and no value where there is none."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch_geometric.data import Data

import topoff
from graphs import communities
from topoff.data.layout import SPLITS
from topoff.data.write import write_npz, write_tables


def named() -> Data:
    """Return a graph whose nodes and classes have names, one of them with a comma and one without a label."""
    data = topoff.load(communities(weighted=True))
    data.y = torch.where(torch.arange(60) == 7, -1, data.y)
    for name in SPLITS:
        data[f"{name}_mask"][7] = False
    names = ["plum", "fig, dried", "äpfel", "kiwi"]
    data.names = SimpleNamespace(node_ids=[f"n{number}" for number in range(60)], class_names=names, notes=())
    return data


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_names_are_written_to_tables(tmp_path: Path, ending: str) -> None:
    data = named()
    write_tables(data, tmp_path / "out", ending=ending)
    read = pyarrow.csv.read_csv if ending == "csv" else pyarrow.parquet.read_table
    nodes = read(tmp_path / "out" / f"nodes.{ending}").to_pydict()
    edges = read(tmp_path / "out" / f"edges.{ending}").to_pydict()
    assert list(nodes) == ["id", "f0", "f1", "f2", "f3", "f4", "label", "split"]
    assert nodes["id"] == data.names.node_ids
    labels = [data.names.class_names[label] if label >= 0 else None for label in data.y.tolist()]
    assert [label or None for label in nodes["label"]] == labels
    assert nodes["split"][7] in (None, "")
    assert set(nodes["split"]) - {None, ""} == set(SPLITS)
    assert edges["source"] == [f"n{number}" for number in data.edge_index[0].tolist()]
    assert edges["weight"] == pytest.approx(data.edge_weight.tolist())
    after = topoff.load(tmp_path / "out")
    assert torch.equal(after.edge_index, data.edge_index)
    assert list(after.names.node_ids) == data.names.node_ids
    assert [after.names.class_names[label] if label >= 0 else None for label in after.y.tolist()] == labels


def test_names_are_written_to_npz(tmp_path: Path) -> None:
    data = named()
    write_npz(data, tmp_path / "out.npz")
    stored = np.load(tmp_path / "out.npz", allow_pickle=False)
    assert stored["class_names"].tolist() == data.names.class_names
    assert stored["node_ids"].tolist() == data.names.node_ids
    after = topoff.load(tmp_path / "out.npz")
    assert list(after.names.class_names) == data.names.class_names
    assert list(after.names.node_ids) == data.names.node_ids
    assert torch.equal(after.y, data.y)


def test_a_missing_target_is_no_value(tmp_path: Path) -> None:
    data = communities()
    data.y, data.test_mask = data.x[:, 0].masked_fill(data.test_mask, torch.nan), torch.zeros_like(data.test_mask)
    write_tables(topoff.load(data), tmp_path / "out", ending="parquet")
    target = pyarrow.parquet.read_table(tmp_path / "out" / "nodes.parquet")["target"]
    assert target.null_count == int(data.y.isnan().sum()) > 0


def test_several_named_labels_get_a_column_each(tmp_path: Path) -> None:
    data = named()
    data.y = (torch.rand(60, 4) < 0.5).float()
    write_tables(data, tmp_path / "out", ending="parquet")
    columns = pyarrow.parquet.read_table(tmp_path / "out" / "nodes.parquet").column_names
    assert columns[6:10] == [f"label:{name}" for name in data.names.class_names]
