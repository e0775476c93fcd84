"""Rows that are mostly zero: the product of a linear layer is that of the dense rows, gradient included."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCN, GraphSAGE, Linear

from topoff import TOP, load
from topoff.graph.sparse_rows import SparseRows, for_linear
from topoff.methods.cluster import Cluster


def bags(rows: int = 40, *, words: int = 400, each: int = 8, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return bags of words: so many entries in a row."""
    generator = torch.Generator().manual_seed(0)
    found = torch.zeros(rows, words, dtype=dtype)
    for row in found:
        row[torch.randperm(words, generator=generator)[:each]] = torch.rand(each, generator=generator, dtype=dtype)
    return found


def sparse(rows: Tensor) -> Tensor:
    found = for_linear(rows)
    assert isinstance(found, SparseRows)
    return found


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_and_its_gradient(*, bias: bool) -> None:
    rows = bags()
    layers = [Linear(400, 7, bias=bias).double() for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    outs = [layers[0](rows), layers[1](sparse(rows))]
    assert type(outs[1]) is Tensor
    assert torch.allclose(*outs, atol=1e-12)
    pull = torch.linspace(-1, 1, outs[0].numel(), dtype=torch.float64).view_as(outs[0])
    for out in outs:
        (out * pull).sum().backward()
    for one, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, atol=1e-12)


@pytest.mark.parametrize("count", [1, 127, 512, 513, 1_100])
def test_rows_in_blocks(count: int) -> None:
    rows = bags(count, each=32)  # of 400: nearly as many as there may be
    rows[-1, 399] = float("nan")
    rows[0, :2] = torch.tensor([-0.0, float("inf")])
    for given in (rows, rows.T.contiguous().T):  # also where a row does not lie in one piece
        entries = sparse(given).entries
        dense = torch.sparse_csr_tensor(entries.offsets, entries.ids, entries.values, entries.shape).to_dense()
        assert torch.equal(dense.nan_to_num(7.0), rows.nan_to_num(7.0))


def test_the_entries_are_what_is_multiplied() -> None:
    rows = bags()
    found = sparse(rows)
    rows.data.zero_()  # unseen: the dense rows are not read
    assert F.linear(found, torch.ones(1, 400, dtype=torch.float64)).abs().sum() > 0


def test_rows_that_were_written_to_are_read_as_they_are_now() -> None:
    found, weight = sparse(bags()), torch.ones(1, 400, dtype=torch.float64)
    found.mul_(2)
    assert torch.allclose(F.linear(found, weight), 2 * F.linear(bags(), weight))


def test_rows_with_a_gradient_get_it() -> None:
    found = sparse(bags()).requires_grad_()
    F.linear(found, torch.ones(1, 400, dtype=torch.float64)).sum().backward()
    assert found.grad is not None


@pytest.mark.parametrize("columns", [300, 500])
def test_a_weight_of_another_width_is_refused_as_by_torch(columns: int) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        F.linear(sparse(bags()), torch.ones(1, columns, dtype=torch.float64))


def test_a_linear_layer_that_names_its_arguments() -> None:
    rows, weight = bags(), torch.ones(1, 400, dtype=torch.float64)
    assert torch.allclose(F.linear(input=sparse(rows), weight=weight), F.linear(rows, weight))


def test_rows_that_only_look_sparse() -> None:
    rows = torch.ones(6_400, 400)
    rows[::100] = 0  # those that are looked at
    assert for_linear(rows) is rows


def test_all_else_sees_a_dense_tensor() -> None:
    rows = bags()
    found = sparse(rows)
    for out in (
        found + 1,
        found.clone(),
        found[:3],
        found @ rows.T,
        torch.cat([found, found]),
        found.to(torch.float32),
    ):
        assert type(out) is Tensor
    assert torch.equal(found.clone(), rows)
    assert found.data_ptr() == rows.data_ptr()  # nothing is copied


