"""Errors of batches against the exact forward, on a model trained full-batch."""

import copy

import pytest
import torch
from torch_geometric.nn import GCN

from graphs import communities
from topoff.batching.node_sets import NodeSets
from topoff.experiments.measure import FullBatchModel, check_methods, exact_output, measure, train_full_batch

pytestmark = pytest.mark.filterwarnings("ignore:The compensation misses")


@pytest.fixture(scope="module")
def trained() -> FullBatchModel:
    torch.manual_seed(0)
    model = GCN(5, 8, num_layers=3, out_channels=4).double()
    return train_full_batch(model, communities(), epochs=20, lr=0.02)


def found(trained: FullBatchModel, *methods: str, **settings: object) -> dict[str, dict[str, float]]:
    sets = NodeSets(method="random", ratio=0.25).fit(communities())
    return measure(trained, communities(), sets=sets, methods=methods, rank=12, inits=2, **settings)


def test_compensation_misses_less_than_batches_alone(trained: FullBatchModel) -> None:
    result = found(trained, "top", "cluster", "drop")
    assert result["top"]["relative_error"] < 0.7 * min(result[name]["relative_error"] for name in ("cluster", "drop"))
    assert result["top"]["gradient_cosine"] > 0.5
    assert set(result["top"]) - set(result["drop"]) == {"certificate"}


def test_gradients_are_left_out_on_request(trained: FullBatchModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = found(trained, "top", "gas")
    monkeypatch.setattr("topoff.experiments.measure.gradient", lambda *_, **__: pytest.fail("a gradient was computed"))
    part = found(trained, "top", "gas", gradients=False)
    for method, errors in whole.items():
        kept = {key: value for key, value in errors.items() if not key.startswith("gradient")}
        assert part[method] == kept
        assert len(kept) == len(errors) - 2


def test_an_exact_output_that_is_known_is_not_computed_again(
    trained: FullBatchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = NodeSets(method="random", ratio=0.25).fit(communities())
    truth, whole = exact_output(trained.model, communities(), sets=sets), found(trained, "top", gradients=False)
    monkeypatch.setattr("topoff.experiments.measure.TOP.predict", lambda _: pytest.fail("it was computed"))
    assert found(trained, "top", gradients=False, truth=truth) == whole


def test_histories_are_those_of_a_training_epoch(trained: FullBatchModel) -> None:
    before = copy.deepcopy(trained.model.state_dict())
    errors = [found(trained, "gas", lr=lr)["gas"]["relative_error"] for lr in (1e-9, 0.01, 0.1)]
    assert errors[0] < 1e-6  # with frozen weights histories are exact
    assert errors[0] < errors[1] < errors[2] < 1
    assert all(torch.equal(before[key], value) for key, value in trained.model.state_dict().items())


def test_an_unknown_method_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"Expected methods to be among top, cluster, drop, gas \(got 'lmc'\)"):
        check_methods(("top", "lmc"))


def test_an_age_beyond_the_training_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Expected refresh-age to be between 0 and epochs = 2 \(got 3\)"):
        train_full_batch(GCN(5, 8, num_layers=1), communities(), epochs=2, lr=0.1, age=3)


@pytest.mark.parametrize("age", [0, 3])
def test_histories_of_an_earlier_model_are_offsets_alone(age: int) -> None:
    """Compare GAS and TOP on equal terms: at the same weights, both from the same earlier ones."""
    torch.manual_seed(0)
    aged = train_full_batch(
        GCN(5, 8, num_layers=3, out_channels=4).double(), communities(), epochs=20, lr=0.02, age=age
    )
    before = copy.deepcopy(aged.model.state_dict())
    sets = NodeSets(method="random", ratio=0.25).fit(communities())
    given = {"sets": sets, "methods": ("top", "gas"), "rank": 0, "refresh": "every=100", "inits": 1}
    result = measure(aged, communities(), **given)
    assert result["gas"]["relative_error"] == pytest.approx(result["top"]["relative_error"], rel=1e-9, abs=1e-12)
    assert (result["gas"]["relative_error"] > 1e-4) == (age > 0)
    assert result["gas"]["gradient_cosine"] < 1
    assert all(torch.equal(before[key], value) for key, value in aged.model.state_dict().items())
