"""The encoding of an earlier table, damaged in every key: one sentence that names the key and the value."""

from pathlib import Path
from typing import Any

import pytest

from table_files import read
from topoff.data.encoding import check_encoding

NUMBER = {"name": "f", "kind": "number", "mean": 1.0, "std": 2.0, "missing": False}
WORDS = {"name": "w", "kind": "words", "categories": ["a"], "other": False, "missing": True}
WHOLE: dict[str, Any] = {"id": "id", "columns": [NUMBER, WORDS], "left_out": ["x"], "label": None}
BAD: dict[str, tuple[Any, str]] = {
    "a list": ([1], r"\(got a list\)"),
    "nothing": ({}, r"\(got an empty one\)"),
    "no columns": ({"id": "id"}, r"\(got id\)"),
    "id": (WHOLE | {"id": 3}, r"\(got 3 for id\)"),
    "half a character": (WHOLE | {"id": "\ud800"}, r"\(got '\\ud800' for id\)"),
    "columns": (WHOLE | {"columns": {"a": 1}}, r"\(got \{'a': 1\} for columns\)"),
    "left out": (WHOLE | {"left_out": [1]}, r"\(got \[1\] for left_out\)"),
    "label": (WHOLE | {"label": {"kind": "classes"}}, r"\(got \{'kind': 'classes'\} for label\)"),
    "label names": (WHOLE | {"label": {"kind": "classes", "names": ["a", "a"]}}, r"for label\)"),
    "label kind": (WHOLE | {"label": ["classes"]}, r"\(got \['classes'\] for label\)"),
    "an entry": (WHOLE | {"columns": ["f"]}, r"\(got 'f' for an entry in columns\[0\]\)"),
    "kind": (WHOLE | {"columns": [NUMBER | {"kind": "rank"}]}, r"\(got 'rank' for kind in columns\[0\]\)"),
    "kind of kind": (WHOLE | {"columns": [NUMBER | {"kind": ["a"]}]}, r"for kind in columns\[0\]\)"),
    "mean": (WHOLE | {"columns": [NUMBER | {"mean": "1"}]}, r"\(got '1' for mean in columns\[0\]\)"),
    "nan": (WHOLE | {"columns": [NUMBER | {"mean": float("nan")}]}, r"\(got nan for mean"),
    "std": (WHOLE | {"columns": [WORDS, NUMBER | {"std": 0}]}, r"\(got 0 for std in columns\[1\]\)"),
    "missing": (WHOLE | {"columns": [WORDS | {"missing": 2}]}, r"\(got 2 for missing"),
    "categories": (WHOLE | {"columns": [WORDS | {"categories": [None]}]}, r"\(got \[None\] for categories"),
    "no mean": (WHOLE | {"columns": [{"name": "f", "kind": "number"}]}, r"\(got 'nothing' for mean"),
}


@pytest.mark.parametrize(("encoding", "sentence"), BAD.values(), ids=BAD.keys())
def test_damaged_encodings(tmp_path: Path, encoding: Any, sentence: str) -> None:
    expected = rf"'encoding' to be that of an earlier read .*{sentence}.*; pass Tables\.encoding, or train again\.$"
    with pytest.raises(ValueError, match=expected):
        read(tmp_path / "g", encoding=encoding)


def test_a_whole_encoding_passes_and_a_file_is_named() -> None:
    check_encoding(WHOLE)
    check_encoding(WHOLE | {"label": {"kind": "several", "names": ["a", "b"]}})
    with pytest.raises(ValueError, match=r"Expected run/encoding\.json to be that"):
        check_encoding(None, origin="run/encoding.json")
