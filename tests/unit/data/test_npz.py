""".npz files through load(): every layout gives the same plain Data, and what is malformed is refused."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from graph_files import N, arrays, benchmark, expected, same
from topoff.data import npz
from topoff.data.layout import CSR, MASKS
from topoff.data.load import load
from topoff.data.names import Names
from topoff.data.npz import stored_features


def test_npz_with_masks(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **arrays())  # the pickled vocab is not read
    for source in (tmp_path / "g.npz", str(tmp_path / "g.npz")):
        assert same(load(source), expected())
    assert same(load("g.npz", root=tmp_path), expected())
    with pytest.raises(ValueError, match="this graph has no other split"):
        load(tmp_path / "g.npz", split=1)


@pytest.mark.parametrize("ids", [list("uvwxyz"), list(range(5, 5 + N))])
def test_npz_with_names(tmp_path: Path, ids: list[str] | list[int]) -> None:
    np.savez(tmp_path / "g.npz", **arrays(node_ids=np.array(ids), y=np.array([0, 1, 0, 1, 1, -1])))
    assert load(tmp_path / "g.npz").names == Names(ids, list("abcdefgh"))
    np.savez(tmp_path / "g.npz", **arrays(node_ids=np.array(ids), class_names=None))
    assert load(tmp_path / "g.npz").names == Names(ids)
    several = np.tile([0, 1], (N, 1))
    np.savez(tmp_path / "g.npz", **arrays(y=several, class_names=np.array(["a", "b"])))
    assert load(tmp_path / "g.npz").names == Names(None, ["a", "b"])


def test_npz_with_sparse_features_and_split_codes(tmp_path: Path) -> None:
    codes = {"split": np.array([0, 0, 1, 2, 2, -1], np.int8), **dict.fromkeys(MASKS)}
    for kind, kept in ((np.int8, np.float32), (np.float64, np.float64)):
        matrix = scipy.sparse.csr_array(arrays()["x"].astype(kind))
        parts = dict(zip(CSR, (matrix.data, matrix.indices, matrix.indptr, matrix.shape), strict=True))
        np.savez(tmp_path / "g.npz", **arrays(x=None, **parts, **codes))
        graph = load(tmp_path / "g.npz")
        assert graph.x.numpy().dtype == kept
        assert graph.x.float().equal(expected().x)
        assert all(graph[name].equal(expected()[name]) for name in MASKS)


def test_npz_without_split_is_drawn(tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **arrays(**dict.fromkeys(MASKS)))
    graph = expected()
    for name in MASKS:
        del graph[name]
    assert same(load(tmp_path / "g.npz", seed=3), load(graph, seed=3))


def test_npz_dtypes(tmp_path: Path) -> None:
    given = arrays(
        x=arrays()["x"].astype(">f8"),
        edge_index=arrays()["edge_index"].astype(np.uint16),
        y=arrays()["y"].astype(">i2"),
        edge_weight=arrays()["edge_weight"].astype(np.longdouble),
    )
    np.savez(tmp_path / "g.npz", **given)
    graph = load(tmp_path / "g.npz")
    assert graph.x.dtype == graph.edge_weight.dtype == torch.float64
    assert graph.edge_index.equal(expected().edge_index)
    assert graph.y.equal(expected().y)
    np.savez(tmp_path / "g.npz", **arrays(x=np.eye(N, dtype=np.uint8)))
    assert load(tmp_path / "g.npz").x.equal(torch.eye(N))


def test_benchmark_layout_is_symmetrised(tmp_path: Path) -> None:
    both = torch.tensor([[0, 1, 2, 3, 4], [1, 0, 2, 4, 3]])
    for form in (benchmark()["edges"], benchmark()["edges"].T):
        np.savez(tmp_path / "g.npz", **(benchmark() | {"edges": form}))
        assert load(tmp_path / "g.npz").edge_index.equal(both)
    assert int(load(tmp_path / "g.npz", split=0).train_mask.sum()) == 2
    assert int(load(tmp_path / "g.npz", split=1).train_mask.sum()) == 1
    np.savez(tmp_path / "g.npz", **(benchmark() | {"edges": benchmark()["edges"] - 1}))
    with pytest.raises(ValueError, match=r"node ids from 0 to 5 .*got -1 to 3"):
        load(tmp_path / "g.npz")


NO_MASKS: dict[str, Any] = dict.fromkeys(MASKS)
BAD_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "no edges": ({"edge_index": None}, "the keys edge_index, y and x or x_data.*got no edge_index, but x, .*vocab"),
    "no labels": ({"y": None}, "got no y, but"),
    "no features": ({"x": None}, "got no x, but"),
    "half of CSR": ({"x": None, "x_data": np.ones(3), "x_shape": [N, 2]}, "got no x_indices, x_indptr, but"),
    "pickled": ({"y": np.array([None] * N)}, r"plain arrays \(got pickled objects in '.*'\); write it again"),
    "strings": ({"y": np.array(list("abcdef"))}, r"'y' in .*g.npz to hold numbers \(got dtype <U1\)"),
    "split 3": ({**NO_MASKS, "split": np.full(N, 3)}, r"'split' in .*0 \(train\).*got int64 from 3 to 3.*recode"),
    "split float": ({**NO_MASKS, "split": np.zeros(N)}, r"'split' in .*got float64 from 0.0 to 0.0"),
    "split words": ({**NO_MASKS, "split": np.array(["train"] * N)}, r"'split' in .*got <U5"),
    "split short": ({**NO_MASKS, "split": np.zeros(3, int)}, r"'train_mask' to be bool of shape \(6,\)"),
    "float edges": ({"edge_index": np.zeros((2, 3))}, "'edge_index' to hold integers"),
    "few ids": ({"node_ids": np.arange(3)}, r"'node_ids' to have shape \(6,\), one id per node \(got \(3,\)\); give"),
    "float ids": (
        {"node_ids": np.ones(N)},
        r"'node_ids' in .*g.npz to hold plain strings or integers \(got dtype float64\); conv",
    ),
    "few names": (
        {"class_names": np.array(["a"])},
        r"'class_names' to name 8 classes \(got shape \(1,\)\); give every",
    ),
    "integer names": (
        {"class_names": np.arange(8)},
        r"'class_names' in .*g.npz to hold plain strings \(got dtype int64\)",
    ),
    "pickled names": (
        {"class_names": np.array([None])},
        r"plain arrays \(got pickled objects in '.*'\); write it again",
    ),
    "ids twice": (
        {"node_ids": np.array(list("abcdea"))},
        r"In .*g.npz: .*'node_ids' to be there once \(got 'a' at 0 and",
    ),
    "ids twice, numbers": ({"node_ids": np.array([1, 2, 3, 4, 5, 1])}, r"'node_ids' to be there once \(got 1 at 0 and"),
    "empty id": (
        {"node_ids": np.array(["a", "", "c", "d", "e", "f"])},
        r"'node_ids' to be a name \(got an empty one at 1",
    ),
    "half an id": ({"node_ids": np.array([*"abcde", "\ud800"])}, r"'node_ids' to be text \(got half a surrogate"),
    "names twice": (
        {"class_names": np.array(list("abcdefga"))},
        r"'class_names' to be there once \(got 'a' at 0 and at 7",
    ),
    "names with a space": (
        {"class_names": np.array([*"abcdefg", "a "])},
        r"'class_names' to be there once \(got 'a' at 0",
    ),
    "blank name": ({"class_names": np.array([*"abcdefg", " "])}, r"'class_names' to be a name \(got an empty one at 7"),
    "many names": (
        {"y": np.tile([0, 1], (N, 1)), "class_names": np.array(list("abc"))},
        r"'class_names' to name 2 classes \(got shape \(3,\)\)",
    ),
    "two splits": ({"split": np.zeros(N, int)}, r"g.npz to have one split \(got both split and train_mask, val_mask"),
    "features twice": ({"x_data": np.ones(3)}, r"g.npz to have its features once \(got both x and x_data\); delete"),
    "two layouts": (
        {"edges": np.zeros((3, 2), int)},
        r"g.npz to have one layout \(got both edge_index, x, y and edges\)",
    ),
    "codes as mask": (
        {"train_mask": np.full(N, 2, np.uint8)},
        r"'train_mask' in .* to hold True and False \(got dtype uint8",
    ),
    "short mask": ({"train_mask": np.ones(3, bool)}, r"'train_mask' to be bool of shape \(6,\)"),
    "scalar": ({"edge_index": np.int64(3)}, r"'edge_index' to have shape \(2, edges\) \(got \(\)\)"),
    "scalar x": ({"x": np.float32(3)}, r"'x' to have shape \(nodes, features\) \(got \(\)\)"),
    "no nodes": (
        {"x": np.zeros((0, 2)), "edge_index": np.zeros((2, 0), int), "y": np.zeros(0, int), **NO_MASKS},
        "'x' to have",
    ),
    "no labels to choose from": (
        {"y": np.zeros((N, 0)), "class_names": None},
        r"'y' to have 6 rows \(got shape \(6, 0\)",
    ),
    "no splits": ({name: np.zeros((N, 0), bool) for name in MASKS}, "masks to have a column for every split .got none"),
    "complex": ({"x": np.ones((N, 2), complex)}, r"'x' in .* to hold numbers \(got dtype complex128\)"),
    "dates": ({"x": np.ones((N, 2), "M8[s]")}, r"'x' in .* to hold numbers \(got dtype datetime64"),
    "structured": ({"x": np.zeros(N, "f4,i4")}, r"'x' in .* to hold numbers \(got dtype \["),
    "huge ids": ({"edge_index": np.full((2, 3), 2**64 - 1, np.uint64)}, r"'edge_index' in .* below 2\^63 \(got 1844"),
    "huge features": (
        {"x": np.full((N, 2), 1e300)},
        r"'x' to hold numbers up to 1.3e\+154, .* \(got 1e\+300 in row 0\)",
    ),
    "huge weights": (
        {"edge_weight": np.full(5, -1e300)},
        r"'edge_weight' to hold numbers up to 1.8e\+19.*got -1e\+300",
    ),
    "huge targets": ({"y": np.full(N, 1e200), "class_names": None}, r"'y' to hold numbers up to 1.8e\+19"),
    "gaps": (
        {"y": np.array([0, 5000, 0, 1, 1, -1]), "class_names": None},
        r"'y' to number .*got 3 classes with ids up to 5,000",
    ),
    "CSR range": (
        {"x": None, "x_data": [10**300], "x_indices": [0], "x_indptr": [0, 1, 1, 1, 1, 1, 1], "x_shape": [N, 2]},
        r"pickled objects in 'x_data'",
    ),
    "CSR of four": (
        {"x": None, "x_data": [1], "x_indices": [0], "x_indptr": [0, 1], "x_shape": [N, 2, 1, 1]},
        r"to be one CSR matrix \(got x_shape \[6, 2, 1, 1\]",
    ),
    "CSR ids": (
        {"x": None, "x_data": [1], "x_indices": [9], "x_indptr": [0, 1, 1, 1, 1, 1, 1], "x_shape": [N, 2]},
        "to be one CSR matrix .*store the four attributes",
    ),
}


@pytest.mark.parametrize(("changes", "sentence"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_malformed_npz(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    np.savez(tmp_path / "g.npz", **arrays(**changes))
    with pytest.raises(ValueError, match=sentence):
        load(tmp_path / "g.npz")


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "npy", "bit"])
def test_damaged_npz(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "g.npz"
    np.savez(path, **arrays(vocab=None))
    content = path.read_bytes()
    middle = content.index(np.float32(7.0).tobytes())
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    broken = {
        "truncated": content[: len(content) // 2],
        "empty": b"",
        "text": b"node,label\n",
        "npy": buffer.getvalue(),
        "bit": content[:middle] + b"\xff" + content[middle + 1 :],
    }
    path.write_bytes(broken[damage])
    with pytest.raises(ValueError, match=r"Expected .*g\.npz to be a whole \.npz file of plain arrays"):
        load(path)


@pytest.mark.parametrize("filled", [0.05, 0.1, 0.5])
def test_features_are_stored_sparse_where_most_are_zero(filled: float) -> None:
    x = (np.arange(400) < 400 * filled).astype(np.float32).reshape(20, 20)
    stored = stored_features(x)
    assert list(stored) == (list(CSR) if filled < 0.1 else ["x"])
    if filled < 0.1:
        matrix = scipy.sparse.csr_array(tuple(stored[name] for name in CSR[:3]), shape=tuple(stored["x_shape"]))
        assert np.array_equal(matrix.toarray(), x)


# the embedded graph


@pytest.fixture(scope="session")
def wordnet_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wordnet")


@pytest.fixture(scope="session")
def wordnet(wordnet_cache: Path) -> Data:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPOFF_CACHE", str(wordnet_cache))
        return load("wordnet")


def never(*_: Any, **__: Any) -> Any:
    pytest.fail("called although it should not be")


def test_wordnet_counts(wordnet: Data) -> None:
    assert set(wordnet.keys()) == {"x", "edge_index", "y", *MASKS, "names"}
    assert wordnet.names.class_names[:4] == ["adj.all", "adj.pert", "adv.all", "noun.Tops"]
    assert (len(wordnet.names.class_names), wordnet.names.node_ids) == (45, None)
    assert wordnet.x.shape == (117_791, 128)
    assert wordnet.x.dtype == torch.float32
    assert wordnet.edge_index.shape == (2, 349_438)
    assert wordnet.y.unique().tolist() == list(range(45))
    assert [int(wordnet[name].sum()) for name in MASKS] == [58_895, 29_448, 29_448]
    assert wordnet.is_undirected()
    assert not wordnet.has_self_loops()


def test_wordnet_features_are_a_truncated_svd(wordnet: Data) -> None:
    """Columns are orthogonal, ordered by energy, with unit mean square over all."""
    x = wordnet.x.double()
    gram = x.t() @ x
    energy = gram.diagonal()
    assert (gram - energy.diag()).abs().max() < 1e-5 * energy.max()
    assert (energy[:-1] >= energy[1:] * (1 - 1e-6)).all()
    assert x.square().mean().item() == pytest.approx(1.0, abs=1e-5)


def test_wordnet_is_cached_and_deterministic(
    monkeypatch: pytest.MonkeyPatch, wordnet: Data, wordnet_cache: Path
) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(wordnet_cache))
    with monkeypatch.context() as patch:
        patch.setattr(npz, "_reduce_words", never)
        assert same(load("WordNet"), wordnet)
    words = scipy.sparse.csr_array(np.random.default_rng(0).random((400, 150)) < 0.1).astype(np.float64)
    threads = torch.get_num_threads()
    first = npz._reduce_words(words)
    torch.set_num_threads(1)
    try:
        assert np.array_equal(first, npz._reduce_words(words))
    finally:
        torch.set_num_threads(threads)


def test_ids_pass_unchanged(tmp_path: Path) -> None:
    ids = [2**63 + number for number in range(N)]
    np.savez(tmp_path / "g.npz", **arrays(node_ids=np.array(ids, np.uint64)))
    assert load(tmp_path / "g.npz").names.node_ids == ids
    np.savez(tmp_path / "g.npz", **arrays(node_ids=np.array(["1", " 1", "01", "=1", "a,b", "\u00e4"])))
    assert load(tmp_path / "g.npz").names.node_ids == ["1", " 1", "01", "=1", "a,b", "\u00e4"]


def test_classes_with_names_are_meant_however_few_occur(tmp_path: Path) -> None:
    y = np.array([0, 1999, 0, 1, 1, -1])
    np.savez(tmp_path / "g.npz", **arrays(y=y, class_names=np.array([f"c{number}" for number in range(2000)])))
    assert int(load(tmp_path / "g.npz").y.max()) == 1999


@pytest.mark.parametrize("order", ["C", "F"])
def test_fortran_order_and_other_bytes(tmp_path: Path, order: Any) -> None:
    changed = {
        "x": arrays()["x"].astype(">f4", order=order),
        "edge_index": arrays()["edge_index"].astype(">i4", order=order),
    }
    np.savez(tmp_path / "g.npz", **arrays(**changed))
    assert same(load(tmp_path / "g.npz"), expected())
