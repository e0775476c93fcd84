"""Run a function beside the caller's, in a thread that is awake only while it is asked to.

Exact inference takes turns on one thread (`forward/runner`). A training step that runs two forwards side by side, as
LMC's does, needs a thread: torch keeps modes and hooks on saved tensors (checkpointing) per thread, and both forwards
may have their own.

>>> class One:
...     data = Data(x=torch.ones(1, 1))
>>> def forward(data):
...     beside.hand_in(1)
...     return 2
>>> beside = Beside(One(), forward)
>>> beside.step(), beside.done, beside.step(), beside.done
(1, False, 2, True)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch_geometric.data import Data


class _Closed(BaseException):
    """Unwind a sleeping batch after another one failed."""


class Beside:
    """Run one batch's forward in a thread that is awake only inside `step`."""

    def __init__(self, batch: Any, forward: Callable[[Data], Any]) -> None:
        """Prepare the thread; the first `step` starts it."""
        self.batch = batch
        self.done = False
        self._handed: Any = None
        self._error: BaseException | None = None
        self._closing = False
        self._wake, self._slept = threading.Semaphore(0), threading.Semaphore(0)
        device = batch.data.x.device.type  # precision belongs to the thread, too
        self._precision = torch.autocast(
            device, dtype=torch.get_autocast_dtype(device), enabled=torch.is_autocast_enabled(device)
        )
        self._thread = threading.Thread(target=self._main, args=(forward,), daemon=True)

    def step(self) -> Any:
        """Run until the batch hands something in or ends; return that."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._wake.release()
        self._slept.acquire()
        if self._error is not None:
            raise self._error
        handed, self._handed = self._handed, None
        return handed

    def hand_in(self, value: Any) -> None:
        """Called by the batch: hand a value to `step` and sleep until the next one."""
        self._handed = value
        self._slept.release()
        self._wake.acquire()
        if self._closing:
            raise _Closed

    def close(self) -> None:
        """End the thread wherever it is."""
        if self._thread.is_alive():
            self._closing = True
            self._wake.release()
            self._thread.join()

    def _main(self, forward: Callable[[Data], Any]) -> None:
        """Run the forward in the thread; hand over its output or its error."""
        try:
            with torch.no_grad(), self._precision:  # the mode belongs to the thread
                self._handed = forward(self.batch.data)
        except _Closed:
            return
        except BaseException as error:
            self._error = error
        self.done = True
        self._slept.release()
