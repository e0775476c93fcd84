"""Planetoid's pickles and the karate club's archives: PyG's arrays bit by bit, and nothing in the files is run."""

import os
import pickle
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.datasets import GitHub, Planetoid

from topoff.data.load import load

TRAIN, ALL, TEST = 4, 520, 6  # nodes with labels, nodes in allx, test nodes


class Evil:
    """Make a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


def write_planetoid(root: Path, name: str = "Cora", *, protocol: int = 2, **changes: Any) -> Path:
    """Write the eight raw files, some of them changed; a gap among CiteSeer's test nodes."""
    rng = np.random.default_rng(0)
    words = (rng.random((ALL + TEST, 9)) < 0.3).astype(np.float32)
    labels = np.eye(3, dtype=np.int32)[rng.integers(3, size=ALL + TEST)]
    tests = ALL + rng.permutation(TEST) + (rng.permutation(TEST) // 10)
    if name == "CiteSeer":
        tests = np.array([ALL + 7, ALL, ALL + 2, ALL + 1, ALL + 4, ALL + 3])
    n = int(tests.max()) + 1
    graph = defaultdict(list, {node: [(node + 1) % n, (node * 7) % n, node] for node in range(n)})
    parts = {
        "x": scipy.sparse.csr_matrix(words[:TRAIN]),
        "allx": scipy.sparse.csr_matrix(words[:ALL]),
        "tx": scipy.sparse.csr_matrix(words[ALL:]),
        "y": labels[:TRAIN],
        "ally": labels[:ALL],
        "ty": labels[ALL:],
        "graph": graph,
    } | changes
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for part, value in parts.items():
        content = value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol)
        (folder / f"ind.{name.lower()}.{part}").write_bytes(content)
    text = changes.get("index", "\n".join(map(str, tests)) + "\n")
    (folder / f"ind.{name.lower()}.test.index").write_text(text)
    return folder


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", ["Cora", "CiteSeer"])
def test_planetoid_is_pygs_bit_by_bit(tmp_path: Path, name: str, protocol: int) -> None:
    write_planetoid(tmp_path / "ours", name, protocol=protocol)
    write_planetoid(tmp_path / "theirs", name, protocol=protocol)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = Planetoid(str(tmp_path / "theirs"), name)[0]
    ours = load(name, root=tmp_path / "ours")
    assert len(theirs.keys()) == 6
    for key in theirs.keys():  # noqa: SIM118
        assert ours[key].dtype == theirs[key].dtype
        assert ours[key].equal(theirs[key]), key


@pytest.mark.parametrize("part", ["y", "allx", "ty", "graph"])
def test_a_pickle_that_names_something_else_is_not_run(tmp_path: Path, part: str) -> None:
    mark = tmp_path / "mark"
    folder = write_planetoid(tmp_path, **{part: Evil(mark)})
    sentence = rf"{folder}/ind.cora.{part} to hold arrays .*call of posix.mkdir\); unpickling runs"
    with pytest.raises(ValueError, match=sentence + ".*--trust"):
        load("Cora", root=tmp_path)
    assert not mark.exists()
    with pytest.raises(ValueError, match="to be the raw files of Cora"):
        load("Cora", root=tmp_path, trust=True)  # PyG runs it, and wonders at None
    assert mark.exists()  # trust means this


def test_a_file_that_nothing_is_needed_of_is_not_even_read(tmp_path: Path) -> None:
    write_planetoid(tmp_path, x=Evil(tmp_path / "mark"))
    assert load("Cora", root=tmp_path).num_nodes == ALL + TEST
    assert not (tmp_path / "mark").exists()


def test_processed_files_are_never_read(tmp_path: Path) -> None:
    folder = write_planetoid(tmp_path)
    (folder.parent / "processed").mkdir()
    for name in ("data.pt", "pre_transform.pt", "pre_filter.pt"):
        torch.save(Evil(tmp_path / "mark"), folder.parent / "processed" / name)
    assert load("Cora", root=tmp_path).num_nodes == ALL + TEST
    assert load("Cora", root=tmp_path, trust=True).num_nodes == ALL + TEST
    assert not (tmp_path / "mark").exists()


