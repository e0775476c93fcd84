"""Columns of tables as features: standardised, encoded, marked, left out, and what is said about it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from table_files import one_column, read

NOTES: dict[str, tuple[str, list[Any], int, str]] = {
    "numbers": ("f", ["1", " 2.5", "-3e1"], 1, "f: a number, standardised"),
    "gaps": ("f", ["1", "NA", "n/a", "", "4", "nan"], 2, "f: 4 of 6 missing, filled with the mean 2.5 and marked"),
    "constant": ("f", ["1", "1.0", "1"], 0, "f: a column with one value only, left out"),
    "constant words": ("f", ["u", "u"], 0, "f: a column with one value only, left out"),
    "given or not": ("f", ["5", "", "5"], 1, "f: 1 of 3 missing, else always 5.0; kept to mark missing values"),
    "said or not": ("f", ["u", "", "u"], 1, "f: 1 of 3 missing, else always 'u'; kept to mark missing values"),
    "empty": ("f", ["", "NA"], 0, "f: a column without any value, left out"),
    "free text": ("f", ["u", "v", "w"], 0, "f: a column of strings that are all different, left out"),
    "free text with gaps": ("f", ["u", "", "w"], 0, "f: a column of strings that are all different, left out"),
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


def test_huge_numbers_are_standardized(tmp_path: Path) -> None:
    tables = read(tmp_path / "g", one_column("f", ["1e300", "-1e300"]), "source,target\n")
    assert tables.arrays["x"].tolist() == [[1], [-1]]


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
