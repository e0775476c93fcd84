"""The embedded graph through load()."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch_geometric.data import Data

from graph_files import same
from topoff.data import wordnet as wordnet_source
from topoff.data.layout import MASKS
from topoff.data.load import load


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
        patch.setattr(wordnet_source, "_reduce_words", never)
        assert same(load("WordNet"), wordnet)
    words = scipy.sparse.csr_array(np.random.default_rng(0).random((400, 150)) < 0.1).astype(np.float64)
    threads = torch.get_num_threads()
    first = wordnet_source._reduce_words(words)
    torch.set_num_threads(1)
    try:
        assert np.array_equal(first, wordnet_source._reduce_words(words))
    finally:
        torch.set_num_threads(threads)
