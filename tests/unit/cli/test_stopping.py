"""Signals that stop a verb, also where the shell has told it to ignore Ctrl-C; and output that nobody can take."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from commands import Command
from topoff.cli import app
from topoff.cli.progress import Interruption
from topoff.cli.stopping import interrupt, stopping

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stoppable:
    """Be a training that can be asked to stop."""

    stop = False


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Hear of a terminal that is gone, also under `nohup make test`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_interrupts(number: signal.Signals) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as behind `&` in a script
    try:
        with pytest.raises(KeyboardInterrupt), stopping(interrupt):
            signal.raise_signal(number)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping(interrupt):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_leaves_the_signals_alone() -> None:
    seen = []

    def look() -> None:
        with stopping(interrupt):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_terminal_that_is_gone_is_one_wish_however_often_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    training = Stoppable()
    with Interruption(quiet=False) as interruption:
        interruption.trains(training)  # type: ignore[arg-type]
        for _ in range(2):  # of the shell and of the system
            signal.raise_signal(signal.SIGHUP)
        assert training.stop
        assert interruption.wished
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert capsys.readouterr().err == "stopping after this step; press again to stop immediately\n"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_verb_that_is_stopped_says_so(
    command: Command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("topoff.data.load.load", lambda *_, **__: signal.raise_signal(number))
    assert command("info", "x", code=1).err == "topoff: Stopped.\n"


@pytest.mark.parametrize("line", [["--version"], ["--help"]])
def test_a_reader_that_has_read_enough_is_no_error(
    line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["topoff", *line])
        patch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit, match="1"):
            app.main()
    assert not capsys.readouterr().err


def test_output_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as out, monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["topoff", "--version"])
        patch.setattr(sys, "stdout", out)
        with pytest.raises(SystemExit, match="1"):
            app.main()
    said = capsys.readouterr().err
    assert said.startswith("topoff: The system refuses the output: no space left on device; nothing that was saved is ")
    assert said.endswith("make room or choose another disk, then run it again (train: --resume).\n")


def test_no_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["topoff", "--version"])
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit, match="0"):
        app.main()
