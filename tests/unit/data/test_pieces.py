"""Any source in pieces: a store of it is the graph that `load` reads, with its edges by target."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch_geometric.data import Data

from graph_files import arrays, benchmark
from graphs import communities, corners
from topoff.data import pieces as room
from topoff.data import table_file
from topoff.data.generate import generate
from topoff.data.load import load
from topoff.data.pieces import data_pieces, pieces_of
from topoff.data.recipe import Recipe
from topoff.data.store_write import write_store
from topoff.data.write import write_npz, write_tables


def assert_store_is(source: Path, place: Path) -> Data:
    """Write a source as a store, and compare it with what `load` reads."""
    made, data = load(write_store(place, pieces_of(source)).path), load(source)
    order = np.lexsort((np.arange(data.edge_index.size(1)), *data.edge_index.numpy()))
    assert torch.equal(made.edge_index, data.edge_index[:, order])
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert made[name].dtype == data[name].dtype
        assert torch.equal(made[name], data[name]), name
    assert ("edge_weight" in made) == ("edge_weight" in data)
    if "edge_weight" in data:
        assert torch.equal(made.edge_weight, data.edge_weight[order])
    if "names" in data:
        assert made.names.class_names == data.names.class_names
        assert made.names.encoding == data.names.encoding
        assert made.names.node_ids == data.names.node_ids
    return made


def graph() -> Data:
    return load(communities(n=200, weighted=True, dtype=torch.float32))


@pytest.fixture(autouse=True)
def tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut everything into many pieces."""
    monkeypatch.setattr(room, "EDGES", 64)
    monkeypatch.setattr(room, "ROWS", 16)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "g.npz", **arrays())
    assert room._members(room.find_source(tmp_path / "g.npz")) is not None
    assert_store_is(tmp_path / "g.npz", tmp_path / "s")
    write_npz(graph(), tmp_path / "h.npz")
    assert_store_is(tmp_path / "h.npz", tmp_path / "t")


OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "benchmark": benchmark,
    "by columns": lambda: arrays(x=np.asfortranarray(arrays()["x"])),
    "integers": lambda: arrays(x=arrays()["x"].astype(np.int64)),
    "no split": lambda: arrays(train_mask=None, val_mask=None, test_mask=None),
    "wide": lambda: arrays(x=arrays()["x"].astype(np.float64)),
    "pairs of columns": lambda: arrays(edge_index=np.asfortranarray(arrays()["edge_index"])),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layouts_of_npz_files(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "g.npz", **OTHERS[name]())
    assert_store_is(tmp_path / "g.npz", tmp_path / "s")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr(table_file, "BLOCK", 1000)
    write_tables(graph(), tmp_path / "g", ending=ending)
    if ending == "parquet":
        path = tmp_path / "g" / "edges.parquet"
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(path), path, row_group_size=50)
    made = assert_store_is(tmp_path / "g", tmp_path / "s")
    assert len(made.names.notes) > 0


def test_tables_without_features_have_degrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "BLOCK", 16)
    (tmp_path / "nodes.csv").write_text("id,label\na,x\nb,y\nc,x\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\nb,c\nc,a\na,c\n")
    assert_store_is(tmp_path, tmp_path / "s")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_wrong_row_is_named_by_its_place_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(table_file, "BLOCK", 40)
    (tmp_path / "nodes.csv").write_text("id,label\na,x\nb,y\n")
    rows = {"source": ["a"] * 30 + ["q"], "target": ["b"] * 31}
    if ending == "csv":
        text = "".join(f"{one},{other}\n" for one, other in zip(*rows.values(), strict=True))
        (tmp_path / "edges.csv").write_text(f"source,target\n{text}")
    else:
        pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "edges.parquet")
    for read in (load, lambda path: write_store(tmp_path / "s", pieces_of(path))):
        with pytest.raises(ValueError, match=r"to be an id of nodes\.csv \(got 'q' in data row 31\)"):
            read(tmp_path)


def test_no_edges_in_a_table(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,label,a\na,x,1\nb,y,2\nc,x,4\n")
    for name, table in {"edges.csv": "source,target\n", "edges.parquet": None}.items():
        path = tmp_path / name
        if table is None:
            empty = pyarrow.table({"source": pyarrow.array([], "string"), "target": pyarrow.array([], "string")})
            pyarrow.parquet.write_table(empty, path)
        else:
            path.write_text(table)
        assert assert_store_is(tmp_path, tmp_path / f"s-{name}").edge_index.shape == (2, 0)
        path.unlink()


def test_damaged_tables_of_edges(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("id,label\na,x\nb,y\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\na,b,c\n")
    with pytest.raises(ValueError, match=r"edges\.csv to be a UTF-8 table .* \(got 3 in data row 2"):
        pieces_of(tmp_path)
    (tmp_path / "edges.csv").unlink()
    (tmp_path / "edges.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(ValueError, match=r"edges\.parquet to be a whole parquet file \(got the first 12 bytes of one"):
        pieces_of(tmp_path)


def test_what_a_store_has_no_place_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"without edge_attr for a store \(got one with it\); write an \.npz file"):
        data_pieces(load(corners()))
    np.savez(tmp_path / "g.npz", **arrays(edge_weight=np.ones(3)))
    with pytest.raises(ValueError, match=r"'edge_weight' to hold 5 numbers, one per edge \(got float64 of shape"):
        pieces_of(tmp_path / "g.npz")


def test_a_damaged_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **arrays(x=np.ones((6, 4000), np.float32)))
    content = bytearray((tmp_path / "g.npz").read_bytes())
    place = content.find(np.ones(100, np.float32).tobytes())
    content[place + 1000] ^= 255
    (tmp_path / "g.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"g\.npz to be a whole .* \(got a wrong checksum in 'x'"):
        write_store(tmp_path / "s", pieces_of(tmp_path / "g.npz"))


def test_a_store_of_a_store(tmp_path: Path) -> None:
    write_store(tmp_path / "s", data_pieces(graph()))
    again = write_store(tmp_path / "t", pieces_of(tmp_path / "s"))
    assert again.header.arrays == load(tmp_path / "s").names.store.header.arrays


def test_a_store_of_a_stand_in_says_so(tmp_path: Path) -> None:
    made = generate(Recipe(nodes=500, edges=3000), tmp_path / "s", seed=2)
    again = write_store(tmp_path / "t", pieces_of(tmp_path / "s"))
    assert again.header.stand_in == load(tmp_path / "s").names.store.header.stand_in
    assert load(again.path).names.stand_in == load(made.path).names.stand_in == "stand-in, seed 2"
