"""Partitions and node sets, on hand-made graphs, with the real KaMinPar and METIS."""

import random
import tempfile
from itertools import pairwise

import kaminpar
import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from topoff.batching import NodeSets, partition

PARTITIONERS = ["kaminpar", "metis"]
METHODS = [*PARTITIONERS, "random"]
SQUARE = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])  # directed ring


def cliques(count: int, size: int) -> Tensor:
    """Connect `count` cliques of `size` nodes in a ring, each pair of neighbours by one edge; one direction only."""
    edges = [(c * size + i, c * size + j) for c in range(count) for i in range(size) for j in range(i + 1, size)]
    edges += [(c * size, (c + 1) % count * size + 1) for c in range(count)]
    return torch.tensor(edges).T


def same_part(part: Tensor) -> Tensor:
    """Describe a partition up to the names of its parts."""
    return part[:, None] == part[None, :]


def graph(count: int = 12, size: int = 6) -> Data:
    """Make the ring of cliques as `Data`, every third node for training."""
    nodes = count * size
    return Data(edge_index=cliques(count, size), num_nodes=nodes, train_mask=torch.arange(nodes) % 3 == 0)


def sizes(batches: list[Tensor]) -> list[int]:
    return [nodes.numel() for nodes in batches]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


# partition


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
    NodeSets(method=method, ratio=0.5, seed=11, regroup=True).fit(graph()).of(3)
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
    with pytest.raises(ValueError, match=r"'method' to be one of kaminpar, metis, random \(got 'meits'\).*'metis'\?"):
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


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_weights_that_no_partition_can_use(bad: float) -> None:
    with pytest.raises(ValueError, match=r"finite and non-negative for a partition \(got 1 that are not\).*abs\(\)"):
        partition(SQUARE, 4, parts=2, edge_weight=torch.tensor([1.0, bad, 1.0, 1.0]))


# NodeSets


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("regroup", [False, True])
@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.3, 0.1])
def test_each_node_once(method: str, ratio: float, *, regroup: bool) -> None:
    sets = NodeSets(method=method, ratio=ratio, regroup=regroup).fit(graph())
    for epoch in range(3):
        batches = sets.of(epoch)
        assert len(batches) == len(sets) == round(1 / ratio)
        assert all(nodes.dtype == torch.int64 and nodes.numel() > 0 for nodes in batches)
        assert torch.cat(batches).sort().values.tolist() == list(range(72))


@pytest.mark.parametrize("method", METHODS)
def test_train_only_batches_each_training_node_once(method: str) -> None:
    data = graph()
    sets = NodeSets(method=method, ratio=0.25, train_only=True).fit(data)
    batches = sets.of(0)
    assert torch.cat(batches).sort().values.tolist() == data.train_mask.nonzero().flatten().tolist()
    assert sets.parts_ is not None
    assert sets.parts_.shape == (72,)
    assert max(sizes(batches)) - min(sizes(batches)) <= sets.parts_[data.train_mask].bincount().max()


@pytest.mark.parametrize("method", PARTITIONERS)
@pytest.mark.parametrize("seed", range(4))
def test_sizes_differ_by_at_most_the_largest_part(method: str, seed: int) -> None:
    sets = NodeSets(method=method, ratio=0.25, parts=11, seed=seed, regroup=True).fit(graph())
    assert sets.parts_ is not None
    for epoch in range(5):
        found = sizes(sets.of(epoch))
        assert max(found) - min(found) <= sets.parts_.bincount().max()


@pytest.mark.parametrize("train_only", [False, True])
def test_random_sizes_differ_by_at_most_one(*, train_only: bool) -> None:
    sets = NodeSets(method="random", ratio=0.15, regroup=True, train_only=train_only).fit(graph())
    for epoch in range(5):
        found = sizes(sets.of(epoch))
        assert max(found) - min(found) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_parts_stay_together_and_contiguous(method: str) -> None:
    sets = NodeSets(method=method, ratio=0.25, parts=12).fit(graph())
    assert sets.parts_ is not None
    seen: set[int] = set()
    for nodes in sets.of(0):
        part = sets.parts_[nodes].tolist()
        keys = list(zip(part, nodes.tolist(), strict=True))
        assert all(before < after for before, after in pairwise(keys))
        assert seen.isdisjoint(part)
        seen.update(part)


@pytest.mark.parametrize("method", METHODS)
def test_deterministic_by_seed_and_epoch(method: str) -> None:
    data = graph()
    fixed = NodeSets(method=method, ratio=0.25, parts=12, seed=5).fit(data)
    anew = NodeSets(method=method, ratio=0.25, parts=12, seed=5, regroup=True).fit(data)
    assert equal(fixed.of(0), fixed.of(4))
    assert equal(fixed.of(0), anew.of(0))
    assert equal(anew.of(4), NodeSets(method=method, ratio=0.25, parts=12, seed=5, regroup=True).fit(data).of(4))
    assert not equal(anew.of(0), anew.of(1))
    assert not equal(fixed.of(0), NodeSets(method=method, ratio=0.25, parts=12, seed=6).fit(data).of(0))


def test_epochs_of_neighbouring_seeds_differ() -> None:
    first, second = (NodeSets(method="random", ratio=0.5, seed=seed, regroup=True).fit(graph()) for seed in (0, 1))
    assert not equal(first.of(1), second.of(0))


