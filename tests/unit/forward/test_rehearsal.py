"""A copy of the model on a piece: in float64, with weights that are not zero; what it shows, and what it refuses."""

import copy
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphs import corners
from topoff.forward.call import Call
from topoff.forward.convs import describe
from topoff.forward.difference import relative_error
from topoff.forward.lockstep import Lockstep
from topoff.forward.rehearsal import COARSE, TOLERANCE, Rehearsal
from topoff.forward.trial import Tainted, make_plan
from topoff.forward.watch import Tracer, Watch
from topoff.graph.graph import Graph


class Model(nn.Module):
    """A conv, a gate that is closed at first, and a forward given as a function of (model, x, edge_index)."""

    def __init__(self, forward: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.conv, self.gate = gnn.GCNConv(4, 3), nn.Linear(4, 3)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        self.run = forward or (lambda m, x, e: m.conv(x, e) + m.gate(x))

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.run(self, x, edge_index)


def piece() -> Data:
    data = corners(dtype=torch.float32)
    data.n_id = torch.arange(14)
    return data


def rehearsed(
    forward: Callable[..., Any] | None = None, *, perturbed: bool = True, call: Call | None = None
) -> Rehearsal:
    return Rehearsal(Model(forward), piece(), call=call, perturbed=perturbed)


# the copy


def test_a_copy_in_float64_is_rehearsed_and_the_model_left_alone() -> None:
    model, data = Model(), piece()
    before, draws = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    rehearsal = Rehearsal(model, data, call=None, perturbed=True)
    assert {parameter.dtype for parameter in rehearsal.model.parameters()} == {torch.float64}
    assert rehearsal.piece.x.dtype == rehearsal.expected.dtype == torch.float64
    assert rehearsal.piece.y.dtype == torch.int64
    assert rehearsal.tolerance == TOLERANCE
    assert data.x.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), draws)
    assert model.training
    assert torch.get_default_dtype() == torch.float32


def test_perturbed_weights_are_not_zero_and_the_same_every_time() -> None:
    first, again, own = rehearsed(), rehearsed(), rehearsed(perturbed=False)
    assert bool((first.model.gate.weight != 0).all())
    assert torch.equal(first.model.gate.weight, again.model.gate.weight)
    assert not own.model.gate.weight.any()


def test_a_perturbation_is_of_the_size_of_the_weights() -> None:
    model = Model()
    nn.init.constant_(model.conv.lin.weight, 100.0)
    moved = Rehearsal(model, piece(), call=None, perturbed=True).model.conv.lin.weight - 100
    assert 5 < moved.abs().mean() < 100


def test_a_model_that_runs_in_its_own_type_alone_is_rehearsed_in_it() -> None:
    def forward(model: Model, x: Tensor, edge_index: Tensor) -> Tensor:
        return model.conv(x.float(), edge_index)

    rehearsal = rehearsed(forward)
    assert rehearsal.expected.dtype == torch.float32
    assert rehearsal.tolerance == COARSE
    assert rehearsal.model.gate.weight.all(), "perturbed all the same"


def test_weights_that_lead_to_infinity_are_not_perturbed() -> None:
    def forward(model: Model, x: Tensor, edge_index: Tensor) -> Tensor:
        return model.conv(x, edge_index) / (1 - model.gate.bias.abs().sum().sign())  # 1 / 0 where it is not zero

    rehearsal = rehearsed(forward)
    assert rehearsal.expected.isfinite().all()
    assert rehearsal.tolerance == TOLERANCE
    assert not rehearsal.model.gate.bias.any()


def test_tensors_that_the_model_makes_have_its_type() -> None:
    rehearsal = rehearsed(lambda m, x, e: m.conv(x, e) + torch.ones(3))
    assert rehearsal.expected.dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32


def test_results_that_a_model_keeps_can_be_copied() -> None:
    def forward(model: Model, x: Tensor, edge_index: Tensor) -> Tensor:
        model.kept = model.conv(x, edge_index)
        return model.kept

    model = Model(forward)
    model(piece().x, piece().edge_index)
    assert not model.kept.is_leaf
    Rehearsal(model, piece(), call=None, perturbed=True)
    assert not model.kept.is_leaf


def test_what_trains_is_a_copy() -> None:
    rehearsal = rehearsed()
    assert rehearsal.copy(training=True).gate.weight is not rehearsal.model.gate.weight
    assert rehearsal.copy(training=False) is rehearsal.model


# what does not run


def test_a_model_that_does_not_run_on_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(got tests.*, in <lambda>: RuntimeError: .*; on 14 of its nodes\)"):
        rehearsed(lambda m, x, e: m.conv(x, e) + torch.ones(20, 3))


def test_a_sentence_of_our_own_is_not_wrapped() -> None:
    def call(model: nn.Module, batch: Data) -> Tensor:
        raise ValueError("Expected something else (got this): do that.")

    with pytest.raises(ValueError, match=r"^Expected something else \(got this\): do that\.$"):
        rehearsed(call=call)


def test_with_the_weights_as_they_are_an_error_is_the_models_own() -> None:
    def forward(model: Model, x: Tensor, edge_index: Tensor) -> Tensor:
        raise ArithmeticError("the model's own trouble")

    with pytest.raises(ArithmeticError, match=r"^the model's own trouble$"):
        rehearsed(forward, perturbed=False)


