"""What torch keeps per thread, where several forwards take turns in one: precision, gradients, function modes.

A forward may hand in rows inside `with torch.autocast(...)` or `with torch.no_grad()`. Whoever runs meanwhile must not
see that, and the forward must find it again.

>>> outside = Outside()
>>> with torch.no_grad():
...     with outside.again():
...         print(torch.is_grad_enabled())
...     print(torch.is_grad_enabled())
True
False
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _pop_mode_temporarily


class Outside:
    """Note the modes of the thread as they are now, on the CPU and on one more kind of device."""

    def __init__(self, device: str = "cpu") -> None:
        self.gradients, self.precision = _gradients(), {kind: _precision(kind) for kind in ("cpu", device)}
        self.depth = _len_torch_function_stack()

    @contextmanager
    def again(self) -> Iterator[None]:
        """Return to the modes that were noted, inside `with`."""
        with ExitStack() as stack:
            for _ in range(_len_torch_function_stack() - self.depth):
                stack.enter_context(_pop_mode_temporarily())
            for kind, (enabled, dtype) in self.precision.items():
                if _precision(kind) != (enabled, dtype):
                    stack.enter_context(torch.autocast(kind, enabled=enabled, dtype=dtype))
            if _gradients() != self.gradients:
                grad, inference = self.gradients
                stack.enter_context(torch.inference_mode(inference))
                stack.enter_context(torch.set_grad_enabled(grad))
            yield


def _gradients() -> tuple[bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _precision(kind: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
