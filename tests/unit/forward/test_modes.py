"""What torch keeps per thread is as it was outside, and there again afterwards."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from topoff.forward.modes import Outside


class Counting(TorchFunctionMode):
    """Count the functions that are called."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def modes() -> tuple[Any, ...]:
    """Return the modes of this thread, and the type of a product."""
    stack = torch.overrides._get_current_function_mode_stack()
    found = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
    return *found, torch.get_autocast_dtype("cpu"), *map(id, stack)


ENTERED = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "not inference": lambda: torch.inference_mode(False),
    "bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "full": lambda: torch.autocast("cpu", enabled=False),
    "function mode": Counting,
    "device": lambda: torch.device("meta"),
    "nothing": nullcontext,
}


@pytest.mark.parametrize("outer", ["nothing", "no_grad", "inference", "bfloat16", "function mode"])
@pytest.mark.parametrize("inner", list(ENTERED))
def test_modes_are_as_outside_and_there_again(outer: str, inner: str) -> None:
    before = modes()
    with ENTERED[outer]():
        outside, expected = Outside(), modes()
        with ENTERED[inner]():
            inside = modes()
            with outside.again():
                assert modes() == expected
            assert modes() == inside
        assert modes() == expected
    assert modes() == before


def test_forwards_that_take_turns_keep_their_modes() -> None:
    outside, before, ones = Outside(), modes(), torch.ones(2, 2, dtype=torch.float32)
    seen: list[torch.dtype] = []

    def forward(precision: AbstractContextManager[Any]) -> Any:
        """Multiply before and after the others have run."""
        with precision:
            for _ in range(2):
                seen.append((ones @ ones).dtype)
                with outside.again():
                    yield

    forwards = [forward(torch.autocast("cpu", dtype=torch.bfloat16)), forward(nullcontext())]
    for _ in range(2):
        for each in forwards:
            next(each)
            assert modes() == before
    for each in forwards:
        assert next(each, None) is None
    assert modes() == before
    assert seen == [torch.bfloat16, torch.float32] * 2


def test_errors_pass_through() -> None:
    outside, before = Outside(), modes()
    with pytest.raises(ArithmeticError, match="the model's own trouble"), torch.no_grad(), outside.again():
        raise ArithmeticError("the model's own trouble")
    assert modes() == before
