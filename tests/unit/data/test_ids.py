"""Ids and labels of every type pass through a file unchanged, or are refused; none is ever rounded."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from table_files import read, write
from topoff.data.ids import as_array, id_array, node_ids, simple, spreadsheet_safe
from topoff.data.load import load
from topoff.training.predictions import write_predictions

DAYS = [datetime.date(2020, 1, day) for day in (1, 2, 3)]
BIG = 2**63
IDS: dict[str, tuple[Any, list[Any], list[str]]] = {  # as in the file, as compared, as in a csv file
    "uint64": (pa.array([BIG + 1, BIG + 2, 5], pa.uint64()), [BIG + 1, BIG + 2, 5], [f"{BIG + 1}", f"{BIG + 2}", "5"]),
    "small uint64": (pa.array([2**53 + 1, 2**53 + 2, 5], pa.uint64()), [2**53 + 1, 2**53 + 2, 5], []),
    "int64": (pa.array([-BIG, BIG - 1, 0], pa.int64()), [-BIG, BIG - 1, 0], []),
    "int8": (pa.array([1, -2, 3], pa.int8()), [1, -2, 3], []),
    "decimals": (pa.array([Decimal(10**30 + 1), Decimal(10**30 + 2), Decimal(7)], pa.decimal128(38, 0)), [], []),
    "cents": (pa.array([Decimal("1.50"), Decimal("2.50"), Decimal("3.00")]), ["1.50", "2.50", "3"], []),
    "whole cents": (pa.array([Decimal("1.00"), Decimal("2.00"), Decimal("3.00")]), [1, 2, 3], ["1", "2", "3"]),
    "days": (pa.array(DAYS), ["2020-01-01", "2020-01-02", "2020-01-03"], ["2020-01-01", "2020-01-02", "2020-01-03"]),
    "moments": (pa.array([1, 2, 3], pa.timestamp("us", tz="Europe/Oslo")), [], []),
    "durations": (pa.array([1, 2, 3], pa.duration("s")), [1, 2, 3], []),
    "dictionary": (pa.array(["x", "y", "z"]).dictionary_encode(), ["x", "y", "z"], ["x", "y", "z"]),
    "dictionary of uint64": (pa.array([BIG + 1, BIG + 2, 3], pa.uint64()).dictionary_encode(), [], []),
    "spaces": (pa.array([" x", "y z ", "NA"], pa.large_string()), ["x", "y z", "NA"], [" x", "y z ", "NA"]),
    "formulas": (pa.array(["=1+1", "+x", "@y"]), ["=1+1", "+x", "@y"], ["=1+1", "+x", "@y"]),
    "digits": (pa.array(["007", "7", "1e5"]), ["007", "7", "1e5"], ["007", "7", "1e5"]),
    "floats": (pa.array([1.0, 2.0, 3.0]), [1, 2, 3], ["1", "2", "3"]),
    "half floats": (pa.array(np.array([1.0, 2.0, 3.0], np.float16)), [1, 2, 3], ["1", "2", "3"]),
}


def graph(folder: Path, ids: Any, **columns: Any) -> Path:
    """Write a path over three nodes."""
    table = {"id": ids, "f": [1.0, 2.0, 4.0], "label": ["a", "b", "a"], **columns}
    ends = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    edges = pa.table({"source": ends.slice(0, 2), "target": ends.slice(1, 2)})
    return write(folder, pa.table(table), edges)


@pytest.mark.parametrize(("ids", "compared", "text"), IDS.values(), ids=IDS.keys())
def test_ids_pass_through(tmp_path: Path, ids: Any, compared: list[Any], text: list[str]) -> None:
    data = load(graph(tmp_path / "g", ids))
    assert data.edge_index.tolist() == [[0, 1], [1, 2]]
    assert node_ids(data).to_pylist() == ids.to_pylist()
    assert not compared or data.names.node_ids == compared
    for ending in ("parquet", "csv", "npz"):
        write_predictions({"node": node_ids(data), "prediction": [0.5, 1.5, 2.5]}, tmp_path / f"p.{ending}")
    assert pyarrow.parquet.read_table(tmp_path / "p.parquet")["node"].to_pylist() == ids.to_pylist()
    rows = (tmp_path / "p.csv").read_text().splitlines()[1:]
    assert not text or [row.rpartition(",")[0].strip('"') for row in rows] == text
    stored = np.load(tmp_path / "p.npz", allow_pickle=False)["node"]
    assert [str(value) for value in stored] == [row.rpartition(",")[0].strip('"') for row in rows]


REFUSED: dict[str, tuple[Any, str]] = {
    "binary": (pa.array([b"a", b"b", b"c"]), r"to hold numbers, strings or booleans \(got binary\); write it as"),
    "bytes": (pa.array([b"a", b"b", b"c"], pa.binary(1)), r"\(got fixed_size_binary\[1\]\)"),
    "lists": (pa.array([[1], [2], [3]]), r"\(got list<.*>\); write it as numbers or strings, one value per column"),
    "structs": (pa.array([{"a": 1}, {"a": 2}, {"a": 3}]), r"\(got struct<a: int64>\)"),
    "fractions": (
        pa.array([1.0, 2.5, 3.0]),
        r"floats only if they are whole .*\(got '2\.5' in data row 2\); write the",
    ),
    "rounded": (
        pa.array([1.0, 2.0**53, 3.0]),
        r"below 9,007,199,254,740,992 \(got '9007199254740992\.0' in data row 2",
    ),
    "rounded float32": (pa.array([1.0, 2.0**24, 3.0], pa.float32()), r"below 16,777,216 \(got '16777216\.0' in data"),
    "infinite": (pa.array([1.0, 2.0, float("inf")]), r"\(got 'inf' in data row 3\)"),
    "missing": (pa.array([1.0, float("nan"), 3.0]), r"to hold an id in every row \(got nothing in data row 2\)"),
    "empty": (pa.array(["a", " ", "c"]), r"to hold an id in every row \(got nothing in data row 2\)"),
    "spaces": (
        pa.array(["a", "a ", "c"]),
        r"\(got 'a' 2 times, 1 such ids in all\); .*; spaces around them do not count",
    ),
    "a NUL": (pa.array(["a", "a\0", "c"]), r"ids without NUL characters \(got 'a\\x00' in data row 2\); rename it"),
}


@pytest.mark.parametrize(("ids", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_ids_that_are_refused(tmp_path: Path, ids: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"the column 'id' of .*nodes\.parquet .*{sentence}"):
        load(graph(tmp_path / "g", ids))


PAIRS = {
    "int64, uint64": (pa.array([1, 2, 3]), pa.array([3, 1], pa.uint64())),
    "uint64, strings": (pa.array([BIG + 1, 2, BIG + 2], pa.uint64()), pa.array([str(BIG + 2), str(BIG + 1)])),
    "strings, uint64": (pa.array([str(BIG + 1), "2", str(BIG + 2)]), pa.array([BIG + 2, BIG + 1], pa.uint64())),
    "integers, floats": (pa.array([1, 2, 3]), pa.array([3.0, 1.0])),
    "integers, decimals": (pa.array([1, 2, 3]), pa.array([Decimal("3.00"), Decimal("1.00")])),
    "days, strings": (pa.array(DAYS), pa.array(["2020-01-03", "2020-01-01"])),
}


@pytest.mark.parametrize(("ids", "ends"), PAIRS.values(), ids=PAIRS.keys())
def test_edges_may_spell_ids_in_another_type(tmp_path: Path, ids: Any, ends: Any) -> None:
    edges = pa.table({"source": ends, "target": ends})
    tables = read(tmp_path / "g", pa.table({"id": ids, "f": [1.0, 2.0, 4.0]}), edges)
    assert tables.arrays["edge_index"].tolist() == [[2, 0], [2, 0]]


def test_ids_of_a_csv_file(tmp_path: Path) -> None:
    ids = [f"{10**30}", f"{10**30 + 1}", "007", "1e5", "NA", "null", "nan", "True", "1.0", "-5"]
    nodes = "id,f\n" + "".join(f"{name},{number}\n" for number, name in enumerate(ids))
    tables = read(tmp_path / "g", nodes, "source,target\n" + "".join(f"{name},{name}\n" for name in ids))
    assert tables.node_ids == ids
    assert tables.written.to_pylist() == ids
    assert tables.arrays["edge_index"][0].tolist() == list(range(len(ids)))


LABELS: dict[str, tuple[Any, list[int], list[str]]] = {
    "uint64": (pa.array([BIG + 1, BIG + 2, None], pa.uint64()), [0, 1, -1], [f"{BIG + 1}", f"{BIG + 2}"]),
    "large": (pa.array([10**17 + 1, 10**17 + 2, 9]), [1, 2, 0], ["9", f"{10**17 + 1}", f"{10**17 + 2}"]),
    "decimals": (pa.array([Decimal(10**20 + 2), Decimal(10**20 + 1), Decimal(3)]), [2, 1, 0], []),
    "days": (pa.array([DAYS[1], None, DAYS[0]]), [1, -1, 0], ["2020-01-01", "2020-01-02"]),
    "booleans": (pa.array([True, False, None]), [1, 0, -1], ["false", "true"]),
    "large strings": (pa.array([f"{10**17 + 1}.0", f"{10**17 + 2}", "1"]), [1, 2, 0], []),
    "zeros in front": (pa.array(["007", "7", "007"]), [0, 1, 0], ["007", "7"]),
    "exponents": (pa.array(["1e5", "100000", "3"]), [1, 0, 2], ["100000", "1e5", "3"]),
    "large floats": (pa.array([2e17, 1e17, 2e17]), [1, 0, 1], ["1e+17", "2e+17"]),
}


@pytest.mark.parametrize(("labels", "y", "names"), LABELS.values(), ids=LABELS.keys())
def test_labels_pass_through(tmp_path: Path, labels: Any, y: list[int], names: list[str]) -> None:
    data = load(graph(tmp_path / "g", pa.array([1, 2, 3]), label=labels))
    assert data.y.tolist() == y
    assert not names or data.names.class_names == names
    assert len(data.names.class_names) == len({*y} - {-1})


def test_a_class_with_a_nul_is_refused(tmp_path: Path) -> None:
    folder = graph(tmp_path / "g", pa.array([1, 2, 3]), label=["a\0", "a", "b"])
    with pytest.raises(ValueError, match=r"'label' .* classes without NUL characters \(got 'a\\x00' in data row 1\)"):
        load(folder)


def test_names_of_other_sources(tmp_path: Path) -> None:
    ids = np.array([BIG + 1, BIG + 2, 5], np.uint64)
    more = {"x": np.eye(3), "edge_index": np.array([[0], [1]]), "y": np.arange(3), "node_ids": ids}
    np.savez(tmp_path / "g.npz", **more)
    found = node_ids(load(tmp_path / "g.npz"))
    assert found.to_pylist() == ids.tolist()
    assert as_array(found).dtype == np.uint64
    assert id_array([-1, 2**64 - 1]).to_pylist() == ["-1", f"{2**64 - 1}"]
    assert id_array([True, "a"]).to_pylist() == ["True", "a"]
    assert id_array([]).to_pylist() == []
    assert simple(pa.array([7], pa.uint8())).type == pa.int64()


def test_only_text_is_made_safe_for_spreadsheets() -> None:
    risky = ["=a", "+a", "-a", "@a", "\ta", "\ra", "\na", "\uff1da"]
    found = spreadsheet_safe(pa.array([*risky, "a=b", "'=a", ""], pa.large_string())).to_pylist()
    assert found == [*(f"'{name}" for name in risky), "a=b", "'=a", ""]
    assert spreadsheet_safe(pa.array([-5])).to_pylist() == [-5]
