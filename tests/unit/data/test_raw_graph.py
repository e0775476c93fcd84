"""Raw files that are whole, and yet not what is published."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from published_files import N, Written, write_ogb, write_papers, write_ppi, write_reddit, write_saint, write_split
from topoff.data.raw_graph import read_json, read_raw

Change = Callable[[Path], object]


def save(file: str, **changes: Any) -> Change:
    """Return what changes some arrays of an .npz file; None leaves one out."""

    def change(folder: Path) -> None:
        path = folder / "raw" / file
        with np.load(path) as found:
            arrays = {**found, **changes}
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})

    return change


def rows(file: str, array: Any) -> Change:
    return lambda folder: np.save(folder / "raw" / file, array)


def text(file: str, content: Any) -> Change:
    return lambda folder: (folder / "raw" / file).write_text(json.dumps(content))


def overlap(folder: Path) -> None:
    write_split(folder, "time", {"train": [0, 1], "valid": [1], "test": [2]})


SHORT = np.zeros(N, np.int64)
CASES: dict[str, tuple[str, Callable[[Path], Written], Change, str]] = {
    "split": ("ogb", write_ogb, overlap, "the split in .*/split to list every node once .got 1 nodes twice"),
    "no edges": ("ogb-binary", write_papers, save("data.npz", edge_index=None), "the array 'edge_index' .got none"),
    "float ids": (
        "ogb-binary",
        write_papers,
        save("data.npz", edge_index=np.zeros((2, 1))),
        "array 'edge_index' .got float",
    ),
    "three ends": ("ogb-binary", write_papers, save("data.npz", edge_index=np.zeros((3, 1), int)), "to hold one graph"),
    "fewer labels": ("ogb-binary", write_papers, save("node-label.npz", node_label=np.zeros((2, 1))), "and 2 labels"),
    "by columns": (
        *("ogb-binary", write_papers, save("data.npz", node_feat=np.zeros((N, 2), np.float32, order="F"))),
        "to hold one graph",
    ),
    "pointers": ("saint", write_saint, save("adj_full.npz", indptr=SHORT), "to be the CSR matrix of 6 nodes"),
    "falling": (
        *("saint", write_saint, save("adj_full.npz", indptr=np.array([0, 5, 2, 7, 7, 7, 7]))),
        "to be the CSR matrix of 6 nodes",
    ),
    "roles": ("saint", write_saint, text("role.json", {"tr": [0], "va": [1]}), "no ids from 0 to 5 under 'te'"),
    "no roles": ("saint", write_saint, text("role.json", [0]), "no ids from 0 to 5 under 'tr'"),
    "far roles": ("saint", write_saint, text("role.json", {"tr": [6]}), "no ids from 0 to 5 under 'tr'"),
    "twice": (
        "saint",
        write_saint,
        text("role.json", {"tr": [0], "va": [0], "te": []}),
        "once .got some of 'va' twice",
    ),
    "words": ("saint", write_saint, rows("feats.npy", np.array(["a"])), "to hold rows of numbers .got <U1"),
    "objects": ("saint", write_saint, rows("feats.npy", np.array([None])), "to hold rows of numbers"),
    "types": ("reddit", write_reddit, save("reddit_data.npz", node_types=np.zeros(2, int)), "to hold one graph"),
    "ends": ("reddit", write_reddit, save("reddit_graph.npz", row=np.zeros(2, int)), "to hold one graph"),
    "labels": ("ppi", write_ppi, rows("valid_labels.npy", np.zeros((9, 3))), "the valid files in .* to fit each other"),
    "no links": ("ppi", write_ppi, text("test_graph.json", {"links": []}), "to link nodes from 0 to 2 .got 0 links"),
    "far links": (
        *("ppi", write_ppi, text("test_graph.json", {"links": [{"source": 0, "target": 9}]})),
        "to link nodes from 0 to 2 .got 1 links",
    ),
    "other links": ("ppi", write_ppi, text("test_graph.json", {"links": [{"from": 0}]}), "links by source and target"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_files_that_are_not_what_is_published(tmp_path: Path, case: str) -> None:
    kind, write, change, sentence = CASES[case]
    folder = write(tmp_path).folder
    change(folder)
    with pytest.raises(ValueError, match=f"{sentence}.*; fetch it again"):
        read_raw(kind, folder)


def test_half_a_json_file(tmp_path: Path) -> None:
    (tmp_path / "role.json").write_text('{"tr": [1, 2')
    with pytest.raises(ValueError, match=r"role\.json to be a whole JSON file \(got .*fetch it again"):
        read_json(tmp_path / "role.json")
