"""A source is never overwritten: however it is spelt, linked or reached."""

import os
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from table_files import write
from topoff.data.places import refuse_source

NODES = "id,city,label\n007,Oslo,a\n008,Rome,b\n009,Oslo,a\n"
EDGES = "source,target,since\n007,008,1999\n008,008,2001\n008,009,2003\n"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, the current one, with a graph of tables in g, as link, and in far through a link to nodes."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "g", NODES, EDGES)
    (tmp_path / "link").symlink_to("g")
    write(tmp_path / "far", None, EDGES)
    (tmp_path / "far" / "nodes.csv").symlink_to("../g/nodes.csv")
    arrays = {"x": np.eye(3), "edge_index": np.array([[0, 1], [1, 2]]), "y": np.arange(3)}
    np.savez(tmp_path / "graph.npz", **arrays)
    np.savez(tmp_path / "g" / "spare.npz", **arrays)
    os.link(tmp_path / "graph.npz", tmp_path / "twin.npz")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


ONTO = [
    ("g", "g"), ("g", "./g/"), ("./g", "g"), ("g", "g/../g"), ("g", "HERE/g"), ("HERE/g", "g"), ("g", "link"),
    ("link", "g"), ("far", "g"), ("g", "g/new"), ("g", "g/new.npz"), ("g", "link/new"), ("graph.npz", "graph.npz"),
    ("graph.npz", "./graph.npz"), ("g/spare.npz", "g/spare.npz"), (".", "new.npz"), ("g --root HERE", "g"),
    ("g --root ..", "g"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "out"), ONTO, ids=[" ".join(pair) for pair in ONTO])
def test_convert_never_overwrites_its_source(command: Command, place: Path, source: str, out: str) -> None:
    if source == ".":
        write(place, NODES, EDGES)
    before = contents(place)
    words = [*source.replace("HERE", str(place)).split(), out.replace("HERE", str(place))]
    for more in ([], ["--undirected", "--overwrite"]):
        refused = command("convert", *words, *more, code=2)
        assert "lie apart from the graph" in refused.err
        assert refused.err.count("\n") == 1
    assert contents(place) == before


def test_convert_relative_to_root(command: Command, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    assert "lie apart" in command("convert", "g", "../g", "--root", "..", "--overwrite", code=2).err
    command("convert", "g", "g", "--root", "..", "--quiet")  # ./g is another folder
    assert (place / "elsewhere" / "g" / "nodes.parquet").is_file()


def test_the_folder_of_a_dataset_is_a_source(tmp_path: Path) -> None:
    (tmp_path / "cora" / "raw").mkdir(parents=True)
    with pytest.raises(ValueError, match="lie apart"):
        refuse_source(tmp_path / "cora" / "raw" / "x.npz", "Cora", root=tmp_path)
    refuse_source(tmp_path / "new.npz", "Cora", root=tmp_path)
    refuse_source(tmp_path / "wordnet", "wordnet", root=tmp_path)


@pytest.mark.parametrize("out", ["g/nodes.csv", "link/edges.csv", "far/nodes.csv"])
def test_partition_never_overwrites_its_source(command: Command, place: Path, out: str) -> None:
    before = contents(place)
    assert "lie apart" in command("partition", "g", "--parts", 1, "--out", out, "--overwrite", code=2).err
    assert contents(place) == before


def test_what_is_new_may_lie_beside_a_graph(place: Path) -> None:
    refuse_source(place / "g" / "predictions.csv", place / "g")
    with pytest.raises(ValueError, match="lie apart"):  # it would be read in the place of nodes.csv
        refuse_source(place / "g" / "nodes.parquet", place / "g")
    with pytest.raises(ValueError, match="lie apart"):
        refuse_source(place / "graph.npz", "graph.npz")


@pytest.mark.parametrize("line", ["convert g OUT", "partition g --parts 1 --out OUT.csv", "predict g --out OUT.csv"])
def test_an_output_that_is_no_utf8(command: Command, place: Path, line: str) -> None:
    before = contents(place)
    refused = command(*line.replace("OUT", "new\udcff").split(), code=2).err
    assert "in UTF-8 (got 'new\\udcff" in refused
    assert contents(place) == before


def test_info_advises_a_command_that_works(command: Command, place: Path) -> None:
    warnings = " ".join(command("info", "g", "--json").json["warnings"])
    assert "run `topoff convert g g-undirected --undirected` and use g-undirected" in warnings
    command("convert", "g", "g-undirected", "--undirected", "--quiet")
    assert not any("directed" in said for said in command("info", "g-undirected", "--json").json["warnings"])
    advised = " ".join(command("info", "graph.npz", "--json", "--root", "a b").json["warnings"])
    assert "convert graph.npz graph-undirected.npz --root 'a b' --undirected`" in advised
    write(place, NODES, EDGES)
    assert f"{place}-undirected --undirected" in " ".join(command("info", ".", "--json").json["warnings"])
