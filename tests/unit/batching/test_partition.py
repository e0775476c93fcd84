"""Partitions, on hand-made graphs, with the real KaMinPar and METIS."""

import random
import tempfile
from pathlib import Path
from typing import Any

import kaminpar
import numpy as np
import pytest
import torch
from torch import Tensor

from graphs import SQUARE, cliques, same_part
from topoff.batching import partition as partitioning
from topoff.batching.partition import partition

PARTITIONERS = ["kaminpar", "metis", "ldg"]
METHODS = [*PARTITIONERS, "random"]


@pytest.mark.parametrize("method", PARTITIONERS)
def test_communities_are_found(method: str) -> None:
    part = partition(cliques(4, 8), 32, parts=4, method=method)
    assert part.shape == (32,)
    assert part.dtype == torch.int64
    assert torch.equal(same_part(part), same_part(torch.arange(32) // 8))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 3, 7, 20])
def test_part_ids_are_in_range(method: str, parts: int) -> None:
    part = partition(cliques(4, 5), 20, parts=parts, method=method)
    assert part.min() >= 0
    assert part.max() < parts


def test_random_is_balanced_and_depends_on_the_seed() -> None:
    first, second = (partition(SQUARE, 10, parts=3, method="random", seed=seed) for seed in (0, 1))
    assert sorted(first.bincount().tolist()) == [3, 3, 4]
    assert not torch.equal(first, second)


@pytest.mark.parametrize("method", METHODS)
def test_same_seed_same_parts(method: str) -> None:
    first, second = (partition(cliques(9, 7), 63, parts=5, method=method, seed=3) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_other_parts(method: str) -> None:
    ring = torch.stack([torch.arange(200), (torch.arange(200) + 1) % 200])
    found = [partition(ring, 200, parts=7, method=method, seed=seed) for seed in (0, 1, 2, 3)]
    assert any(not torch.equal(same_part(found[0]), same_part(other)) for other in found[1:])


@pytest.mark.parametrize("method", METHODS)
def test_seeds_beyond_32_bits(method: str) -> None:
    part = partition(cliques(4, 5), 20, parts=4, method=method, seed=2**40 + 5)
    assert part.shape == (20,)


@pytest.mark.parametrize("method", PARTITIONERS)
@pytest.mark.parametrize("scale", [1e-20, 0.7, 1.0, 1e15])
def test_weights_decide_the_cut(method: str, scale: float) -> None:
    weight = torch.tensor([9.0, 1.0, 9.0, 1.0], dtype=torch.float64) * scale
    along = partition(SQUARE, 4, parts=2, method=method, edge_weight=weight)
    across = partition(SQUARE, 4, parts=2, method=method, edge_weight=weight.roll(1))
    assert torch.equal(same_part(along), same_part(torch.tensor([0, 0, 1, 1])))
    assert torch.equal(same_part(across), same_part(torch.tensor([0, 1, 1, 0])))


@pytest.mark.parametrize("method", PARTITIONERS)
def test_integer_weights_and_weights_that_learn(method: str) -> None:
    whole = partition(SQUARE, 4, parts=2, method=method, edge_weight=torch.tensor([9, 1, 9, 1]))
    learnt = torch.tensor([9.0, 1.0, 9.0, 1.0], requires_grad=True)
    assert torch.equal(whole, partition(SQUARE, 4, parts=2, method=method, edge_weight=learnt))


@pytest.mark.parametrize("method", PARTITIONERS)
def test_very_unequal_weights(method: str) -> None:
    weight = torch.tensor([1e30, 1e-30, 1e30, 0.0], dtype=torch.float64)
    part = partition(SQUARE, 4, parts=2, method=method, edge_weight=weight)
    assert torch.equal(same_part(part), same_part(torch.tensor([0, 0, 1, 1])))


@pytest.mark.parametrize("method", PARTITIONERS)
def test_duplicate_edges_add_up(method: str) -> None:
    many = torch.cat([SQUARE, *[SQUARE[:, [1, 3]]] * 8], dim=1)
    part = partition(many, 4, parts=2, method=method)
    assert torch.equal(same_part(part), same_part(torch.tensor([0, 1, 1, 0])))


@pytest.mark.parametrize("method", PARTITIONERS)
def test_direction_and_self_loops_play_no_role(method: str) -> None:
    edges = cliques(6, 5)
    loops = torch.arange(30).expand(2, -1)
    expected = partition(edges, 30, parts=4, method=method)
    assert torch.equal(expected, partition(edges.flip(0), 30, parts=4, method=method))
    assert torch.equal(expected, partition(torch.cat([edges, edges.flip(0)], dim=1), 30, parts=4, method=method))
    assert torch.equal(expected, partition(torch.cat([loops, edges], dim=1), 30, parts=4, method=method))


@pytest.mark.parametrize("method", METHODS)
def test_isolated_nodes_and_components_get_parts(method: str) -> None:
    part = partition(torch.tensor([[0, 1, 7], [1, 0, 8]]), 12, parts=3, method=method)
    assert part.shape == (12,)
    assert part.bincount(minlength=3).max() <= 6


@pytest.mark.parametrize("method", PARTITIONERS)
@pytest.mark.parametrize("edges", [[[], []], [[0, 2], [0, 2]]], ids=["none", "self-loops"])
def test_no_edges_give_contiguous_parts(method: str, edges: list[list[int]]) -> None:
    part = partition(torch.tensor(edges, dtype=torch.int64), 7, parts=3, method=method)
    assert part.tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("method", PARTITIONERS)
def test_weights_of_zero_are_no_edges(method: str) -> None:
    pairs = torch.tensor([[0, 1], [3, 2]])
    assert partition(pairs, 4, parts=2, method=method).tolist() != [0, 0, 1, 1]
    part = partition(pairs, 4, parts=2, method=method, edge_weight=torch.zeros(2))
    assert part.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("method", METHODS)
def test_no_global_generator_is_touched(method: str) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate(), kaminpar.seed()  # noqa: NPY002
    partition(cliques(4, 5), 20, parts=4, method=method, seed=11)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert before[2:] == (random.getstate(), kaminpar.seed())


def test_no_file_is_left(tmp_path, monkeypatch, capfd) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    partition(cliques(4, 5), 20, parts=4, edge_weight=torch.rand(44, generator=torch.Generator().manual_seed(0)))
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("method", PARTITIONERS)
def test_progress_is_reported(method: str) -> None:
    lines: list[str] = []
    partition(cliques(4, 5), 20, parts=4, method=method, progress=lines.append)
    assert lines == ["merging 44 edges into an undirected graph", f"partitioning 20 nodes into 4 parts with {method}"]
    partition(torch.empty(2, 0, dtype=torch.int64), 20, parts=4, method=method, progress=lines.append)
    assert lines[-1] == "no edges to cut: contiguous parts"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [0, -1, 5])
def test_parts_out_of_range(method: str, parts: int) -> None:
    with pytest.raises(ValueError, match=rf"'parts' to be between 1 and the number of nodes, 4 \(got {parts}\); ask"):
        partition(SQUARE, 4, parts=parts, method=method)


def test_unknown_method() -> None:
    with pytest.raises(
        ValueError, match=r"'method' to be one of kaminpar, metis, ldg, random \(got 'meits'\).*'metis'\?"
    ):
        partition(SQUARE, 4, parts=2, method="meits")
    with pytest.raises(ValueError, match=r"got 'zzz'\); 'kaminpar' is the default"):
        partition(SQUARE, 4, parts=2, method="zzz")


def test_negative_seed() -> None:
    with pytest.raises(ValueError, match=r"'seed' to be at least 0 \(got -1\)"):
        partition(SQUARE, 4, parts=2, seed=-1)


@pytest.mark.parametrize("edges", [SQUARE.T, SQUARE[0], SQUARE.float()], ids=["transposed", "flat", "float"])
def test_edge_index_of_a_wrong_kind(edges: Tensor) -> None:
    with pytest.raises(ValueError, match=r"'edge_index' to be integers of shape \(2, E\)"):
        partition(edges, 4, parts=2)


@pytest.mark.parametrize(("bad", "came"), [(9, "0 to 9"), (-2, "-2 to 3")])
def test_node_ids_out_of_range(bad: int, came: str) -> None:
    edges = SQUARE.clone()
    edges[0, 2] = bad
    with pytest.raises(ValueError, match=rf"node ids from 0 to 3 \(got {came}\)"):
        partition(edges, 4, parts=2)


def test_weights_of_a_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"'edge_weight' to have shape \(4,\), one per edge \(got \(4, 1\)\)"):
        partition(SQUARE, 4, parts=2, edge_weight=torch.ones(4, 1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_no_partition_can_use(bad: float) -> None:
    with pytest.raises(ValueError, match=r"finite for a partition \(got 1 that are not\); correct them"):
        partition(SQUARE, 4, parts=2, edge_weight=torch.tensor([1.0, bad, 1.0, 1.0]))


@pytest.mark.parametrize("method", ["kaminpar", "metis"])
def test_negative_weights_join_nodes_as_their_absolute_values_do(method: str) -> None:
    weight = torch.tensor([-9.0, 1.0, 9.0, -1.0])
    found = partition(SQUARE, 4, parts=2, edge_weight=weight, method=method)
    assert found.tolist() == partition(SQUARE, 4, parts=2, edge_weight=weight.abs(), method=method).tolist()


# with a cache

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 2], [1, 2, 0, 4, 5, 3, 3]])  # two triangles and an edge between them
WEIGHT = torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 1.0])


