"""When the compensation is estimated anew: never, every E epochs, or when it pays.

>>> policy = Refreshing.parse("auto")
>>> policy.begin(price=0.6)
>>> policy.interval
1
>>> policy.observe(0.005)
>>> policy.interval, policy.why
(2, 'missed 0.5 % of the messages, little; the next one at 2 epochs')
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SMALL, LARGE = 0.015, 0.04  # of all messages missed: below the first wait longer, above the second shorter
SHARE = 0.15  # of an epoch's work that refreshes may take, on average
EARLY = 3  # refreshes at first that come closer together, each half as far: weights move fastest then
FEW, MOST = 1, 0.5  # such refreshes where at most this share of the messages comes from outside
LONGEST = 64  # epochs that an interval grows to by itself
ROW, AGAIN = 150.0, 2.4  # what a row costs, and a message from outside besides, both in messages
FOUR = 4  # refreshes after which those of batches with few of the nodes come half as often
SCARCE = 5.0  # nodes of the graph for each in a batch, beyond which batches hold few: what follows, see `scarce`


def price_of(rows: float, inside: float, outside: float, *, nodes: int, edges: int) -> float:
    """Estimate what a refresh costs, in epochs, by counting: seconds would differ from machine to machine.

    An epoch passes the rows of its batches and, forwards and backwards, the messages inside of them; a refresh all rows
    and messages once, and those from outside again for what was missed, the basis and the offsets.

    >>> price_of(1000, 8000, 2000, nodes=1000, edges=10_000)
    0.99
    """
    return round((ROW * nodes + edges + AGAIN * outside) / max(1.0, ROW * rows + 2 * inside), 2)


@dataclass
class Refreshing:
    """Hold the epochs between refreshes; an automatic interval follows the price, and what refreshes find missing."""

    interval: int  # epochs; 0 is never
    automatic: bool = False
    price: float = 0.0  # of a refresh, in epochs
    early: int = EARLY  # refreshes that come closer together
    scarce: bool = False  # whether batches hold few of the nodes
    count: int = 0  # of refreshes so far
    last: float | None = None  # what the last one found missing, of all messages

    @classmethod
    def parse(cls, policy: str) -> Refreshing:
        """Read "never", "every=E" or "auto", which was called "adaptive".

        >>> Refreshing.parse("every=5")
        Refreshing(interval=5, automatic=False, price=0.0, early=3, scarce=False, count=0, last=None)
        """
        policy = str(policy)
        if policy == "never":
            return cls(0)
        if policy in ("auto", "adaptive"):
            return cls(1, automatic=True)
        name, _, number = policy.partition("=")
        if name != "every" or not number.isdecimal() or int(number) < 1:
            raise ValueError(f"Expected refresh to be 'auto', 'never' or 'every=E' with E >= 1 (got '{policy}').")
        return cls(int(number))

    def begin(self, *, price: float, outside: float = 1.0, scarce: bool = False, late: bool = False) -> None:
        """Take note of what a refresh costs, in epochs, unless it is known; `auto` begins with the least interval.

        The smaller the share of the messages from `outside`, the less is lost while weights move fast, and after the
        first epoch (`late`) they have moved most. Batches that hold few of the nodes (`scarce`) may be refreshed every
        epoch.
        """
        if self.price == 0:
            much = outside > MOST
            self.price, self.scarce = price, scarce
            self.early = (FEW if much else 0) if late else (EARLY if much else FEW)
            self.interval = self.least if self.automatic else self.interval

    @property
    def least(self) -> int:
        """The least epochs between refreshes that keep their share of the work, but for the first few.

        Where batches hold few of the nodes, nearly all messages come from outside, and a refresh costs dozens of their
        cheap epochs: at first every epoch may have one, then half as many with every FOUR of them.
        """
        if self.scarce:
            return max(1, (1 << self.count // FOUR) // 2)
        return max(1, math.ceil(self.price / SHARE) >> max(0, self.early - self.count))

    def due(self, age: int) -> bool:
        """Whether a basis that is `age` epochs old is to be replaced."""
        return self.interval > 0 and age >= self.interval

    def observe(self, missed: float) -> None:
        """Take note of what the old compensation missed of the new messages: wait twice as long, or half."""
        self.last, self.count = missed, self.count + 1
        if not self.automatic:
            return
        wanted = 2 * self.interval if missed < SMALL else self.interval // 2 if missed > LARGE else self.interval
        self.interval = max(self.least, min(LONGEST, wanted))

    @property
    def why(self) -> str:
        """Say what the last refresh found, and when the next one comes."""
        if self.last is None:
            return "first"
        size = "little" if self.last < SMALL else "much" if self.last > LARGE else "some"
        return f"missed {100 * self.last:.1f} % of the messages, {size}; the next one at {self.interval} epochs"

    def __str__(self) -> str:
        if self.automatic:
            return "auto"
        return f"every={self.interval}" if self.interval else "never"
