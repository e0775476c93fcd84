"""Gradients of several processes, added up in one message."""

import torch

from processes import alone, together
from shared_work import summed


def test_gradients_and_what_goes_with_them_are_added_up() -> None:
    expected = {
        "weight": [[3.0, 3.0], [3.0, 3.0]],  # 1 + 2
        "flipped": [[0.0, 3.0], [6.0, 9.0]],  # not contiguous
        "one": [2.0],  # the first process has none
        "none": None,
        "complex": [3 + 3j],
        "half": [3.0],
        "other": [3.0, 30.0],
    }
    for found in together(summed):
        assert found == expected


def test_alone_they_stay_as_they_are() -> None:
    found = alone(summed)
    assert found["weight"] == torch.ones(2, 2).tolist()
    assert found["none"] is None
    assert found["one"] is None
