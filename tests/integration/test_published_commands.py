"""Published graphs through the command line: from raw files in their own layout to scores."""

from dataclasses import replace
from pathlib import Path

import pytest

from commands import Command
from published_files import BOTH_WAYS, COUNTS, N, write_ogb, write_saint
from topoff.data import published
from topoff.data.store import open_store

SMALL = ("--parts", 2, "--layers", 2, "--hidden", 4, "--epochs", 1, "--batches", "random", "--ratio", 0.5)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root with small graphs, whose counts are the published ones."""
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))
    write_ogb(tmp_path / "root")
    write_saint(tmp_path / "root", "Reddit2")
    counts = {"ogbn-arxiv": COUNTS, "Reddit2": replace(COUNTS, edges=(7,))}
    monkeypatch.setattr(published, "COUNTS", counts)
    return tmp_path / "root"


def test_info_says_what_was_published(command: Command, root: Path) -> None:
    done = command("info", "ogbn-arxiv", "--root", root, "--json")
    assert (done.json["nodes"], done.json["edges"], done.json["undirected"]) == (N, len(BOTH_WAYS), True)
    assert done.json["splits"] == {"train": 2, "val": 1, "test": 2, "none": 1}
    again = command("info", "ogbn-arxiv", "--root", root, "--json", "--verify")
    assert (again.json, again.err) == (done.json, "")


def test_a_store_of_a_published_graph(command: Command, root: Path, tmp_path: Path) -> None:
    done = command("convert", "ogbn-arxiv", tmp_path / "arxiv.store", "--root", root, "--json", "--quiet")
    assert (done.json["format"], done.json["edges"]) == ("store", len(BOTH_WAYS))
    assert open_store(tmp_path / "arxiv.store").header.statistics["splits"] == {"train": 2, "val": 1, "test": 2}
    refused = command("convert", "Reddit-SAINT", root / "Reddit2" / "raw", "--root", root, code=2)
    assert "a source is never overwritten" in refused.err


@pytest.mark.filterwarnings("ignore")
def test_a_config_of_the_paper_on_its_graph(command: Command, root: Path, tmp_path: Path) -> None:
    done = command("train", "--config", "gcn-reddit", "--root", root, *SMALL, "--out", tmp_path / "run", "--json")
    assert 0 <= done.json["test"] <= 1
    assert 'dataset = "Reddit2"' in (tmp_path / "run" / "config.toml").read_text()


def test_counts_and_missing_files_are_one_line(command: Command, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "COUNTS", {"ogbn-arxiv": replace(COUNTS, edges=(8,))})
    done = command("info", "ogbn-arxiv", "--root", root, "--quiet", code=2)
    assert "Expected ogbn-arxiv to have 8 edges, as published (got 5); fetch its raw files again from" in done.err
    done = command("info", "AmazonProducts", "--root", root, code=2)
    assert "AmazonProducts/raw/adj_full.npz" in done.err
    assert "is published at https://drive.google.com" in done.err
    assert done.err.count("\n") == 1
