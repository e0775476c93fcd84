"""Edges that are sorted on the disk: the same as sorted in memory, whatever the ranges."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from topoff.data import edge_sort
from topoff.data.edge_sort import EdgeSorter, SortedEdges, Tidy, id_type
from topoff.data.edges import merge_edges


def random_edges(n: int = 40, count: int = 600) -> np.ndarray:
    return np.random.default_rng(0).integers(n, size=(2, count))


def sort(folder: Path, edges: np.ndarray, *, weight: np.ndarray | None = None, tidy: Tidy | None = None) -> SortedEdges:
    folder.mkdir()
    kind = None if weight is None else weight.dtype.name
    sorter = EdgeSorter(folder, nodes=40, expected=edges.shape[1], weights=kind, tidy=tidy)
    for some in np.array_split(np.arange(edges.shape[1]), 7):
        sorter.add(*edges[:, some], None if weight is None else weight[some])
    return sorter.write()


@pytest.mark.parametrize("size", [1, 50, 1 << 22])
def test_edges_are_sorted_by_target_then_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(edge_sort, "RANGE", size)
    edges, weight = random_edges(), np.arange(600, dtype=np.float32)
    found = sort(tmp_path / "s", edges, weight=weight)
    order = np.lexsort((np.arange(600), *edges))  # equal edges stay in their order
    index, indptr = np.load(tmp_path / "s" / "edge_index.npy"), np.load(tmp_path / "s" / "indptr.npy")
    assert np.array_equal(index, edges[:, order])
    assert index.dtype == np.int32
    assert np.array_equal(np.load(tmp_path / "s" / "edge_weight.npy"), weight[order])
    assert np.array_equal(indptr, np.searchsorted(index[1], np.arange(41)))
    unique = np.unique(edges, axis=1).shape[1]
    assert (found.edges, found.came, found.duplicates) == (600, 600, 600 - unique)
    assert found.self_loops == (edges[0] == edges[1]).sum()
    assert found.largest_degree == np.diff(indptr).max()
    assert not found.undirected
    assert {path.name for path in (tmp_path / "s").iterdir()} == {"edge_index.npy", "indptr.npy", "edge_weight.npy"}


@pytest.mark.parametrize("undirected", [False, True])
def test_merged_edges_are_those_of_merge_edges(tmp_path: Path, undirected: bool) -> None:  # noqa: FBT001
    edges, weight = random_edges(), np.random.default_rng(1).integers(1, 3, size=600).astype(np.float64)
    tidy = Tidy(undirected=undirected, duplicates=False)
    found = sort(tmp_path / "s", edges, weight=weight, tidy=tidy)
    data = Data(edge_index=torch.from_numpy(edges), edge_weight=torch.from_numpy(weight), num_nodes=40)
    merged = merge_edges(data, undirected=undirected)
    order = np.lexsort(merged.edge_index.numpy())
    assert np.array_equal(np.load(tmp_path / "s" / "edge_index.npy"), merged.edge_index.numpy()[:, order])
    assert np.array_equal(np.load(tmp_path / "s" / "edge_weight.npy"), merged.edge_weight.numpy()[order])
    assert (found.duplicates, found.undirected) == (0, undirected)


def test_self_loops_can_be_left_out(tmp_path: Path) -> None:
    for number, undirected in enumerate((False, True)):
        found = sort(tmp_path / str(number), random_edges(), tidy=Tidy(undirected=undirected, self_loops=False))
        assert found.self_loops == 0
        assert found.undirected == undirected


def test_no_edges_at_all(tmp_path: Path) -> None:
    found = sort(tmp_path / "s", np.zeros((2, 0), np.int64))
    assert (found.edges, found.undirected, found.largest_degree) == (0, True, 0)
    assert np.load(tmp_path / "s" / "indptr.npy").tolist() == [0] * 41


@pytest.mark.parametrize("wrong", [-1, 40])
def test_ids_of_no_node_are_refused(tmp_path: Path, wrong: int) -> None:
    edges = random_edges()
    edges[0, 300] = wrong
    with pytest.raises(ValueError, match=rf"'edge_index' to hold node ids from 0 to 39 \(got {min(wrong, 0)} to "):
        sort(tmp_path / "s", edges)


def test_ids_are_wide_only_where_they_must_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [id_type(n).name for n in (2, 2**31, 2**31 + 1)] == ["int32", "int32", "int64"]
    monkeypatch.setattr(edge_sort, "id_type", lambda nodes: np.dtype(np.int64))
    sort(tmp_path / "s", random_edges())
    assert np.load(tmp_path / "s" / "edge_index.npy").dtype == np.int64
