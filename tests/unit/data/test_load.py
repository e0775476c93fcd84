"""What load() adds to reading and checking: the split, names, tables before files, graphs for prediction."""

import copy
import pickle
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graph_files import crooked, mask, same
from table_files import EDGES, EXAMPLE, one_column, write
from topoff.data.check import check
from topoff.data.layout import MASKS
from topoff.data.load import load
from topoff.data.names import Names
from topoff.data.tables import read_tables
from topoff.graph.graph import Graph

# ---- the split


def without_masks(**changes: Any) -> Data:
    return crooked(train_mask=None, val_mask=None, test_mask=None, **changes)


def test_drawn_split_is_60_20_20_of_the_labeled_nodes_and_follows_the_seed() -> None:
    y = torch.zeros(110).long().index_fill(0, torch.arange(10), -1)
    graph = Data(x=torch.ones(110, 1), edge_index=torch.zeros(2, 0).long(), y=y)
    first, again, other = load(graph), load(graph, seed=0), load(graph, seed=1)
    assert [int(first[name].sum()) for name in MASKS] == [60, 20, 20]
    assert not (first.train_mask | first.val_mask | first.test_mask)[:10].any()
    assert same(first, again)
    assert not first.train_mask.equal(other.train_mask)


def test_drawn_split_of_one_node_trains_on_it() -> None:
    graph = Data(x=torch.ones(1, 1), edge_index=torch.zeros(2, 0).long(), y=torch.tensor([1.5]))
    assert load(graph).train_mask.tolist() == [True]


def test_columns_of_masks() -> None:
    columns = torch.stack([mask(0), mask(1), mask(0, 1)], dim=1)
    graph = crooked(train_mask=columns)  # val and test have one column only
    assert [load(graph, split=i).train_mask.tolist() for i in range(3)] == columns.t().tolist()
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=rf"'split' to be from 0 to 2 \(got {wrong}\)"):
            load(graph, split=wrong)
    with pytest.raises(ValueError, match=r"'split' to be from 0 to 0 \(got 1\); this graph has no other split"):
        load(crooked(), split=1)
    with pytest.raises(ValueError, match=r"'train_mask' to be bool of shape \(6,\) .*chooses among columns"):
        check(graph)


@pytest.mark.parametrize("name", ["valid", "val"])
def test_split_idx_of_ogb(name: str) -> None:
    ids = {"train": torch.tensor([0, 1]), name: np.array([2]), "test": torch.tensor([3, 4])}
    graph = without_masks(split_idx=ids)
    assert same(load(graph), crooked())
    assert graph.split_idx is not None


def test_split_idx_malformed() -> None:
    ids = {"train": torch.tensor([0]), "valid": torch.tensor([6]), "test": torch.tensor([2])}
    with pytest.raises(ValueError, match=r"'split_idx' to hold node ids from 0 to 5 \(got 6\)"):
        load(without_masks(split_idx=ids))
    with pytest.raises(ValueError, match=r"'split_idx' to have the key 'valid' \(got \['train'\]\)"):
        load(without_masks(split_idx={"train": torch.tensor([0])}))
    with pytest.raises(ValueError, match=r"one split \(got 'split_idx' and masks\)"):
        load(crooked(split_idx=ids))


def test_an_npz_has_features_of_two_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.savez(path, x=np.ones((3, 2, 2), dtype=np.float32), edge_index=np.array([[0, 1], [1, 2]]), y=np.arange(3))
    with pytest.raises(
        ValueError,
        match=r"In .*graph.npz: .*the features to have shape \(nodes, features\) \(got \(3, 2, 2\)\); flatten",
    ):
        load(path)


def test_an_npz_without_labels_is_enough_for_prediction(tmp_path: Path) -> None:
    path = tmp_path / "graph.npz"
    np.savez(path, x=np.eye(3, dtype=np.float32), edge_index=np.array([[0, 1], [1, 2]]), node_ids=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"got no y, but"):
        load(path)
    data = load(path, labels=False)
    assert data.names.node_ids == ["a", "b", "c"]
    assert "y" not in data
    assert "train_mask" not in data


def test_load_gives_a_valid_graph_with_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "g")
    tables, data = read_tables(folder), load(folder)
    assert set(data.keys()) == {*tables.arrays, "names"}
    assert all(np.array_equal(data[name], array) for name, array in tables.arrays.items())
    assert data.names == Names(tables.node_ids, tables.class_names, tables.encoding, tuple(tables.notes))
    assert "names=Names(4 node ids, 2 classes, 8 notes)" in repr(data)
    for relative in ("g", Path("g")):
        assert load(relative, root=tmp_path).names == data.names
    again = load(folder, encoding=data.names.encoding)
    assert all(torch.equal(again[name], data[name]) for name in tables.arrays)


def no_network(*_: Any) -> None:
    raise OSError("no network")


