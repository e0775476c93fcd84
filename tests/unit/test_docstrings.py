"""Every example in a docstring runs and prints what it says, and every module that can show its use does."""

import doctest
import inspect
import pkgutil
from importlib import import_module
from types import ModuleType

import pytest

import topoff

MODULES = [
    "topoff",
    *(found.name for found in pkgutil.walk_packages(topoff.__path__, "topoff.") if "__main__" not in found.name),
]
WITHOUT = {  # modules that need no example, and why
    "cli.app": "runs the verbs, each of which has its own",
    "cli.compare_progress": "draws on a terminal",
    "cli.progress": "draws on a terminal",
    "cli.summaries": "draws on a terminal",
    "data.planetoid": "needs raw files in place",
    "data.pyg_datasets": "needs a network, or raw files in place",
    "experiments.page": "reads the folders of a whole comparison",
    "forward.member": "one batch inside of forward.exact",
    "methods.base": "abstract: methods.cluster shows its use",
    "methods.exchange": "the inside of methods.lmc",
    "methods.protocol": "says what methods have; runs nothing",
    "methods.sampled_layers": "abstract: methods.neighbour_sampling shows its use",
    "training.loop": "trains into a run folder: examples/quickstart.py shows a loop",
    "training.result": "reads a training at its end",
    "training.seed": "trains into a run folder",
    "training.trained": "reads the folder of a finished run",
}


def is_public(module: ModuleType) -> bool:
    """Tell whether a module defines a public function or class."""
    made = [value for name, value in vars(module).items() if not name.startswith("_")]
    kinds = [value for value in made if inspect.isfunction(value) or inspect.isclass(value)]
    return any(value.__module__ == module.__name__ for value in kinds)


def has_example(module: ModuleType) -> bool:
    """Tell whether a docstring has an example; that of a verb is a command line in its help."""
    found = doctest.DocTestFinder(exclude_empty=True).find(module)
    return any(test.examples for test in found) or hasattr(module, "EXAMPLES")


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


@pytest.mark.parametrize("name", [name for name in MODULES if name.removeprefix("topoff.") not in WITHOUT])
def test_a_module_shows_its_use(name: str) -> None:
    module = import_module(name)
    assert has_example(module) >= is_public(module)  # where there is something to show, it is shown


@pytest.mark.parametrize("name", WITHOUT)
def test_no_exception_is_out_of_date(name: str) -> None:
    module = import_module(f"topoff.{name}")
    assert is_public(module)
    assert not has_example(module), "it has an example now: take it off the list"
