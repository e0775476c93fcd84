"""Folders of tables, through tables.py, labels.py, features.py and columns.py, and as `load` hands them on."""

import copy
import json
import pickle
import runpy
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch_geometric.data import Data

from topoff.data import columns
from topoff.data.check import check
from topoff.data.load import Names, load
from topoff.data.tables import Tables, is_table_folder, read_tables
from topoff.graph.graph import Graph

EXAMPLE = Path(__file__).parents[3] / "examples" / "tables"
EDGES = "source,target,weight\na,b,2\nb,a,-0.5\nc,c,1e2\n"
# id, a number with a gap, words with a gap, a boolean, free text, a constant, an empty column, a split and labels
NODES = """id,age,city,ok,name,one,none,split,label
a,30,Oslo,True,Ann,1,,train,yes
b,50,Rome,FALSE,Bob,1,,val,no
c,,Oslo,true,Cid,1,,test,yes
d,40,,false,Dan,1,,,
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))


def write(folder: Path, nodes: str | bytes | pa.Table | None = NODES, edges: Any = EDGES) -> Path:
    """Write the tables that are given: text as csv, pyarrow's as parquet."""
    folder.mkdir(exist_ok=True)
    for name, table in (("nodes", nodes), ("edges", edges)):
        if isinstance(table, pa.Table):
            pyarrow.parquet.write_table(table, folder / f"{name}.parquet")
        elif table is not None:
            (folder / f"{name}.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    return folder


def read(folder: Path, nodes: Any = NODES, edges: Any = EDGES, **options: Any) -> Tables:
    return read_tables(write(folder, nodes, edges), **options)


def one_column(name: str, values: list[Any]) -> str:
    """A table of nodes with one more column, whose values are quoted."""
    return f"id,{name}\n" + "".join(f'{i},"{value}"\n' for i, value in enumerate(values))


def same(first: Tables, second: Tables) -> bool:
    return first.arrays.keys() == second.arrays.keys() and all(
        np.array_equal(first.arrays[key], second.arrays[key], equal_nan=True)
        and first.arrays[key].dtype == second.arrays[key].dtype
        for key in first.arrays
    )


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
        "name: a column of words that are all different, left out",
        "age: 1 of 4 missing, filled with the mean 40 and marked",
        "city: 2 categories, one column each; 1 of 4 missing, marked",
        "ok: 2 categories, one column each",
        "label: 2 classes; 1 of 4 nodes have none and are in no mask",
        "edges: 3, all of them in both directions",
    ]


def parquet_nodes() -> pa.Table:
    """The nodes of the small graph, with the types that a parquet file has."""
    return pa.table(
        {
            "id": ["a", "b", "c", "d"],
            "age": pa.array([30.0, 50.0, np.nan, 40.0], pa.float32()),
            "city": pa.array(["Oslo", "Rome", "Oslo", None]).dictionary_encode(),
            "ok": [True, False, True, False],
            "name": pa.array(["Ann", "Bob", "Cid", "Dan"], pa.large_string()),
            "one": pa.array([1, 1, 1, 1], pa.uint64()),
            "none": pa.nulls(4),
            "split": pa.array([0, 1, 2, -1], pa.int8()),
            "label": ["yes", "no", "yes", None],
        }
    )


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


def test_quotes_commas_unicode_and_line_ends(tmp_path: Path) -> None:
    nodes = 'id, city ,label\n"Ünal, ""Ö""",東京,"a\nb"\n\n x y ,"東京",c\nz,Rome,c'
    edges = 'source,target\nx y,"Ünal, ""Ö"""\n'
    plain = read(tmp_path / "plain", nodes, edges)
    assert plain.node_ids == ['Ünal, "Ö"', "x y", "z"]
    assert plain.class_names == ["a\nb", "c"]
    assert plain.encoding["columns"][0]["categories"] == ["Rome", "東京"]
    assert plain.arrays["edge_index"].tolist() == [[1], [0]]
    marked = read(tmp_path / "bom", b"\xef\xbb\xbf" + nodes.encode(), b"\xef\xbb\xbf" + edges.encode())
    assert same(plain, marked)
    assert marked.node_ids == plain.node_ids
    assert same(plain, read(tmp_path / "crlf", nodes.replace("\n", "\r\n").replace("a\r\n", "a\n"), edges))


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


