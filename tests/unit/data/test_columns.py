"""One table, csv or parquet, into plain columns: quotes, line ends, blocks, missing and damaged files."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from table_files import EDGES, FEW, one_column, read, same, write
from topoff.data import table_file
from topoff.data.load import load
from topoff.data.sources import is_table_folder
from topoff.data.tables import read_tables


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


def test_a_column_means_the_same_however_the_file_is_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = one_column("code", ["1"] * 20 + ["x"] * 30)
    whole = read(tmp_path / "whole", nodes, "source,target\n0,1\n")
    monkeypatch.setattr(table_file, "BLOCK", 64)  # pyarrow alone would see whole numbers in the first block
    assert same(whole, read(tmp_path / "cut", nodes, "source,target\n0,1\n"))
    assert whole.encoding["columns"][0]["categories"] == ["1", "x"]


def test_row_that_is_longer_than_a_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(table_file, "BLOCK", 16)
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
