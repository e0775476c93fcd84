"""A finding holds by its numbers alone."""

import json
import math

import pytest

from topoff.experiments.theory_record import Check, Finding


@pytest.mark.parametrize(
    ("measured", "at_most", "holds"),
    [(1.0, True, True), (1.1, True, False), (1.0, False, True), (0.9, False, False), (math.nan, True, False)],
)
def test_a_finding_holds_up_to_its_limit(measured, at_most, holds):
    assert Finding("x", measured, 1.0, at_most=at_most).holds is holds


def test_nan_holds_in_neither_direction():
    assert not Finding("x", math.nan, 1.0, at_most=False).holds


def test_holds_is_computed_and_not_read():
    check = Check("theory-x", "all is well", (Finding("x", 2.0, 1.0, ours=True),), ({"error": 2.0},))
    found = json.loads(json.dumps(check.to_json()))
    assert found["holds"] is found["findings"][0]["holds"] is False
    found["findings"][0]["holds"] = found["holds"] = True
    assert Check.from_json(found) == check
    assert not Check.from_json(found).holds
