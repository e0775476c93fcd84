"""Laws of stand-in graphs: sizes, degrees, communities, homophily, symmetry; the same seed gives the same bits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from topoff.data import generate as room
from topoff.data.describe import describe
from topoff.data.generate import generate
from topoff.data.load import load
from topoff.data.recipe import Recipe
from topoff.data.store import Store

RECIPE = Recipe(nodes=3000, edges=60_000, features=8, classes=5, communities=12, between=0.3, homophily=0.7)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return generate(RECIPE, tmp_path_factory.mktemp("made") / "s", seed=3)


@pytest.fixture(scope="module")
def data(made: Store) -> Data:
    return load(made.path)


def layout() -> room.Layout:
    return room._layout(RECIPE, 3)


def community_of_nodes() -> np.ndarray:
    """Return the community of every node by its id."""
    found, place = np.empty(RECIPE.nodes, np.int64), layout()
    found[place.ids] = np.repeat(np.arange(12), np.diff(place.starts))
    return found


def test_sizes_are_those_of_the_recipe(made: Store, data: Data) -> None:
    assert (data.num_nodes, data.num_features, int(data.y.max()) + 1) == (3000, 8, 5)
    assert made.header.edges == pytest.approx(60_000, rel=0.01)
    assert [int(data[f"{name}_mask"].sum()) for name in ("train", "val", "test")] == [1800, 600, 600]


def test_edges_go_both_ways_once_and_never_home(made: Store, data: Data) -> None:
    source, target = data.edge_index.numpy()
    keys = target * 3000 + source
    assert (np.diff(keys) > 0).all()  # sorted, no duplicates
    assert (source != target).all()
    assert np.array_equal(np.sort(source * 3000 + target), keys)
    assert made.header.statistics["undirected"]


def test_directed_edges_go_one_way(tmp_path: Path) -> None:
    store = generate(replace(RECIPE, undirected=False), tmp_path / "s", seed=3)
    assert not store.header.statistics["undirected"]
    assert store.header.edges == pytest.approx(60_000, rel=0.01)


def test_the_share_of_edges_between_communities(data: Data) -> None:
    community = community_of_nodes()
    source, target = data.edge_index.numpy()
    assert (community[source] != community[target]).mean() == pytest.approx(0.3, abs=0.01)


def test_homophily_is_what_was_asked_for(data: Data, tmp_path: Path) -> None:
    assert describe(data).homophily == pytest.approx(0.7, abs=0.04)  # a few large nodes may have a label anew
    for number, wish in enumerate((0.62, 0.75)):
        store = generate(replace(RECIPE, exponent=None, homophily=wish), tmp_path / str(number), seed=3)
        assert describe(load(store.path)).homophily == pytest.approx(wish, abs=0.01)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_label_noise_is_the_share_of_labels_that_are_drawn_anew(tmp_path: Path, noise: float) -> None:
    data = load(generate(replace(RECIPE, label_noise=noise, homophily=None), tmp_path / "s", seed=3).path)
    group = layout().group[community_of_nodes()]
    assert (data.y.numpy() != group).mean() == pytest.approx(noise * (1 - 1 / 5), abs=0.02)


def test_degrees_follow_a_power_law_or_are_alike(made: Store, tmp_path: Path) -> None:
    degrees = np.sort(np.diff(made.array("indptr")))[::-1]
    assert degrees[0] > 8 * degrees.mean()
    tail = degrees[: len(degrees) // 10]
    exponent = 1 + 1 / np.log(tail / tail[-1]).mean()  # Hill's estimate
    assert 2.2 < exponent < 3.2
    alike = generate(replace(RECIPE, exponent=None), tmp_path / "s", seed=3)
    degrees = np.diff(alike.array("indptr"))
    assert degrees.max() < 2.5 * degrees.mean()
    capped = generate(replace(RECIPE, largest=60), tmp_path / "t", seed=3)
    assert np.diff(capped.array("indptr")).max() < 110


def test_ids_tell_nothing(data: Data) -> None:
    community = community_of_nodes()
    assert abs(np.corrcoef(np.arange(3000), community)[0, 1]) < 0.06
    halves = data.y[:1500].bincount(minlength=5), data.y[1500:].bincount(minlength=5)
    assert torch.allclose(halves[0].double(), halves[1].double(), atol=110)


def test_the_same_seed_gives_the_same_bits_and_another_one_others(made: Store, tmp_path: Path) -> None:
    again, other = (generate(RECIPE, tmp_path / str(seed), seed=seed) for seed in (3, 4))
    assert again.header.arrays == made.header.arrays
    assert all(other.header.arrays[name] != entry for name, entry in made.header.arrays.items())


def test_pieces_of_any_size_hold_the_same_laws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PAIRS", 1000)
    monkeypatch.setattr(room, "ROWS", 700)
    store = generate(RECIPE, tmp_path / "s", seed=3)
    assert store.header.edges == pytest.approx(60_000, rel=0.01)
    assert describe(load(store.path)).homophily == pytest.approx(0.7, abs=0.04)


def test_features_have_deviation_1_and_their_noise_hides_classes(tmp_path: Path) -> None:
    scores = []
    for noise in (0.05, 2.0):
        data = load(generate(replace(RECIPE, feature_noise=noise, features=20), tmp_path / f"{noise}", seed=3).path)
        assert float(data.x.std()) == pytest.approx(1, abs=0.3)
        centers = torch.stack([data.x[(data.y == one) & data.train_mask].mean(0) for one in range(5)])
        nearest = torch.cdist(data.x, centers).argmin(dim=1)
        scores.append(float((nearest == data.y)[data.test_mask].double().mean()))
    assert scores[0] > 0.7 > 0.4 > scores[1]


def test_several_labels_per_node(tmp_path: Path) -> None:
    store = generate(replace(RECIPE, task="multilabel", homophily=None), tmp_path / "s", seed=3)
    data = load(store.path)
    assert (store.header.task, data.y.shape) == ("multilabel", (3000, 5))
    assert (data.y.sum(dim=1) >= 1).all()


def test_nodes_in_no_split_have_no_label(tmp_path: Path) -> None:
    data = load(generate(replace(RECIPE, split=(0.1, 0.05, 0.05)), tmp_path / "s", seed=3).path)
    assert torch.equal(data.y < 0, ~(data.train_mask | data.val_mask | data.test_mask))
    assert int((data.y >= 0).sum()) == 600


def test_narrow_features_and_the_label_in_the_header(tmp_path: Path) -> None:
    store = generate(RECIPE, tmp_path / "s", seed=3, dtype="float16", label={"preset": "toy", "scale": 0.5})
    assert store.array("x").dtype == np.float16
    assert store.header.stand_in is not None
    assert store.header.stand_in["between"] == 0.3
    assert load(store.path).names.stand_in == "stand-in of toy, scale 0.5, seed 3"


def test_communities_that_are_too_small_for_their_edges(tmp_path: Path) -> None:
    recipe = Recipe(nodes=100, edges=5000, classes=5, communities=20, between=0.1)
    with pytest.raises(ValueError, match=r"large enough for their edges \(got 5,000 edges among 20 communities of 5 "):
        generate(recipe, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nodes", [20, 3000])
def test_two_communities_of_two_classes(tmp_path: Path, nodes: int) -> None:
    recipe = replace(RECIPE, nodes=nodes, edges=3 * nodes, classes=2, communities=2, homophily=None)
    data = load(generate(recipe, tmp_path / "s", seed=1).path)
    assert data.edge_index.size(1) == pytest.approx(3 * nodes, rel=0.25)