def test_random_without_parts_redraws_every_epoch() -> None:
    sets = NodeSets(method="random", ratio=0.5, regroup=True).fit(graph())
    assert not equal(sets.of(0), sets.of(1))


@pytest.mark.parametrize(("nodes", "ratio", "parts"), [(1000, 0.1, 20), (40, 0.1, 10), (20_000, 0.1, 200)])
def test_default_number_of_parts(nodes: int, ratio: float, parts: int) -> None:
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=nodes)
    sets = NodeSets(ratio=ratio).fit(data)
    assert sets.parts_ is not None
    assert sets.parts_.unique().numel() == parts


def test_default_parts_grow_with_the_batches() -> None:
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=20_000)
    sets = NodeSets(ratio=0.0125).fit(data)
    assert len(sets) == 80
    assert sets.parts_ is not None
    assert sets.parts_.unique().numel() == 320


@pytest.mark.parametrize("method", PARTITIONERS)
def test_parts_without_training_nodes_leave_no_batch_empty(method: str) -> None:
    data = Data(edge_index=cliques(2, 10), num_nodes=20, train_mask=torch.arange(20) < 10)
    batches = NodeSets(method=method, ratio=0.5, parts=2, train_only=True).fit(data).of(0)
    assert sizes(batches) == [5, 5]


@pytest.mark.parametrize("method", PARTITIONERS)
def test_edge_weights_of_the_data_are_used(method: str) -> None:
    weight = torch.tensor([9.0, 1.0, 9.0, 1.0])
    data = Data(edge_index=SQUARE, edge_weight=weight, num_nodes=4)
    parts = NodeSets(method=method, ratio=0.5).fit(data).parts_
    data.edge_weight = weight.roll(1)
    rolled = NodeSets(method=method, ratio=0.5).fit(data).parts_
    assert parts is not None
    assert rolled is not None
    assert torch.equal(same_part(parts), same_part(torch.tensor([0, 0, 1, 1])))
    assert torch.equal(same_part(rolled), same_part(torch.tensor([0, 1, 1, 0])))


def test_fit_reports_progress_and_repr_shows_the_parameters() -> None:
    lines: list[str] = []
    sets = NodeSets(ratio=0.5, parts=12).fit(graph(), progress=lines.append)
    assert lines[-1] == "partitioning 72 nodes into 12 parts with kaminpar"
    assert repr(sets) == ("NodeSets(method='kaminpar', ratio=0.5, parts=12, seed=0, regroup=False, train_only=False)")


def test_constructor_only_stores() -> None:
    assert NodeSets(method="nonsense", ratio=7).parts_ is None


@pytest.mark.parametrize("ratio", [0, -0.1, 1.5, float("nan")])
def test_ratio_out_of_range(ratio: float) -> None:
    with pytest.raises(ValueError, match=rf"'ratio' to be in \(0, 1\] \(got {ratio}\); 0\.1 gives 10 batches"):
        NodeSets(ratio=ratio).fit(graph())


def test_ratio_with_more_batches_than_nodes() -> None:
    with pytest.raises(ValueError, match=r"at most 72 batches.*\(got 0\.01, 100 batches\); choose a larger ratio"):
        NodeSets(ratio=0.01).fit(graph())
    with pytest.raises(ValueError, match="at most 24 batches"):
        NodeSets(method="random", ratio=0.02, train_only=True).fit(graph())


@pytest.mark.parametrize("parts", [3, 73])
def test_parts_that_cannot_make_the_batches(parts: int) -> None:
    with pytest.raises(ValueError, match=rf"number of batches, 4, and the number of nodes, 72 \(got {parts}\); leave"):
        NodeSets(ratio=0.25, parts=parts).fit(graph())


def test_method_and_seed_are_checked_in_fit() -> None:
    with pytest.raises(ValueError, match=r"'method' to be one of .* did you mean 'kaminpar'\?"):
        NodeSets(method="kamipar").fit(graph())
    with pytest.raises(ValueError, match="'seed' to be at least 0"):
        NodeSets(seed=-3).fit(graph())


@pytest.mark.parametrize("data", [Data(num_nodes=4), HeteroData()], ids=["data", "hetero"])
def test_data_without_edges(data: Data) -> None:
    with pytest.raises(ValueError, match=r"'data' to have an edge_index \(got none\); set data\.edge_index"):
        NodeSets().fit(data)


@pytest.mark.parametrize(
    ("mask", "came"),
    [
        (None, "none"),
        (torch.zeros(72, dtype=torch.bool), r"torch\.bool, \(72,\), 0 nodes set"),
        (torch.ones(72, dtype=torch.int64), r"torch\.int64, \(72,\), 72 nodes set"),
        (torch.ones(72, 10, dtype=torch.bool), r"torch\.bool, \(72, 10\), 720 nodes set"),
    ],
)
def test_train_only_without_training_nodes(mask: Tensor | None, came: str) -> None:
    data = graph()
    data.train_mask = mask
    with pytest.raises(ValueError, match=rf"'data\.train_mask' to be a bool mask.*\(got {came}\); set the mask"):
        NodeSets(train_only=True).fit(data)


def test_of_before_fit_and_negative_epochs() -> None:
    with pytest.raises(RuntimeError, match=r"fitted before of\(\) \(got no parts\); call fit\(data\) first"):
        NodeSets().of(0)
    with pytest.raises(ValueError, match=r"'epoch' to be at least 0 \(got -1\)"):
        NodeSets(ratio=0.5).fit(graph()).of(-1)
