"""GraphSAINT's class_map.json, read without Python objects."""

import json
from pathlib import Path
from typing import Any

import pytest

from topoff.data import class_map
from topoff.data.class_map import read_class_map


@pytest.mark.parametrize("block", [64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("kind", ["classes", "labels"])
def test_the_same_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, indent: int | None, kind: str
) -> None:
    monkeypatch.setattr(class_map, "BLOCK", block)
    labels: dict[str, Any] = {str(i): [i % 2, 1.0, 0] if kind == "labels" else i % 7 for i in reversed(range(30))}
    path = tmp_path / "class_map.json"
    path.write_text(json.dumps(labels, indent=indent) + "\n")
    assert read_class_map(path, 30).tolist() == [labels[str(i)] for i in range(30)]


def test_no_entry_for_long_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_map, "BLOCK", 8)
    path = tmp_path / "class_map.json"
    path.write_text('{"0": [' + "0, " * 1000)
    with pytest.raises(ValueError, match=r"got '\"0\": \[0, 0.{,20}' where an entry should be"):
        read_class_map(path, 30)


def test_nodes_that_are_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "class_map.json"
    path.write_text('{"2": 1, "0": 4}')
    assert read_class_map(path, 4).tolist() == [4, -1, 1, -1]


BAD = {
    "cut off": ('{"0": 1, "1": 2', r"got '\"1\": 2' where an entry should be"),
    "cut off after a comma": ('{"0": 1,', "got '' where an entry should be"),
    "more": ('{"0": 1} {', "got '{' behind its end"),
    "mixed": ('{"0": 1, "1": [0]}', r"got \[0\] as entry 1"),
    "shorter": ('{"0": [0, 1], "1": [0]}', r"got \[0\] as entry 1"),
    "other labels": ('{"0": [0, 2]}', "where an entry should be"),
    "words": ('{"0": "cat"}', "where an entry should be"),
    "fraction": ('{"0": 1.5}', "where an entry should be"),
    "no map": ("[1, 2]", "at its beginning"),
    "empty": ("", "at its beginning"),
    "no entry": ("{}", "where an entry should be"),
    "node": ('{"9": 0}', "got node 9, and 2 nodes"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_what_is_no_such_map(tmp_path: Path, case: str) -> None:
    content, sentence = BAD[case]
    path = tmp_path / "class_map.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"class_map\.json to map every node .*{sentence}.*fetch it again"):
        read_class_map(path, 2)
