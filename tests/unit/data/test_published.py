"""Published graphs, from small files in the layouts in which they are published."""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.datasets
from torch_geometric.data import Data

from graph_files import benchmark
from published_files import (
    BOTH_WAYS,
    CITATIONS,
    CLASSES,
    COUNTS,
    LABELS,
    PAIRS,
    Written,
    X,
    write_gz,
    write_ogb,
    write_papers,
    write_ppi,
    write_reddit,
    write_saint,
)
from topoff.data import published, published_store, sources
from topoff.data.layout import MASKS
from topoff.data.load import load
from topoff.data.pieces import pieces_of
from topoff.data.places import refuse_source
from topoff.data.store import stored

TABLE = published.COUNTS
Write = Callable[[Path], Written]
WRITERS: dict[str, Write] = {
    "ogbn-arxiv": write_ogb,
    "ogbn-products": lambda root: write_ogb(root, "ogbn-products"),
    "ogbn-papers100M": write_papers,
    "Reddit": write_reddit,
    **{name: lambda root, name=name: write_saint(root, name) for name in ("Reddit2", "Flickr")},  # type: ignore[misc]
    **{name: lambda root, name=name: write_saint(root, name, LABELS) for name in ("Yelp", "AmazonProducts", "PPI")},  # type: ignore[misc]
    "PPI-large": write_ppi,
}


@pytest.fixture
def table() -> Mapping[str, published.Counts]:
    """Return the published counts, which tests of this folder replace."""
    return TABLE


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_store, "notify", lambda text: None)


