"""What all tests share: this folder is on the path, so that they can import `graphs`; every test is repeatable."""

from collections.abc import Iterator

import pytest
import torch
import torch_geometric.nn as gnn

from commands import Command, Done, call

FORWARD = gnn.Sequential.forward


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test from the same global generator."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Run on one thread, which is faster on graphs this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a verb in this process as `python -m topoff` does."""

    def run(*arguments: object, code: int = 0) -> Done:
        return call(*arguments, capture=capsys, code=code)

    return run


@pytest.fixture(autouse=True)
def _own_sequential() -> Iterator[None]:
    """Undo what PyG's Sequential does to its class: an instance whose template fails would run that of another."""
    yield
    gnn.Sequential.forward = FORWARD
