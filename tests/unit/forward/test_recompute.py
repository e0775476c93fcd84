"""What may be run again during backward, and what may not; tests/laws/test_law_recompute.py has the gradients."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch_geometric.nn as gnn

from topoff.forward.convs import describe
from topoff.forward.norms import Moments
from topoff.forward.plan import Plan
from topoff.forward.recompute import check_again

CONV = describe(gnn.GCNConv(2, 2))[0]
SEEN = Moments(torch.zeros(2, 2), {})


def handler(*, recomputable: object = True, by_place: bool = False, **plan: Any) -> Any:
    supplement = SimpleNamespace(plan=Plan([CONV], (), (), **plan))
    batch = SimpleNamespace(supplement=supplement)
    return SimpleNamespace(recomputable=recomputable, by_place=by_place, batch=batch)


def test_a_conv_whose_calls_are_alike_may_run_again() -> None:
    assert check_again(handler(known_hops={"": (1, 1)}, moments={"/0/0": SEEN}), CONV) == 2
    assert check_again(handler(by_place=True, known_hops={"": (0,)}), CONV) == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (handler(recomputable=False), r"GCNConv '' to run once per step \(got a second run during backward"),
        (handler(known_hops={"": (1, 0)}), r"read features in all its calls or in none \(got 2 calls that differ"),
        (handler(by_place=True, known_hops={"": (0, 0)}), r"run once in a forward .*\(got 2 calls.*offset=False"),
        (handler(moments={"/0/0": SEEN, "/1/0": SEEN}), r"run once in a forward .*\(got several calls of one norm"),
    ],
    ids=["not recomputable", "calls differ", "offsets differ", "a norm called twice"],
)
def test_what_cannot_be_told_apart_is_refused(given: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_again(given, CONV)
