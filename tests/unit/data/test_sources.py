"""sources.py through load(): the embedded graph, .npz files and PyG's raw files give the same plain Data."""

import io
import json
import socket
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from topoff.data import sources
from topoff.data.load import Names, load

N = 6
MASKS = ("train_mask", "val_mask", "test_mask")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def wordnet_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wordnet")


@pytest.fixture(scope="session")
def wordnet(wordnet_cache: Path) -> Data:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPOFF_CACHE", str(wordnet_cache))
        return load("wordnet")


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    """A directed, weighted graph.npz with a self-loop, a duplicate edge and an isolated, unlabelled node."""
    parts = {
        "x": np.arange(2 * N, dtype=np.float32).reshape(N, 2),
        "edge_index": np.array([[0, 0, 2, 3, 4], [1, 1, 2, 0, 3]]),
        "edge_weight": np.array([1, 0.5, -1, 0, 2], dtype=np.float32),
        "y": np.array([0, 7, 0, 7, 3, -1]),
        **{name: np.isin(np.arange(N), nodes) for name, nodes in zip(MASKS, ((0, 1), 2, (3, 4)), strict=True)},
        "class_names": np.array(list("abcdefgh")),
        "vocab": np.array([object()]),
    }
    return {name: np.asarray(value) for name, value in {**parts, **changes}.items() if value is not None}


def expected() -> Data:
    """The same graph as a Data."""
    names = ("x", "edge_index", "edge_weight", "y", *MASKS)
    return Data(**{name: torch.from_numpy(arrays()[name]) for name in names}, names=Names(None, list("abcdefgh")))


def same(first: Data, second: Data) -> bool:
    return set(first.keys()) == set(second.keys()) and all(
        first[key] == second[key]
        if isinstance(first[key], Names)
        else torch.equal(first[key], second[key]) and first[key].dtype == second[key].dtype
        for key in first.keys()  # noqa: SIM118
    )


# ---- .npz files


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


def test_folder_with_graph(tmp_path: Path) -> None:
    (tmp_path / "mine" / "raw").mkdir(parents=True)
    np.savez_compressed(tmp_path / "mine" / "raw" / "mine.npz", **arrays(x=np.ones((N, 1), np.float32)))
    assert load(tmp_path / "mine").x.shape == (N, 1)
    np.savez_compressed(tmp_path / "mine" / "graph.npz", **arrays())
    assert same(load(tmp_path / "mine"), expected())
    assert same(load("mine", root=tmp_path), expected())


def test_npz_with_sparse_features_and_split_codes(tmp_path: Path) -> None:
    codes = {"split": np.array([0, 0, 1, 2, 2, -1], np.int8), **dict.fromkeys(MASKS)}
    for kind, kept in ((np.int8, np.float32), (np.float64, np.float64)):
        matrix = scipy.sparse.csr_array(arrays()["x"].astype(kind))
        parts = dict(zip(sources.CSR, (matrix.data, matrix.indices, matrix.indptr, matrix.shape), strict=True))
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


def benchmark() -> dict[str, np.ndarray]:
    """The layout of the heterophilous benchmark, two splits."""
    masks = {f"{name}s": np.stack([arrays()[name]] * 2) for name in MASKS}
    masks["train_masks"][1, 1] = False
    edges = np.array([[0, 1], [2, 2], [4, 3], [3, 4]])
    return {"node_features": np.eye(N, dtype=np.float32), "node_labels": np.arange(N), "edges": edges, **masks}


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


