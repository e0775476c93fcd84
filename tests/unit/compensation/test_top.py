"""TOP from the user's side: ten lines, refreshes, exact scores, fidelity, and clear refusals."""

import copy
import json
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GCN, GraphSAGE

import topoff
import topoff.compensation.passes
import topoff.compensation.top
import topoff.models.networks
from graphs import communities, corner_sets, corners, node_sets, six_node_sets, six_nodes
from topoff import TOP, NodeSets, predict
from topoff.compensation.features import leading_features
from topoff.compensation.fidelity import gradient_memory
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator
from topoff.methods.cluster import Cluster
from topoff.methods.drop import DropEmbeddings
from topoff.methods.top import Top


def small(**options: object) -> Data:
    return communities(dtype=torch.float32, **options)


def gcn(**options: object) -> GCN:
    return GCN(5, 16, num_layers=3, out_channels=4, **options)


def narrow() -> GCN:
    """Return a model of which even a small batch holds all directions, so that a basis of rank 15 spans."""
    return GCN(5, 4, num_layers=3, out_channels=4, act="tanh")  # ReLU may be silent in a whole batch


def top_of(model: nn.Module | None = None, data: Data | None = None, **options: object) -> TOP:
    """Wrap a model on the communities graph in four random batches, without warnings unless asked for."""
    chosen: dict[str, object] = {"ratio": 0.25, "rank": 8, "batches": "random", "tolerance": 10.0}
    return TOP(model or gcn(), data or small(), **(chosen | options))


def paper_of(model: nn.Module | None = None, data: Data | None = None, **options: object) -> TOP:
    """Do so without offsets, which are not cached."""
    return top_of(model, data, offset=False, **options)


def train(top: TOP, epochs: int, *, lr: float = 0.01) -> list[float]:
    """Train and return the mean loss of every epoch."""
    optimizer, losses = torch.optim.Adam(top.model.parameters(), lr=lr), []
    for _ in range(epochs):
        total, count = 0.0, 0
        for batch in top:
            loss = F.cross_entropy(top(batch)[batch.train_mask], batch.y[batch.train_mask])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, count = total + loss.item(), count + 1
        losses.append(total / count)
    return losses


# the ten lines


@pytest.mark.parametrize("method", ["kaminpar", "metis", "random"])
def test_the_ten_lines_run_and_the_loss_falls(method: str) -> None:
    data = small()
    model = GCN(data.num_features, 16, num_layers=3, out_channels=4)
    top = topoff.TOP(model, data, ratio=0.25, rank=8, batches=method, tolerance=10)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        for batch in top:
            out = top(batch)
            loss = F.cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    assert set(top.evaluate()) == {"train", "val", "test"}
    assert top.fidelity().output > 0.5


@pytest.mark.parametrize("estimator", ["ridge", "paper", "released"])
def test_every_estimator_trains(estimator: str) -> None:
    losses = train(top_of(estimator=estimator), 4)
    assert losses[-1] < losses[0]


def test_a_fraction_of_the_energy_is_a_rank() -> None:
    top = top_of(rank=0.9)
    top.prepare()
    assert 0 < top.compensator.rank_ < 40


def test_every_corner_trains() -> None:
    data = corners(dtype=torch.float32)
    top = top_of(GCN(4, 8, num_layers=2, out_channels=3), data, batches=node_sets(corner_sets()), rank=1)
    assert all(torch.isfinite(torch.tensor(train(top, 3))))


def test_one_batch_is_the_whole_graph() -> None:
    data, model = small(), gcn().eval()
    top = top_of(model, data, ratio=1.0)
    (batch,) = top
    expected = model(data.x, data.edge_index)
    assert torch.allclose(top(batch), expected[batch.n_id], atol=1e-5)


def test_the_symmetric_graph_of_the_paper_is_exact() -> None:
    data, model = six_nodes(), GCN(3, 8, num_layers=3, out_channels=2).double().eval()
    top = top_of(model, data, batches=node_sets(six_node_sets()), rank=3, ridge=0)
    assert top.fidelity().relative_error < 1e-9


# its own face


def test_length_repr_and_device() -> None:
    top = top_of(refresh="every=3")
    assert len(top) == 4
    assert repr(top) == "TOP(GCN, nodes=60, batches=4 x random, rank=8, estimator=ridge, refresh=every=3)"
    assert repr(top_of(refresh="never")).endswith("refresh=never)")
    assert top.device == torch.device("cpu")
    assert top.to("cpu") is top


def test_the_state_dict_is_the_models_own() -> None:
    model = gcn()
    top = top_of(model)
    top.prepare()
    assert list(top.state_dict()) == list(gcn().state_dict())
    other = gcn().state_dict()
    top.load_state_dict(other)
    assert all(torch.equal(value, other[name]) for name, value in model.state_dict().items())


def test_the_bare_model_behaves_as_before_between_batches() -> None:
    data, model = small(), gcn()
    expected = model(data.x, data.edge_index)
    top = top_of(model, data)
    for batch in top:
        top(batch)
        assert torch.equal(model(data.x, data.edge_index), expected)


def test_preparing_leaves_the_global_generator_and_the_mode_alone() -> None:
    top = top_of(gcn(dropout=0.5))
    before = torch.get_rng_state()
    top.prepare()
    assert torch.equal(torch.get_rng_state(), before)
    assert top.model.training
    assert top.prepare() is top.prepare()


def test_a_model_without_parameters_is_on_the_device_of_the_graph() -> None:
    top = top_of(gnn.APPNP(3, 0.2))
    assert top.device == torch.device("cpu")
    assert top.fidelity().output > 0.3


def test_node_sets_of_ones_own_are_used() -> None:
    data = small()
    sets = NodeSets(method="random", ratio=0.5, seed=3).fit(data)
    top = top_of(data=data, batches=sets)
    assert len(top) == 2
    assert sorted(batch.n_id.tolist() for batch in top) == sorted(nodes.tolist() for nodes in sets.of(0))


