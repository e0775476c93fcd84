"""The validation scores whose time is told: shares of a reference, fixed beforehand, or what the best method reaches.

>>> targets_of(0.8, metric="accuracy")
{'95': 0.76, '98': 0.784, '99': 0.792}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from topoff.report.read import finite
from topoff.tasks.metrics import LOWER_IS_BETTER
from topoff.training.records import Spread

SHARE = 0.99  # of the score of the best method's worst seed: the target, where none is given
SHARES = ("95", "98", "99")  # per cent of the reference
USUAL = "98"  # the target of a comparison by seconds
CONVERGED = "full"  # the method whose score is the reference, where it is among those compared
Scores = Mapping[str, Sequence[float | None]]  # best validation scores by method, a score per seed


@dataclass(frozen=True)
class Reference:
    """Hold the score that targets are shares of."""

    score: float | None
    of: str | None  # the method that came to it; none where the user gave it
    steps: float | None = None  # that this method has taken, on average


def reference_of(scores: Scores, *, metric: str) -> Reference:
    """Return the mean best score of the full batch; where it was not trained, that of the best method.

    >>> reference_of({"full": [0.7, 0.8], "top": [0.9, 0.9]}, metric="accuracy")
    Reference(score=0.75, of='full', steps=None)
    """
    known = _means(scores)
    if not known:
        return Reference(None, None)
    best = CONVERGED if CONVERGED in known else _best(known, metric=metric)
    return Reference(known[best], best)


def targets_of(reference: float | None, *, metric: str) -> dict[str, float | None]:
    """Return the targets by their share of the reference, in per cent."""
    return {share: _below(reference, 1 - int(share) / 100, metric=metric) for share in SHARES}


def default_target(scores: Scores, *, metric: str) -> float | None:
    """Return the target: 99 % of the best validation score of the best method's worst seed; none without scores.

    The best method has the best mean; the target is one that it reaches with all its seeds.

    >>> default_target({"full": [0.7, 0.7], "top": [0.9, 0.8]}, metric="accuracy")
    0.792
    """
    known = _means(scores)
    if not known:
        return None
    worst = max if metric in LOWER_IS_BETTER else min
    least = worst(value for value in scores[_best(known, metric=metric)] if value is not None)
    return _below(least, 1 - SHARE, metric=metric)


def _means(scores: Scores) -> dict[str, float]:
    """Return the mean score of every method that has one."""
    averages = {method: Spread.over(values).mean for method, values in scores.items() if values}
    return {method: mean for method, mean in averages.items() if finite(mean)}


def _best(means: Mapping[str, float], *, metric: str) -> str:
    """Return the method with the best mean score."""
    return (min if metric in LOWER_IS_BETTER else max)(means, key=lambda method: means[method])


def _below(score: float | None, slack: float, *, metric: str) -> float | None:
    """Return a score that is worse by a share of its size."""
    if score is None:
        return None
    return round(score + slack * abs(score) * (1 if metric in LOWER_IS_BETTER else -1), 12)


def check_target(target: float, *, metric: str, flag: str = "--target") -> None:
    """Refuse a target that no run can reach, or that every run has reached.

    Raises:
        ValueError: such a score does not exist.

    >>> check_target(75, metric="accuracy")
    Traceback (most recent call last):
    ValueError: Expected --target to be a score that accuracy can have, 0 to 1 (got 75); write 75 % as 0.75.
    """
    least, most = (-math.inf if metric == "r2" else 0.0), (math.inf if metric in LOWER_IS_BETTER else 1.0)
    if math.isfinite(target) and least <= target <= most:
        return
    range_ = "at least 0" if metric in LOWER_IS_BETTER else "at most 1" if metric == "r2" else "0 to 1"
    share = metric not in (*LOWER_IS_BETTER, "r2") and 1 < target <= 100
    remedy = f"write {target:g} % as {target / 100:g}" if share else "choose such a one"
    raise ValueError(f"Expected {flag} to be a score that {metric} can have, {range_} (got {target:g}); {remedy}.")
