"""A store whose nodes lie by part is the same graph under other numbers, and comes about whole or not at all."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import topoff.data.by_part
from faults import Disk, Fault
from graphs import communities
from topoff.batching.node_sets import NodeSets
from topoff.batching.stored import stored_parts
from topoff.data.by_part import by_part, write_by_part
from topoff.data.edge_sort import Tidy
from topoff.data.load import load
from topoff.data.pieces import data_pieces
from topoff.data.store import Store, open_store
from topoff.data.store_write import EdgePiece, Pieces, write_store


def pieces(**changes: object) -> Pieces:
    ends = np.array([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])
    graph = EdgePiece(*ends, np.arange(7, dtype=np.float32))
    parts: dict[str, object] = {"x": [np.arange(12.0).reshape(6, 2)], "edges": [graph], "y": [np.arange(6) % 2]}
    return Pieces(
        nodes=6, expected_edges=7, weights="float32", **{**parts, "split": np.array([0, 0, 0, 1, 2, -1]), **changes}
    )


def edges_of(store: Store) -> set[tuple[int, int, float]]:
    """Return the edges between the names of nodes, with their weights."""
    names = store.array("node_ids") if "node_ids" in store.header.arrays else np.arange(store.header.nodes)
    return set(zip(*names[store.array("edge_index")].tolist(), store.array("edge_weight").tolist(), strict=True))


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("lot", [1, 1 << 28])
def test_the_same_graph_under_other_numbers(
    tmp_path: Path, lot: int, *, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topoff.data.by_part, "BYTES", lot)
    monkeypatch.setattr(topoff.data.by_part, "free_memory", lambda: 0)
    ids = np.array([f"n{number}" for number in range(6)]) if named else None
    plain = write_store(tmp_path / "plain", pieces(node_ids=ids))
    part = np.array([2, 0, 1, 0, 2, 1])
    order = [1, 3, 2, 5, 0, 4]
    store = write_by_part(tmp_path / "ordered", pieces(node_ids=ids), lambda found: part)
    assert store.header.statistics == plain.header.statistics
    assert store.array("part").tolist() == [0, 0, 1, 1, 2, 2]
    assert store.array("node_ids").tolist() == ([f"n{number}" for number in order] if named else order)
    for name in ("x", "y", "split"):
        assert np.array_equal(store.array(name), plain.array(name)[order])
    assert edges_of(store) == edges_of(plain)
    store.verify()
    assert sorted(os.listdir(tmp_path)) == ["ordered", "plain"]


def test_the_parts_come_with_the_graph_and_node_sets_take_them(tmp_path: Path) -> None:
    data = load(communities(dtype=torch.float32))
    found = NodeSets(method="metis", ratio=0.25, parts=8).fit(data).parts_
    assert found is not None
    write_by_part(tmp_path / "s", data_pieces(data), lambda store: found.numpy())
    for in_memory in (True, False):
        ordered = load(tmp_path / "s", in_memory=in_memory)
        sets = NodeSets(method="stored", ratio=0.25).fit(ordered)
        assert torch.equal(sets.parts_, found.sort().values)
        for nodes in sets.of(0):
            breaks = int((nodes.diff() != 1).sum())
            assert breaks < 8, "a batch is a few ranges"
    with pytest.raises(ValueError, match=r"'parts' to be 8, as in the store \(got 9\); leave it out"):
        NodeSets(method="stored", ratio=0.25, parts=9).fit(ordered)
    assert len(NodeSets(method="stored", ratio=0.05).fit(ordered).of(0)) == 20, "more batches than parts: some are cut"


def test_a_graph_without_parts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"along for batches 'stored' \(got none\); write it with"):
        NodeSets(method="stored").fit(communities(dtype=torch.float32))


def test_parts_that_are_not_of_these_nodes_are_refused(tmp_path: Path) -> None:
    write_by_part(tmp_path / "s", pieces(), lambda store: np.zeros(6, np.int64))
    data = load(tmp_path / "s")
    some = data.subgraph(torch.arange(4))
    assert stored_parts(data) is not None
    with pytest.raises(ValueError, match=r"parts of its 4 nodes along"):
        NodeSets(method="stored", ratio=0.5).fit(some)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with Disk(tmp_path).watching() as disk:
        write_by_part(tmp_path / "s", pieces(), lambda store: np.zeros(6, np.int64))
    shutil.rmtree(tmp_path / "s")
    outcomes = set()
    for at in range(1, len(disk.changes) + 1, 3):
        try:
            with Disk(tmp_path, Fault(at, error=errno.ENOSPC, phase="disk", lasting=True)).watching():
                write_by_part(tmp_path / "s", pieces(), lambda store: np.zeros(6, np.int64))
        except OSError as error:
            outcomes.add(error.errno)
            assert os.listdir(tmp_path) == [], disk.changes[at - 1]
        else:  # what frees room may be done on a full disk
            shutil.rmtree(tmp_path / "s")
    assert outcomes == {errno.ENOSPC}


def test_one_part_keeps_the_order(tmp_path: Path) -> None:
    plain = write_store(tmp_path / "plain", pieces())
    again = write_store(tmp_path / "again", by_part(plain, np.zeros(6, np.int64)))
    assert open_store(again.path).array("node_ids").tolist() == list(range(6))
    assert np.array_equal(again.array("edge_index"), plain.array("edge_index"))


def test_edges_are_counted_as_they_came(tmp_path: Path) -> None:
    tidy = Tidy(undirected=True, self_loops=False)
    plain = write_store(tmp_path / "a", pieces(), tidy=tidy)
    store = write_by_part(tmp_path / "plain", pieces(), lambda found: np.zeros(6, np.int64), tidy=tidy)
    assert store.header.statistics == plain.header.statistics
    assert store.header.statistics["came"] == 7
    assert store.header.edges > 7
