"""What the page of the race says of its numbers: who is compared with whom, and what counts as kept."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def race() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("race", Path(__file__).parents[2] / "scripts" / "race.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(seconds: float | None, reached: int, *, test: float = 0.9, std: float = 0.01) -> dict[str, Any]:
    """Return a method of a race with two seeds."""
    return {"seconds_to": {"98": seconds}, "reached": {"98": reached}, "test": test, "test_std": std}


def table(**methods: dict[str, Any]) -> dict[str, Any]:
    """Return a race of 40 s."""
    return {"methods": methods, "seeds": [0, 1], "seconds": 40}


def test_the_best_other_method_reached_the_target_with_every_seed(race: ModuleType) -> None:
    found = table(top=row(4, 2), cluster=row(2, 1), gas=row(10, 2), ns=row(16, 2), full={"error": "out of memory"})
    assert race.best_of_others(found, "98") == ("gas", 10)
    assert race.ratio(found, "98") == 0.4


def test_where_no_other_arrives_the_race_bounds_the_ratio_and_where_top_does_not_there_is_none(
    race: ModuleType,
) -> None:
    assert race.ratio(table(top=row(10, 2), cluster=row(None, 0)), "98") == 0.25
    assert race.ratio(table(top=row(10, 1), cluster=row(20, 2)), "98") is None


def test_the_verdict_counts_every_bound(race: ModuleType) -> None:
    fast = table(top=row(4, 2), cluster=row(16, 2, test=0.8))
    level = table(top=row(10, 2), cluster=row(10, 2, test=0.905))
    worse = table(top=row(None, 0), cluster=row(10, 2, test=0.95))
    said = race.verdict("gcn-3", [fast, level, worse])
    assert "gcn-3, 3 graphs" in said
    assert "a quarter at most on 1, half at most on 1, less than all on 1;" in said
    assert "on 0 of these no other arrived" in said
    assert said.endswith("is the best on 1, and within one standard error of the best on 1 more.")
