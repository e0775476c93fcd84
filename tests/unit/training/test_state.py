"""What a resumed run must find as it was, and weights that are none."""

import pytest
import torch
from torch import nn

from topoff.training.state import load_weights


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ({"weight": torch.ones(1, 2, dtype=torch.long)}, r"'weight' in x to hold numbers of type torch.float32 \(got"),
        ({"weight": torch.ones(1, 2, dtype=torch.complex64)}, r"'weight' in x to hold numbers of type torch.float32"),
        ({"weight": torch.tensor([[1.0, float("nan")]])}, r"'weight' in x to be finite \(got NaN\)"),
        (
            {"weight": torch.ones(2, 2)},
            r"the weights in x to fit the model 'mine' \(got .*size mismatch.*; restore",
        ),
        ({}, r"the weights in x to fit the model 'mine' \(got .*Missing key.*; restore the"),
    ],
)
def test_weights_that_are_none_are_refused(weights: dict[str, torch.Tensor], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        load_weights(nn.Linear(2, 1, bias=False), weights, origin="x", name="mine")