OBJECTS = np.array([object(), None])
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "truncated": ({"allx": pickle.dumps(np.eye(3))[:40]}, r"ind\.cora\.allx to be a whole pickle of arrays"),
    "text": ({"y": b"hello"}, r"ind\.cora\.y to be a whole pickle"),
    "empty": ({"y": b""}, r"ind\.cora\.y to be a whole pickle"),
    "objects": ({"y": OBJECTS}, r"ind\.cora\.y .*(fetch|arrays)"),
    "strings": ({"y": np.array([["a"]])}, r"ind\.cora\.y to hold arrays of numbers \(got dtype 'U1'\)"),
    "a number": ({"tx": 3}, r"ind\.cora\.tx to hold one matrix \(got int\)"),
    "a vector": ({"ty": np.ones(TEST)}, r"ind\.cora\.ty to hold one matrix \(got shape \(6,\)\)"),
    "few rows": ({"tx": np.ones((2, 9))}, r"to fit each other \(got tx \(2, 9\)"),
    "no dict": ({"graph": [1, 2]}, r"ind\.cora\.graph to hold the neighbours of every node \(got list\)"),
    "foreign node": (
        {"graph": {0: [10**9]}},
        r"ind\.cora\.graph to list neighbours from 0 to 525 \(got others of node 0",
    ),
    "words": ({"graph": {"a": [1]}}, r"ind\.cora\.graph to list neighbours"),
    "index": ({"index": "520\nfive\n"}, r"test\.index to hold node ids, one in every line \(got 'five'\)"),
    "no index": ({"index": ""}, r"test\.index to hold node ids"),
    "twice": ({"index": "520\n" * TEST}, r"test\.index to hold every node id once \(got 5 twice\)"),
    "far": ({"index": "\n".join(map(str, range(10**9, 10**9 + TEST)))}, r"test nodes in .* from 0 to 525 \(got 1000"),
    "nested": ({"graph": b"\x80\x02}K\x00" + b"\x85" * 10**5 + b"K\x01s."}, r"ind\.cora\.graph to be a whole pickle"),
    "memo": ({"y": b"\x80\x02Kr\xff\xff\xff\x7f."}, r"ind\.cora\.y to be a whole pickle"),
    "huge string": ({"y": b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."}, r"ind\.cora\.y to be a whole pickle"),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD.values(), ids=BAD.keys())
def test_damaged_planetoid(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    write_planetoid(tmp_path, **changes)
    with pytest.raises(ValueError, match=sentence):
        load("Cora", root=tmp_path)


def test_citeseers_test_nodes_may_not_claim_all_memory(tmp_path: Path) -> None:
    index = "\n".join(map(str, [ALL, ALL + 1, ALL + 2, ALL + 3, ALL + 4, 10**11]))
    write_planetoid(tmp_path, "CiteSeer", index=index)
    with pytest.raises(ValueError, match=r"the test nodes of citeseer in .* to fit into memory"):
        load("CiteSeer", root=tmp_path)


# one .npz file, which PyG lets unpickle


def write_karate(root: Path, **changes: Any) -> Path:
    path = root / "GitHub" / "raw" / "github.npz"
    path.parent.mkdir(parents=True)
    parts = {"features": np.eye(5, 7), "target": np.array([0, 1, 0, 1, 1]), "edges": np.array([[0, 1], [1, 0], [3, 3]])}
    np.savez(path, **{key: value for key, value in (parts | changes).items() if value is not None})
    return path


def test_karate_is_pygs(tmp_path: Path) -> None:
    write_karate(tmp_path / "ours")
    write_karate(tmp_path / "theirs")
    theirs, ours = GitHub(str(tmp_path / "theirs" / "GitHub"))[0], load("GitHub", root=tmp_path / "ours")
    assert all(
        ours[key].equal(theirs[key]) and ours[key].dtype == theirs[key].dtype for key in ("x", "y", "edge_index")
    )


def test_karate_is_not_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = write_karate(tmp_path, target=np.array([Evil(mark)], dtype=object))
    with pytest.raises(
        ValueError, match=rf"{path} to be a whole .npz.*objects in 'target'\); unpickling runs .*--trust"
    ):
        load("github", root=tmp_path)
    assert not mark.exists()
    with pytest.raises(ValueError, match="to be the raw files of GitHub"):
        load("github", root=tmp_path, trust=True)
    assert mark.exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"edges": None}, r"github\.npz to have the arrays features, target, edges \(got no edges\)"),
        ({"target": np.array(["a"] * 5)}, r"github\.npz to hold tables of numbers"),
        ({"features": np.ones(5)}, r"github\.npz to hold tables of numbers \(got features \(5,\)"),
    ],
)
def test_damaged_karate(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    write_karate(tmp_path, **changes)
    with pytest.raises(ValueError, match=sentence):
        load("GitHub", root=tmp_path)
