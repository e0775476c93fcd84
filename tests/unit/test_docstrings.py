"""Every example in a docstring runs and prints what it says."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import topoff

MODULES = [
    "topoff",
    *(found.name for found in pkgutil.walk_packages(topoff.__path__, "topoff.") if "__main__" not in found.name),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_most_rooms_have_an_example() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    with_examples = [name for name in MODULES if any(found.examples for found in finder.find(import_module(name)))]
    assert len(with_examples) > len(MODULES) / 2