def test_a_name_and_a_folder_and_tables_before_npz(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "Cora")
    monkeypatch.setattr("topoff.data.pyg_datasets._probe", no_network)
    with pytest.raises(ValueError, match=r"write \./Cora for the folder, or name:Cora for the other"):
        load("Cora", root=tmp_path / "root")
    with pytest.raises(FileNotFoundError, match="raw files of Cora"):
        load("name:Cora", root=tmp_path / "root")
    assert load(Path("Cora")).num_nodes == 4
    assert load("./Cora").num_nodes == 4
    np.savez(
        tmp_path / "Cora" / "graph.npz",
        x=np.ones((2, 1), np.float32),
        edge_index=np.zeros((2, 0), int),
        y=np.array([0, 1]),
    )
    both = load("./Cora")
    assert both.num_nodes == 4
    assert "graph.npz: not read, as tables go before it" in both.names.notes
    (tmp_path / "root").mkdir()
    write(tmp_path / "root" / "mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "Cora" / "graph.npz").rename(tmp_path / "mine" / "graph.npz")
    assert load("mine", root=tmp_path / "root").num_nodes == 2  # the folder here goes before the one in root


def test_a_split_is_drawn_for_labeled_nodes_and_again_with_the_encoding(tmp_path: Path) -> None:
    folder = write(tmp_path / "g", one_column("label", ["a", "b", ""] * 10), "source,target\n")
    first = load(folder, seed=3)
    assert [int(first[f"{name}_mask"].sum()) for name in ("train", "val", "test")] == [12, 4, 4]
    again = load(folder, seed=3, encoding=first.names.encoding)
    assert torch.equal(first.train_mask, again.train_mask)
    with pytest.raises(ValueError, match=r"'split' to be from 0 to 0 \(got 1\)"):
        load(folder, split=1)


def test_tables_without_labels_or_training_nodes_are_for_prediction(tmp_path: Path) -> None:
    encoding = load(write(tmp_path / "first")).names.encoding
    plain = write(tmp_path / "plain", "id,age,city,ok\na,1,Oslo,true\nb,2,Rome,true\nc,3,Rome,\n")
    with pytest.raises(
        ValueError, match=r"in .*plain to have labels \(got features only: age, city, ok\); name the col"
    ):
        load(plain)
    assert load(plain, encoding=encoding).x.shape == (3, 7)
    nodes = "id,age,city,ok,label,split\na,1,Oslo,true,yes,test\nb,2,Rome,true,no,test\nc,3,Rome,,,\n"
    tested = write(tmp_path / "tested", nodes)
    with pytest.raises(ValueError, match="'train_mask' to hold a node"):
        load(tested)
    assert load(tested, encoding=encoding).test_mask.tolist() == [True, True, False]


def test_other_sources_ignore_an_encoding() -> None:
    graph = Data(x=torch.eye(3), edge_index=torch.zeros(2, 0).long(), y=torch.arange(3))
    assert "names" not in load(graph, encoding={"id": "x"})


@pytest.mark.parametrize("pairs", ["both", "as many as nodes"])
def test_pyg_carries_names_untouched(tmp_path: Path, pairs: str) -> None:
    edges = EDGES if pairs == "both" else EDGES + "a,c,1\n"
    data = load(write(tmp_path / "g", edges=edges))
    names = data.names
    assert not data.is_node_attr("names")
    assert not data.is_edge_attr("names")
    forms = [check(data), load(data), data.cpu(), data.to("cpu"), data.clone(), copy.copy(data), data.contiguous()]
    assert all(form.names is names for form in forms)
    assert copy.deepcopy(data).names == pickle.loads(pickle.dumps(data)).names == names
    assert data.subgraph(torch.tensor([0, 1])).names is names
    batch = Graph(data).induced(torch.tensor([0, 2]))
    assert batch.names is names
    assert batch.y.tolist() == [1, 1]


def test_example_is_what_its_script_makes(tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLE / "make.py"))["main"](tmp_path)
    for name in ("nodes.csv", "edges.csv"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes()


def test_example_has_what_tables_have() -> None:
    data = load(EXAMPLE)
    assert (data.num_nodes, data.num_edges, data.num_features) == (300, 900, 11)
    assert data.names.class_names == ["Engineering", "Finance", "Research & Development", "Sales", "Support"]
    assert 0 < int((data.y < 0).sum()) < 30
    assert any("missing, filled with the mean" in note for note in data.names.notes)
    assert sum(path.stat().st_size for path in EXAMPLE.glob("*.csv")) < 60_000


def test_one_column_of_several_labels_is_two_classes(tmp_path: Path) -> None:
    write(tmp_path, "id,f,label:spam\na,1,0\nb,2,1\nc,4,1\nd,5,0\ne,6,\n", "source,target\na,b\nc,d\n")
    data = load(tmp_path)
    assert data.y.tolist() == [0, 1, 1, 0, -1]
    assert data.names.class_names == ["not spam", "spam"]
    assert not bool((data.train_mask | data.val_mask | data.test_mask)[4])


def test_names_are_counted_not_listed() -> None:
    assert repr(Names(node_ids=["ann", "bob"], class_names=["no", "yes"])) == "Names(2 node ids, 2 classes)"
