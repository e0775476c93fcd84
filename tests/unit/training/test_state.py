"""What a resumed run must find as it was, and weights that are none."""

from pathlib import Path

import pytest
import torch
from torch import nn

import topoff
from topoff.data.generate import generate
from topoff.data.recipe import Recipe
from topoff.training.state import data_hash, load_weights


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


def test_the_content_of_a_store_is_the_same_mapped_and_read(tmp_path: Path) -> None:
    for seed in (1, 2):
        recipe = Recipe(nodes=60, edges=300, features=3, classes=2, split=(0.2, 0.1, 0.1))
        generate(recipe, tmp_path / str(seed), seed=seed, dtype="float16")
    mapped, read = (topoff.load(tmp_path / "1", in_memory=in_memory) for in_memory in (False, True))
    assert mapped.x.dtype != read.x.dtype
    assert data_hash(mapped) == data_hash(read) != data_hash(topoff.load(tmp_path / "2"))