BAD_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "no edges": ({"edge_index": None}, "the keys edge_index, y and x or x_data.*got no edge_index, but x, .*vocab"),
    "no labels": ({"y": None}, "got no y, but"),
    "no features": ({"x": None}, "got no x, but"),
    "half of CSR": ({"x": None, "x_data": np.ones(3), "x_shape": [N, 2]}, "got no x_indices, x_indptr, but"),
    "pickled": ({"y": np.array([None] * N)}, r"plain arrays \(got pickled objects\); write it again"),
    "strings": ({"y": np.array(list("abcdef"))}, r"'y' to hold numbers \(got dtype <U1\)"),
    "split 3": ({"split": np.full(N, 3)}, r"'split' in .*0 \(train\).*got int64 from 3 to 3.*recode"),
    "split float": ({"split": np.zeros(N)}, r"'split' in .*got float64 from 0.0 to 0.0"),
    "split words": ({"split": np.array(["train"] * N)}, r"'split' in .*got <U5"),
    "split short": ({"split": np.zeros(3, int)}, r"'train_mask' to be bool of shape \(6,\)"),
    "float edges": ({"edge_index": np.zeros((2, 3))}, "'edge_index' to hold integers"),
    "few ids": ({"node_ids": np.arange(3)}, r"'node_ids' to have shape \(6,\), one id per node \(got \(3,\)\); give"),
    "float ids": (
        {"node_ids": np.ones(N)},
        r"'node_ids' to hold plain strings or integers \(got dtype float64\); conv",
    ),
    "few names": (
        {"class_names": np.array(["a"])},
        r"'class_names' to name 8 classes \(got shape \(1,\)\); give every",
    ),
    "integer names": ({"class_names": np.arange(8)}, r"'class_names' to hold plain strings \(got dtype int64\)"),
    "pickled names": ({"class_names": np.array([None])}, r"plain arrays \(got pickled objects\); write it again"),
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


def test_missing_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for source, place in (
        (tmp_path / "g.npz", r"g\.npz"),
        (str(tmp_path / "g.npz"), r"g\.npz"),
        (tmp_path / "folder", r"folder/graph\.npz"),
        (Path("Cora"), "Cora"),
    ):
        with pytest.raises(FileNotFoundError, match=rf"Expected a graph in .*{place} \(got no such file\); give"):
            load(source)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"\(got 'pubmedd', which is none of them\); did you mean 'PubMed'\?"):
        load("pubmedd")
    with pytest.raises(ValueError, match=r"did you mean 'wordnet'\?"):
        load("word-nets")
    with pytest.raises(ValueError, match="the names are wordnet, Cora, CiteSeer"):
        load("zzzz")


# ---- PyG's datasets, from raw files written here