def kept(folder: Path) -> list[str]:
    """List the cache files."""
    return sorted(path.name for path in folder.iterdir())


def never(*args: object, **kwargs: object) -> Tensor:
    pytest.fail("partitioned again although the file is there")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["unweighted", "weighted"])
def test_cached_parts_are_the_same_and_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, weight: Tensor | None
) -> None:
    expected = partition(EDGES, 6, parts=2, method=method, edge_weight=weight)
    lines: list[str] = []
    for _ in range(2):
        found = partition(EDGES, 6, parts=2, method=method, edge_weight=weight, cache=tmp_path, progress=lines.append)
        assert found.dtype == torch.int64
        assert torch.equal(found, expected)
        monkeypatch.setattr(partitioning, "_cut", never)
    assert len(kept(tmp_path)) == 1
    assert kept(tmp_path)[0].startswith("parts-")
    assert lines[0] == lines[-1] == "looking for the parts of 6 nodes in the cache"


def test_all_that_decides_the_parts_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def store(edges: Tensor = EDGES, nodes: int = 6, **other: Any) -> None:
        """Partition with one thing changed, and see a new file."""
        before = kept(tmp_path)
        arguments: dict[str, Any] = {"parts": 2, "cache": tmp_path} | other
        partition(edges, nodes, **arguments)
        assert len(kept(tmp_path)) == len(before) + 1

    store()
    store(EDGES.flip(1))
    store(nodes=7)
    store(parts=3)
    store(method="metis")
    store(method="random")
    store(seed=1)
    store(edge_weight=WEIGHT)
    store(edge_weight=WEIGHT.flip(0))
    store(nodes=20, parts=12, seed=0)
    store(nodes=20, parts=1, seed=20)  # the same digits in a row
    monkeypatch.setattr(partitioning, "version", lambda package: {"kaminpar": "99", "pymetis": "98"}[package])
    store()
    store(method="metis")
    monkeypatch.setattr(partitioning, "REVISION", "another")
    store()


