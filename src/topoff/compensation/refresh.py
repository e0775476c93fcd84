"""When the compensation is estimated anew: never, every E epochs, or as often as it ages.

>>> policy = Refreshing.parse("adaptive")
>>> policy.interval
1
>>> policy.observe(0.05)
>>> policy.interval
2
"""

from __future__ import annotations

from dataclasses import dataclass

SMALL = 0.05  # a certificate below this is good whatever it was before
SAME, WORSE = (
    1.2,
    1.5,
)  # ratios to the certificate before: up to the first an interval is doubled, above the second halved
LONGEST = 32  # epochs that an adaptive interval grows to


@dataclass
class Refreshing:
    """Hold the epochs between refreshes; an adaptive interval follows the certificates that refreshes measure."""

    interval: int  # epochs; 0 is never
    adaptive: bool = False
    last: float | None = None  # certificate of the last refresh

    @classmethod
    def parse(cls, policy: str) -> Refreshing:
        """Read "never", "every=E" or "adaptive".

        >>> Refreshing.parse("every=5")
        Refreshing(interval=5, adaptive=False, last=None)
        """
        policy = str(policy)
        if policy == "never":
            return cls(0)
        if policy == "adaptive":
            return cls(1, adaptive=True)
        name, _, number = policy.partition("=")
        if name != "every" or not number.isdecimal() or int(number) < 1:
            raise ValueError(f"Expected refresh to be 'never', 'adaptive' or 'every=E' with E >= 1 (got '{policy}').")
        return cls(int(number))

    def due(self, age: int) -> bool:
        """Whether a basis that is `age` epochs old is to be replaced."""
        return self.interval > 0 and age >= self.interval

    def observe(self, certificate: float) -> None:
        """Take note of how much the old basis missed on new embeddings: wait twice as long, or half.

        Graphs differ in how much a fresh basis misses (Computers 3 %, WordNet 25 %), so what counts is the change.
        """
        before, self.last = self.last, certificate
        if not self.adaptive:
            return
        if certificate < SMALL or before is None or certificate <= SAME * before:
            self.interval = min(LONGEST, 2 * self.interval)
        elif certificate > WORSE * before:
            self.interval = max(1, self.interval // 2)

    def __str__(self) -> str:
        if self.adaptive:
            return "adaptive"
        return f"every={self.interval}" if self.interval else "never"
