"""Who hears what happens in a training: bars, logs, other processes.

>>> class Printing(Listener):
...     def stepped(self, epoch: int, share: float, loss: float) -> None:
...         print(f"epoch {epoch}, {share:.0%} done, loss {loss}")
>>> Printing().stepped(2, share=0.5, loss=0.25)
epoch 2, 50% done, loss 0.25
"""

from __future__ import annotations

from typing import Protocol

from topoff.training.build import Setup
from topoff.training.records import Epoch
from topoff.training.state import RunState


class Running(Protocol):
    """Say what a listener may do with a training: look where it stands, and stop it."""

    progress: RunState
    stop: bool  # to be set: the training saves after its step and raises KeyboardInterrupt


class Listener:
    """Hear what happens; every method may be overridden."""

    def set_up(self, setup: Setup) -> None:
        """Hear what is about to be trained."""

    def trains(self, training: Running) -> None:
        """Hear of the training itself, before its first step: it can be stopped."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Hear how far the preparation is."""

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        """Hear of a step: the epoch (from 1), the share of the whole training that is done, and the loss."""

    def evaluated(self, epoch: Epoch) -> None:
        """Hear of the end of an epoch, or of an evaluation in its middle: its line in metrics.jsonl."""