def test_progress_is_told_of_every_stage() -> None:
    told: list[tuple[str, int, int]] = []
    top_of(progress=lambda *report: told.append(report)).fidelity(gradients=True)
    stages = list(dict.fromkeys(what for what, _, _ in told))
    assert stages[:3] == ["partitioning", "basic embeddings", "compensating batches"]
    assert stages[3].startswith("gradient of the whole graph, about ")


def test_a_loop_left_early_does_not_shorten_the_next() -> None:
    top = top_of()
    next(iter(top))
    assert len(list(top)) == len(list(top)) == 4


def test_the_same_seed_gives_the_same_losses() -> None:
    runs = []
    for _ in range(2):
        torch.manual_seed(4)
        runs.append(train(top_of(gcn(dropout=0.3), refresh="every=1"), 3))
    assert runs[0] == runs[1]


def test_another_seed_gives_other_batches() -> None:
    first, second = ([batch.n_id.tolist() for batch in top_of(seed=seed)] for seed in (0, 1))
    assert sorted(first) != sorted(second)


# calling


def test_edge_attr_may_be_the_weight_of_a_gcn() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = gnn.GCNConv(5, 8), gnn.GCNConv(8, 4)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)

    data, model = small(weighted=True), Weighted().eval()
    data.edge_attr = data.edge_weight
    del data.edge_weight
    top = top_of(model, data, rank=12)
    assert torch.allclose(top.predict(), model(data.x, data.edge_index, data.edge_attr), atol=1e-5)
    assert top.plan.operators[0].weight == "edge_attr"
    assert top.fidelity().output > 0.8


def test_the_users_own_call_is_used() -> None:
    data, model = small(), gcn().eval()
    top = top_of(model, data, call=lambda module, batch: 2 * module(batch.x, batch.edge_index))
    assert torch.allclose(top.predict(), 2 * model(data.x, data.edge_index), atol=1e-5)
    assert top.fidelity().output > 0.5


