"""Batches in order: each node once, shuffled by seed and epoch, resumable, with their supplements."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor
from torch_geometric.data import Data

from graphs import communities, corner_sets, corners, node_sets
from topoff.batching.node_sets import NodeSets
from topoff.compensation.certificate import BatchReport, Residual, describe_batch
from topoff.compensation.compensated import compensating
from topoff.compensation.estimator import Compensator
from topoff.compensation.factors import share_outside
from topoff.compensation.loader import Loader
from topoff.forward.structure import structure_of
from topoff.forward.subgraph import whole_graph
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph


def loader_of(data: Data, sets: NodeSets, *, rank: int | None = None, **options: object) -> Loader:
    graph = Graph(data)
    plan = make_plan(gnn.GCN(data.num_features, 6, num_layers=2).double(), graph)
    compensator = None
    if rank is not None:
        rows = torch.randn(graph.num_nodes, 4, dtype=torch.float64)
        compensator = Compensator(rank).fit(graph, plan, blocks=[rows])
    return Loader(graph, plan, sets=sets, compensator=compensator, **options)


def random_loader(**options: object) -> Loader:
    """Load 60 nodes in six random batches."""
    data = communities()
    kinds = {name: options.pop(name) for name in ("regroup", "train_only") if name in options}
    return loader_of(data, NodeSets(method="random", ratio=1 / 6, **kinds).fit(data), **options)


def corner_loader(**options: object) -> Loader:
    return loader_of(corners(), node_sets(corner_sets()), **options)


def ids(batches: Iterable[Data]) -> list[list[int]]:
    return [batch.n_id.tolist() for batch in batches]


def pooled(batches: Iterable[Data]) -> list[int]:
    return sorted(node for nodes in ids(batches) for node in nodes)


def test_every_node_is_in_one_batch() -> None:
    loader = random_loader()
    assert len(loader) == 6
    assert pooled(loader.batches()) == list(range(60))
    assert pooled(loader) == list(range(60))


def test_batches_without_training_nodes_are_skipped_in_training_only() -> None:
    loader = corner_loader()
    everywhere = sorted(ids(loader.batches()))
    trained = sorted(ids(list(loader)))
    assert everywhere == sorted(nodes.tolist() for nodes in corner_sets())
    assert trained == [[0, 1, 2, 3], [9, 10, 11], [12], [13]]


def test_graphs_without_masks_skip_nothing() -> None:
    data = corners()
    bare = Data(x=data.x, edge_index=data.edge_index)
    assert len(list(loader_of(bare, node_sets(corner_sets())))) == 6


def test_the_order_changes_from_epoch_to_epoch_and_is_the_same_again() -> None:
    first, again = random_loader(), random_loader()
    epochs, same = ([ids(list(loader)) for _ in range(3)] for loader in (first, again))
    assert epochs == same
    assert epochs[0] != epochs[1] != epochs[2]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert first.position.epoch == 3


def test_the_order_depends_on_the_seed() -> None:
    assert ids(list(random_loader(seed=0))) != ids(list(random_loader(seed=1)))


def test_the_order_leaves_the_global_generator_alone() -> None:
    loader, before = random_loader(), torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_saved_position_is_taken_up_in_the_middle_of_an_epoch() -> None:
    loader, resumed = random_loader(), random_loader()
    list(loader)
    epoch = iter(loader)
    first = [next(epoch) for _ in range(2)]
    state = loader.state_dict()
    rest = list(epoch)
    assert state == {"epoch": 1, "position": 2}
    resumed.load_state_dict(state)
    assert ids(list(resumed)) == ids(rest)
    assert len(first) + len(rest) == 6
    assert ids(list(resumed)) == ids(list(loader))


def test_a_loop_left_early_does_not_shorten_the_next() -> None:
    loader, other = random_loader(), random_loader()
    next(iter(loader))
    list(other)
    assert ids(list(loader)) == ids(list(other))
    assert loader.position.epoch == other.position.epoch == 2


def test_fixed_batches_are_cut_once() -> None:
    loader = random_loader()
    first = loader.batches()
    list(loader)
    assert loader.batches() is first


def test_regrouped_batches_are_cut_anew_every_epoch() -> None:
    loader = random_loader(regroup=True, rank=2)
    first, second = (list(loader) for _ in range(2))
    assert sorted(ids(first)) != sorted(ids(second))
    assert pooled(second) == list(range(60))
    assert all(batch.compensation is not None for batch in second)


def test_train_only_batches_hold_the_training_nodes_alone() -> None:
    loader = random_loader(train_only=True)
    held = torch.tensor(pooled(loader))
    assert torch.equal(held, communities().train_mask.nonzero().view(-1))


def test_batches_carry_masks_labels_and_their_supplement() -> None:
    for batch in random_loader(rank=2):
        assert torch.equal(batch.y, communities().y[batch.n_id])
        assert torch.equal(batch.supplement.structure.nodes, batch.n_id)
        assert batch.compensation.read.shape == (2, 10)


def test_without_a_compensator_the_halo_is_left_out() -> None:
    assert all("compensation" not in batch for batch in random_loader())


def test_compensating_anew_replaces_the_compensation_and_keeps_the_structure() -> None:
    loader = random_loader(rank=2)
    batch = loader.batches()[0]
    old, structure = batch.compensation, batch.supplement.structure
    rows = torch.randn(60, 4, dtype=torch.float64)
    loader.compensator.fit(loader.graph, loader.plan, blocks=[rows])
    loader.compensate()
    assert loader.batches()[0] is batch
    assert batch.supplement.structure is structure
    assert not torch.equal(batch.compensation.read, old.read)


# what is saved


def loader_with(kind: type[torch.nn.Module], *, estimator: str = "ridge", anchors: int | None = None) -> Loader:
    """Load 60 nodes in six batches, compensated for a model of some kind, always in the same way."""
    data = communities()
    graph, model = Graph(data), kind(5, 6, num_layers=2).double()
    plan = make_plan(model, graph)
    rows = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    compensator = Compensator(3, estimator=estimator, anchors=anchors).fit(graph, plan, blocks=[rows])
    sets = NodeSets(method="random", ratio=1 / 6).fit(data)
    return Loader(graph, plan, sets=sets, compensator=compensator)


@pytest.mark.parametrize("kind", [gnn.GCN, gnn.GAT])  # linear path, general path
@pytest.mark.parametrize("options", [{}, {"estimator": "paper"}, {"estimator": "released", "anchors": 5}], ids=str)
def test_saved_compensations_are_put_back_to_the_bit(
    kind: type[torch.nn.Module], options: dict[str, object], tmp_path: Path
) -> None:
    loader = loader_with(kind, **options)
    np.savez(tmp_path / "saved.npz", **loader.saved())
    other = Loader(loader.graph, loader.plan, sets=loader.sets, compensator=Compensator(3))
    with np.load(tmp_path / "saved.npz", allow_pickle=False) as arrays:
        other.restore(dict(arrays))
    assert other.compensator is not None
    assert other.compensator.rank_ == 3
    assert not other.compensator.is_fitted  # the basis itself is not saved
    for one, two in zip(loader.batches(), other.batches(), strict=True):
        old, new = one.compensation, two.compensation
        assert torch.equal(old.read, new.read)
        assert (old.rank, old.condition) == (new.rank, new.condition)
        assert (old.anchors is None) == (new.anchors is None) == (options == {})
        assert old.anchors is None or torch.equal(old.anchors, new.anchors)
        for group in ("spread", "halo"):
            before, after = getattr(old, group), getattr(new, group)
            assert before.keys() == after.keys()
            assert all(torch.equal(matrix, after[key]) for key, matrix in before.items())


def test_every_matrix_is_saved() -> None:
    arrays = loader_with(gnn.GCN).saved()
    places = sorted({name.partition(".")[2] for name in arrays if "." in name})
    assert places == ["numbers", "read", "spread.0"]
    assert int(arrays["rank"]) == 3
    assert len(arrays) == 6 * 3 + 1


# what is told


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    loader = random_loader(rank=2, progress=lambda *report: told.append(report))
    loader.batches()
    assert told == [("compensating batches", done, 6) for done in range(7)]


def test_the_whole_graph_is_one_batch_that_equals_the_full_forward() -> None:
    data, model = corners(), gnn.GCN(4, 6, num_layers=2, out_channels=3).double()
    graph = Graph(data)
    batch = whole_graph(graph, make_plan(model, graph))
    with compensating(model, batch):
        out = model(batch.x, batch.edge_index, batch.edge_weight)
    assert torch.allclose(out, model(data.x, data.edge_index, data.edge_weight), atol=1e-12)


# the certificate


def account(rows: Tensor, *, rank: int = 8, blocks: list[Tensor] | None = None) -> Residual:
    loader = random_loader(rank=rank)
    loader.compensator.ridge = 0
    loader.compensator.fit(loader.graph, loader.plan, blocks=blocks or [rows])
    loader.batches()
    residual = loader.residual()
    residual.add("convs.1/0/0", rows)
    return residual


def test_the_certificate_is_nought_for_what_the_basis_explains() -> None:
    rows = torch.randn(60, 2, dtype=torch.float64) @ torch.randn(2, 70, dtype=torch.float64)
    residual = account(rows)
    assert residual.pooled() < 1e-9
    assert len(residual.per_batch()) == 6


def test_the_certificate_is_pooled_over_batches() -> None:
    rows = torch.randn(60, 3, dtype=torch.float64)
    residual = account(rows, blocks=[torch.randn(60, 3, dtype=torch.float64)])
    assert residual.pooled() > 0.1
    assert min(residual.per_batch()) <= residual.pooled() <= max(residual.per_batch())


def test_an_empty_account_is_nought() -> None:
    residual = random_loader(rank=2).residual()
    assert residual.pooled() == 0
    assert residual.per_batch() == [0] * 6


def test_a_batch_is_described() -> None:
    loader = corner_loader(rank=1)
    reports = {batch.n_id[0].item(): describe_batch(batch, 0.5) for batch in loader.batches()}
    assert reports[0].nodes == 4
    assert reports[0].boundary == 3
    assert reports[0].rank == 1
    assert reports[0].condition >= 1
    assert reports[0].certificate == 0.5
    assert reports[8].boundary == 0


def test_a_batch_without_compensation_is_described() -> None:
    batch = corner_loader().batches()[0]
    assert describe_batch(batch, 1.0) == BatchReport(batch.num_nodes, describe_batch(batch, 1.0).boundary, 0, 1.0, 1.0)


def test_an_unfitted_compensator_is_refused() -> None:
    fitted = random_loader(rank=2)
    loader = Loader(fitted.graph, fitted.plan, sets=fitted.sets, compensator=Compensator(2))
    with pytest.raises(ValueError, match=r"a fitted compensator \(got one without a basis\); fit it first"):
        next(iter(loader))


def test_the_share_of_messages_from_outside_by_hand() -> None:
    graph = Graph(Data(x=torch.rand(4, 3), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])))
    for model, share in ((gnn.GCN(3, 4, num_layers=2), 1 / 4), (gnn.GAT(3, 4, num_layers=2), 1 / 2)):
        plan = make_plan(model, graph)  # of a ring: GCN has self-loops as well, of the same weight
        halves = [structure_of(graph, plan, torch.tensor(nodes)) for nodes in ([0, 1], [2, 3])]
        assert share_outside(halves) == pytest.approx(share)
