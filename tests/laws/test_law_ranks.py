"""Several processes are one: a step of one batch each is a step of one process over the same batches."""

from typing import Any

import pytest
import torch

from processes import alone, together
from shared_work import MODELS, graph, predicted, trained

SETTINGS: dict[str, dict[str, Any]] = {
    "gcn, batch norm": {"norm": "batch", "class_weight": "balanced"},
    "pna, clipped": {"model": "pna", "hidden": 4, "clip": 0.5, "optimizer": "sgd"},
    "sage, train only": {"model": "sage", "train_only": True, "weight_decay": 0.01},
    "gcnii, few": {"model": "gcnii-jk", "train_only": True, "few": True, "rank": 3},
    "regrouped": {"batches": "random", "regroup": True},
    "never refreshed": {"refresh": "never", "offset": False},
    "sampled": {"batches": "saint-walk"},
    "drop": {"method": "drop", "rank": None, "refresh": None},
}

KINDS: list[dict[str, Any]] = [{"train_only": True}, {"rank": 0}, {"estimator": "paper"}, {"rank": 0.9}]
EXACT = [*((kind, {}) for kind in MODELS), *(("gcn", settings) for settings in KINDS), ("gat", {"train_only": True})]


def same(one: dict[str, Any], other: dict[str, Any], *, to: float) -> None:
    """Demand equal losses, weights and scores."""
    assert one["losses"] == pytest.approx(other["losses"], rel=to)
    for name, weight in one["weights"].items():
        torch.testing.assert_close(weight, other["weights"][name], rtol=to, atol=to)
    assert one["best"] == pytest.approx(other["best"], rel=to)
    assert len(one["report"]) == len(other["report"])


@pytest.mark.filterwarnings("ignore::UserWarning")  # so small a graph is compensated badly
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_two_processes_are_one_that_accumulates(settings: dict[str, Any]) -> None:
    first, second = together(trained, settings)
    one = alone(trained, settings | {"accumulate": 2})
    assert len(one["losses"]) == 9  # three steps of two batches, the last of one
    same(first, one, to=1e-7 if "norm" in settings else 1e-9)  # units that hardly vary: a norm enlarges their rounding
    assert first["losses"] == second["losses"]
    assert all(torch.equal(weight, second["weights"][name]) for name, weight in first["weights"].items())


def test_four_processes_and_two_that_accumulate_take_the_same_steps() -> None:
    four = together(trained, {}, size=4)[0]
    two = together(trained, {"accumulate": 4})[0]
    same(four, two, to=1e-9)
    assert len(four["losses"]) == 6
    assert four["counts"]["steps"][1] == 6


def test_float32_to_a_thousandth() -> None:  # its Gram matrices, added up in another order, span other small directions
    first = together(trained, {"norm": "layer"}, torch.float32)[0]
    same(first, alone(trained, {"norm": "layer", "accumulate": 2}, torch.float32), to=1e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("kind", "settings"), EXACT, ids=repr)
def test_exact_inference_of_several_processes_is_exact(kind: str, settings: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = MODELS[kind]().double().eval()
    with torch.no_grad():
        truth = model(*(graph(directed=True)[key] for key in ("x", "edge_index")))
    for found in together(predicted, kind, settings):
        for one, other in zip(found, truth, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_an_orthonormal_basis_of_all_nodes_is_refused() -> None:
    for found in together(predicted, "gcn", {"estimator": "released"}):
        with pytest.raises(ValueError, match=r"Expected estimator 'ridge' or 'paper' with several processes \(got 'r"):
            raise found
