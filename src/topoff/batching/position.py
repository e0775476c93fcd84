"""Where in its epochs training stands: one record for every way to hand out batches, so that all of them can resume.

>>> position = Position()
>>> [next(position.walk([2, 0, 1])), position.state_dict()]
[2, {'epoch': 0, 'position': 1}]
>>> resumed = Position()
>>> resumed.load_state_dict(position.state_dict())
>>> list(resumed.walk([2, 0, 1])), resumed.epoch
([0, 1], 1)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

NOBODY = -1  # a place in an epoch without a batch


def in_steps(order: Sequence[int], size: int) -> list[int]:
    """Arrange an epoch's order in steps of so many batches: a batch always has the same place in its step.

    So a process that takes some places of every step has batches of its own. Where a place has no batch left stands
    `NOBODY`.

    >>> in_steps([4, 1, 0, 2, 3], 2), in_steps([2, 0, 1], 1)
    ([4, 1, 0, 3, 2, -1], [2, 0, 1])
    """
    lanes = [[batch for batch in order if batch % size == lane] for lane in range(size)]
    steps = max((len(lane) for lane in lanes), default=0)
    return [lane[step] if step < len(lane) else NOBODY for step in range(steps) for lane in lanes]


@dataclass
class Position:
    """Hold the epoch and how many of its batches were handed out."""

    epoch: int = 0
    taken: int = 0
    resumed: bool = False  # it was just loaded: what is left of the epoch comes next

    def begin_epoch(self) -> None:
        """Go on to the next epoch where the last one was left early, unless the position was just loaded."""
        if self.taken and not self.resumed:
            self.epoch, self.taken = self.epoch + 1, 0

    def walk(self, order: Sequence[int], *, first: int = 0, stride: int = 1) -> Iterator[int]:
        """Yield what is left of an epoch's order, then go on to the next epoch.

        Of several processes, `stride`, each takes the place number `first` among as many: all stand at the same point.
        """
        self.resumed = False
        while self.taken < len(order):
            self.taken += stride
            yield int(order[self.taken - stride + first])
        self.epoch, self.taken = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position, JSON-able."""
        return {"epoch": self.epoch, "position": self.taken}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a saved position."""
        self.epoch, self.taken, self.resumed = state["epoch"], state["position"], True