def test_a_column_means_the_same_however_the_file_is_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = one_column("code", ["1"] * 20 + ["x"] * 30)
    whole = read(tmp_path / "whole", nodes, "source,target\n0,1\n")
    monkeypatch.setattr(columns, "BLOCK", 64)  # pyarrow alone would see whole numbers in the first block
    assert same(whole, read(tmp_path / "cut", nodes, "source,target\n0,1\n"))
    assert whole.encoding["columns"][0]["categories"] == ["1", "x"]


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


NOTES: dict[str, tuple[str, list[Any], int, str]] = {
    "numbers": ("f", ["1", " 2.5", "-3e1"], 1, "f: a number, standardised"),
    "gaps": ("f", ["1", "NA", "n/a", "", "4", "nan"], 2, "f: 4 of 6 missing, filled with the mean 2.5 and marked"),
    "constant": ("f", ["1", "1.0", "1"], 0, "f: a column with one value only, left out"),
    "constant words": ("f", ["u", "u"], 0, "f: a column with one value only, left out"),
    "given or not": ("f", ["5", "", "5"], 1, "f: 1 of 3 missing, else always 5.0; kept as the mark of a gap"),
    "said or not": ("f", ["u", "", "u"], 1, "f: 1 of 3 missing, else always 'u'; kept as the mark of a gap"),
    "empty": ("f", ["", "NA"], 0, "f: a column without any value, left out"),
    "free text": ("f", ["u", "v", "w"], 0, "f: a column of words that are all different, left out"),
    "free text with gaps": ("f", ["u", "", "w"], 0, "f: a column of words that are all different, left out"),
    "words": ("f", ["u", "v", "u"], 2, "f: 2 categories, one column each"),
    "words with gaps": ("f", ["u", "v", "u", "NULL"], 3, "f: 2 categories, one column each; 1 of 4 missing, marked"),
    "booleans": ("f", ["true", "False", "TRUE"], 2, "f: 2 categories, one column each"),
    "codes": ("f", ["1", "b2", "b2", "1"], 2, "f: 2 categories, one column each"),
    "many words": (
        "f",
        [f"w{i % 70}" for i in range(140)],
        65,
        "f: 70 categories, one column for each of the 64 most frequent and one for all others",
    ),
}


@pytest.mark.parametrize(("name", "values", "width", "note"), NOTES.values(), ids=NOTES.keys())
def test_columns_and_their_notes(tmp_path: Path, name: str, values: list[Any], width: int, note: str) -> None:
    tables = read(tmp_path / "g", one_column(name, values), "source,target\n0,1\n")
    assert note in tables.notes
    assert tables.arrays["x"].shape == (len(values), width or 2)  # where no column is left: the degree and a constant
    assert json.loads(json.dumps(tables.encoding)) == tables.encoding
    assert [entry["name"] for entry in tables.encoding["columns"]] == (["f"] if width else [])
    assert tables.encoding["left_out"] == ([] if width else ["f"])


def test_rare_words_share_a_column(tmp_path: Path) -> None:
    values = [f"w{i:02}" for i in range(70)] + [f"w{i:02}" for i in range(64)] + ["w69"] * 2
    tables = read(tmp_path / "g", one_column("f", values), "source,target\n")
    x = tables.arrays["x"]
    assert tables.encoding["columns"][0]["categories"] == [*(f"w{i:02}" for i in range(63)), "w69"]
    assert x.sum(axis=1).tolist() == [1] * len(values)
    assert np.flatnonzero(x[:, 64]).tolist() == [63, 64, 65, 66, 67, 68, 133]


