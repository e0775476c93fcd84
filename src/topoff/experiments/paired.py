"""Differences between methods seed by seed, with an interval: the same seed has the same split and first weights.

>>> paired({0: 0.7, 1: 0.8, 2: 0.75}, {0: 0.71, 1: 0.82, 2: 0.75, 5: 0.1}, minus="top")["mean"]
-0.01
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from topoff.report.read import finite
from topoff.training.records import Spread

LEVEL = 0.95  # of the interval


def paired(own: Mapping[int, float | None], other: Mapping[int, float | None], *, minus: str) -> dict[str, Any] | None:
    """Return the mean of own - other over the seeds that both have, and its 95 % interval by Student's t.

    `minus` names the other method. None where fewer than two seeds have both.
    """
    from scipy import stats  # late: it takes a while to import

    pairs = {seed: (own[seed], other[seed]) for seed in own if seed in other}
    gaps = {seed: a - b for seed, (a, b) in pairs.items() if finite(a) and finite(b)}
    if len(gaps) < 2:
        return None
    spread = Spread.over(list(gaps.values()))
    assert spread.mean is not None
    assert spread.std is not None
    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(gaps) - 1)) * spread.std / math.sqrt(len(gaps))
    mean = round(spread.mean, 12)
    return {"minus": minus, "mean": mean, "low": mean - reach, "high": mean + reach, "seeds": sorted(gaps)}
