"""How much other processes compute while a run is timed: seconds of a shared machine are no seconds.

>>> others = Others()
>>> others.cores() is None or others.cores() >= 0
True
"""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal: of the numbers behind "cpu"
MANY = 0.5  # processors that others keep busy: from there on times are not to be trusted


class Others:
    """Watch, from its making on, how many processors other processes keep busy."""

    def __init__(self) -> None:
        self._start = _clocks()

    def cores(self) -> float | None:
        """Return the processors that others kept busy since, on average; None where the machine does not tell."""
        start, now = self._start, _clocks()
        if start is None or now is None or now[0] - start[0] < 0.1:
            return None
        elapsed, busy, own = (after - before for before, after in zip(start, now, strict=True))
        return round(max(0.0, busy - own) / elapsed, 2)


def _clocks() -> tuple[float, float, float] | None:
    """Return the time, the seconds that all processors were busy, and those that this process has computed."""
    if not STAT.is_file():
        return None
    ticks = [int(word) for word in STAT.read_text().split("\n", 1)[0].split()[1:]]
    own = os.times()
    busy = sum(ticks[place] for place in BUSY) / os.sysconf("SC_CLK_TCK")
    return time.monotonic(), busy, own.user + own.system + own.children_user + own.children_system
