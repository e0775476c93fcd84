"""What an evaluation computes: the output of the average, and that of the weights that train where it is wanted."""

import copy
from typing import Any

import pytest
import torch
from torch_geometric.nn import GCN

from graphs import communities
from topoff import load
from topoff.methods.full import Full
from topoff.training.average import Average
from topoff.training.scoring import examine


def trained() -> tuple[Full, Average, Any]:
    """Return a method whose weights have moved, their average, and a model that has its weights."""
    full = Full(GCN(5, 8, num_layers=2, out_channels=3), load(communities(60, dtype=torch.float32)))
    full.prepare()
    average = Average(full.model)
    for step in (1, 2, 3):
        for each in full.model.parameters():
            each.data += torch.randn_like(each)
        average.add(step)
    mean = copy.deepcopy(full.model)
    with average.in_place():
        mean.load_state_dict(full.model.state_dict())
    return full, average, mean


@pytest.mark.parametrize("whole", [False, True])
def test_the_average_is_scored_and_the_weights_that_train_are_looked_at_in_the_end(whole: bool) -> None:  # noqa: FBT001
    full, average, mean = trained()
    exam = examine(full, average, number=0, whole=whole)
    data = full.data
    with torch.no_grad():
        truth, own = mean.eval()(data.x, data.edge_index), full.model.eval()(data.x, data.edge_index)
    torch.testing.assert_close(exam.out, truth)
    assert not torch.allclose(truth, own)
    assert (exam.own is not None) is whole
    if exam.own is not None:
        torch.testing.assert_close(exam.own, own)
    assert exam.fidelity == pytest.approx(1.0)
    assert full.frozen is False


def test_an_average_that_fails_leaves_the_method_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    full, average, _ = trained()
    before = copy.deepcopy(full.model.state_dict())
    outputs = iter([(torch.zeros(60, 3), False)])
    monkeypatch.setattr(full, "exact", lambda: next(outputs))
    with pytest.raises(StopIteration):
        examine(full, average, number=0, whole=True)
    assert full.frozen is False
    assert all(torch.equal(each, before[name]) for name, each in full.model.state_dict().items())
