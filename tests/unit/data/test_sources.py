"""What a source stands for: a folder, a missing file, a name that is not quite one."""

from pathlib import Path

import numpy as np
import pytest

from graph_files import N, arrays, benchmark, expected, same
from topoff.data.load import load
from topoff.data.sources import find_source, known_name


def test_folder_with_graph(tmp_path: Path) -> None:
    (tmp_path / "mine" / "raw").mkdir(parents=True)
    np.savez_compressed(tmp_path / "mine" / "raw" / "mine.npz", **arrays(x=np.ones((N, 1), np.float32)))
    assert load(tmp_path / "mine").x.shape == (N, 1)
    np.savez_compressed(tmp_path / "mine" / "graph.npz", **arrays())
    assert same(load(tmp_path / "mine"), expected())
    assert same(load("mine", root=tmp_path), expected())


def test_missing_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for source, place in (
        (tmp_path / "g.npz", r"g\.npz"),
        (str(tmp_path / "g.npz"), r"g\.npz"),
        (tmp_path / "folder", r"folder/graph\.npz"),
        (Path("Cora"), "Cora"),
    ):
        with pytest.raises(FileNotFoundError, match=rf"Expected a graph in .*{place} \(got no such file.*\); give"):
            load(source)


def test_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"\(got 'pubmedd', which is none of them\); did you mean 'PubMed'\?"):
        load("pubmedd")
    with pytest.raises(ValueError, match=r"did you mean 'wordnet'\?"):
        load("word-nets")
    with pytest.raises(ValueError, match="the names are wordnet, Cora, CiteSeer"):
        load("zzzz")


def test_a_name_may_be_spelt_in_several_ways_and_a_path_is_none() -> None:
    assert [known_name(name) for name in ("word_net", "WORDNET", "roman_Empire")] == ["wordnet"] * 2 + ["Roman-empire"]
    assert [known_name(path) for path in ("my/graph", Path("wordnet"))] == [None, None]
    assert [known_name(f"name:{name}") for name in ("CORA", "Word-Net", "mine")] == ["Cora", "wordnet", None]


# a name that is a path as well


def write_graph(path: Path, kind: str) -> None:
    if kind == "file":
        np.savez(path.with_name("g.npz"), **arrays())
        path.with_name("g.npz").rename(path)
        return
    path.mkdir(parents=True)
    if kind == "tables":
        (path / "nodes.csv").write_text("id,label,f\na,x,1\nb,y,2\nc,x,3\nd,y,4\n")
        (path / "edges.csv").write_text("source,target\na,b\nb,c\nc,d\n")
    elif kind == "broken tables":
        (path / "edges.csv").write_text("source,target\na,b\n")
    else:
        np.savez(path / "graph.npz", **arrays())


@pytest.mark.parametrize("kind", ["file", "folder", "tables", "broken tables"])
@pytest.mark.parametrize("spelt", ["wordnet", "WORDNET", "GitHub", "github", "roman_empire", "Cora", "cs"])
def test_a_name_that_is_a_path_too_names_both_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelt: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_graph(tmp_path / spelt, kind)
    name = known_name(spelt)
    what = "file" if kind == "file" else "folder"
    sentence = rf"Expected '{spelt}' to mean one graph .* write \./{spelt} for the {what}, or name:{name} for the other"
    with pytest.raises(ValueError, match=sentence):
        load(spelt)
    assert find_source(f"name:{spelt}").name == name
    if kind != "broken tables":
        assert load(f"./{spelt}").num_nodes == load(Path(spelt)).num_nodes == (4 if kind == "tables" else N)


def test_what_holds_no_graph_hides_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "github" / "my-clone").mkdir(parents=True)
    (tmp_path / "Cora" / "raw").mkdir(parents=True)
    assert [find_source(name).name for name in ("github", "Cora")] == ["GitHub", "Cora"]
    with pytest.raises(FileNotFoundError, match=r"graph\.npz \(got no such .* dataset Cora .*, write name:Cora and"):
        load("./Cora/")


@pytest.mark.parametrize("root", [".", "", "../data"])
def test_raw_files_in_this_folder_are_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    raw = tmp_path / "data" / "minesweeper" / "raw" / "minesweeper.npz"
    raw.parent.mkdir(parents=True)
    np.savez(raw, **benchmark())
    monkeypatch.chdir(tmp_path / "data")
    assert find_source("minesweeper", root=root).name == "Minesweeper"
    assert load("minesweeper", root=root).num_nodes == load("./minesweeper").num_nodes == N
    with pytest.raises(ValueError, match=r"write \./minesweeper for the folder"):
        load("minesweeper")  # its own files are in the cache, if anywhere


def test_a_folder_in_root_is_read_where_raw_files_are_missing(tmp_path: Path) -> None:
    write_graph(tmp_path / "minesweeper", "tables")
    assert load("minesweeper", root=tmp_path).num_nodes == 4
    (tmp_path / "minesweeper" / "raw").mkdir()
    np.savez(tmp_path / "minesweeper" / "raw" / "minesweeper.npz", **benchmark())
    with pytest.raises(ValueError, match=rf"write {tmp_path}/minesweeper for the folder, or name:Minesweeper"):
        load("minesweeper", root=tmp_path)
    assert load("name:minesweeper", root=tmp_path).num_nodes == N


def test_root_hides_no_graph_of_ours_without_a_word(tmp_path: Path) -> None:
    write_graph(tmp_path / "wordnet", "folder")
    with pytest.warns(UserWarning, match=f"'wordnet' is the graph that ships .* {tmp_path}/wordnet, too: give that"):
        assert find_source("wordnet", root=tmp_path).name == "wordnet"


def test_a_relative_path_says_where_it_was_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"graph in g\.npz \(got no such file in {tmp_path}\)"):
        load("g.npz")
    for source in ("name:zzz", "name:", "", " ", "\0", "x" * 5000):
        with pytest.raises(ValueError, match="which is none of them"):
            load(source)


@pytest.mark.parametrize("name", ["nodes.tsv", "Nodes.CSV", "nodes.csv.gz", "edges.xlsx"])
def test_tables_of_another_kind_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("id\n")
    with pytest.raises(FileNotFoundError, match=rf"{name} must be called nodes.csv and edges.csv, with commas"):
        load(tmp_path)
