"""Notices: on stderr where nobody has set up logging, else where the user wants them."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from topoff.machine.notices import hearing, notify

LOGGER = logging.getLogger("topoff")


@contextmanager
def bare() -> Iterator[None]:
    """Take all handlers away, as in a plain script; pytest has some of its own."""
    level = LOGGER.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger(), "handlers", [])
        yield
    LOGGER.setLevel(level)


@bare()
def test_a_plain_script_sees_a_notice_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    notify("calling model(100 %)")
    assert capsys.readouterr() == ("", "topoff: calling model(100 %)\n")
    assert LOGGER.handlers == []  # nothing stays behind


@bare()
def test_users_silence_notices_as_all_logging(capsys: pytest.CaptureFixture[str]) -> None:
    LOGGER.setLevel("WARNING")
    notify("calling")
    LOGGER.setLevel("NOTSET")
    logging.disable(logging.INFO)
    try:
        notify("calling")
    finally:
        logging.disable(logging.NOTSET)
    assert capsys.readouterr() == ("", "")


@bare()
def test_handlers_of_the_user_take_over(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger().addHandler(caplog.handler)  # with the root's level, WARNING
    notify("calling")
    assert caplog.messages == []
    LOGGER.setLevel("INFO")
    notify("calling")
    assert caplog.messages == ["calling"]
    assert capsys.readouterr() == ("", "")


def test_who_hears_notices_hears_them_alone(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    before = LOGGER.level, LOGGER.propagate, list(LOGGER.handlers)
    with caplog.at_level("INFO"), hearing(heard.append):
        notify("calling")
    assert heard == ["calling"]
    assert caplog.messages == []
    assert (LOGGER.level, LOGGER.propagate, list(LOGGER.handlers)) == before
