"""Files that are no table of ours: each is named for what it is, with the line and what to do."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from table_files import EDGES, FEW, read, same, write
from topoff.data.load import load
from topoff.data.table_file import open_table

ROWS = "id,f,label\na,1,x\nb,2,y\nc,4,x\n"
CSV: dict[str, tuple[str | bytes, str]] = {
    "semicolons": (
        ROWS.replace(",", ";"),
        r"separated by commas \(got semicolons in its first line, 'id;f;label'\); sa",
    ),
    "decimal commas": ("id;f;label\na;1,5;x\n", r"got semicolons .*; save it again with commas .* points in decimal"),
    "comma in a name": ("id;weight, kg;label\na;1;x\n", r"\(got semicolons in its first line, 'id;weight, kg;label'\)"),
    "quoted names": ('"id";"f"\n"a";"1"\n', r"\(got semicolons in its first line"),
    "a hint for Excel": ("sep=;\nid;f\na;1\n", r"\(got semicolons in its first line, 'sep=;'\)"),
    "tabs": (b"\xef\xbb\xbf" + ROWS.replace(",", "\t").encode(), r"\(got tabs in its first line, 'id f label'\)"),
    "bars": (ROWS.replace(",", "|"), r"\(got vertical bars in its first line, 'id\|f\|label'\)"),
    "spaces": (ROWS.replace(",", " "), r"\(got spaces in its first line, 'id f label'\)"),
    "UTF-16": (ROWS.encode("utf-16"), r"to be a UTF-8 table with a header \(got UTF-16, by its first bytes\); save it"),
    "UTF-16 without a mark": (ROWS.encode("utf-16-le"), r"\(got a NUL byte in line 1\); save it again as UTF-8; text"),
    "a NUL": (ROWS.replace("y", "y\0"), r"\(got a NUL byte in line 3\)"),
    "Latin-1": (ROWS.replace("b,", "é,").encode("latin-1"), r"\(got the byte 0xe9 in line 3\); .*reads 'é,2,y'\.$"),
    "an odd quote": (
        ROWS.replace("1", '"1'),
        r"to end with a quote .* \(got one that does not, in the row .* line 2\)",
    ),
    "an open quote in the header": ('"id,f\na,1\n', r"\(got one that does not, in the row that begins in line 1\)"),
    "a quote too early in the header": ('"id"x,f\na,1\n', r"in the row that begins in line 1\); close it"),
    "two open quotes": (ROWS.replace("1", '"1').replace("2", '"2'), r"in the row that begins in line 2\); close it"),
    "a quote too early": (ROWS.replace("y", '"y"z'), r"\(got one that does not, in the row that begins in line 3\)"),
    "an endless value": (f'id,f\na,"{"z" * 140_000}"\n', r"\(got a value of over 131,072 characters, in the row"),
    "parquet": (b"PAR1abc", r"\(got a parquet file\); rename it to nodes\.parquet"),
    "a spreadsheet": (b"PK\x03\x04abc", r"\(got a spreadsheet or zip file, by its first bytes\); save it again as csv"),
    "gzip": (b"\x1f\x8b\x08abc", r"\(got a gzip file, by its first bytes\)"),
    "only a mark": (b"\xef\xbb\xbf\n", r"\(got an empty file\); write the names of its columns first"),
    "one line": ("<html></html>", r"nodes\.csv to hold a row per node \(got a header only\)"),
    "a long row": (ROWS + "d,5,x," + "y" * 300 + "\n", r"\(got 4 in data row 4, 'd,5,x,y{94}\.\.\.'\); complete that"),
}


@pytest.mark.parametrize(("content", "sentence"), CSV.values(), ids=CSV.keys())
def test_csv_that_is_none(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        read(tmp_path / "g", content)
    assert "\n" not in str(caught.value)
    assert str(caught.value).count("nodes.csv") > 0


@pytest.mark.parametrize("name", ["a;b", "tags|more", "node id", "person,tags;label", "my id,age"])
def test_a_separator_inside_of_a_name_is_none(tmp_path: Path, name: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(f"id,{name}\n1{',2' * (name.count(',') + 1)}\n")
    assert open_table(path).column_names == ["id", *name.split(",")]
    path.write_text("person id,age\n1,2\n")
    assert open_table(path).num_rows == 1


def test_line_ends_and_inch_marks_are_read(tmp_path: Path) -> None:
    plain = read(tmp_path / "plain", ROWS)
    for name, end in (("windows", "\r\n"), ("old mac", "\r")):
        assert same(plain, read(tmp_path / name, ROWS.replace("\n", end), EDGES.replace("\n", end)))
    inches = read(tmp_path / "inches", ROWS.replace("x", 'a 5" disk'))
    assert inches.class_names == ['a 5" disk', "y"]
    assert read(tmp_path / "no line end", ROWS, "source,target").arrays["edge_index"].shape == (2, 0)


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"id": ["a", "b"], "label": ["x", "y"]}), sink)
    return bytes(sink.getvalue().to_pybytes())


PARQUET: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"\(got an empty file\); write it again\.$"),
    "csv": (ROWS.encode(), r"\(got something else, which begins with 'id,f,label'\); rename it to nodes\.csv if"),
    "other bytes": (bytes(range(256)), r"\(got something else\); write it again"),
    "cut": (parquet()[:-50], r"\(got the first \d+ bytes of one, without its end\); copy or write it again"),
    "encrypted": (b"PARE" + parquet()[4:-4] + b"PARE", r"\(got an encrypted one\); write it again without encryption"),
    "no footer": (b"PAR1\0\0\0\0PAR1", r"\(got a damaged one, .*\); write it again"),
}


@pytest.mark.parametrize(("content", "sentence"), PARQUET.values(), ids=PARQUET.keys())
def test_parquet_that_is_none(tmp_path: Path, content: bytes, sentence: str) -> None:
    folder = write(tmp_path / "g", None)
    (folder / "nodes.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"nodes\.parquet to be a whole parquet file " + sentence) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_strings_that_are_no_utf8(tmp_path: Path) -> None:
    buffers = pa.array([b"a", b"\xff"]).buffers()
    wrong = pa.Array.from_buffers(pa.string(), 2, buffers)
    with pytest.raises(ValueError, match=r"'id' of .*parquet to hold UTF-8 \(got the byte 0xff in data row 2\); write"):
        read(tmp_path / "g", pa.table({"id": wrong}))


def test_a_folder_whose_name_is_no_utf8(tmp_path: Path) -> None:
    folder = write(tmp_path / "g\udcff", FEW.replace("f\n", "label\n"), "source,target\na,b\n")
    assert load(folder).num_nodes == 3


WEIGHTS: dict[str, tuple[Any, str]] = {
    "x": (
        "1",
        r"to hold numbers \(got 'x' in data row 1\); write a number, or write 1 where an edge has no particular",
    ),
    "": ("1", r"to hold a number in every row \(got nothing in data row 1\); write 1 where"),
    "inf": ("2", r"to hold finite numbers \(got 'inf' in data row 1\); write another number, or write 1 where"),
    "1e39": ("1", r"to hold numbers up to 3\.4e\+38 \(got '1e39' in data row 1\); rescale the column, or write 1"),
}


@pytest.mark.parametrize("value", WEIGHTS)
def test_the_remedy_for_a_weight_works(tmp_path: Path, value: str) -> None:
    instead, sentence = WEIGHTS[value]
    with pytest.raises(ValueError, match=rf"'weight' of .*edges\.csv {sentence}"):
        read(tmp_path / "g", FEW, f"source,target,weight\na,b,{value}\n")
    assert read(tmp_path / "g", FEW, f"source,target,weight\na,b,{instead}\n").arrays["edge_weight"] == float(instead)


def test_the_remedy_for_a_target_works(tmp_path: Path) -> None:
    nodes = "id,f,target\na,1,{}\nb,2,3\nc,4,5\n"
    for value in ("1e39", "inf", "high"):
        with pytest.raises(ValueError, match=rf"'target' of .*got '{value}' in data row 1\); .*leave it empty where"):
            load(write(tmp_path / "g", nodes.format(value), "source,target\n"))
    assert load(write(tmp_path / "g", nodes.format(""), "source,target\n")).y.isnan().sum() == 1


def test_a_number_far_from_those_of_the_first_table(tmp_path: Path) -> None:
    first = read(tmp_path / "first", FEW)
    with pytest.raises(ValueError, match=r"'f' of .* to hold numbers like those of the first .*\(got '1e300' in data"):
        read(tmp_path / "second", FEW.replace("2", "1e300"), encoding=first.encoding)


def test_a_header_may_be_quoted_alone_and_hold_line_ends(tmp_path: Path) -> None:
    for text, names in (('"id","f"\na,1\n', ["id", "f"]), ('"i\nd",f\na,1\n', ["i\nd", "f"])):
        (tmp_path / "nodes.csv").write_text(text)
        read = open_table(tmp_path / "nodes.csv")
        assert (read.column_names, read.num_rows) == (names, 1)
