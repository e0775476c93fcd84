"""Run a function that sleeps wherever it hands something in: a coroutine through code that knows of none.

All run in one thread, in turns, each on a stack of its own (greenlet).

>>> class One:
...     data, device = Data(x=torch.ones(1, 1)), torch.device("cpu")
>>> def forward(data):
...     runner.hand_in(1)
...     return 2
>>> runner = Runner(One(), forward)
>>> runner.step(), runner.done, runner.step(), runner.done
(1, False, 2, True)
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from greenlet import GreenletExit, getcurrent, greenlet
from torch import nn
from torch_geometric.data import Data

from topoff.forward.modes import Outside


class Runner:
    """Run one batch's forward, which is awake only inside `step`."""

    def __init__(self, batch: Any, forward: Callable[[Data], Any]) -> None:
        """Prepare the forward; the first `step` starts it."""
        self.batch = batch
        self.done = False
        self._closing = False
        self._device = batch.device.type
        self._forward = greenlet(lambda: self._run(forward))
        self._forward.gr_context = contextvars.copy_context()

    def step(self) -> Any:
        """Run until the batch hands something in or ends; return that.

        An error of the forward is raised here.
        """
        self._forward.parent, self._outside = getcurrent(), Outside(self._device)  # whoever asks may have changed modes
        try:
            return self._forward.switch()
        finally:
            self.done = self._forward.dead

    def hand_in(self, value: Any) -> None:
        """Called by the batch: hand a value to `step` and sleep until the next one."""
        if getcurrent() is not self._forward:
            raise ValueError(
                "Expected the model's layers to run in the thread that the model is called in (got another one): call "
                "them one after the other in its forward."
            )
        if not self._closing:
            with self._outside.again():
                self._forward.parent.switch(value)
        if self._closing:
            raise GreenletExit  # again, where the forward has caught it

    def close(self) -> None:
        """End the forward wherever it is: no error that a model could catch, unless it catches everything."""
        if not self._forward.dead:
            self._closing = True
            self._forward.parent = getcurrent()
            self._forward.throw()

    def _run(self, forward: Callable[[Data], Any]) -> Any:
        with torch.inference_mode(False), torch.no_grad():
            return forward(self.batch.data)


class Attributes:
    """Keep apart what the forwards of several batches leave on the modules that they share.

    Some models note something on a module and read it later (`self.degree = ...`): another batch must not change it.
    Whatever was noted is gone in the end.
    """

    def __init__(self, model: nn.Module) -> None:
        """Note what is there before."""
        self._before = [(vars(module), dict(vars(module))) for module in model.modules()]
        self._kept: dict[Runner, list[dict[str, Any]]] = {}

    @contextmanager
    def of(self, runner: Runner) -> Iterator[None]:
        """Give the modules what a batch has left on them, inside `with`."""
        for (now, _), kept in zip(self._before, self._kept.pop(runner, []), strict=False):
            now.update(kept)
        try:
            yield
        finally:
            self._kept[runner] = [_taken(now, before) for now, before in self._before]

    def forget(self, runner: Runner) -> None:
        """Let go of what a batch that is done has left."""
        self._kept.pop(runner, None)


def _taken(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Take changes out of the attributes of a module, and return them."""
    if list(now) == list(before) and list(map(id, now.values())) == list(map(id, before.values())):
        return {}
    changed = {name: value for name, value in now.items() if name not in before or before[name] is not value}
    now.clear()
    now.update(before)
    return changed
