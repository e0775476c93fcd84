"""Tables that become tables keep their columns; loading them gives the same graph, with other edges."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import topoff
from commands import Command
from table_files import parquet_nodes, write
from topoff.data.table_copy import write_table

NODES = """person,age, city ,ok,code,none,label,split
007,30,Oslo,True,1e5,,10,train
 x y,NA,"Rome, old",FALSE,2,,9,val
=z,40.50,Oslo,true,3,,10,test
d,1,,false,4,,,
"""
EDGES = "kind,source,target,weight,since\nfar,007,x y,2,1999\nfar,x y,007,3,2000\nself,d,d,1,\nnear,=z,d,0.1,2002\n"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("flags", [[], ["--remove-self-loops"], ["--undirected"], ["--remove-duplicates"]])
def test_converted_tables(command: Command, tmp_path: Path, flags: list[str], ending: str) -> None:
    before = topoff.load(write(tmp_path / "g", NODES, EDGES))
    command("convert", tmp_path / "g", tmp_path / "new", *flags, "--format", ending, "--quiet")
    after = topoff.load(tmp_path / "new")
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(after[name], before[name])
    assert (after.names.node_ids, after.names.class_names) == (before.names.node_ids, before.names.class_names)
    assert after.names.encoding == before.names.encoding
    if not flags:
        assert torch.equal(after.edge_index, before.edge_index)
        assert torch.equal(after.edge_weight, before.edge_weight)
    if flags == ["--remove-self-loops"]:
        assert after.edge_weight.tolist() == pytest.approx([2, 3, 0.1])
    if flags == ["--undirected"]:
        assert after.edge_index.tolist() == [[0, 1, 2, 3, 3], [1, 0, 3, 2, 3]]
        assert after.edge_weight.tolist() == pytest.approx([5, 5, 0.1, 0.1, 1])


def test_raw_columns_stay(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "g", NODES, EDGES)
    command("convert", tmp_path / "g", tmp_path / "loops", "--remove-self-loops", "--format", "csv", "--quiet")
    nodes, edges = ((tmp_path / "loops" / f"{name}.csv").read_text().splitlines() for name in ("nodes", "edges"))
    assert nodes[0] == '"person","age","city","ok","code","none","label","split"'
    assert nodes[2] == '" x y","NA","Rome, old","FALSE","2",,"9","val"'
    assert edges[0] == '"kind","source","target","weight","since"'
    assert len(edges) == 4
    command("convert", tmp_path / "g", tmp_path / "typed", "--quiet")
    typed = pyarrow.parquet.read_table(tmp_path / "typed" / "nodes.parquet")
    assert typed["age"].to_pylist() == [30, None, 40.5, 1]
    assert typed["label"].to_pylist() == [10, 9, 10, None]
    assert typed["person"].to_pylist() == ["007", " x y", "=z", "d"]
    command("convert", tmp_path / "g", tmp_path / "merged", "--undirected", "--format", "csv", "--quiet")
    assert (tmp_path / "merged" / "edges.csv").read_text().splitlines()[0] == '"source","target","weight"'


def test_types_of_parquet_stay(command: Command, tmp_path: Path) -> None:
    ids = pa.array([2**63 + number for number in range(4)], pa.uint64())
    table = parquet_nodes().set_column(0, "id", ids).append_column("day", pa.array([0, 1, 0, 1], pa.date32()))
    write(tmp_path / "g", table, pa.table({"source": ids, "target": ids.take(pa.array([1, 0, 2, 3]))}))
    before = topoff.load(tmp_path / "g")
    command("convert", tmp_path / "g", tmp_path / "new", "--undirected", "--quiet")
    found = pyarrow.parquet.read_table(tmp_path / "new" / "nodes.parquet")
    assert found.schema.field("id").type == pa.uint64()
    assert found.schema.field("day").type == pa.date32()
    assert found["id"].to_pylist() == ids.to_pylist()
    command("convert", tmp_path / "new", tmp_path / "text", "--format", "csv", "--quiet")
    for name in ("new", "text"):
        after = topoff.load(tmp_path / name)
        assert after.names.node_ids == before.names.node_ids
        assert torch.equal(after.x, before.x)


def test_several_labels_and_a_quantity_stay(command: Command, tmp_path: Path) -> None:
    several = "id,f,label:red,label:blue\n" + "".join(f"{i},{i},{i % 2},{i % 3 % 2}\n" for i in range(6))
    quantity = "id,f,target\n" + "".join(f"{i},{i},{i / 4}\n" for i in range(6))
    for name, nodes in (("several", several), ("quantity", quantity)):
        before = topoff.load(write(tmp_path / name, nodes, "source,target\n0,1\n"), seed=3)
        command("convert", tmp_path / name, tmp_path / f"{name}-new", "--undirected", "--seed", 3, "--quiet")
        after = topoff.load(tmp_path / f"{name}-new")
        assert torch.equal(after.y, before.y)
        assert torch.equal(after.train_mask, before.train_mask)  # the split that was drawn is written down
        columns = pyarrow.parquet.read_table(tmp_path / f"{name}-new" / "nodes.parquet").column_names
        assert columns == [*nodes.partition("\n")[0].split(","), "split"]


def test_tables_to_npz_and_back(command: Command, tmp_path: Path) -> None:
    before = topoff.load(write(tmp_path / "g", NODES, EDGES))
    command("convert", tmp_path / "g", tmp_path / "g.npz", "--quiet")
    command("convert", tmp_path / "g.npz", tmp_path / "back", "--format", "csv", "--quiet")
    after = topoff.load(tmp_path / "back")
    assert torch.equal(after.y, before.y)
    assert torch.equal(after.test_mask, before.test_mask)
    assert after.names.class_names == before.names.class_names
    assert after.names.ids.to_pylist() == before.names.ids.to_pylist() == ["007", " x y", "=z", "d"]


LOST = {
    "class NA": (
        {"class_names": ["NA", "b", "c"]},
        r"'class_names' that a table keeps \(got 'NA', .* read as None\); re",
    ),
    "class 1.0": ({"class_names": ["1.0", "b2", "1"]}, None),
    "numbers": (
        {"class_names": ["1.5", "2.5", "3"]},
        r"'class_names' that a table keeps \(got '3', which would be read",
    ),
    "one": ({"class_names": ["1.0", "2", "3"]}, r"\(got '1\.0', which would be read as '1'\)"),
    "id": ({"node_ids": ["a", "b", " "]}, r"every entry of 'node_ids' to be a name \(got an empty one at 2\)"),
}


@pytest.mark.parametrize(("names", "sentence"), LOST.values(), ids=LOST.keys())
def test_names_that_a_table_would_change(
    command: Command, tmp_path: Path, names: dict[str, list[str]], sentence: str | None
) -> None:
    arrays = {key: np.array(value) for key, value in names.items()}
    np.savez(tmp_path / "g.npz", x=np.eye(3), edge_index=np.array([[0], [1]]), y=np.arange(3), **arrays)
    done = command("convert", tmp_path / "g.npz", tmp_path / "new", "--quiet", code=0 if sentence is None else 2)
    if sentence is None:
        assert sorted(topoff.load(tmp_path / "new").names.class_names) == sorted(names["class_names"])
    else:
        with pytest.raises(ValueError, match=sentence):
            raise ValueError(done.err)
        assert not (tmp_path / "new").exists()


def test_a_nul_does_not_go_into_csv(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"nodes\.csv to hold text \(got a NUL character in the column 'f'\); write parq"
    ):
        write_table({"f": pa.array(["a\0"], pa.large_string())}, tmp_path / "nodes.csv")
