"""Node sets, on hand-made graphs, with the real KaMinPar and METIS."""

import random
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import kaminpar
import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import topoff
from graphs import SQUARE, cliques, same_part
from topoff.batching import node_sets as room
from topoff.batching import partition as partitioning
from topoff.batching.node_sets import NodeSets
from topoff.batching.ratio import near_training

PARTITIONERS = ["kaminpar", "metis", "ldg"]
METHODS = [*PARTITIONERS, "random"]


def graph(count: int = 12, size: int = 6) -> Data:
    """Make the ring of cliques as `Data`, every third node for training."""
    nodes = count * size
    return Data(edge_index=cliques(count, size), num_nodes=nodes, train_mask=torch.arange(nodes) % 3 == 0)


def sizes(batches: list[Tensor]) -> list[int]:
    return [nodes.numel() for nodes in batches]


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


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


def test_epochs_of_neighboring_seeds_differ() -> None:
    first, second = (NodeSets(method="random", ratio=0.5, seed=seed, regroup=True).fit(graph()) for seed in (0, 1))
    assert not equal(first.of(1), second.of(0))


def test_random_without_parts_redraws_every_epoch() -> None:
    sets = NodeSets(method="random", ratio=0.5, regroup=True).fit(graph())
    assert not equal(sets.of(0), sets.of(1))


@pytest.mark.parametrize(
    ("nodes", "ratio", "parts"), [(1000, 0.1, 20), (40, 0.1, 10), (20_000, 0.1, 400), (200_000, 0.1, 3000)]
)
def test_default_number_of_parts(nodes: int, ratio: float, parts: int) -> None:
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=nodes)
    sets = NodeSets(ratio=ratio).fit(data)
    assert sets.parts_ is not None
    assert sets.parts_.unique().numel() == parts


def test_default_parts_grow_with_the_batches() -> None:
    data = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=250_000)
    sets = NodeSets(ratio=0.001).fit(data)
    assert len(sets) == 1000
    assert sets.parts_ is not None
    assert sets.parts_.unique().numel() == 4000


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
    wanted = "method='kaminpar', ratio=0.5, parts=12, seed=0, regroup=False, train_only=False, reach=None"
    assert repr(sets) == f"NodeSets({wanted})"


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


@pytest.mark.parametrize("method", METHODS)
def test_no_global_generator_is_touched(method: str) -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate(), kaminpar.seed()  # noqa: NPY002
    NodeSets(method=method, ratio=0.5, seed=11, regroup=True).fit(graph()).of(3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert before[2:] == (random.getstate(), kaminpar.seed())


def test_partition_is_found_where_it_was() -> None:
    assert topoff.partition is partitioning.partition


# the cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the cache of a test in a folder of its own."""
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))
    return tmp_path


def fitted(data: Data | None = None, *, cache: bool = True, **parameters: Any) -> Tensor:
    """Return the parts of node sets with 4 batches of 12 parts, unless other parameters are given."""
    sets = NodeSets(**({"ratio": 0.25, "parts": 12} | parameters))
    parts = sets.fit(data or graph(), cache=cache).parts_
    assert parts is not None
    return parts