def test_attention_that_runs_is_refused_by_name() -> None:
    model = Model(lambda m, x, e: m.gate(x, e))
    model.gate = gnn.GPSConv(4, gnn.GCNConv(4, 4), heads=1)
    with pytest.raises(ValueError, match="got GPSConv 'gate', which attends over all nodes"):
        Rehearsal(model, piece(), call=None, perturbed=True)


# tracing


def trace(rehearsal: Rehearsal) -> None:
    model = rehearsal.copy(training=True)
    watch = Watch([rehearsal.piece.edge_index])
    rehearsal.trace(model, Tracer(describe(model), rehearsal.graph, watch), watch, training=True)


def test_a_model_that_writes_into_its_features_is_refused() -> None:
    def forward(model: Model, x: Tensor, edge_index: Tensor) -> Tensor:
        x[:, 0] = 0
        return model.conv(x, edge_index)

    with pytest.raises(ValueError, match=r"leave its input features alone \(got 'x' changed in place\): write"):
        trace(rehearsed(forward))


def test_tracing_draws_from_no_generator() -> None:
    def forward(model: Model, x: Tensor, edge_index: Tensor) -> Tensor:
        if model.training:
            _ = torch.rand(1), random.random(), np.random.rand()  # noqa: NPY002 - as users do
        return model.conv(x, edge_index)

    rehearsal = rehearsed(forward)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    trace(rehearsal)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002


# the checks


def test_a_model_that_is_random_in_eval_mode_is_refused() -> None:
    rehearsed(lambda m, x, e: m.conv(F.dropout(x, training=m.training), e)).check_repeatable()
    random = rehearsed(lambda m, x, e: m.conv(F.dropout(x), e))
    with pytest.raises(ValueError, match=r"same output twice in eval mode \(got two different ones\): look"):
        random.check_repeatable()


def test_a_branch_on_the_number_of_nodes_is_refused() -> None:
    branch = rehearsed(lambda m, x, e: m.conv(x, e) * (2 if len(x) > 100 else 1))
    branch.check_apart(100)
    with pytest.raises(ValueError, match=r"got another one after 87 nodes .* were added to 14.*number of nodes"):
        branch.check_apart(101)


def test_outputs_beside_the_rows_may_not_depend_on_the_number_either() -> None:
    rehearsed(lambda m, x, e: (m.conv(x, e), m.gate.weight.sum())).check_apart(50)
    with pytest.raises(ValueError, match="over all nodes or edges"):
        rehearsed(lambda m, x, e: (m.conv(x, e), m.conv(x, e).mean())).check_apart(50)


def compare(forward: Callable[..., Any], kind: type[Lockstep] = Lockstep) -> None:
    """Compare with the plan of another model with the same conv."""
    rehearsal = rehearsed(forward)
    plan = make_plan(Model(lambda m, x, e: m.conv(m.gate(x).tanh() @ m.gate.weight, e)), Graph(piece()))
    rehearsal.compare(lambda: rehearsal.lockstep(plan, kind=kind))


@pytest.mark.parametrize("kind", [Lockstep, Tainted])
def test_exact_batches_of_a_model_of_neighbours_agree(kind: type[Lockstep]) -> None:
    compare(lambda m, x, e: m.conv(x, e).relu(), kind)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (
            lambda m, x, e: m.conv(x, e) + m.gate(x - x.sum(0)),
            r"neighbours alone \(got another one after 28 nodes .* added to 14, first at the output of Linear",
        ),
        (lambda m, x, e: m.conv(x, e) + x.sum(0)[:3], r"added to 14, behind its last layer\): look for a mean"),
        (
            lambda m, x, e: m.conv(x, e) + x.mean(0)[:3],
            r"got another one after 28 nodes",
        ),
        (
            lambda m, x, e: m.conv(x, e) * (1 if len(x) > 5 else 2),
            r"got another one after \d+ nodes .* were added to",
        ),
    ],
    ids=["in a layer", "behind the layers", "mean", "few nodes"],
)
def test_a_difference_is_named_by_its_place_or_its_cause(forward: Callable[..., Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compare(forward)


def test_three_batches_hold_every_node_once() -> None:
    rehearsal = rehearsed()
    found = rehearsal.lockstep(make_plan(Model(), Graph(piece())))
    assert len(found.batches) == 3
    assert torch.cat([batch.nodes for batch in found.batches]).sort().values.tolist() == list(range(14))


# how far two outputs are apart


@pytest.mark.parametrize(
    ("value", "truth", "error"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]), 0.5),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0]), float("inf")),
        (torch.tensor([torch.nan]), torch.tensor([1.0]), float("inf")),
        (torch.empty(0), torch.empty(0), 0.0),
        (torch.zeros(2), torch.zeros(2), 0.0),
        ({"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0)}, 0.5),
        ((torch.tensor(1.0), torch.tensor(3.0)), (torch.tensor(1.0), torch.tensor(2.0)), 0.5),
        ((torch.tensor(1.0), "text", None), (torch.tensor(1.0), "text", None), 0.0),
        ([], [], 0.0),
    ],
)
def test_relative_errors(value: Any, truth: Any, error: float) -> None:
    assert relative_error(value, truth) == pytest.approx(error)


def test_models_that_cannot_be_copied_are_rehearsed_themselves() -> None:
    model = Model(lambda m, x, e: m.conv(x, e))
    model.lock = threading.Lock()
    rehearsal = Rehearsal(model, piece(), call=None, perturbed=True)
    assert rehearsal.model is model
    assert rehearsal.dtype is None
