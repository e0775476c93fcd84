"""What all tests share: this folder is on the path, so that they can import `graphs`, and runs are repeatable."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same global generator."""
    torch.manual_seed(0)
