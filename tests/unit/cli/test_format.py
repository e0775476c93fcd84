"""Numbers as people write them."""

import pytest

from topoff.cli.format import duration, percent


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0004, "0 ms"), (0.25, "250 ms"), (1.0, "1.0 s"), (99.94, "99.9 s"), (100, "1 min 40 s"), (3600, "1 h 0 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_shares_are_per_cent_and_errors_are_not() -> None:
    assert [percent(0.5), percent(0.5, metric="rmse"), percent(None)] == ["50.00 %", "0.5", "-"]