def test_notes_about_hundreds_of_columns_stay_short(tmp_path: Path) -> None:
    nodes = pa.table({"id": [0, 1, 2], **{f"f{i}": [i, 2, 3] for i in range(300)}})
    assert read(tmp_path / "g", nodes, "source,target\n").notes == [
        "f0, f1, f2, f3, f4 and 295 more: 300 numbers, standardised",
        "edges: none",
    ]


def test_huge_numbers_are_standardised(tmp_path: Path) -> None:
    tables = read(tmp_path / "g", one_column("f", ["1e300", "-1e300"]), "source,target\n")
    assert tables.arrays["x"].tolist() == [[1], [-1]]


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


# ---- labels and the split


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


def test_split_of_unlabelled_nodes_and_empty_split(tmp_path: Path) -> None:
    tables = read(tmp_path / "g", "id,f,split,label\n0,1,train,a\n1,2,train,\n2,3,test,b\n", "source,target\n")
    assert tables.arrays["train_mask"].tolist() == [True, False, False]
    assert "split: 1 nodes have a split but no label, and are in no mask" in tables.notes
    tables = read(tmp_path / "g", "id,f,split,label\n0,1,,a\n1,2,,b\n", "source,target\n")
    assert "train_mask" not in tables.arrays
    assert "split: no value at all, so that a split is drawn" in tables.notes


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
        "city: 1 of 3 hold words without a column of their own (such as 'Lima') and have zeros only",
        "ok: 1 of 3 hold words without a column of their own (such as 'maybe') and have zeros only",
        "ok: 1 of 3 missing, all zeros, not marked",
    ]


def test_gaps_that_the_first_table_had_not(tmp_path: Path) -> None:
    first = read(tmp_path / "first", "id,f,g\n0,1,\n1,3,5\n", "source,target\n")
    second = read(tmp_path / "second", "id,f,g\n0,,7\n1,2,\n", "source,target\n", encoding=first.encoding)
    assert second.arrays["x"].tolist() == [[0, 0], [0, 1]]
    assert "f: 1 of 2 missing, filled with the first table's mean, not marked" in second.notes


def test_rare_words_of_another_table_count_as_other(tmp_path: Path) -> None:
    first = read(tmp_path / "first", one_column("f", [f"w{i % 70}" for i in range(140)]), "source,target\n")
    second = read(tmp_path / "second", one_column("f", ["new"]), "source,target\n", encoding=first.encoding)
    assert np.flatnonzero(second.arrays["x"][0]).tolist() == [64]
    assert second.notes[0].endswith("(such as 'new') and count as other")


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


