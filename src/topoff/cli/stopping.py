"""Ctrl-C, SIGTERM and SIGHUP: each stops a verb in order, also where the shell has told it to ignore Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Stop = Callable[..., None]


@contextmanager
def stopping(stop: Stop) -> Iterator[None]:
    """Call a function, with the number, when this process is to stop; inside `with`, and in the main thread only.

    A shell without job control ignores SIGINT for what runs behind `&`: who sends it all the same means it. SIGHUP
    that is ignored is that of `nohup`, and stays so.
    """
    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _signals():
                before[number] = signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> list[int]:
    """Return the signals that stop this process."""
    hang_up: int | None = getattr(signal, "SIGHUP", None)  # not on Windows
    ending = [int(signal.SIGINT), int(signal.SIGTERM)]
    if hang_up is None or signal.getsignal(hang_up) is signal.SIG_IGN:
        return ending
    return [*ending, hang_up]


def is_hang_up(number: int) -> bool:
    """Whether a signal says that the terminal is gone: shell and system may both say so, which is no second wish.

    >>> is_hang_up(signal.SIGHUP), is_hang_up(signal.SIGTERM)
    (True, False)
    """
    return number == getattr(signal, "SIGHUP", None)


def interrupt(number: int = signal.SIGINT, *_: object) -> None:
    """Raise KeyboardInterrupt, as Python does on Ctrl-C; a terminal that is gone says so once."""
    if is_hang_up(number):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
