"""Differences seed by seed: the interval is Student's, and only common seeds count."""

import pytest

from topoff.experiments.paired import paired


def test_the_interval_is_that_of_students_t() -> None:
    found = paired({0: 0.5, 1: 0.6, 2: 0.9, 3: None}, {2: 0.6, 1: 0.4, 0: 0.4, 3: 0.1, 9: 0.5}, minus="top")
    assert found is not None
    assert (found["minus"], found["seeds"]) == ("top", [0, 1, 2])
    assert found["mean"] == pytest.approx(0.2)
    reach = 4.302652729911275 * 0.1 / 3**0.5  # 97.5 % of t with 2 degrees of freedom
    assert (found["low"], found["high"]) == (pytest.approx(0.2 - reach), pytest.approx(0.2 + reach))


def test_one_seed_says_nothing() -> None:
    assert paired({0: 0.5}, {0: 0.4}, minus="top") is None
    assert paired({0: 0.5, 1: 0.5}, {2: 0.4, 3: 0.4}, minus="top") is None
