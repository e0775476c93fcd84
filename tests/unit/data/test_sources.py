"""What a source stands for: a folder, a missing file, a name that is not quite one."""

from pathlib import Path

import numpy as np
import pytest

from graph_files import N, arrays, expected, same
from topoff.data.load import load
from topoff.data.sources import known_name, places_of


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
        with pytest.raises(FileNotFoundError, match=rf"Expected a graph in .*{place} \(got no such file\); give"):
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
    assert [str(path) for path in places_of("mine", root="data")] == ["mine", "data/mine"]
