"""The validation scores whose time is told: shares of a reference, fixed beforehand, or what the best method reaches.

>>> [Reference(0.8).target(share, metric="accuracy") for share in SHARES]
[0.76, 0.784, 0.792]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    """Hold the score that targets are shares of; with every seed its own, since it may have a split of its own.

    >>> base = Reference(0.75, "full", seeds={0: 0.7, 1: 0.8})
    >>> base.target("95", metric="accuracy"), base.target("95", metric="accuracy", seed=0)
    (0.7125, 0.665)
    """

    score: float | None = None  # mean over the seeds
    of: str | None = None  # the method that came to it; none where the user gave it
    steps: float | None = None  # that this method has taken, on average
    seeds: Mapping[int, float] = field(default_factory=dict)

    def target(self, share: str, *, metric: str, seed: int | None = None) -> float | None:
        """Return a target by its share in per cent, on average or of one seed."""
        score = self.score if seed is None else self.seeds.get(seed, self.score)
        return _below(score, 1 - int(share) / 100, metric=metric)


def reference_of(scores: Mapping[str, Mapping[int, float | None]], *, metric: str) -> Reference:
    """Return the best scores of the full batch; where it was not trained, those of the best method.

    >>> reference_of({"full": {0: 0.7, 1: 0.8}, "top": {0: 0.9, 1: 0.9}}, metric="accuracy")
    Reference(score=0.75, of='full', steps=None, seeds={0: 0.7, 1: 0.8})
    """
    known = _means({method: list(found.values()) for method, found in scores.items()})
    if not known:
        return Reference()
    best = CONVERGED if CONVERGED in known else _best(known, metric=metric)
    return Reference(known[best], best, seeds={seed: value for seed, value in scores[best].items() if finite(value)})


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