@pytest.mark.parametrize(
    "rows",
    [torch.ones(40, 400), torch.zeros(40, 30), torch.zeros(0, 400), bags().half()],
    ids=["dense", "narrow", "none", "half precision"],
)
def test_rows_that_gain_nothing_stay_as_they_are(rows: Tensor) -> None:
    assert for_linear(rows) is rows


def test_rows_without_any_entry() -> None:
    assert torch.equal(F.linear(sparse(torch.zeros(5, 400)), torch.rand(3, 400)), torch.zeros(5, 3))


def test_mixed_precision_takes_the_dense_product() -> None:
    rows, weight = bags(dtype=torch.float32), torch.rand(3, 400)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, truth = F.linear(sparse(rows), weight), F.linear(rows, weight)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, truth)
    with pytest.raises(RuntimeError, match="dtype"):  # as torch says it
        F.linear(sparse(rows), weight.double())


def graph() -> Data:
    """Return a ring with chords, and bags of words as features."""
    nodes = torch.arange(60)
    edges = torch.cat([torch.stack([nodes, (nodes + step) % 60]) for step in (1, 7)], dim=1)
    data = Data(x=bags(60, words=1_000), edge_index=torch.cat([edges, edges.flip(0)], dim=1), y=nodes % 3)
    data.train_mask = nodes % 2 == 0
    data.val_mask, data.test_mask = nodes % 4 == 1, nodes % 4 == 3
    return load(data)


@pytest.mark.parametrize("settings", [{"ratio": 1.0}, {"ratio": 0.25, "rank": 8, "batches": "random"}], ids=str)
def test_a_first_layer_reads_entries_alone(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data, outs, gradients, exact = graph(), [], [], []
    model = GCN(1_000, 5, num_layers=2, out_channels=3).double()
    for few in (0.1, 0.0):  # entries, and the dense product
        monkeypatch.setattr("topoff.graph.sparse_rows.SCARCE", few)
        top = TOP(model, data, **settings)
        batch = next(iter(top))
        model.zero_grad()
        out = top(batch)
        out.square().sum().backward()
        read = [rows for chain, rows in batch.supplement.structure.constants.items() if chain]
        assert [isinstance(rows, SparseRows) for rows in read] == [few > 0]
        exact.append(top.predict())
        outs.append(out.detach())
        gradients.append([each.grad.clone() for each in model.parameters()])
    assert torch.allclose(*outs, atol=1e-10)
    assert torch.allclose(*exact, atol=1e-10)
    assert all(torch.allclose(one, other, atol=1e-9) for one, other in zip(*gradients, strict=True))


def test_a_copy_has_rows_of_its_own() -> None:
    found = sparse(bags())
    other = copy.deepcopy(found)
    assert isinstance(other, SparseRows)
    assert other.data_ptr() != found.data_ptr()
    weight = torch.ones(1, 400, dtype=torch.float64)
    assert torch.equal(F.linear(other, weight), F.linear(found, weight))


def test_convs_that_aggregate_first_keep_dense_constants() -> None:
    top = TOP(GraphSAGE(1_000, 5, num_layers=2, out_channels=3).double(), graph(), ratio=0.25, rank=8, batches="random")
    constants = next(iter(top)).supplement.structure.constants
    assert constants
    assert not any(isinstance(rows, SparseRows) for rows in constants.values())


def test_batches_that_are_cut_anew_every_epoch_stay_dense() -> None:
    model = GCN(1_000, 5, num_layers=2, out_channels=3).double()
    top = TOP(model, graph(), ratio=0.25, rank=8, batches="random", regroup=True)
    constants = next(iter(top)).supplement.structure.constants
    assert not any(isinstance(rows, SparseRows) for rows in constants.values())


@pytest.mark.parametrize("regroup", [False, True])
def test_cluster_reads_entries_where_its_batches_are_kept(*, regroup: bool) -> None:
    cluster = Cluster(GCN(1_000, 5, num_layers=2, out_channels=3).double(), graph(), ratio=0.5, regroup=regroup)
    cluster.prepare()
    constants = next(iter(cluster.batches())).supplement.structure.constants
    assert any(isinstance(rows, SparseRows) for rows in constants.values()) is not regroup
