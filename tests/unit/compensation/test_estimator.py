"""The estimator: what a batch reads and spreads, for every rank and rule, and the basis behind it."""

from functools import cache

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data

from graphs import communities, corner_sets, corners
from topoff.compensation.estimator import Compensator
from topoff.compensation.factors import Compensation, Way
from topoff.compensation.principal import WIDE, Principal, compress
from topoff.forward.plan import Plan
from topoff.forward.structure import Structure, structure_of
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator

ESTIMATORS = ["ridge", "paper", "released"]
NODES = torch.arange(0, 60, 2)  # half of the graph


class Mixed(nn.Module):
    """Two operators and the general path."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.gcn, self.sage, self.gat = gnn.GCNConv(features, 6), gnn.SAGEConv(6, 6), gnn.GATConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gat(self.sage(self.gcn(x, edge_index).relu(), edge_index).relu(), edge_index)


def planned(data: Data) -> tuple[Graph, Plan]:
    graph = Graph(data)
    return graph, make_plan(Mixed(data.num_features).double(), graph)


@cache
def prepared() -> tuple[Graph, Plan]:
    return planned(communities())


def easy(n: int = 60, *, rank: int = 3, width: int = 8) -> Tensor:
    """Return embeddings of low rank: the rows of any few nodes explain all others."""
    return torch.randn(n, rank, dtype=torch.float64) @ torch.randn(rank, width, dtype=torch.float64)


def fitted(rank: float = 8, *, blocks: list[Tensor] | None = None, **options: object) -> tuple[Compensator, Structure]:
    graph, plan = prepared()
    compensator = Compensator(rank, **options).fit(graph, plan, blocks=blocks or [easy()])
    return compensator, structure_of(graph, plan, NODES)


def ways(structure: Structure) -> list[Way]:
    return [*structure.spots, *structure.around]


def error(compensator: Compensator, structure: Structure, rows: Tensor) -> float:
    missing, whole = compensator.of(structure).residual(structure, ways(structure), rows)
    return (missing / whole) ** 0.5


# the three rules


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_embeddings_of_low_rank_are_explained(estimator: str) -> None:
    rows = easy()
    compensator, structure = fitted(blocks=[rows], estimator=estimator)
    assert error(compensator, structure, rows) < 2e-2
    assert error(compensator, structure, rows @ torch.randn(8, 5, dtype=torch.float64)) < 2e-2


@pytest.mark.parametrize(
    ("estimator", "options"), [("ridge", {"ridge": 0}), ("paper", {}), ("released", {})], ids=ESTIMATORS
)
def test_without_a_ridge_they_are_explained_exactly(estimator: str, options: dict[str, float]) -> None:
    rows = easy()
    compensator, structure = fitted(blocks=[rows], estimator=estimator, **options)
    assert error(compensator, structure, rows) < 1e-9


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("nodes", corner_sets(), ids=lambda nodes: str(nodes.tolist()))
def test_every_corner_gives_finite_numbers(estimator: str, nodes: Tensor) -> None:
    graph, plan = planned(corners())
    compensator = Compensator(1, estimator=estimator).fit(graph, plan, blocks=[easy(14)])
    compensation = compensator.of(structure_of(graph, plan, nodes))
    tensors = [compensation.read, *compensation.spread.values(), *compensation.halo.values()]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
    assert compensation.condition >= 1
    assert 0 <= compensation.rank <= 1


@pytest.mark.parametrize("estimator", ["ridge", "paper", "released"])
def test_a_batch_whose_embeddings_are_all_nought_gives_finite_numbers(estimator: str) -> None:
    graph = Graph(communities(dtype=torch.float32))
    plan = make_plan(gnn.GAT(5, 6, num_layers=2), graph)
    rows = torch.rand(60, 4)
    rows[NODES] = 0  # as after a ReLU that is silent in the whole batch
    compensator = Compensator(4, estimator=estimator).fit(graph, plan, blocks=[rows])
    compensation = compensator.of(structure_of(graph, plan, NODES))
    assert bool(torch.isfinite(compensation.read).all())


def test_a_ridge_leaves_a_small_error_and_lowers_the_condition() -> None:
    rows = easy(rank=8)
    weak, structure = fitted(blocks=[rows], ridge=1e-8)
    strong, _ = fitted(blocks=[rows], ridge=1e-1)
    assert error(weak, structure, rows) < error(strong, structure, rows)
    assert strong.of(structure).condition < weak.of(structure).condition


def test_rank_zero_compensates_nothing() -> None:
    rows = easy()
    for estimator in ESTIMATORS:
        compensator, structure = fitted(0, blocks=[rows], estimator=estimator)
        compensation = compensator.of(structure)
        assert compensator.rank_ == compensation.rank == 0
        assert compensation.read.size(0) == 0
        assert error(compensator, structure, rows) == 1


def test_the_rank_bounds_what_a_batch_carries() -> None:
    compensator, structure = fitted(2, blocks=[easy(rank=8)])
    compensation = compensator.of(structure)
    assert compensator.rank_ == 2
    assert compensation.read.shape == (2, 30)
    assert {matrix.size(1) for matrix in [*compensation.spread.values(), *compensation.halo.values()]} == {2}


def test_more_rank_explains_more() -> None:
    rows = easy(rank=8)
    errors = [error(*fitted(rank, blocks=[rows]), rows) for rank in (1, 3, 8)]
    assert errors[0] > errors[1] > errors[2]


def test_a_fraction_keeps_that_share_of_the_energy() -> None:
    rows = easy(rank=8)
    few, _ = fitted(0.5, blocks=[rows])
    most, structure = fitted(0.999999, blocks=[rows])
    assert 1 <= few.rank_ < most.rank_
    assert error(most, structure, rows) < 2e-2


def test_the_directions_that_carry_energy_are_counted() -> None:
    compensator, structure = fitted(8, blocks=[easy(rank=3)], estimator="paper")
    assert compensator.of(structure).rank == 3


def test_several_operators_and_the_general_path_share_one_read() -> None:
    compensator, structure = fitted(4)
    compensation = compensator.of(structure)
    assert set(compensation.spread) == {Operator(norm="gcn", self_loops=True), Operator(aggr="mean")}
    assert set(compensation.halo) == {"source_to_target"}
    assert compensation.read.shape == (4, 30)
    assert compensation.anchors is None


def test_only_boundary_rows_are_stored() -> None:
    compensator, structure = fitted(4)
    compensation = compensator.of(structure)
    for operator, spot in structure.spots.items():
        assert compensation.spread[operator].size(0) == spot.boundary.numel()
    assert compensation.halo["source_to_target"].size(0) == structure.around["source_to_target"].halo.numel()


def test_no_blocks_give_no_basis() -> None:
    graph, plan = prepared()
    compensator = Compensator(8).fit(graph, plan, blocks=[])
    assert compensator.rank_ == 0
    assert compensator.basis_.shape == (60, 0)
    assert compensator.of(structure_of(graph, plan, NODES)).read.shape == (0, 30)


# anchors and seeds


@pytest.mark.parametrize(("anchors", "count"), [(None, 8), (12, 12), (500, 30)], ids=["rank", "given", "all"])
def test_the_paper_reads_as_many_anchors_as_its_rank(anchors: int | None, count: int) -> None:
    compensator, structure = fitted(blocks=[easy(rank=8)], estimator="paper", anchors=anchors)
    compensation = compensator.of(structure)
    assert compensation.anchors is not None
    assert compensation.anchors.unique().numel() == count
    assert compensation.read.shape == (8, count)


def test_the_release_reads_all_nodes_or_the_given_number() -> None:
    everywhere, structure = fitted(estimator="released")
    some, _ = fitted(estimator="released", anchors=12)
    assert everywhere.of(structure).anchors is None
    assert some.of(structure).anchors.unique().numel() == 12
    h = torch.rand(30, 2, dtype=torch.float64)
    compensation = some.of(structure)
    assert torch.equal(compensation.summary(h), compensation.read @ h[compensation.anchors])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_same_seed_gives_the_same_compensation(estimator: str) -> None:
    rows = easy()
    first, second = (fitted(blocks=[rows], estimator=estimator, seed=3)[0] for _ in range(2))
    structure = fitted()[1]
    assert torch.equal(first.of(structure).read, second.of(structure).read)


def test_another_seed_draws_other_anchors() -> None:
    rows = easy(rank=8)
    first, second = (fitted(blocks=[rows], estimator="paper", seed=seed)[0] for seed in (0, 1))
    structure = fitted()[1]
    assert not torch.equal(first.of(structure).anchors, second.of(structure).anchors)


def test_estimating_leaves_the_global_generator_alone() -> None:
    compensator, structure = fitted(estimator="paper")
    before = torch.get_rng_state()
    compensator.of(structure)
    assert torch.equal(torch.get_rng_state(), before)


# the basis


def test_fitting_block_by_block_is_fitting() -> None:
    graph, plan = prepared()
    rows = [easy(), easy()]
    whole, parts = Compensator(4).fit(graph, plan, blocks=rows), Compensator(4)
    assert not parts.is_fitted
    principal = parts.start(graph, plan)
    for block in rows:
        principal.add(block)
    assert parts.finish(principal) is parts
    assert parts.is_fitted
    assert torch.equal(parts.basis_, whole.basis_)


def test_the_features_enter_the_ridge_basis_at_a_low_weight() -> None:
    rows = easy()
    ridge, paper = fitted(blocks=[rows])[0], fitted(blocks=[rows], estimator="paper")[0]
    assert ridge.basis_.size(1) == 8 + 5
    assert float(ridge.basis_[:, 8:].norm()) < 0.11 * float(rows.norm())
    assert paper.basis_.size(1) == 8


def test_the_basis_is_refitted_from_new_embeddings() -> None:
    graph, plan = prepared()
    old, new = easy(rank=6), easy(rank=6)
    compensator, structure = Compensator(11, ridge=0), structure_of(graph, plan, NODES)
    assert error(compensator.fit(graph, plan, blocks=[old]), structure, new) > 1e-3
    assert error(compensator.fit(graph, plan, blocks=[new]), structure, new) < 1e-9


def test_principal_holds_a_bounded_number_of_columns_however_many_blocks_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topoff.compensation.principal.HELD", 20)
    principal = Principal(width=5)
    for _ in range(20):
        principal.add(torch.rand(30, 7, dtype=torch.float64))
        assert sum(block.size(1) for block in principal._columns) <= 20
    (basis,) = principal.basis()
    assert basis.shape == (30, 5)


def test_principal_keeps_few_columns_as_they_are() -> None:
    principal, block = Principal(width=5), torch.rand(30, 7, dtype=torch.float64)
    principal.add(block)
    assert principal.basis() == [block]


def test_principal_without_a_width_keeps_all() -> None:
    principal = Principal(width=None)
    for _ in range(9):
        principal.add(torch.rand(30, 7))
    assert sum(block.size(1) for block in principal.basis()) == 63


def test_principal_loses_nothing_of_low_rank() -> None:
    rows, principal = easy(rank=3, width=40), Principal(width=5)
    principal.add(rows)
    (basis,) = principal.basis()
    assert torch.allclose(basis @ basis.T, rows @ rows.T)


def test_compress_finds_the_leading_directions() -> None:
    rows = torch.zeros(10, 3, dtype=torch.float64)
    rows[:, 1], rows[:, 2] = 5.0, torch.arange(10).double() / 100
    out = compress([rows], 1)
    assert torch.allclose(out.abs(), torch.full((10, 1), 5.0, dtype=torch.float64), atol=1e-2)
    assert compress([rows], 3, energy=0.9).shape == (10, 1)
    assert compress([rows], 3, energy=1.0 - 1e-12).shape == (10, 2)


@pytest.mark.parametrize("rank", [3, 40])
def test_compress_finds_the_leading_directions_of_wide_rows_too(rank: int) -> None:
    rows = easy(rank=rank, width=WIDE + 6)
    out, leading = compress([rows], 20), torch.linalg.svdvals(rows)[:20]
    assert out.shape == (60, 20)
    assert torch.allclose(torch.linalg.svdvals(out), leading, rtol=1e-2, atol=1e-6)
    assert torch.equal(out, compress([rows], 20))


# parameters and warnings


@pytest.mark.parametrize("estimator", ["ridge", "released"])
def test_a_rank_above_the_batch_size_warns(estimator: str) -> None:
    graph, plan = prepared()
    compensator = Compensator(8, estimator=estimator).fit(graph, plan, blocks=[easy(rank=8)])
    structure = structure_of(graph, plan, torch.arange(4))
    with pytest.warns(UserWarning, match=r"rank 8 exceeds a batch of 4 nodes.*raise ratio or lower rank"):
        compensation = compensator.of(structure)
    assert bool(torch.isfinite(compensation.read).all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "lasso"}, r"estimator to be one of ridge, paper, released \(got 'lasso'\)"),
        ({"rank": -1}, r"rank to be a whole number >= 0 or a fraction of the energy in \(0, 1\) \(got -1\)"),
        ({"rank": 1.0}, r"fraction of the energy .* \(got 1.0\)"),
        ({"rank": 0.0}, r"fraction of the energy .* \(got 0.0\)"),
        ({"rank": True}, r"rank to be a whole number .* \(got True\)"),
        ({"rank": "64"}, r"rank to be a whole number .* \(got '64'\)"),
        ({"ridge": -1e-3}, r"ridge to be at least 0 \(got -0.001\)"),
        ({"anchors": 0}, r"anchors to be at least 1 \(got 0\).*read all nodes"),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    graph, plan = prepared()
    compensator = Compensator(**options)
    with pytest.raises(ValueError, match=message):
        compensator.fit(graph, plan, blocks=[])
    with pytest.raises(ValueError, match=message):
        compensator.start(graph, plan)


def test_a_compensation_moves_as_a_whole() -> None:
    compensator, structure = fitted(estimator="paper")
    moved: Compensation = compensator.of(structure).to("meta")
    tensors = [moved.read, moved.anchors, *moved.spread.values(), *moved.halo.values()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


# ---- precision


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_autocast_around_an_estimate_changes_nothing(estimator: str) -> None:
    data = communities(60, dtype=torch.float32)
    graph = Graph(data)
    plan = make_plan(Mixed(data.num_features), graph)
    structure, blocks = structure_of(graph, plan, NODES), [torch.rand(60, 9), torch.rand(60, 7)]

    def estimated() -> Compensation:
        return Compensator(3, estimator=estimator, width=2).fit(graph, plan, blocks=blocks).of(structure)

    plain = estimated()
    with torch.autocast("cpu"):
        mixed = estimated()
        missing = mixed.residual(structure, ways(structure), blocks[0])
    assert torch.equal(plain.read, mixed.read)
    assert all(torch.equal(plain.spread[key], mixed.spread[key]) for key in plain.spread)
    assert all(torch.equal(plain.halo[key], mixed.halo[key]) for key in plain.halo)
    assert missing == plain.residual(structure, ways(structure), blocks[0])


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_half_precision_is_estimated_in_float32(estimator: str, rank: int) -> None:
    data = communities(60, dtype=torch.bfloat16)
    graph = Graph(data)
    plan = make_plan(Mixed(data.num_features).bfloat16(), graph)
    structure = structure_of(graph, plan, NODES)
    found = Compensator(rank, estimator=estimator).fit(graph, plan, blocks=[torch.rand(60, 9).bfloat16()]).of(structure)
    assert {tensor.dtype for tensor in (found.read, *found.spread.values(), *found.halo.values())} == {torch.float32}