ENCODED: dict[str, tuple[str, str, str]] = {
    "missing columns": ("f,g,label", "g", r"feature columns of the first table \(got no f, but id, g\); add them"),
    "words": ("f", "f=x", r"'f' of .*nodes\.csv to hold numbers \(got 'x' in data row 1\); write a number, or nothing"),
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
    with pytest.raises(
        ValueError, match=rf"'encoding' to be that of an earlier read_tables \(got {got}\); pass Tables"
    ):
        read(tmp_path / "g", encoding=encoding)


# ---- what is refused


FEW = "id,f\na,1\nb,2\nc,3\n"
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
    "semicolons": (FEW, "source;target\na;b\n", r"\(got no source and no target, but source;target\)"),
    "weight in words": (FEW, "source,target,weight\na,b,1\na,b,x\n", r"'weight' .*numbers \(got 'x' in data row 2\)"),
    "infinite weight": (FEW, "source,target,weight\na,b,-inf\n", r"finite numbers \(got '-inf' in data row 1\); repl"),
    "no weight": (FEW, "source,target,weight\na,b,\n", r"number in every row \(got nothing in data row 1\); write 1"),
    "nan weight": (FEW, "source,target,weight\na,b,nan\n", r"to hold a number in every row \(got 'nan' in data row 1"),
    "split word": ("id,split,label\na,train,1\nb,dev,2\n", "source,target\n", r"'split' .*\(got 'dev' in data row 2\)"),
    "split number": ("id,split,label\na,0,1\nb,3,2\n", "source,target\n", r"to name the split \(got '3' in data row 2"),
    "mixture": (
        FEW + "d,?\n",
        EDGES,
        r"'f' of .*nodes\.csv to hold either numbers or words, not 3 numbers and 1 words \(got '\?' in data row 4\)",
    ),
    "infinite": (FEW + "d,inf\n", EDGES, r"'f' of .* to hold finite numbers \(got 'inf' in data row 4\)"),
    "short row": (
        FEW + "d\n",
        EDGES,
        r"2 values in every row \(got 1 in data row 4, 'd'\); complete that row, and quote",
    ),
    "long row": (FEW, "source,target\na,b\n\nc,a,b\n", r"edges\.csv .*\(got 3 in data row 2, 'c,a,b'\); complete"),
    "open quote": (FEW + 'd,"4\n', EDGES, r"quotes of .*nodes\.csv to come in pairs \(got an odd number of them\); cl"),
    "latin-1": ("id,f\na,1\né,2\n".encode("latin-1"), EDGES, r"UTF-8 .*\(got the byte 0xe9 in line 3\); save it again"),
    "latin-1 header": (
        "id,é\na,1\n".encode("latin-1"),
        EDGES,
        r"\(got the byte 0xe9 in line 1\); save it again as UTF-8",
    ),
    "utf-16": ("id,f\na,1\n".encode("utf-16"), EDGES, r"\(got the byte 0xff in line 1\)"),
    "list column": (
        pa.table({"id": [1], "v": [[1.0, 2.0]]}),
        EDGES,
        r"'v' of .*nodes\.parquet to hold numbers, words or booleans \(got list<.*>\); spread it",
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


def test_row_that_is_longer_than_a_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(columns, "BLOCK", 16)
    with pytest.raises(ValueError, match=r"nodes\.csv to be a UTF-8 table .*\(got .*straddl.*\); correct it"):
        read(tmp_path / "g", one_column("f", ["a" * 100, "b" * 100]))


def test_missing_and_double_tables(tmp_path: Path) -> None:
    folder = write(tmp_path / "g", None, EDGES)
    assert not is_table_folder(folder)
    with pytest.raises(FileNotFoundError, match=r"g to hold nodes\.csv or nodes\.parquet \(got neither\); write the n"):
        read_tables(folder)
    with pytest.raises(FileNotFoundError, match=r"a graph\.npz, or the tables nodes\.csv and edges\.csv"):
        load(folder)
    write(folder, FEW, None)
    assert is_table_folder(folder)
    (folder / "edges.csv").unlink()
    with pytest.raises(FileNotFoundError, match=r"g to hold edges\.csv or edges\.parquet \(got neither\)"):
        load(folder)
    write(folder, pa.table({"id": ["a"]}), EDGES)
    with pytest.raises(
        ValueError, match=r"one table of nodes in .*g \(got nodes\.csv and nodes\.parquet\); remove one"
    ):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"id,f\n", None])
def test_damaged_parquet(tmp_path: Path, content: bytes | None) -> None:
    folder = write(tmp_path / "g", parquet_nodes())
    path = folder / "nodes.parquet"
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    with pytest.raises(ValueError, match=r"nodes\.parquet to be a whole parquet file \(got .*\); write it again\.$"):
        read_tables(folder)


# ---- load


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


def test_names_before_folders_and_tables_before_npz(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "Cora")
    monkeypatch.setattr("topoff.data.pyg_datasets._probe", no_network)
    with pytest.raises(FileNotFoundError, match="raw files of Cora"):
        load("Cora", root=tmp_path / "root")
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


def test_a_split_is_drawn_for_labelled_nodes_and_again_with_the_encoding(tmp_path: Path) -> None:
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
    assert "names" not in batch
    assert batch.y.tolist() == [1, 1]


# ---- the example


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