def test_another_release_of_another_partitioner_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition(EDGES, 6, parts=2, cache=tmp_path)
    true = partitioning.version
    monkeypatch.setattr(partitioning, "version", lambda package: "99" if package == "pymetis" else true(package))
    monkeypatch.setattr(partitioning, "_cut", never)
    partition(EDGES, 6, parts=2, cache=tmp_path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32], ids=str)
def test_cached_parts_with_weights_of_any_type_that_learn(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = WEIGHT.to(dtype)
    if dtype.is_floating_point:
        weight.requires_grad_()
    found = partition(EDGES, 6, parts=2, edge_weight=weight, cache=tmp_path)
    assert torch.equal(found, partition(EDGES, 6, parts=2, edge_weight=weight))


@pytest.mark.parametrize(
    "content",
    [
        {"other": np.zeros(6, dtype=np.int64)},
        {"parts": np.zeros(5, dtype=np.int64)},
        {"parts": np.zeros(6)},
        {"parts": np.array([0, 0, 0, 1, 1, 2])},
        {"parts": np.array([0, 0, 0, 1, 1, -1])},
    ],
    ids=["name", "length", "dtype", "large", "negative"],
)
def test_a_sound_file_of_something_else_is_not_used(tmp_path: Path, content: dict[str, Any]) -> None:
    expected = partition(EDGES, 6, parts=2, cache=tmp_path)
    np.savez(tmp_path / kept(tmp_path)[0], **content)
    with pytest.warns(RuntimeWarning, match=r"to hold 6 parts from 0 to 1 \(got something else\).*delete the file"):
        assert torch.equal(partition(EDGES, 6, parts=2, cache=tmp_path), expected)


def test_wrong_arguments_are_refused_and_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'method' to be one of"):
        partition(SQUARE, 4, parts=2, method="zzz", cache=tmp_path)
    with pytest.raises(ValueError, match="'seed' to be at least 0"):
        partition(SQUARE, 4, parts=2, seed=-1, cache=tmp_path)
    with pytest.raises(ValueError, match="'edge_index' to be integers"):
        partition(SQUARE.bfloat16(), 4, parts=2, cache=tmp_path)
    with pytest.raises(ValueError, match="'parts' to be between 1 and the number of nodes"):
        partition(SQUARE, 4, parts=5, cache=tmp_path)
    assert kept(tmp_path) == []
