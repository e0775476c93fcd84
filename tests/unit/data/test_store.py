"""Stores: what is written is loaded, bit by bit; what is damaged is refused in one sentence."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graph_files import arrays
from graphs import communities, corners
from topoff.data.check import check
from topoff.data.load import load
from topoff.data.pieces import data_pieces
from topoff.data.store import Store, is_store, open_store, stored
from topoff.data.store_write import write_store
from topoff.machine.json_objects import checksum


def sorted_edges(data: Data) -> Data:
    """Return the graph with its edges in the order of a store."""
    order = np.lexsort((np.arange(data.edge_index.size(1)), *data.edge_index.numpy()))
    data = copy.copy(data)
    data.edge_index = data.edge_index[:, order]
    if "edge_weight" in data:
        data.edge_weight = data.edge_weight[order]
    return data


def small() -> Data:
    """Return the graph with all corners, without edge features."""
    data = corners(dtype=torch.float32)
    del data.edge_attr
    return load(data)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return write_store(tmp_path / "s", data_pieces(small()))


def assert_same(first: Data, second: Data) -> None:
    keys = [key for key in first.keys() if key != "names"]  # noqa: SIM118
    assert set(keys) == {key for key in second.keys() if key != "names"}  # noqa: SIM118
    for key in keys:
        assert first[key].dtype == second[key].dtype, key
        assert torch.equal(first[key], second[key]), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_loaded_into_memory_is_what_was_written(tmp_path: Path, dtype: torch.dtype) -> None:
    data = corners(dtype=dtype)
    del data.edge_attr
    write_store(tmp_path / "s", data_pieces(load(data)))
    assert_same(load(tmp_path / "s"), sorted_edges(load(data)))


def test_what_is_mapped_has_the_same_numbers_in_narrow_edges(store: Store) -> None:
    mapped, read = load(store.path, in_memory=False), load(store.path, in_memory=True)
    assert mapped.edge_index.dtype == torch.int32
    mapped.edge_index = mapped.edge_index.long()
    assert_same(mapped, read)


def test_labels_of_every_kind_and_names(tmp_path: Path) -> None:
    data = load(communities(dtype=torch.float32))
    for name, y in {"several": (torch.rand(60, 4) < 0.5).float(), "quantity": torch.rand(60)}.items():
        data.y = y
        made = write_store(tmp_path / name, data_pieces(check(data)))
        assert_same(load(made.path), sorted_edges(data))
        expected = ("multilabel", 4) if name == "several" else ("regression", None)
        assert (made.header.task, made.header.classes) == expected
    np.savez(tmp_path / "g.npz", **arrays(node_ids=np.array(list("uvwxyz"))))
    made = write_store(tmp_path / "named", data_pieces(load(tmp_path / "g.npz")))
    assert load(made.path).names == load(tmp_path / "g.npz").names
    assert load(made.path, in_memory=False).names.ids.to_pylist() == list("uvwxyz")
    assert made.header.classes == 8


def test_a_graph_without_labels(tmp_path: Path) -> None:
    data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]]))
    made = write_store(tmp_path / "s", data_pieces(data))
    assert "y" not in load(made.path, labels=False)
    assert (made.header.task, set(made.header.arrays)) == (None, {"x", "edge_index", "indptr"})


def test_the_size_decides_what_is_mapped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stored(load(store.path)) is None
    monkeypatch.setattr("topoff.data.store_load.IN_MEMORY", 100)
    assert stored(load(store.path)) is not None


def test_a_mapped_graph_knows_its_store_until_it_is_another(store: Store) -> None:
    data = load(store.path, in_memory=False)
    found = stored(data)
    assert found is not None
    assert found.path == store.path
    assert stored(copy.copy(data)) is stored(check(data)) is found
    assert torch.equal(found.tensor("indptr").diff(), torch.bincount(data.edge_index[1], minlength=14))
    data.y = data.y.clone()
    assert check(data).edge_index.dtype == torch.int32  # checked again, and still mapped
    assert stored(check(data)) is found
    data.x = data.x + 1
    assert stored(data) is None
    assert check(data).edge_index.dtype == torch.int64
    assert stored(small()) is None


def test_a_mapped_graph_is_not_checked_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topoff.data.check._check_x", lambda *_, **__: pytest.fail("checked"))
    check(load(store.path, in_memory=False))


def test_a_store_is_one_object_in_copies_and_opened_anew_elsewhere(store: Store) -> None:
    assert copy.deepcopy(store) is store
    again = pickle.loads(pickle.dumps(store))
    assert (again.path, again.header) == (store.path, store.header)
    assert store.array("x") is store.array("x")
    assert store.bytes == sum(path.stat().st_size for path in store.path.glob("*.npy"))


def test_writing_to_a_mapped_graph_leaves_the_store_alone(store: Store) -> None:
    load(store.path, in_memory=False).x.zero_()
    store.verify()


# ---- damage


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header, and its checksum with it."""
    header = json.loads((path / "store.json").read_text())
    del header["checksum"]
    change(header)
    (path / "store.json").write_text(json.dumps({**header, "checksum": checksum(header)}))