def states(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*")}


def edges_of(graph: Data) -> list[tuple[int, int]]:
    return sorted(map(tuple, graph.edge_index.t().tolist()))


def parts_of(graph: Data) -> list[list[int]]:
    return [graph[name].nonzero().view(-1).tolist() for name in MASKS]


def publish(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    monkeypatch.setattr(published, "COUNTS", {name: replace(COUNTS, **changes)})


# ---- the tables


def test_every_published_graph_has_a_name_and_counts(table: Mapping[str, published.Counts]) -> None:
    assert set(published.RAW) == set(WRITERS)
    assert set(published.RAW) <= set(published.URLS) == set(table)
    assert all(sources.known_name(name.upper()) == name for name in published.URLS)
    assert all(sum(counts.split or ()) <= np.max(counts.nodes) for counts in table.values())


@pytest.mark.parametrize(
    "name", ["ogbn-arxiv", "ogbn-products", "Reddit", "Reddit2", "Flickr", "PPI-large", "Tolokers"]
)
def test_splits_that_cover_all_nodes(table: Mapping[str, published.Counts], name: str) -> None:
    assert sum(table[name].split or ()) == table[name].nodes


@pytest.mark.parametrize("spelt", ["Reddit-SAINT", "reddit_saint", "name:REDDIT2", "reddit2"])
def test_names_of_its_authors(spelt: str) -> None:
    assert sources.known_name(spelt) == "Reddit2"


# ---- the readers


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn_products", "OGBN-PAPERS100M"])
def test_ogb_has_its_split_and_edges_both_ways(tmp_path: Path, name: str) -> None:
    WRITERS[sources.known_name(name) or ""](tmp_path)
    graph = load(name, root=tmp_path)
    assert graph.x.equal(torch.from_numpy(X))
    assert graph.y.tolist() == ([0, 1, 2, 0, -1, 2] if "PAPERS" in name else CLASSES)
    assert set(edges_of(graph)) == BOTH_WAYS
    assert graph.edge_index.size(1) == len(BOTH_WAYS)
    assert parts_of(graph) == [[0, 3], [1], [2, 5]]
    assert graph.edge_index.dtype == torch.int64


def test_papers_with_edges_in_pairs(tmp_path: Path) -> None:
    write_papers(tmp_path, edge_index=np.asfortranarray(np.array(CITATIONS).T))
    assert set(edges_of(load("ogbn-papers100M", root=tmp_path))) == BOTH_WAYS


def plain(graph: Data) -> dict[str, Any]:
    """Return a graph by what it says, whatever the order of its edges."""
    y = graph.y.float().tolist()
    return {"x": graph.x.tolist(), "y": y, "edges": edges_of(graph), "parts": parts_of(graph)}


@pytest.mark.parametrize("name", ["Reddit", "Reddit2", "Flickr", "Yelp", "AmazonProducts"])
def test_the_same_as_pygs(tmp_path: Path, name: str) -> None:
    written = WRITERS[name](tmp_path / "root")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = getattr(torch_geometric.datasets, name)(str(WRITERS[name](tmp_path / "theirs").folder))[0]
    before = states(written.folder)
    ours = load(name.lower(), root=tmp_path / "root")
    assert plain(ours) == plain(theirs)
    assert edges_of(ours) == sorted(PAIRS)
    assert ours.x.dtype == torch.float32
    assert states(written.folder) == before


def test_ppi_of_graphsaint(tmp_path: Path) -> None:
    write_saint(tmp_path, "PPI", LABELS)
    graph = load("ppi", root=tmp_path)
    assert graph.y.tolist() == LABELS
    assert graph.y.dtype == torch.float32


def test_ppi_of_24_graphs_is_pygs_in_one(tmp_path: Path) -> None:
    write_ppi(tmp_path)
    graph = load("PPI-large", root=tmp_path)
    offset, found, wanted = 0, edges_of(graph), []
    for part in ("train", "val", "test"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tissues = list(torch_geometric.datasets.PPI(str(tmp_path / "PPI"), split=part))
        assert int(graph[f"{part}_mask"].sum()) == sum(tissue.num_nodes for tissue in tissues)
        for tissue in tissues:
            some = slice(offset, offset + tissue.num_nodes)
            assert graph.x[some].equal(tissue.x)
            assert graph.y[some].equal(tissue.y)
            wanted += [(offset + a, offset + b) for a, b in tissue.edge_index.t().tolist()]
            offset += tissue.num_nodes
    assert set(found) == {*wanted, *((b, a) for a, b in wanted)}
    assert len(found) == len(set(found))


def test_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ogbn-papers100M", "Reddit", "Flickr"):
        WRITERS[name](tmp_path)
        whole = plain(load(name, root=tmp_path))
        with monkeypatch.context() as patch:
            patch.setenv("TOPOFF_CACHE", str(tmp_path / "other"))
            patch.setattr("topoff.data.raw_graph.EDGES", 2)
            patch.setattr("topoff.data.raw_graph.ROWS", 4)
            patch.setattr("topoff.data.class_map.BLOCK", 16)
            assert plain(load(name, root=tmp_path)) == whole


# ---- the store

STAGES = ("collecting edges", "sorting edges", "writing features", "checking")


def test_a_store_in_the_cache_is_written_once(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(published_store, "notify", heard.append)
    written = write_ogb(tmp_path / "root")
    first = load("ogbn-arxiv", root=tmp_path / "root")
    (place,) = (own_cache / "stores").iterdir()
    assert heard[1:] == [f"ogbn-arxiv: {what} ..." for what in STAGES]
    assert re.match(rf"ogbn-arxiv: .* of raw files become a store, once: {place}", heard[0])
    with monkeypatch.context() as patch:
        patch.setattr(published_store, "read_raw", lambda *_: pytest.fail("read again"))
        assert plain(load("ogbn-arxiv", root=tmp_path / "root")) == plain(first)
        mapped = load("ogbn-arxiv", root=tmp_path / "root", in_memory=False)
    assert stored(mapped) is not None
    assert plain(mapped) == plain(first)
    write_gz(written.folder / "raw" / "node-label.csv.gz", [1, 1, 2, 0, 1, 2])
    assert load("ogbn-arxiv", root=tmp_path / "root").y.tolist() == [1, 1, 2, 0, 1, 2]
    assert len(list((own_cache / "stores").iterdir())) == 2


def test_a_damaged_store_is_written_again(tmp_path: Path, own_cache: Path) -> None:
    write_saint(tmp_path)
    first = plain(load("Flickr", root=tmp_path))
    (place,) = (own_cache / "stores").iterdir()
    (place / "x.npy").unlink()
    with pytest.warns(RuntimeWarning, match=r"x\.npy as the store's header says .*written again from the raw files"):
        assert plain(load("Flickr", root=tmp_path)) == first


# ---- refusals


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_missing_file_is_named_with_its_place(tmp_path: Path, own_cache: Path, name: str) -> None:
    files = WRITERS[name](tmp_path).files
    for path in files:
        content = path.read_bytes()
        path.unlink()
        sentence = (
            rf"the raw files of {name} at {re.escape(str(path))} \(got no such file\); {name} is published at http"
        )
        with pytest.raises(FileNotFoundError, match=sentence):
            load(name, root=tmp_path)
        path.write_bytes(content)
    assert not own_cache.exists()


def test_all_files_missing(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"ogbn_arxiv/raw/edge\.csv\.gz, .*/split/time/test\.csv\.gz \(got no .*files"
    ):
        load("ogbn-arxiv", root=tmp_path)


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_truncated_file_is_refused(tmp_path: Path, own_cache: Path, name: str) -> None:
    for path in WRITERS[name](tmp_path).files:
        content = path.read_bytes()
        path.write_bytes(content[: -max(5, len(content) // 4)])
        with pytest.raises(ValueError, match=rf"{re.escape(str(path))}|fit each other|to have"):
            load(name, root=tmp_path)
        path.write_bytes(content)
    assert not list((own_cache / "stores").glob("*"))


WRONG = {
    "nodes": ({"nodes": 7}, "7 nodes, as published (got 6)"),
    "either nodes": ({"nodes": (5, 7)}, "5 or 7 nodes, as published (got 6)"),
    "edges": ({"edges": (9,)}, "9 edges, as published (got 5)"),
    "either edges": ({"edges": (4, 9)}, "4 or 9 edges, as published (got 5)"),
    "features": ({"features": 3}, "3 features, as published (got 2)"),
    "classes": ({"classes": 4}, "4 classes, as published (got 3)"),
    "train": ({"split": (3, 1, 2)}, "3 train nodes, as published (got 2)"),
    "val": ({"split": (2, 0, 2)}, "0 val nodes, as published (got 1)"),
    "test": ({"split": (2, 1, 4)}, "4 test nodes, as published (got 2)"),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_a_count_that_differs_is_named(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    write_ogb(tmp_path)
    publish(monkeypatch, "ogbn-arxiv")
    load("ogbn-arxiv", root=tmp_path)
    changes, sentence = WRONG[case]
    publish(monkeypatch, "ogbn-arxiv", **changes)
    monkeypatch.setenv("TOPOFF_CACHE", str(own_cache / "new"))
    with pytest.raises(ValueError, match=rf"Expected ogbn-arxiv to have {re.escape(sentence)}; fetch .*arxiv\.zip"):
        load("ogbn-arxiv", root=tmp_path)
    assert not list((own_cache / "new" / "stores").glob("*"))


def test_pygs_datasets_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "minesweeper" / "raw" / "minesweeper.npz"
    raw.parent.mkdir(parents=True)
    np.savez(raw, **benchmark())
    right: dict[str, Any] = {"edges": (5,), "features": 6, "classes": 6, "split": None}
    publish(monkeypatch, "Minesweeper", **right)
    assert load("minesweeper", root=tmp_path).num_nodes == 6
    publish(monkeypatch, "Minesweeper", **{**right, "edges": (8,)})
    with pytest.raises(
        ValueError, match=r"Minesweeper to have 8 edges, as published \(got 5\); fetch .*yandex-research"
    ):
        load("minesweeper", root=tmp_path)
    publish(monkeypatch, "Minesweeper", **{**right, "split": (2, 1, 2)})
    with pytest.raises(ValueError, match=r"Minesweeper to have 2 train nodes, as published \(got 1\)"):  # of one split
        load("minesweeper", root=tmp_path)


# ---- who else knows the names


def test_raw_files_are_never_overwritten(tmp_path: Path) -> None:
    written = write_ppi(tmp_path)  # in a folder of another name
    for out in (*written.files, written.folder / "raw", written.folder):
        with pytest.raises(ValueError, match="to lie apart from the graph that is read"):
            refuse_source(out, "PPI-large", root=tmp_path)
    refuse_source(tmp_path / "other.csv", "PPI-large", root=tmp_path)


def test_in_pieces_a_name_is_the_graph_and_a_path_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ogb(tmp_path)
    monkeypatch.chdir(tmp_path)
    named, folder = pieces_of("ogbn_arxiv", root=tmp_path), pieces_of("./ogbn_arxiv")
    assert sum(len(piece.source) for piece in named.edges) == len(BOTH_WAYS)
    assert sum(len(piece.source) for piece in folder.edges) == len(CITATIONS)  # as they are
