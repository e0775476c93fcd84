"""What all tests share: this folder is on the path, so that they can import `graphs`; every test is repeatable."""

from collections.abc import Iterator

import pytest
import torch

from commands import Command, Done, call


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