def test_another_version_and_another_format(store: Store) -> None:
    rewrite(store.path, lambda header: header.update(version=2))
    with pytest.raises(ValueError, match=r"store\.json to be of version 1 \(got version 2\); write it again with this"):
        load(store.path)
    rewrite(store.path, lambda header: header.update(format="zarr"))
    with pytest.raises(ValueError, match=r"store\.json to be the header of a store \(got format 'zarr'\)"):
        load(store.path)


def test_a_changed_header(store: Store) -> None:
    text = (store.path / "store.json").read_text()
    (store.path / "store.json").write_text(text.replace('"nodes": 14', '"nodes": 15'))
    with pytest.raises(ValueError, match=r"store\.json to have the checksum .* \(got \w+: it has changed\); copy or"):
        load(store.path)
    (store.path / "store.json").write_text(text[:-20])
    with pytest.raises(ValueError, match=r"store\.json to hold a JSON object"):
        load(store.path)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no x": (lambda header: header["arrays"].pop("x"), "got something else: 'x'"),
    "elsewhere": (
        lambda header: header["arrays"].update({"../x": header["arrays"]["x"]}),
        r"got something else: '\.\.",
    ),
    "shape": (lambda header: header.update(nodes=15), r"got something else: indptr of shape \(15,\)"),
    "labels": (lambda header: header["arrays"]["y"].update(shape=[3]), r"got something else: y of shape \(3,\)"),
    "objects": (lambda header: header["arrays"]["x"].update(dtype="object"), "got something else: x of object"),
    "key": (lambda header: header.pop("edges"), "got something else"),
    "list": (lambda header: header.update(arrays=[]), "got something else"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_header_of_something_else(store: Store, name: str) -> None:
    change, match = CHANGES[name]
    rewrite(store.path, change)
    with pytest.raises(ValueError, match=rf"store\.json to describe the arrays of a store \({match}"):
        load(store.path)


def test_damaged_arrays(store: Store) -> None:
    content = (store.path / "x.npy").read_bytes()
    (store.path / "x.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"x\.npy to have the checksum"):
        load(store.path)
    assert load(store.path, in_memory=False).num_nodes == 14  # whose values are not read
    with pytest.raises(ValueError, match=r"x\.npy to have the checksum"):
        open_store(store.path).verify()
    (store.path / "x.npy").write_bytes(content[:-4])
    with pytest.raises(ValueError, match=r"x\.npy to have 352 bytes, as the store's header says \(got 348\)"):
        load(store.path, in_memory=False)
    (store.path / "x.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"x\.npy as the store's header says"):
        load(store.path)


def test_what_is_no_store(tmp_path: Path) -> None:
    assert not is_store(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"Expected a store in .* \(got no .*store\.json\); give the folder"):
        open_store(tmp_path)
