"""Numbers as people write them."""

import pytest
from rich.table import Table

from topoff.cli.format import duration, percent
from topoff.cli.summaries import console


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0004, "0 ms"), (0.25, "250 ms"), (1.0, "1.0 s"), (99.94, "99.9 s"), (100, "1 min 40 s"), (3600, "1 h 0 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_shares_are_per_cent_and_errors_are_not() -> None:
    assert [percent(0.5), percent(0.5, metric="rmse"), percent(None)] == ["50.00 %", "0.5", "-"]


def test_names_of_other_people_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    console().print(Table("a\x1b[2Jb", title="t\x9b"), "c\x07")
    out = capsys.readouterr().out
    assert [rf"{one}" in out for one in (r"a\x1b[2Jb", r"t\x9b", r"c\x07")] == [True] * 3
    assert not {"\x1b", "\x9b", "\x07"} & set(out)