def write_amazon(root: Path) -> Path:
    """Computers as in root/Computers/raw: five nodes, a self-loop that PyG removes, word counts that it binarises."""
    path = root / "Computers" / "raw" / "amazon_electronics_computers.npz"
    path.parent.mkdir(parents=True)
    adjacency = scipy.sparse.csr_matrix(([1, 1, 1], ([0, 1, 3], [1, 2, 3])), shape=(5, 5))
    features = scipy.sparse.csr_matrix(np.eye(5, 40) * 3)
    parts = {}
    for name, matrix in (("adj", adjacency), ("attr", features)):
        parts |= {f"{name}_{part}": getattr(matrix, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(path, **parts, labels=np.array([0, 1, 0, 1, 2]))
    return path


def write_saint(folder: Path, labels: list[Any]) -> None:
    """Flickr's and Yelp's raw layout, four nodes."""
    folder.mkdir(parents=True)
    adjacency = scipy.sparse.csr_matrix(([1, 1], ([0, 1], [1, 0])), shape=(4, 4))
    parts = {part: getattr(adjacency, part) for part in ("data", "indices", "indptr", "shape")}
    np.savez(folder / "adj_full.npz", **parts)
    np.save(folder / "feats.npy", np.arange(8.0).reshape(4, 2) + 1)
    (folder / "class_map.json").write_text(json.dumps({str(i): label for i, label in enumerate(labels)}))
    (folder / "role.json").write_text(json.dumps({"tr": [0, 3], "va": [1], "te": [2]}))


def files(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in root.rglob("*")}


def never(*_: Any, **__: Any) -> Any:
    pytest.fail("called although it should not be")


def test_amazon_writes_nothing_beside_the_raw_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", never)
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # PyG is silent under pytest; it must be silent anyway
    root = tmp_path / "root"
    raw = write_amazon(root)
    before = files(root)
    graph = load("computers", root=root)
    assert files(root) == before
    assert capsys.readouterr() == ("", "")
    assert [path.name.split("-")[0] for path in own_cache.iterdir()] == ["Computers"]
    assert graph.x.equal(torch.eye(5, 40))
    assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert [int(graph[name].sum()) for name in MASKS] == [3, 1, 1]
    with monkeypatch.context() as patch:
        patch.setattr(sources, "_process", never)
        assert same(load("Computers", root=str(root)), graph)
    raw.unlink()
    raw.parent.rmdir()
    raw.parent.parent.rmdir()
    write_amazon(root).touch()  # another file: read anew
    monkeypatch.setattr(sources, "_process", lambda *_, **__: arrays(vocab=None))
    assert load("Computers", root=root).x.shape == (N, 2)


def test_default_root_is_in_the_cache(own_cache: Path) -> None:
    write_amazon(own_cache / "raw")
    assert load("Computers").num_nodes == 5


@pytest.mark.parametrize("name", ["minesweeper", "Minesweeper", "MINESWEEPER"])
def test_heterophilous_equals_its_npz(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "root" / "minesweeper" / "raw" / "minesweeper.npz"
    raw.parent.mkdir(parents=True)
    np.savez(raw, **benchmark())
    before = files(tmp_path / "root")
    for split in (0, 1):
        assert same(load(name, root=tmp_path / "root", split=split), load(raw, split=split))
    assert files(tmp_path / "root") == before
    with pytest.raises(ValueError, match="'split' to be from 0 to 1"):
        load(name, root=tmp_path / "root", split=2)


def test_classes_without_a_name_argument(tmp_path: Path) -> None:
    write_saint(tmp_path / "Flickr" / "raw", [0, 1, 2, 0])
    write_saint(tmp_path / "Yelp" / "raw", [[0, 1], [1, 1], [0, 0], [1, 0]])
    flickr, yelp = load("flickr", root=tmp_path), load("YELP", root=tmp_path)
    assert flickr.y.tolist() == [0, 1, 2, 0]
    assert flickr.x.equal(torch.arange(8.0).view(4, 2) + 1)
    assert [flickr[name].nonzero().view(-1).tolist() for name in MASKS] == [[0, 3], [1], [2]]
    assert yelp.y.equal(torch.tensor([[0.0, 1], [1, 1], [0, 0], [1, 0]]))


def test_known_name_in_our_own_layout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", never)
    (tmp_path / "actor" / "raw").mkdir(parents=True)
    np.savez(tmp_path / "actor" / "raw" / "actor.npz", **benchmark())
    assert load("actor", root=tmp_path, split=1).num_nodes == N


def test_every_name_has_a_pyg_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sources, "_probe", lambda url: (_ for _ in ()).throw(OSError(f"no way to {url}")))
    for name in sources.PYG:
        with pytest.raises(FileNotFoundError, match=rf"the raw files of {name} at .*/raw/.*no way to https?://"):
            load(name.upper(), root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", ["none", "refusal"])
def test_missing_raw_files_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str) -> None:
    def fail(url: str, **_: Any) -> Any:
        if answer == "refusal":
            raise urllib.error.HTTPError(url, 404, "Not Found", Message(), None)
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    sentence = r"raw files of Photo at .*/Photo/raw/amazon_electronics_photo\.npz \(got no files there, .*put them"
    with pytest.raises(FileNotFoundError, match=sentence):
        load("Photo", root=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert socket.getdefaulttimeout() is None


def test_download_where_there_is_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    content = write_amazon(tmp_path / "server").read_bytes()
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(content))
    graph = load("Photo", root=tmp_path / "root")
    assert graph.num_nodes == 5
    assert (tmp_path / "root" / "Photo" / "raw" / "amazon_electronics_photo.npz").read_bytes() == content


def test_interrupted_download_leaves_no_half_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise TimeoutError("the line went dead")
            return super().read(3)

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Broken(b"abcdef"))
    with pytest.raises(FileNotFoundError, match="TimeoutError: the line went dead"):
        load("Photo", root=tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_damaged_raw_files(tmp_path: Path) -> None:
    write_amazon(tmp_path).write_bytes(b"not an npz")
    with pytest.raises(ValueError, match=r"computers\.npz to be the raw files of Computers \(got .*fetch them again"):
        load("Computers", root=tmp_path)


# ---- the embedded graph


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
        patch.setattr(sources, "_reduce_words", never)
        assert same(load("WordNet"), wordnet)
    words = scipy.sparse.csr_array(np.random.default_rng(0).random((400, 150)) < 0.1).astype(np.float64)
    threads = torch.get_num_threads()
    first = sources._reduce_words(words)
    torch.set_num_threads(1)
    try:
        assert np.array_equal(first, sources._reduce_words(words))
    finally:
        torch.set_num_threads(threads)
