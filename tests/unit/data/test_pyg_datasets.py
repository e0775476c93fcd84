"""PyG's datasets through load(), from raw files written here."""

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

from graph_files import N, arrays, benchmark, same
from topoff.data import pyg_datasets
from topoff.data.layout import MASKS
from topoff.data.load import load


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
        patch.setattr(pyg_datasets, "_process", never)
        assert same(load("Computers", root=str(root)), graph)
    raw.unlink()
    raw.parent.rmdir()
    raw.parent.parent.rmdir()
    write_amazon(root).touch()  # another file: read anew
    monkeypatch.setattr(pyg_datasets, "_process", lambda *_, **__: arrays(vocab=None))
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
    monkeypatch.setattr(pyg_datasets, "_probe", lambda url: (_ for _ in ()).throw(OSError(f"no way to {url}")))
    for name in pyg_datasets.PYG:
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
    with pytest.raises(ValueError, match=r"computers\.npz to be the raw files of Computers \(got .*fetch it again"):
        load("Computers", root=tmp_path)
