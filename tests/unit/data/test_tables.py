"""Folders of tables, through tables.py, labels.py, features.py and columns.py, and as `load` hands them on."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from table_files import EDGES, EXAMPLE, FEW, NODES, parquet_nodes, read, same, write
from topoff.data.load import load
from topoff.data.tables import read_tables

# ---- what comes out


def test_a_small_graph(tmp_path: Path) -> None:
    tables = read(tmp_path / "g")
    step = np.sqrt(1.5)  # of 30, 40, 50 in units of their deviation
    expected = [
        # age, missing; Oslo, Rome, missing; false, true
        [-step, 0, 1, 0, 0, 0, 1],
        [step, 0, 0, 1, 0, 1, 0],
        [0, 1, 1, 0, 0, 0, 1],
        [0, 0, 0, 0, 1, 1, 0],
    ]
    assert tables.arrays["x"].dtype == np.float32
    np.testing.assert_allclose(tables.arrays["x"], expected, atol=1e-6)
    assert tables.arrays["edge_index"].tolist() == [[0, 1, 2], [1, 0, 2]]
    assert tables.arrays["edge_weight"].tolist() == [2, -0.5, 100]
    assert tables.arrays["y"].tolist() == [1, 0, 1, -1]
    assert tables.class_names == ["no", "yes"]
    assert tables.node_ids == ["a", "b", "c", "d"]
    masks = [tables.arrays[f"{name}_mask"].tolist() for name in ("train", "val", "test")]
    assert masks == [[i == place for i in range(4)] for place in range(3)]
    assert tables.notes == [
        "one: a column with one value only, left out",
        "none: a column without any value, left out",
        "name: a column of strings that are all different, left out",
        "age: 1 of 4 missing, filled with the mean 40 and marked",
        "city: 2 categories, one column each; 1 of 4 missing, marked",
        "ok: 2 categories, one column each",
        "label: 2 classes; 1 of 4 nodes have none and are in no mask",
        "edges: 3, all of them in both directions",
    ]


def test_csv_and_parquet_are_alike(tmp_path: Path) -> None:
    edges = pa.table(
        {
            "source": ["a", "b", "c"],
            "target": ["b", "a", "c"],
            "weight": [Decimal("2.00"), Decimal("-0.50"), Decimal("100.00")],
        }
    )
    first, second = read(tmp_path / "csv"), read(tmp_path / "parquet", parquet_nodes(), edges)
    assert same(first, second)
    assert (first.node_ids, first.class_names, first.encoding, first.notes) == (
        second.node_ids,
        second.class_names,
        second.encoding,
        second.notes,
    )
    mixed = read(tmp_path / "mixed", parquet_nodes(), EDGES)
    assert same(first, mixed)
    dated = pa.table({"id": range(3), "day": pa.array([0, 0, 1], pa.date32())})
    assert read(tmp_path / "day", dated, "source,target\n").encoding["columns"][0]["categories"] == [
        "1970-01-01",
        "1970-01-02",
    ]


def test_permuted_rows_give_permuted_arrays(tmp_path: Path) -> None:
    header, *rows = NODES.splitlines()
    first_edge, *others = EDGES.splitlines()
    order = [2, 0, 3, 1]
    tables = read(tmp_path / "first")
    moved = read(tmp_path / "moved", "\n".join([header, *(rows[i] for i in order)]), "\n".join([first_edge, *others]))
    for name in ("y", "train_mask", "val_mask", "test_mask"):
        assert moved.arrays[name].tolist() == tables.arrays[name][order].tolist()
    np.testing.assert_allclose(moved.arrays["x"], tables.arrays["x"][order], atol=1e-6)
    assert moved.node_ids == [tables.node_ids[i] for i in order]
    assert np.array(order)[moved.arrays["edge_index"]].tolist() == tables.arrays["edge_index"].tolist()


# ---- ids


@pytest.mark.parametrize("ids", [[3, 4], ["3", "4"], [3.0, 4.0]])
@pytest.mark.parametrize("ends", [[4, 3], ["4", "3"]])
def test_integer_ids_are_words_of_the_same_digits(tmp_path: Path, ids: list[Any], ends: list[Any]) -> None:
    nodes = pa.table({"id": ids, "age": [1, 2]})
    edges = pa.table({"source": ends, "target": ends[::-1]})
    assert read(tmp_path / "g", nodes, edges).node_ids == [3, 4]
    assert read(tmp_path / "h", "id,age\n3,1\n4,2\n", edges).arrays["edge_index"].tolist() == [[1, 0], [0, 1]]


def test_ids_stay_as_they_are_written(tmp_path: Path) -> None:
    nodes = "id,age\n007,1\n7,2\nNA,3\nTrue,4\n"
    tables = read(tmp_path / "g", nodes, "source,target\n7,007\nTrue,NA\n")
    assert tables.node_ids == ["007", "7", "NA", "True"]
    assert tables.arrays["edge_index"].tolist() == [[1, 3], [0, 2]]
    with pytest.raises(ValueError, match=r"every source in .*edges\.csv to be an id of nodes\.csv \(got 'true' in"):
        read(tmp_path / "g", nodes, "source,target\ntrue,NA\n")


@pytest.mark.parametrize(("ids", "end"), [(["007", "008"], "7"), (["7", "8"], "007")])
def test_zeros_in_front_count(tmp_path: Path, ids: list[str], end: str) -> None:
    nodes = f"id,age\n{ids[0]},1\n{ids[1]},2\n"
    assert read(tmp_path / "g", nodes, f"source,target\n{ids[1]},{ids[0]}\n").node_ids in (ids, [7, 8])
    with pytest.raises(ValueError, match=rf"to be an id of nodes\.csv \(got '{end}' in data row 1\)"):
        read(tmp_path / "g", nodes, f"source,target\n{end},{ids[0]}\n")


@pytest.mark.parametrize(("header", "name"), [("age,id", "id"), ("node_id,node", "node"), ("age,node_id", "node_id")])
def test_named_id_columns(tmp_path: Path, header: str, name: str) -> None:
    tables = read(tmp_path / "g", f"{header}\n1,2\n3,4\n5,6\n", "source,target\n")
    assert tables.encoding["id"] == name
    assert not any("taken for the ids" in note for note in tables.notes)


@pytest.mark.parametrize(("header", "said"), [("person,age", "person"), (",age", "the first column")])
def test_first_column_as_ids_is_reported(tmp_path: Path, header: str, said: str) -> None:
    tables = read(tmp_path / "g", f"{header}\n1,2\n3,4\n", "source,target\n")
    assert tables.node_ids == [1, 3]
    assert tables.notes[0] == f"{said}: taken for the ids, as no column is called id, node, node_id"


# ---- features and notes


def test_without_features_the_degree_counts(tmp_path: Path) -> None:
    tables = read(tmp_path / "g", "id,label\na,1\nb,2\nc,1\nd,2\n")
    np.testing.assert_allclose(tables.arrays["x"], [[np.log(3), 1], [np.log(3), 1], [np.log(3), 1], [0, 1]], rtol=1e-6)
    what = "no usable feature column: the features are the logarithm of 1 + the degree and a constant"
    assert what in tables.notes
    again = read(tmp_path / "h", "id\na\nb\nc\n", encoding=tables.encoding)
    assert again.arrays["x"].shape == (3, 2)
    assert what in again.notes


EDGE_NOTES = {
    "both": ("0,1\n1,0\n2,2\n", "edges: 3, all of them in both directions"),
    "one way": (
        "0,1\n1,2\n",
        "edges: 2, none of them in both directions; messages go from source to target only (write",
    ),
    "some": ("2,0\n0,1\n1,0\n", "edges: 3, 2 of them in both directions; messages go"),
    "none": ("", "edges: none"),
}


@pytest.mark.parametrize(("rows", "note"), EDGE_NOTES.values(), ids=EDGE_NOTES.keys())
def test_notes_about_edges(tmp_path: Path, rows: str, note: str) -> None:
    tables = read(tmp_path / "g", "id,f\n0,1\n1,2\n2,3\n", "source,target\n" + rows)
    assert tables.notes[-1].startswith(note)
    assert tables.arrays["edge_index"].shape == (2, rows.count("\n"))
    assert "edge_weight" not in tables.arrays


def test_further_columns_of_edges_are_reported(tmp_path: Path) -> None:
    tables = read(tmp_path / "g", edges="kind,source,target,since\nx,a,b,1\n")
    assert tables.notes[-1] == "kind, since: not used, an edge has a weight only"


# ---- the encoding of an earlier table


def test_the_same_table_again_is_the_same_to_the_bit(tmp_path: Path) -> None:
    first = read_tables(EXAMPLE)
    again = read_tables(EXAMPLE, encoding=json.loads(json.dumps(first.encoding)))
    assert same(first, again)
    assert (again.class_names, again.encoding) == (first.class_names, first.encoding)


def test_another_table_is_encoded_alike(tmp_path: Path) -> None:
    first = read(tmp_path / "first")
    nodes = "extra,ok,city,age,id,label\n1,True,Rome,60,y,no\n2,maybe,Lima,,z,\n3,,Oslo,40,x,yes\n"
    second = read(tmp_path / "second", nodes, "source,target\nx,y\n", encoding=first.encoding)
    step = np.sqrt(1.5)
    expected = [[2 * step, 0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0]]
    np.testing.assert_allclose(second.arrays["x"], expected, atol=1e-6)
    assert second.arrays["y"].tolist() == [0, -1, 1]
    assert second.class_names == ["no", "yes"]
    assert second.encoding == first.encoding
    assert second.notes[:4] == [
        "extra: not used, as the first table had no such column",
        "city: 1 of 3 hold strings without a column of their own (such as 'Lima') and have zeros only",
        "ok: 1 of 3 hold strings without a column of their own (such as 'maybe') and have zeros only",
        "ok: 1 of 3 missing, all zeros, not marked",
    ]


ENCODED: dict[str, tuple[str, str, str]] = {
    "missing columns": ("f,g,label", "g", r"feature columns of the first table \(got no f, but id, g\); add them"),
    "words": (
        "f",
        "f=x",
        r"'f' of .*nodes\.csv to hold numbers \(got 'x' in data row 1\); write a number, or leave it",
    ),
    "unknown class": (
        "f,label",
        "f,label=9",
        r"classes of the first table, 0, 1, 2, 3, 4 and 1 more \(got '9' in data",
    ),
    "target, not classes": ("f,label", "f,target", r"label columns of the first table, label \(got target\); rename"),
    "one, not several": ("f,label:0,label:1", "f,label", r"of the first table, label:0 or label:1 \(got label\)"),
    "other labels": ("f,label:0,label:1", "f,label:0", r"first table, label:0 or label:1 \(got label:0\)"),
    "no id": ("f", "f", r"to have a column of ids \(got the columns f\); call it id or node or node_id"),
}


@pytest.mark.parametrize(("first", "second", "sentence"), ENCODED.values(), ids=ENCODED.keys())
def test_tables_that_do_not_fit_an_encoding(tmp_path: Path, first: str, second: str, sentence: str) -> None:
    several = "label:" in first
    rows = "".join(f"\n{i}" + "".join(f",{i % 2 if several else i}" for _ in first.split(",")) for i in range(6))
    encoding = read(tmp_path / "first", f"id,{first}{rows}", "source,target\n").encoding
    header = ",".join(part.split("=")[0] for part in second.split(","))
    row = ",".join(part.partition("=")[2] or "1" for part in second.split(","))
    nodes = f"{header}\n{row}\n" if "of ids" in sentence else f"id,{header}\n7,{row}\n"
    with pytest.raises(ValueError, match=sentence) as caught:
        read(tmp_path / "second", nodes, "source,target\n", encoding=encoding)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("encoding", "got"), [({}, "an empty one"), ({"columns": [], "x": 1}, "columns, x")])
def test_encodings_from_elsewhere(tmp_path: Path, encoding: dict[str, Any], got: str) -> None:
    with pytest.raises(ValueError, match=rf"'encoding' to be that of an earlier read \(got {got}\); pass Tables"):
        read(tmp_path / "g", encoding=encoding)


# ---- what is refused
BAD: dict[str, tuple[Any, Any, str]] = {
    "empty file": ("", EDGES, r"nodes\.csv to be a UTF-8 table .*\(got an empty file\); write the names"),
    "blank file": (FEW, b"\xef\xbb\xbf\r\n\n", r"edges\.csv to be a UTF-8 table .*\(got an empty file\)"),
    "no rows": ("id,f\n", EDGES, r"nodes\.csv to hold a row per node \(got a header only\); add the nodes"),
    "no parquet rows": (pa.table({"id": pa.array([], pa.int64())}), EDGES, r"nodes\.parquet to hold a row per node"),
    "same names": ("id,f, f\na,1,2\n", EDGES, r"columns of .*nodes\.csv to have different names \(got 'f' twice\)"),
    "no ids": ("label,f\na,1\n", EDGES, r"a column of ids \(got the columns label, f\); call it id or node or node_id"),
    "same ids": (FEW + "a,4\nc,5\nc,5\n", EDGES, r"once \(got 'a' 2 times, 2 such ids in all\); remove or rename"),
    "same integers": ("id,f\n1,1\n1,2\n", EDGES, r"column 'id' of .*nodes\.csv to be there once \(got '1' 2 times, 1"),
    "missing id": ("id,f\na,1\n ,2\n", EDGES, r"an id in every row \(got nothing in data row 2\); fill it in"),
    "unknown end": (FEW, "source,target\na,b\na,q\nz,y\n", r"source in .*edges\.csv .*\(got 'z' in data row 3\); add"),
    "unknown ends": (FEW, "source,target\na,b\na,q\nb,y\n", r"target .*\(got 'q' in data row 2; 2 such rows in all\)"),
    "missing end": (
        FEW,
        "source,target\na,\n",
        r"column 'target' of .*edges\.csv to hold an id .*nothing in data row 1",
    ),
    "no source": (FEW, "from,target\na,b\n", r"columns source and target \(got no source, but from, target\); rename"),
    "semicolons": (
        FEW,
        "source;target\na;b\n",
        r"separated by commas \(got semicolons in its first line, 'source;target'\)",
    ),
    "weight in words": (FEW, "source,target,weight\na,b,1\na,b,x\n", r"'weight' .*numbers \(got 'x' in data row 2\)"),
    "infinite weight": (FEW, "source,target,weight\na,b,-inf\n", r"finite numbers \(got '-inf' in data row 1\); wri"),
    "no weight": (FEW, "source,target,weight\na,b,\n", r"number in every row \(got nothing in data row 1\); write 1"),
    "nan weight": (FEW, "source,target,weight\na,b,nan\n", r"to hold a number in every row \(got 'nan' in data row 1"),
    "split word": ("id,split,label\na,train,1\nb,dev,2\n", "source,target\n", r"'split' .*\(got 'dev' in data row 2\)"),
    "split number": ("id,split,label\na,0,1\nb,3,2\n", "source,target\n", r"to name the split \(got '3' in data row 2"),
    "mixture": (
        FEW + "d,?\n",
        EDGES,
        r"'f' of .*csv to hold either numbers or strings, not 3 numbers and 1 strings \(got '\?' in data row 4\)",
    ),
    "infinite": (FEW + "d,inf\n", EDGES, r"'f' of .* to hold finite numbers \(got 'inf' in data row 4\)"),
    "short row": (
        FEW + "d\n",
        EDGES,
        r"2 values in every row \(got 1 in data row 4, 'd'\); complete that row, and quote",
    ),
    "long row": (FEW, "source,target\na,b\n\nc,a,b\n", r"edges\.csv .*\(got 3 in data row 2, 'c,a,b'\); complete"),
    "open quote": (
        FEW + 'd,"4\n',
        EDGES,
        r"to end with a quote .*\(got one that does not, in the row that begins in line 5\); clo",
    ),
    "latin-1": ("id,f\na,1\né,2\n".encode("latin-1"), EDGES, r"UTF-8 .*\(got the byte 0xe9 in line 3\); save it again"),
    "latin-1 header": (
        "id,é\na,1\n".encode("latin-1"),
        EDGES,
        r"\(got the byte 0xe9 in line 1\); save it again as UTF-8",
    ),
    "utf-16": (
        "id,f\na,1\n".encode("utf-16"),
        EDGES,
        r"\(got UTF-16, by its first bytes\); save it again as csv, UTF-8",
    ),
    "list column": (
        pa.table({"id": [1], "v": [[1.0, 2.0]]}),
        EDGES,
        r"'v' of .*nodes\.parquet to hold numbers, strings or booleans \(got list<.*>\); write it as numbers",
    ),
    "two labels": (
        "id,label,target\na,1,2\n",
        "source,target\n",
        r"one kind of labels \(got the columns label and targ",
    ),
    "label and several": (
        "id,label,label:x\na,1,0\n",
        "source,target\n",
        r"the columns label and label:x\); rename all",
    ),
    "no label": ("id,f,label\na,1,\nb,2,NA\n", "source,target\n", r"'label' of .* a value \(got 2 empty rows\); fill"),
    "label 2": ("id,f,label:x\na,1,1\nb,2,2\n", "source,target\n", r"'label:x' .*hold 0 and 1 \(got '2' in data row 2"),
    "target in words": ("id,f,target\na,1,high\n", "source,target\n", r"'target' .*numbers \(got 'high' in data row 1"),
    "infinite label": (
        "id,f,label\na,1,inf\nb,2,1\n",
        "source,target\n",
        r"'label' .*finite numbers \(got 'inf' in da",
    ),
}


@pytest.mark.parametrize(("nodes", "edges", "sentence"), BAD.values(), ids=BAD.keys())
def test_malformed_tables(tmp_path: Path, nodes: Any, edges: Any, sentence: str) -> None:
    write(tmp_path / "g", nodes, edges)
    for function in (read_tables, load):
        with pytest.raises(ValueError, match=sentence) as caught:
            function(tmp_path / "g")
        assert "\n" not in str(caught.value)