@pytest.mark.parametrize("method", METHODS)
def test_the_second_fit_reads_the_parts(cache: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    assert torch.equal(fitted(method=method), fitted(method=method, cache=False))
    (file,) = cache.iterdir()
    with np.load(file) as content:
        stored = content["parts"]
    np.savez(file, parts=stored[::-1])
    monkeypatch.setattr(partitioning, "_cut", lambda *args, **kwargs: pytest.fail("partitioned again"))
    assert fitted(method=method).tolist() == stored[::-1].tolist() != stored.tolist()


def test_without_the_cache_nothing_is_kept_or_read(cache: Path) -> None:
    expected = fitted(cache=False)
    assert list(cache.iterdir()) == []
    fitted()
    (file,) = cache.iterdir()
    np.savez(file, parts=np.arange(72) % 12)
    assert torch.equal(fitted(cache=False), expected)


def test_random_batches_without_parts_have_nothing_to_keep(cache: Path) -> None:
    assert fitted(method="random", parts=None).tolist() == list(range(72))
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("damage", [b"", b"hello", "half"])
def test_a_damaged_file_is_built_again(cache: Path, damage: bytes | str) -> None:
    expected = fitted()
    (file,) = cache.iterdir()
    content = file.read_bytes()
    file.write_bytes(damage if isinstance(damage, bytes) else content[: len(content) // 2])
    with pytest.warns(RuntimeWarning, match="to be a readable cache file.*built again"):
        assert torch.equal(fitted(), expected)
    assert torch.equal(fitted(), expected)  # and now without a warning
    assert file.read_bytes() == content


def test_other_node_sets_other_files(cache: Path) -> None:
    heavy = graph()
    heavy.edge_weight = torch.arange(1.0, heavy.edge_index.size(1) + 1)
    larger = graph()
    larger.num_nodes, larger.train_mask = 73, None
    runs: list[tuple[Data, dict[str, Any]]] = [
        (graph(), {}),
        (graph(), {"seed": 1}),
        (graph(), {"method": "metis"}),
        (graph(), {"method": "random"}),
        (graph(), {"parts": 13}),
        (graph(18, 4), {}),  # as many nodes, other edges
        (heavy, {}),
        (larger, {}),
    ]
    for count, (data, parameters) in enumerate(runs, start=1):
        assert torch.equal(fitted(data, **parameters), fitted(data, cache=False, **parameters))
        assert len(list(cache.iterdir())) == count


def test_one_partition_serves_all_ways_to_batch_it(cache: Path) -> None:
    ways: list[dict[str, Any]] = [{}, {"ratio": 0.5}, {"train_only": True}, {"regroup": True}]
    for parameters in ways:
        fitted(**parameters)
    assert len(list(cache.iterdir())) == 1


def test_parts_are_split_after_they_are_read(cache: Path) -> None:
    data = Data(edge_index=cliques(2, 10), num_nodes=20, train_mask=torch.arange(20) < 10)
    for _ in range(2):
        batches = NodeSets(ratio=0.5, parts=2, train_only=True).fit(data, cache=True).of(0)
        assert sizes(batches) == [5, 5]


def test_two_processes_share_a_cache(cache: Path) -> None:
    """Both partition, store, read and delete the same key at once; any warning is an error."""
    code = """
        import sys, time, warnings
        from pathlib import Path
        from types import SimpleNamespace
        import torch
        from topoff.batching.node_sets import NodeSets
        warnings.simplefilter("error", RuntimeWarning)
        edges = torch.randint(300, (2, 1500), generator=torch.Generator().manual_seed(0))
        data = SimpleNamespace(edge_index=edges, num_nodes=300)  # Data takes seconds to import
        expected = NodeSets(method="metis", ratio=0.25, parts=12).fit(data).parts_
        folder, number = Path(sys.argv[1]), int(sys.argv[2])
        (folder / f"ready{number}").touch()
        deadline = time.monotonic() + 60  # start together, but wait for no process that died
        while not (folder / f"ready{1 - number}").exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        for round in range(40):
            if round % 3 == number:
                for file in folder.glob("parts-*.npz"):
                    file.unlink(missing_ok=True)
            found = NodeSets(method="metis", ratio=0.25, parts=12).fit(data, cache=True).parts_
            assert torch.equal(found, expected)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(cache)]
    processes = [subprocess.Popen([*command, str(number)]) for number in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    assert len(list(cache.glob("parts-*.npz"))) == 1
    assert list(cache.glob(".*")) == []


def labeled(y: Tensor, *, parts: int = 60, size: int = 10) -> Data:
    """Return a graph of cliques without edges between them, each of one class, all nodes for training."""
    n = parts * size
    first = torch.arange(n).repeat_interleave(size - 1)
    offset = torch.arange(1, size).repeat(n)
    second = first // size * size + (first % size + offset) % size
    everywhere = torch.ones(n, dtype=torch.bool)
    return Data(edge_index=torch.stack([first, second]), num_nodes=n, y=y, train_mask=everywhere)


@pytest.mark.parametrize("kind", ["classes", "labels", "target"])
def test_every_batch_gets_its_share_of_the_training_labels(kind: str) -> None:
    group = torch.arange(60).repeat_interleave(10) % 3
    y = {"classes": group, "labels": torch.eye(3)[group], "target": group.double()}[kind]
    batches = NodeSets(ratio=0.2, parts=60, seed=3).fit(labeled(y)).of(0)
    counts = torch.stack([torch.bincount(group[nodes], minlength=3) for nodes in batches])
    assert counts.sum(dim=0).tolist() == [200, 200, 200]
    assert int((counts - 40).abs().max()) <= 10  # one part; a random deal is off by up to 40


def test_labels_outside_the_training_set_play_no_role() -> None:
    data = labeled(torch.arange(60).repeat_interleave(10) % 3)
    data.train_mask[300:] = False
    other = data.clone()
    other.y[300:] = 0
    sets = [NodeSets(ratio=0.2, parts=60).fit(graph).of(0) for graph in (data, other)]
    assert all(torch.equal(a, b) for a, b in zip(*sets, strict=True))


# ---- nodes near training nodes


def path_with_one_label() -> Data:
    ends = torch.arange(9)
    return Data(edge_index=torch.stack([ends, ends + 1]), num_nodes=10, train_mask=torch.arange(10) == 4)


@pytest.mark.parametrize(("reach", "nodes"), [(0, [4]), (1, [3, 4, 5]), (3, [1, 2, 3, 4, 5, 6, 7]), (99, range(10))])
def test_a_reach_batches_the_nodes_near_a_training_node(reach: int, nodes: list[int]) -> None:
    sets = NodeSets(method="random", ratio=1.0, reach=reach).fit(path_with_one_label())
    assert sets.of(0)[0].tolist() == list(nodes)
    assert not sets.covers
    assert torch.cat(sets.cover()).tolist() == list(range(10))


@pytest.mark.parametrize("reach", [-1, 1.5, "2", True])
def test_a_reach_that_is_no_number_of_edges_is_refused(reach: Any) -> None:
    with pytest.raises(ValueError, match=r"'reach' to be a whole number of edges >= 0 \(got"):
        NodeSets(method="random", ratio=1.0, reach=reach).fit(path_with_one_label())


def test_a_reach_goes_without_train_only() -> None:
    with pytest.raises(ValueError, match=r"'reach' or train_only \(got both, reach=2\)"):
        NodeSets(method="random", ratio=1.0, reach=2, train_only=True).fit(path_with_one_label())


def test_a_reach_beyond_all_edges_ends_with_the_last_node() -> None:
    assert len(near_training(path_with_one_label(), 2**32 - 1)) == 10


def test_a_reach_needs_training_nodes() -> None:
    data = path_with_one_label()
    del data.train_mask
    with pytest.raises(ValueError, match=r"for train_only=True or a reach \(got none\)"):
        NodeSets(method="random", ratio=1.0, reach=1).fit(data)


@pytest.mark.parametrize("train_only", [False, True])
def test_nodes_that_are_dealt_one_by_one_need_no_counts(*, train_only: bool) -> None:
    edges, mask = torch.randint(300, (2, 900)), torch.arange(300) % 3 == 1
    data = Data(edge_index=edges, num_nodes=300, train_mask=mask, y=torch.arange(300) % 4)
    sets = NodeSets(method="random", ratio=0.1, train_only=train_only).fit(data)
    nodes = sets.nodes_.numpy()
    counted = room._merge(room._counts(nodes, nodes, sets._pairs), 10, rng=np.random.default_rng([0, 0]))[nodes]
    assert [batch.tolist() for batch in sets.of(0)] == [nodes[counted == number].tolist() for number in range(10)]


def test_pieces_for_exact_inference_hold_every_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data(edge_index=torch.randint(300, (2, 900)), num_nodes=300, train_mask=torch.arange(300) < 20)
    sets = NodeSets(method="metis", ratio=0.25, train_only=True).fit(data)
    pieces = sets.cover()
    assert len(pieces) == 4
    assert torch.equal(torch.cat(pieces).sort().values, torch.arange(300))
    assert all(sets.parts_[piece].diff().min() >= 0 for piece in pieces)
    monkeypatch.setattr(room, "PIECE", 50)
    assert len(sets.cover()) == 6
    monkeypatch.setattr(room, "LARGE", 200)
    assert torch.equal(torch.cat(sets.cover()), torch.arange(300))


def test_pieces_of_nodes_that_are_dealt_one_by_one_are_ranges() -> None:
    data = Data(edge_index=torch.randint(300, (2, 900)), num_nodes=300, train_mask=torch.arange(300) < 20)
    pieces = NodeSets(method="random", ratio=0.25, train_only=True).fit(data).cover()
    assert len(pieces) == 4
    assert torch.equal(torch.cat(pieces), torch.arange(300))
    sets = NodeSets(method="random", ratio=0.25).fit(data)
    assert all(map(torch.equal, sets.cover(), sets.of(0)))  # which hold every node


def test_one_batch_is_not_partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data(edge_index=torch.randint(300, (2, 900)), num_nodes=300)
    monkeypatch.delattr(room, "partition")
    assert torch.equal(NodeSets(ratio=1.0).fit(data).of(0)[0], torch.arange(300))
    with pytest.raises(NameError, match="partition"):
        NodeSets(ratio=0.5).fit(data)
