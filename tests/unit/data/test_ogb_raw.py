"""OGB's raw folders, written in the exact published layout: read in pieces, refused in one sentence."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from topoff.data import ogb_raw
from topoff.data.edge_sort import Tidy
from topoff.data.load import load
from topoff.data.pieces import pieces_of
from topoff.data.store_write import write_store

FILES = {
    "raw/num-node-list": "5\n",
    "raw/num-edge-list": "4\n",
    "raw/edge": "0,1\n1,2\n2,3\n3,0\n",
    "raw/node-feat": "0.5,1\n1,-2e-3\n2,0\n3,4\n4,5\n",
    "raw/node-label": "0\n1\n0\n1\nnan\n",
    "split/time/train": "0\n1\n",
    "split/time/valid": "2\n",
    "split/time/test": "3\n",
}


def write(folder: Path, **changes: str | None) -> Path:
    """Write a raw folder; changes go by the last part of a file's name, None leaves it out."""
    for name, text in FILES.items():
        text = changes.get(name.rpartition("/")[2].replace("-", "_"), text)
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_bytes(gzip.compress(text.encode()))
    return folder


def test_a_raw_folder_becomes_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ogb_raw, "BLOCK", 16)  # several pieces
    data = load(write_store(tmp_path / "s", pieces_of(write(tmp_path / "ogbn_toy"))).path)
    assert data.x.tolist() == [[0.5, 1], [1, pytest.approx(-2e-3)], [2, 0], [3, 4], [4, 5]]
    assert data.edge_index.tolist() == [[3, 0, 1, 2], [0, 1, 2, 3]]
    assert data.y.tolist() == [0, 1, 0, 1, -1]
    assert [data[f"{name}_mask"].nonzero().view(-1).tolist() for name in ("train", "val", "test")] == [[0, 1], [2], [3]]


def test_edges_that_ogb_lists_one_way_can_go_both(tmp_path: Path) -> None:
    pieces = pieces_of(write(tmp_path / "ogbn_toy"))
    assert write_store(tmp_path / "s", pieces, tidy=Tidy(undirected=True)).header.edges == 8


def test_several_labels_and_no_split(tmp_path: Path) -> None:
    folder = write(tmp_path / "g", node_label="0,1\n1,1\n0,0\n1,0\n0,1\n")
    for path in (folder / "split" / "time").iterdir():
        path.unlink()
    (folder / "split" / "time").rmdir()
    data = load(write_store(tmp_path / "s", pieces_of(folder, seed=1)).path)
    assert data.y.shape == (5, 2)
    assert int(data.train_mask.sum()) == 3
    assert data.y.dtype == torch.float32


WRONG = {
    "node_feat": (None, FileNotFoundError, r"OGB's raw file .*node-feat\.csv\.gz \(got no such file\); unpack"),
    "valid": (None, FileNotFoundError, r"OGB's split in .*valid\.csv\.gz \(got no such file\)"),
    "num_node_list": ("5\n6\n", ValueError, r"one graph, and its number of nodes in .* \(got 2 lines\)"),
    "node_label": ("0\n1\n", ValueError, r"node-label\.csv\.gz to have 5 lines, one per node \(got 2\)"),
    "train": ("7\n", ValueError, r"train\.csv\.gz to hold node ids from 0 to 4 \(got 7 to 7\)"),
    "edge": ("0,1,2\n", ValueError, r"two node ids in every line of .*edge\.csv\.gz \(got 3 values\)"),
}
LATER = {
    "edge": ("0,1\n5,2\n", r"'edge_index' to hold node ids from 0 to 4 \(got 0 to 5\)"),
    "node_feat": ("1,2\n3,4\n", r"node-feat\.csv\.gz to have 5 lines, one per node \(got 2\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_are_not_as_ogb_writes_them(tmp_path: Path, name: str) -> None:
    text, error, match = WRONG[name]
    with pytest.raises(error, match=match):
        write_store(tmp_path / "s", pieces_of(write(tmp_path / "g", **{name: text})))


@pytest.mark.parametrize("name", LATER)
def test_lines_that_fit_no_graph(tmp_path: Path, name: str) -> None:
    text, match = LATER[name]
    with pytest.raises(ValueError, match=match):
        write_store(tmp_path / "s", pieces_of(write(tmp_path / "g", **{name: text})))
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_two_splits_damage_and_text(tmp_path: Path) -> None:
    folder = write(tmp_path / "g")
    (folder / "split" / "random").mkdir()
    with pytest.raises(ValueError, match=r"one split in .*split \(got random, time\); move all others"):
        pieces_of(folder)
    (folder / "split" / "random").rmdir()
    path = folder / "raw" / "node-label.csv.gz"
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    with pytest.raises(ValueError, match=r"node-label\.csv\.gz to be OGB's csv\.gz of float \(got "):
        pieces_of(folder)
    path.write_bytes(gzip.compress(b"a\nb\n"))
    with pytest.raises(ValueError, match=r"node-label\.csv\.gz to be OGB's csv\.gz of float \(got "):
        pieces_of(folder)


def test_empty_lists_of_a_split(tmp_path: Path) -> None:
    graph = ogb_raw.read_ogb(write(tmp_path / "g", test=""))
    assert not graph.arrays["test_mask"].any()
    assert np.array_equal(graph.arrays["train_mask"].nonzero()[0], [0, 1])