def test_a_model_of_the_batch_itself() -> None:
    class OnData(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = gnn.SAGEConv(5, 4)

        def forward(self, data: Data) -> Tensor:
            return self.conv(data.x, data.edge_index)

    top = top_of(OnData())
    assert top.fidelity().relative_error < 1e-5  # one layer on raw features is exact


@pytest.mark.parametrize("where", ["elsewhere", "the graph itself"])
def test_a_batch_from_elsewhere_is_refused(where: str) -> None:
    top = top_of()
    top.prepare()
    batch = small() if where == "elsewhere" else top.graph.induced(torch.arange(5))
    with pytest.raises(
        ValueError, match=r"a batch of a TOP or Loader \(got a Data without its supplement\): use `for batch"
    ):
        top(batch)


def test_a_batch_carries_all_that_another_top_of_the_model_needs() -> None:
    model = gcn().eval()
    first = top_of(model)
    batch = next(iter(first))
    assert torch.equal(top_of(model)(batch), first(batch))


# refresh


def refreshes(top: TOP, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the epochs at whose start the basis is refreshed."""
    epochs: list[int] = []
    refresh = top.refresh

    def noted(**how: bool) -> Tensor:
        epochs.append(top.prepare().position.epoch)
        return refresh(**how)

    monkeypatch.setattr(top, "refresh", noted)
    return epochs


@pytest.mark.parametrize(
    ("policy", "expected"), [("every=2", [2, 4, 6]), ("every=1", [1, 2, 3, 4, 5, 6]), ("every=5", [5]), ("never", [])]
)
def test_the_basis_is_refreshed_at_the_right_epochs(
    policy: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    top = top_of(refresh=policy)
    epochs = refreshes(top, monkeypatch)
    for _ in range(7):
        list(top)
    assert epochs == expected


def test_an_evaluation_with_refresh_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    top = top_of(refresh="every=2")
    epochs = refreshes(top, monkeypatch)
    for epoch in range(5):
        list(top)
        if epoch == 0:
            top.evaluate(refresh=True)
    assert epochs == [1, 3]


def test_a_refresh_follows_the_model() -> None:
    top = top_of(narrow(), rank=15, ridge=0, inits=1)
    train(top, 3, lr=0.1)
    stale = top.fidelity().relative_error
    out = top.refresh()
    assert top.fidelity().relative_error < 0.2 * stale
    assert torch.allclose(out, top.predict(), atol=1e-5)


def test_old_offsets_are_let_go_while_a_refresh_goes_on_and_one_that_fails_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    top = top_of(refresh="every=5")
    train(top, 1)
    batch, left = top.cover()[0], list[set[str]]()
    offsets = batch.compensation.offsets
    places = {place for place, _ in offsets}
    (first, width), *_ = sorted((place, offset.size(1)) for (place, _), offset in offsets.items())

    def broken(_: nn.Module, collect: Callable[[str, Tensor], None], **__: object) -> None:
        """Hand over the rows of the first place alone."""
        collect(first, torch.zeros(int(top.data.num_nodes or 0), width))
        left.append({place for place, _ in offsets})
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(top.basis, "embed", broken)
        with pytest.raises(OSError, match="no space"):
            top.refresh()
    assert left == [places - {first}]
    assert not top.basis.whole
    learnt = top.refreshing.last
    next(iter(top))  # refreshed again, though the basis is young
    assert top.refreshing.last == learnt, "what is missing without offsets says nothing of how long they last"
    assert {place for place, _ in batch.compensation.offsets} == places
    assert top.fidelity().relative_error < 1e-5


def test_a_refresh_without_rank_is_a_prediction() -> None:
    top = top_of(rank=0)
    assert torch.allclose(top.refresh(), top.predict(), atol=1e-6)


@pytest.mark.parametrize("policy", ["", "every", "every=", "every=0", "every=-1", "every=1.5", "each=5"])
def test_other_policies_are_refused(policy: str) -> None:
    expected = rf"refresh to be 'auto', 'never' or 'every=E' with E >= 1 \(got '{policy}'\)"
    with pytest.raises(ValueError, match=expected):
        top_of(refresh=policy)


@pytest.mark.parametrize("policy", [5, None])
def test_a_policy_that_is_no_string_is_refused(policy: object) -> None:
    with pytest.raises(ValueError, match="refresh to be 'auto', 'never' or 'every=E'"):
        top_of(refresh=policy)


def test_an_automatic_basis_is_refreshed_as_often_as_it_ages(monkeypatch: pytest.MonkeyPatch) -> None:
    top = top_of(refresh="auto")
    epochs = refreshes(top, monkeypatch)
    for _ in range(9):
        list(top)  # a model that is not trained does not age: the interval doubles
    assert epochs == [1, 3, 7]
    assert repr(top).endswith("refresh=auto)")


def test_an_automatic_basis_follows_the_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    top = top_of(refresh="auto")
    epochs = refreshes(top, monkeypatch)
    told = iter([0.2, 0.01, 0.01, 0.9, 0.2])
    monkeypatch.setattr("topoff.compensation.certificate.Residual.pooled", lambda residual: certificates[-1])
    certificates: list[float] = []
    refresh = top.refresh

    def announced(**how: bool) -> Tensor:
        certificates.append(next(told))
        return refresh(**how)

    monkeypatch.setattr(top, "refresh", announced)
    for _ in range(13):
        list(top)
    assert epochs == [1, 3, 7]  # early ones close together, then as the price allows


def test_a_refresh_says_when_and_why() -> None:
    told: list[str] = []
    top = top_of(refresh="auto", progress=lambda what, done, total: told.append(what))
    list(top)
    list(top)
    assert [what for what in told if what.startswith("refreshed")] == [
        "refreshed at an age of 1: missed 0.0 % of the messages, little; the next one at 2 epochs"
    ]


def test_fixed_batches_let_go_of_the_basis_and_changing_ones_do_not() -> None:
    fixed, changing = top_of(), top_of(regroup=True, batches="kaminpar", parts=12)
    for top, kept in ((fixed, False), (changing, True)):
        top.prepare()
        assert top.compensator.is_fitted is kept
        top.refresh()
        assert top.compensator.is_fitted is kept


def test_when_a_refresh_is_due() -> None:
    top = top_of(refresh="every=2")
    top.prepare()
    due = []
    for _ in range(3):
        due.append(top.basis.due())
        list(top)
    assert due == [False, False, True]
    assert not top.basis.due()  # the third epoch began with one
    list(top)
    assert top.basis.due()
    top.refresh()
    assert not top.basis.due()


def test_without_a_basis_nothing_is_ever_due(monkeypatch: pytest.MonkeyPatch) -> None:
    top = paper_of(rank=0, refresh="every=1")
    epochs = refreshes(top, monkeypatch)
    for _ in range(3):
        list(top)
    assert epochs == []
    assert not top.basis.due()


# certificates


def test_a_certificate_above_the_tolerance_warns_at_a_refresh() -> None:
    top = paper_of(rank=1, tolerance=1e-6)
    top.prepare()
    with pytest.warns(UserWarning, match=r"misses \d+% of the messages .*\(tolerance 0%\): raise rank or inits"):
        top.refresh()


def test_a_certificate_above_the_tolerance_warns_at_once_where_nothing_is_refreshed() -> None:
    top = top_of(rank=1, tolerance=1e-6, refresh="never")
    with pytest.warns(UserWarning, match="refresh more often, or use larger or clustered batches"):
        top.prepare()


def test_a_certificate_within_the_tolerance_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        top_of(tolerance=10, refresh="never").prepare()


def test_the_certificate_is_of_a_held_out_initialization_then_of_the_old_basis() -> None:
    top = top_of(inits=2)
    before = top.certificate_
    assert before > 0
    assert top.certificate_ == before
    assert len(top.certificates_) == 4
    with torch.no_grad():
        for weights in top.model.parameters():
            weights.mul_(1.1)
    top.refresh()
    after = top.certificate_
    assert after != before
    top.refresh()
    assert top.certificate_ < after  # the basis is now of the very embeddings that it is shown


def test_a_model_that_casts_inside_is_certified_and_refreshed() -> None:
    class Casting(nn.Module):
        """Add up messages in another type than the features have."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.mean = nn.Linear(5, 4), gnn.SimpleConv(aggr="mean")

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.mean(self.first(x).relu().double(), edge_index).float()

    top = top_of(Casting(), small())
    assert 0 < top.certificate_ < 10
    top.refresh()
    assert top.certificate_ < 1e-3


def test_the_certificate_of_any_network_can_be_asked_for() -> None:
    model = narrow()
    top = top_of(model, rank=15, ridge=0)
    own = top.certify(model)
    assert own < 1e-2
    assert own == top.certificate_
    assert top.certify() > own


def test_rank_zero_is_certified_to_miss_everything() -> None:
    assert top_of(rank=0).certificate_ == 1


def test_every_batch_is_reported() -> None:
    top = top_of()
    reports = top.report()
    assert [report.nodes for report in reports] == [15] * 4
    assert all(report.rank > 0 and report.condition >= 1 for report in reports)
    assert [report.certificate for report in reports] == top.certificates_


# looking at the result


def test_scores_equal_those_of_a_plain_full_batch_evaluation() -> None:
    data, model = small(), gcn(dropout=0.5, norm="batch_norm")
    top = top_of(model, data)
    train(top, 3)
    scores = top.evaluate()
    model.eval()
    right = model(data.x, data.edge_index).argmax(1) == data.y
    for name in ("train", "val", "test"):
        assert scores[name] == pytest.approx(right[data[f"{name}_mask"]].double().mean().item())


def test_another_metric_can_be_asked_for() -> None:
    data = small()
    data.y = (data.y > 1).long()
    top = top_of(GCN(5, 8, num_layers=2, out_channels=2), data)
    assert top.evaluate(metric="roc_auc") != top.evaluate(metric="accuracy")


def test_an_evaluation_changes_nothing() -> None:
    top = top_of(gcn(dropout=0.5, norm="batch_norm"))
    batch = next(iter(top))
    generator, compensation = torch.get_rng_state(), batch.compensation
    state = copy.deepcopy(top.state_dict())
    top.evaluate()
    top.fidelity(gradients=True)
    assert torch.equal(torch.get_rng_state(), generator)
    assert batch.compensation is compensation
    assert top.model.training
    assert all(torch.equal(value, state[name]) for name, value in top.state_dict().items())
    assert all(parameter.grad is None for parameter in top.model.parameters())


def test_prediction_is_the_full_forward_in_eval_mode() -> None:
    data, model = small(), gcn(dropout=0.5)
    out = top_of(model, data).predict()
    model.eval()
    assert torch.allclose(out, model(data.x, data.edge_index), atol=1e-5)


def test_compensated_outputs_lie_near_the_exact_ones() -> None:
    top = paper_of()
    error = (top.outputs() - top.predict()).norm() / top.predict().norm()
    assert float(error) == pytest.approx(top.fidelity().relative_error, rel=1e-3)


def test_train_only_batches_leave_other_nodes_out_of_the_outputs_but_not_of_the_prediction() -> None:
    data = small()
    top = top_of(data=data, train_only=True, rank=4)
    outputs = top.outputs()
    assert torch.equal(outputs.isnan().any(1), ~data.train_mask)
    assert bool(torch.isfinite(top.predict()).all())
    losses = train(top, 3)
    assert losses[-1] < losses[0]


def test_regrouped_batches_train() -> None:
    top = top_of(regroup=True, batches="kaminpar", parts=12)
    sets = [sorted(tuple(batch.n_id.tolist()) for batch in top) for _ in range(2)]
    assert sets[0] != sets[1]
    losses = train(top, 3)
    assert losses[-1] < losses[0]


def test_fidelity_measures_outputs_layers_and_gradients() -> None:
    top = top_of(narrow(), rank=15, ridge=0, inits=1)
    fidelity = top.fidelity(gradients=True)
    assert fidelity.output == 1 - fidelity.relative_error
    assert [name for name, _ in fidelity.layers] == ["convs.1", "convs.2"]
    assert fidelity.gradient_error is not None
    assert fidelity.gradient_error < 0.2
    assert fidelity.gradient_cosine > 0.95
    assert fidelity.certificate == top.certificate_
    assert top_of().fidelity().gradient_error is None


def test_fidelity_takes_a_loss_of_ones_own() -> None:
    top = top_of()
    squares = top.fidelity(gradients=True, loss=lambda out, target: out.square().sum())
    assert squares.gradient_error != top.fidelity(gradients=True).gradient_error


def test_rank_zero_sees_nothing_outside_the_batch() -> None:
    data, model = communities(), gcn().double().eval()
    top = paper_of(model, data, rank=0)
    A = torch.from_numpy(Graph(data).aggregation(Operator(norm="gcn", self_loops=True)).matrix.toarray())
    for batch in top:
        inside, h = A[batch.n_id][:, batch.n_id], batch.x
        for conv in model.convs:
            h = (h if conv is model.convs[0] else h.relu()) @ conv.lin.weight.T
            h = inside @ h + conv.bias
        assert torch.allclose(top(batch), h, atol=1e-12)


def test_rank_zero_sees_nothing_outside_the_batch_on_the_general_path() -> None:
    data, model = communities(), gnn.GATConv(5, 4).double()
    top = paper_of(model, data, rank=0)
    for batch in top:
        alone = torch.zeros_like(data.x)
        alone[batch.n_id] = batch.x
        assert torch.allclose(top(batch), model(alone, data.edge_index)[batch.n_id], atol=1e-12)


def test_compensation_brings_outputs_nearer() -> None:
    model = gcn()
    errors = []
    for rank in (0, 12):
        top = paper_of(model, rank=rank)
        errors.append((top.outputs() - top.predict()).norm())
    assert errors[1] < 0.5 * errors[0]


def test_fidelity_of_rank_zero() -> None:
    fidelity = paper_of(rank=0).fidelity()
    assert [name for name, _ in fidelity.layers] == ["convs.1", "convs.2"]
    assert fidelity.output < 0.9


def test_the_memory_of_a_gradient_is_estimated() -> None:
    assert gradient_memory(top_of().model, top_of().data) == 4 * 60 * (16 + 16 + 4) * 4


# faster dropout


class Dropping(nn.Module):
    """Drops by a module of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = gnn.GCNConv(5, 8), nn.Dropout(0.5), gnn.GCNConv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.drop(self.first(x, edge_index).relu()), edge_index)


def test_faster_dropout_draws_other_masks_and_leaves_the_model_as_it_was() -> None:
    outputs = []
    for fast in (False, False, True):
        torch.manual_seed(0)
        model = Dropping()
        top = top_of(model, fast_dropout=fast)
        batch = next(iter(top))
        torch.manual_seed(1)
        outputs.append(top(batch))
        assert type(model.drop) is nn.Dropout
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_faster_dropout_changes_no_evaluation() -> None:
    model = Dropping()
    slow, fast = (top_of(model, fast_dropout=fast) for fast in (False, True))
    assert torch.equal(slow.predict(), fast.predict())
    assert torch.equal(slow.outputs(), fast.outputs())


# states


def losses_of(top: TOP, *, steps: int, optimizer: torch.optim.Optimizer) -> list[float]:
    """Take some steps, over several epochs if need be, the last of which is left where it stands."""
    found: list[float] = []
    while len(found) < steps:
        for batch in top:
            loss = F.cross_entropy(top(batch)[batch.train_mask], batch.y[batch.train_mask])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
            if len(found) == steps:
                break
    return found


@pytest.mark.parametrize("steps", [1, 4, 6])
@pytest.mark.parametrize(
    "options",
    [
        {"refresh": "never"},
        {"refresh": "every=1"},
        {"refresh": "adaptive", "regroup": True},
        {"refresh": "every=1", "train_only": True, "rank": 4},
        {"late": True},
    ],
    ids=str,
)
def test_a_restored_top_goes_on_to_the_bit(options: dict[str, object], steps: int) -> None:
    model = gcn()
    top = top_of(model, **options)
    losses_of(top, steps=steps, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state, fitted, weights = json.loads(json.dumps(top.state())), top.weights(), copy.deepcopy(model.state_dict())
    other = gcn()
    other.load_state_dict(weights)
    restored = top_of(other, **options)
    restored.restore(state, fitted)
    assert json.loads(json.dumps(restored.state())) == state
    loader = top.prepare()
    loader.load_state_dict(loader.state_dict())  # the epoch is not left but taken up
    ends = [torch.optim.SGD(one.model.parameters(), lr=0.1) for one in (top, restored)]
    rest = [losses_of(one, steps=7, optimizer=end) for one, end in zip((top, restored), ends, strict=True)]
    assert rest[0] == rest[1]


def test_a_late_first_estimate_leaves_the_first_epoch_without_compensation() -> None:
    model = gcn().eval()
    late, bare = top_of(model, late=True), DropEmbeddings(model, small(), ratio=0.25, batches="random")
    for one, other in zip(late, bare.batches(), strict=True):
        assert torch.allclose(late(one), bare.forward(other), atol=1e-6)
    assert (late.certificate_, late.basis.bare, late.refreshed_at) == (1.0, True, None)
    batch = next(iter(late))
    assert (late.basis.bare, late.refreshed_at, late.certificate_) == (False, 1, 1.0)
    assert torch.allclose(late(batch), late.predict()[batch.n_id], atol=1e-5)  # exact, as at every refresh


def test_batches_with_few_of_the_nodes_are_compensated_from_the_start() -> None:
    data = small()
    data.train_mask = torch.arange(data.num_nodes) % 10 == 0
    del data.val_mask, data.test_mask
    top = top_of(data=data, late=True, train_only=True, rank=1, ratio=0.5)
    top.prepare()
    assert not top.basis.bare


def test_norms_over_all_nodes_see_them_from_the_start() -> None:
    top = top_of(gcn(norm="GraphNorm"), late=True)
    top.prepare()
    assert not top.basis.bare
    assert top.plan.moments


@pytest.mark.parametrize("options", [{"refresh": "never"}, {"offset": False}], ids=str)
def test_without_refresh_or_offset_nothing_is_late(options: dict[str, object]) -> None:
    top = top_of(late=True, **options)
    top.prepare()
    assert not top.basis.bare


def test_late_where_nothing_lies_outside_misses_nothing() -> None:
    top = top_of(late=True, ratio=1.0)
    assert (len(list(top)), top.basis.bare, top.certificate_) == (1, True, 0.0)
    next(iter(top))
    assert (top.basis.bare, top.certificate_) == (False, 0.0)


def test_a_late_estimate_as_released() -> None:
    top = top_of(late=True, estimator="released", offset=True)
    list(top)
    next(iter(top))
    assert (top.basis.bare, top.compensator.rank_) == (False, 8)


def test_a_training_that_ends_before_its_first_estimate_says_so(caplog: pytest.LogCaptureFixture) -> None:
    method = Top(gcn(), small(), ratio=0.25, rank=8, batches="random", late=True, cache=False)
    next(iter(method.batches()))
    with caplog.at_level("INFO", logger="topoff"):
        method.freeze()
    assert "training ended within its first epoch" in caplog.text


def test_few_nodes_of_wide_features_have_fewer_directions_than_the_rank() -> None:
    data = Data(x=torch.rand(12, 300), edge_index=torch.stack([torch.arange(12), torch.arange(12).roll(1)]))
    graph = Graph(data)
    found = leading_features(graph, (Operator(),), 16)
    assert found.shape == (12, 12)
    assert torch.allclose(torch.linalg.svdvals(found), torch.linalg.svdvals(graph.propagated((Operator(),))), atol=1e-4)


def test_a_prepared_top_cannot_be_restored() -> None:
    top = top_of()
    state = top.state()
    with pytest.raises(
        RuntimeError, match=r"restore\(\) before anything is prepared \(got a prepared TOP\); make a new"
    ):
        top.restore(state, top.weights())


def test_the_weights_behind_the_basis_are_a_copy() -> None:
    top = top_of(refresh="never")
    before = copy.deepcopy(top.model.state_dict())
    train(top, 1)
    assert all(torch.equal(value, before[name]) for name, value in top.weights().items())
    top.refresh()
    assert all(torch.equal(value, top.model.state_dict()[name]) for name, value in top.weights().items())


# the cache


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path))
    return tmp_path


def compensations(top: TOP) -> list[Tensor]:
    """Return all matrices of all batches."""
    found: list[Tensor] = []
    for batch in top.prepare().batches():
        made = batch.compensation
        found += [made.read, *made.spread.values(), *made.halo.values()]
        found += [] if made.anchors is None else [made.anchors]
        found.append(torch.tensor([made.rank, made.condition]))
    return found


def equal(one: list[Tensor], two: list[Tensor]) -> bool:
    return len(one) == len(two) and all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def embeddings_of(top: TOP, monkeypatch: pytest.MonkeyPatch) -> int:
    """Prepare, and count the networks that are embedded."""
    calls = []
    embed = topoff.compensation.passes.embed

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(args)
        return embed(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr("topoff.compensation.passes.embed", counted)
        top.prepare()
    return len(calls)


def seeded(kind: Callable[[], nn.Module] = gcn) -> nn.Module:
    """Return a model with the weights of one seed."""
    torch.manual_seed(5)
    return kind()


KINDS: dict[str, Callable[[], nn.Module]] = {
    "linear path": gcn,
    "general path": lambda: gnn.GAT(5, 8, num_layers=2, out_channels=4, heads=2),
}


@pytest.mark.parametrize("options", [{}, {"estimator": "paper", "rank": 4}, {"train_only": True, "rank": 4}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_second_of_two_alike_embeds_nothing(
    kind: str, options: dict[str, object], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, first, second = (
        paper_of(seeded(KINDS[kind]), batches="kaminpar", refresh="every=1", cache=on, **options)
        for on in (False, True, True)
    )
    assert embeddings_of(first, monkeypatch) == 1
    assert embeddings_of(second, monkeypatch) == 0
    assert equal(compensations(plain), compensations(first))
    assert equal(compensations(first), compensations(second))
    assert second.compensator.rank_ == first.compensator.rank_
    assert second.certificate_ == first.certificate_
    assert train(first, 2) == train(second, 2) == train(plain, 2)  # through a refresh, too


def test_nothing_is_kept_unless_asked_for(cache: Path) -> None:
    paper_of(batches="kaminpar").prepare()
    assert list(cache.iterdir()) == []
    paper_of(cache=True, rank=0).prepare()
    assert list(cache.iterdir()) == []


class Doubled(GCN):
    """Has the weights of a GCN, and another forward."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(2 * x, edge_index)


class Tripled(GCN):
    """Differs from `Doubled` in a number."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(3 * x, edge_index)


def other_edges() -> Data:
    data = small()
    data.edge_index = data.edge_index[:, 2:]
    return data


def other_features() -> Data:
    data = small()
    data.x[0, 0] += 1
    return data


def network(**options: Any) -> Callable[[], nn.Module]:
    return lambda: topoff.models.networks.GCN(5, 16, out_channels=4, num_layers=3, **options)


def gcnii(**options: Any) -> Callable[[], nn.Module]:
    return lambda: topoff.models.networks.GCNII(5, 16, out_channels=4, num_layers=3, **options)


def of_sizes(kind: type[GCN]) -> Callable[[], nn.Module]:
    return lambda: kind(5, 16, num_layers=3, out_channels=4)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({}, {"seed": 1}),
        ({}, {"rank": 7}),
        ({}, {"ratio": 0.5}),
        ({}, {"estimator": "released"}),
        ({}, {"ridge": 0.1}),
        ({}, {"inits": 2}),
        ({}, {"refresh": "never", "inits": 1}),  # a wider regression
        ({"estimator": "paper"}, {"estimator": "paper", "anchors": 12}),
        ({}, {"data": other_edges()}),
        ({}, {"data": other_features()}),
        ({}, {"data": small(weighted=True)}),
        ({}, {"kind": of_sizes(Doubled)}),
        ({"kind": of_sizes(Doubled)}, {"kind": of_sizes(Tripled)}),
        ({}, {"kind": lambda: gcn(act="tanh")}),
        ({"kind": network()}, {"kind": network(residual=False)}),  # the same weights, the same repr
        ({"kind": gcnii()}, {"kind": gcnii(alpha=0.5)}),
    ],
    ids=lambda options: ",".join(options) or "plain",
)
def test_whatever_differs_is_estimated_anew(
    one: dict[str, Any], two: dict[str, Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(options: dict[str, Any], *, kept: bool) -> TOP:
        options = dict(options)
        return paper_of(seeded(options.pop("kind", gcn)), options.pop("data", None), cache=kept, **options)

    made(one, kept=True).prepare()
    other = made(two, kept=True)
    assert embeddings_of(other, monkeypatch) > 0
    assert equal(compensations(other), compensations(made(two, kept=False)))
    assert embeddings_of(made(one, kept=True), monkeypatch) == 0


def test_other_weights_are_estimated_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper_of(seeded(), cache=True).prepare()
    model = seeded()
    model.convs[0].bias.data[0] += 1e-3
    assert embeddings_of(paper_of(model, cache=True), monkeypatch) == 1


def test_other_versions_are_estimated_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper_of(seeded(), cache=True).prepare()
    for name in ("topoff", "torch", "torch_geometric"):
        with monkeypatch.context() as patch:
            patch.setattr(
                "topoff.compensation.fingerprint.version",
                lambda package, name=name: "9.9" if package == name else version(package),
            )
            assert embeddings_of(paper_of(seeded(), cache=True), monkeypatch) == 1


def test_a_call_of_ones_own_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def called(factor: float) -> TOP:
        return paper_of(seeded(), cache=True, call=lambda model, batch: model(factor * batch.x, batch.edge_index))

    embeddings_of(called(1.0), monkeypatch)
    second = called(9.0)
    assert embeddings_of(second, monkeypatch) == 1
    assert list(cache.iterdir()) == []


def test_regrouped_batches_are_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        top = paper_of(seeded(), cache=True, regroup=True)
        assert embeddings_of(top, monkeypatch) == 1
        assert len(list(top)) == len(list(top)) == 4


def test_a_damaged_file_is_made_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = paper_of(seeded(), cache=True)
    first.prepare()
    (file,) = cache.glob("compensation-*.npz")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    second = paper_of(seeded(), cache=True)
    with pytest.warns(RuntimeWarning, match=r"to be a readable cache file \(got .*\); it is built again"):
        assert embeddings_of(second, monkeypatch) == 1
    assert equal(compensations(first), compensations(second))
    assert embeddings_of(paper_of(seeded(), cache=True), monkeypatch) == 0


def test_a_restored_basis_is_taken_from_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = paper_of(seeded(), cache=True, refresh="every=1")
    train(top, 2)
    state, fitted = top.state(), top.weights()
    restored = [paper_of(seeded(), cache=True, refresh="every=1") for _ in range(2)]
    for one in restored:
        one.restore(state, fitted)
    assert equal(compensations(restored[0]), compensations(top))
    assert equal(compensations(restored[1]), compensations(top))


# initialisations


class Bare(nn.Module):
    """Has a parameter that nothing resets."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.first, self.second = nn.Parameter(torch.ones(5)), gnn.GCNConv(5, 8), gnn.GCNConv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x * self.scale, edge_index).relu(), edge_index)


@pytest.mark.parametrize(("inits", "columns"), [(1, 8), (2, 16), (3, 24)])
def test_every_initialization_adds_its_embeddings_to_the_basis(inits: int, columns: int) -> None:
    top = top_of(narrow(), inits=inits, batches="kaminpar", parts=12, regroup=True)  # which keeps its basis
    top.prepare()
    assert top.compensator.basis_.size(1) == columns + 5  # two hidden layers of 4 each, and the propagated features


def test_one_initialization_is_the_current_weights() -> None:
    top = top_of(narrow().double(), communities(), rank=15, ridge=0, inits=1)
    assert top.fidelity().relative_error < 1e-9


def test_a_parameter_that_nothing_resets_needs_one_initialization() -> None:
    with pytest.raises(ValueError, match=r"got parameter '.*scale' that nothing resets\).*inits=1"):
        top_of(Bare(), inits=2).prepare()
    assert len(train(top_of(Bare(), inits=1), 2)) == 2


@pytest.mark.parametrize("options", [{"inits": 1}, {"inits": 1, "refresh": "never"}, {}])
def test_one_initialization_is_enough_for_fidelity(options: dict[str, object]) -> None:
    assert top_of(Bare(), **options).fidelity().output > 0


def test_networks_of_ones_own_make_the_first_basis() -> None:
    model = narrow().double()
    top = top_of(model, communities(), rank=15, ridge=0)
    top.prepare(networks=[model])
    assert top.fidelity().relative_error < 1e-9


# shared convs


class Shared(nn.Module):
    """One conv for all layers, the first of which reads the features."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv, self.out = conv, nn.Linear(5, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for _ in range(3):
            x = self.conv(x, edge_index).relu()
        return self.out(x)


@pytest.mark.parametrize("conv", [gnn.GCNConv, gnn.SAGEConv, gnn.GATConv])  # made in the test: weights by its seed
def test_fidelity_of_a_conv_that_is_shared_by_all_layers(conv: type[nn.Module]) -> None:
    assert len(top_of(Shared(conv(5, 5))).fidelity().layers) >= 2


# devices


def test_batches_that_are_handed_out_elsewhere_stay_with_the_loader() -> None:
    top = top_of()
    kept = top.prepare().batches()
    top.to("meta")
    assert {batch.x.device.type for batch in top} == {"meta"}
    assert {batch.x.device.type for batch in kept} == {"cpu"}


# what is refused


def broken(**changes: object) -> Data:
    data = small()
    for name, value in changes.items():
        data[name] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (broken(x=torch.full((60, 5), torch.nan)), "'x' to be finite"),
        (broken(edge_index=torch.tensor([[0], [99]])), "node ids from 0 to 59"),
        (broken(train_mask=None), "'train_mask' to be given"),
        (broken(y=torch.zeros(3)), "'y' to have 60 rows"),
        (broken(adj_t=1), "'adj_t'"),
    ],
    ids=["NaN", "edges", "mask", "labels", "adj_t"],
)
def test_bad_graphs_are_refused(data: Data, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TOP(gcn(), data)


def test_graphs_with_types_are_refused() -> None:
    with pytest.raises(TypeError, match=r"homogeneous PyG Data \(got HeteroData\)"):
        TOP(gcn(), HeteroData())


def test_no_initialization_is_refused() -> None:
    with pytest.raises(ValueError, match=r"inits to be at least 1 \(got 0\)"):
        top_of(inits=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": -1}, "rank to be a whole number"),
        ({"estimator": "lasso"}, "estimator to be one of"),
        ({"ridge": -1.0}, "ridge to be at least 0"),
        ({"anchors": 0}, "anchors to be at least 1"),
        ({"ratio": 0.0}, "'ratio' to be in"),
        ({"batches": "kmeans"}, "'method' to be one of"),
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused_at_first_use(options: dict[str, object], message: str) -> None:
    top = top_of(**options)
    with pytest.raises(ValueError, match=message):
        top.prepare()


def test_a_rank_above_the_batch_size_warns() -> None:
    with pytest.warns(UserWarning, match="rank 32 exceeds a batch of 15 nodes"):
        top_of(rank=32).prepare()


def test_models_that_cannot_be_batched_are_refused_at_first_use() -> None:
    with pytest.raises(ValueError, match="reads the zeros that fill"):
        next(iter(top_of(GraphSAGE(5, 8, 2, 3, aggr="lstm"))))


# predict, without TOP


@pytest.mark.parametrize("method", ["kaminpar", "random"])
def test_exact_prediction_needs_neither_labels_nor_masks(method: str) -> None:
    data, model = small(), gcn(dropout=0.5)
    bare = Data(x=data.x, edge_index=data.edge_index)
    out = predict(model, bare, ratio=0.3, batches=method, seed=2)
    assert model.training
    model.eval()
    assert torch.allclose(out, model(data.x, data.edge_index), atol=1e-5)


def test_exact_prediction_takes_the_users_own_call() -> None:
    data, model = small(), gcn().eval()
    out = predict(model, data, ratio=0.5, call=lambda module, batch: -module(batch.x, batch.edge_index))
    assert torch.allclose(out, -model(data.x, data.edge_index), atol=1e-5)


def test_exact_prediction_refuses_bad_graphs_and_models() -> None:
    with pytest.raises(ValueError, match="'x' to be finite"):
        predict(gcn(), broken(x=torch.full((60, 5), torch.nan)))
    with pytest.raises(ValueError, match="reads the zeros that fill"):
        predict(GraphSAGE(5, 8, 2, 3, aggr="lstm"), small())


@pytest.mark.parametrize("model", ["gcn", GCN], ids=["a name", "a class"])
def test_a_model_is_an_instance(model: object) -> None:
    with pytest.raises(TypeError, match=r"the model to be a torch.nn.Module \(got .*\); pass one, such as GCN"):
        TOP(model, communities())
    with pytest.raises(TypeError, match=r"the model to be a torch.nn.Module \(got .*\); pass one, such as GCN"):
        predict(model, communities())


def test_an_interrupted_preparation_can_be_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    top = top_of()
    with monkeypatch.context() as patch:
        patch.setattr(topoff.compensation.passes, "embed", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            top.prepare()
    assert len(list(top)) == len(top)
    assert top.fidelity().output > 0.5


# graphs as users have them: without labels, and with more than features and edges


def bare(**more: object) -> Data:
    """Return a graph without labels and masks, and with whatever else."""
    data = small()
    return Data(x=data.x, edge_index=data.edge_index, **more)


@pytest.mark.parametrize("batches", ["random", "metis", "saint-walk", "shadow", "ibmb"])
@pytest.mark.parametrize("kind", [gcn, lambda: gnn.GAT(5, 8, num_layers=2, out_channels=4)], ids=["linear", "general"])
def test_self_supervised_training_needs_neither_labels_nor_masks(kind: Callable[[], nn.Module], batches: str) -> None:
    model = kind()
    top = top_of(model, bare(), batches=batches)
    optimizer, seen = torch.optim.Adam(model.parameters()), []
    for batch in [*top, *top]:
        assert not {"y", "train_mask"} & set(batch.keys())
        seen.append(batch.n_id)
        loss = top(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if batches in ("random", "metis"):
        assert sorted(torch.cat(seen).tolist()) == sorted([*range(60), *range(60)])
    assert torch.allclose(top.predict(), model.eval()(top.data.x, top.data.edge_index), atol=1e-4)
    assert top.fidelity().output > 0
    assert len(top.report()) == len(top)


def test_scores_and_gradients_of_a_graph_without_labels_are_refused_before_anything_is_prepared() -> None:
    top = top_of(data=bare())
    for ask, purpose in ((top.evaluate, r"evaluate\(\)"), (lambda: top.fidelity(gradients=True), "gradients=True")):
        with pytest.raises(ValueError, match=rf"labels and masks for .*{purpose}.* \(got a graph without labels, 'y'"):
            ask()
    with pytest.raises(ValueError, match=r"'data.train_mask' .* for train_only=True or a reach \(got none\)"):
        top_of(data=bare(), train_only=True).prepare()
    with pytest.raises(ValueError, match="got a graph without masks"):
        top_of(data=bare(y=torch.zeros(60, dtype=torch.long))).evaluate()
    with pytest.raises(ValueError, match=r"'y' to be a dense torch.Tensor \(got nothing\)"):
        Cluster(gcn(), bare())  # methods of the command line learn from labels


def test_scores_are_of_the_masks_that_there_are() -> None:
    data = small()
    del data.val_mask
    assert list(top_of(data=data).evaluate()) == ["train", "test"]


class OfEverything(nn.Module):
    """Read all that a graph carries, per node, per edge and as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.kinds, self.table = gnn.GCNConv(5, 4), nn.Embedding(3, 4), nn.Embedding(60, 4)
        self.last = gnn.GCNConv(4, 4)

    def forward(self, data: Data) -> Tensor:
        assert len(data.texts) == len(data.years) == data.num_nodes
        assert len(data.edge_texts) == data.num_edges
        lengths = torch.tensor([[float(len(text))] for text in data.texts])
        years = torch.from_numpy(data.years).float().view(-1, 1)
        h = self.conv(data.x, data.edge_index) + self.kinds(data.kind) + self.table(data.number)
        h = h * data.u * data.settings["scale"] + lengths + years
        return self.last(h.tanh(), data.edge_index)


def test_a_model_of_the_batch_finds_all_that_the_graph_carries() -> None:
    data, edges = bare(), small().num_edges
    data.texts, data.years, data.edge_texts = ["a" * (i % 5) for i in range(60)], torch.rand(60).numpy(), ["e"] * edges
    data.kind, data.number, data.u, data.settings = (
        torch.arange(60) % 3,
        torch.arange(60),
        torch.rand(1, 4),
        {"scale": 2},
    )
    model = OfEverything()
    top = top_of(model, data, rank=15)
    for batch in top:
        top(batch).sum().backward()
    assert torch.allclose(top.predict(), model.eval()(data), atol=1e-5)
    assert torch.allclose(predict(model, data, batches="random"), model(data), atol=1e-5)
    assert top.fidelity().output > 0.5
    whole = Graph(top.data).induced(torch.arange(60))
    assert whole.u is top.data.u


def test_a_conv_reads_integers_of_its_halo() -> None:
    data = bare()
    data.node_type, data.edge_type = torch.arange(60) % 3, torch.arange(data.num_edges) % 2
    around = Graph(data).neighborhood(torch.arange(10))
    assert around.features["node_type"].equal(data.node_type[around.halo])


def test_another_attribute_that_a_model_reads_is_estimated_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Shifted(GCN):
        def forward(self, data: Data) -> Tensor:
            return super().forward(data.x + data.pe * data.u, data.edge_index)

    def made(**more: object) -> TOP:
        data = small()
        data.pe, data.u = torch.ones(60, 5), 1.0
        for name, value in more.items():
            data[name] = value
        return paper_of(seeded(lambda: Shifted(5, 16, num_layers=3, out_channels=4)), data, cache=True)

    made().prepare()
    assert embeddings_of(made(), monkeypatch) == 0
    assert embeddings_of(made(pe=2 * torch.ones(60, 5)), monkeypatch) > 0
    assert embeddings_of(made(u=2.0), monkeypatch) > 0
