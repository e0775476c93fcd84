"""What users should know but need not act on, through Python's logging: the logger "topoff", level INFO.

A script that never heard of logging sees notices on stderr; `logging.getLogger("topoff").setLevel("WARNING")` silences
them, and handlers of the user's own, at this logger or at the root, take over.

>>> heard = []
>>> with hearing(heard.append):
...     notify("calling model(data)")
>>> heard
['calling model(data)']
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def notify(text: str) -> None:
    """Log a line; where nobody has set up logging, on stderr."""
    logger = logging.getLogger("topoff")
    if logger.hasHandlers():
        logger.info(text)
    elif logger.level <= logging.INFO and not logger.disabled and logger.manager.disable < logging.INFO:
        last = logging.StreamHandler()  # as logging itself does with warnings; nothing is installed
        last.setFormatter(logging.Formatter("topoff: %(message)s"))
        last.handle(logger.makeRecord(logger.name, logging.INFO, __name__, 0, text, (), None))


@contextmanager
def hearing(tell: Callable[[str], object]) -> Iterator[None]:
    """Hand notices to a function, and to nobody else, inside `with`."""
    logger, handler = logging.getLogger("topoff"), _Teller(tell)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class _Teller(logging.Handler):
    """Hand the text of what is logged to a function."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Hand it over."""
        self._tell(record.getMessage())
