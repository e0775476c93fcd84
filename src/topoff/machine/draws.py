"""Seed what torch draws from, often.

>>> seed_draws(3)
>>> first = torch.rand(2)
>>> torch.manual_seed(3) and bool((torch.rand(2) == first).all())
True
"""

from __future__ import annotations

import torch


def seed_draws(seed: int) -> None:
    """Seed the generators of the CPU and of CUDA, where that is in use, as `torch.manual_seed` does.

    That one also keeps a call, with the text of the whole stack, for each kind of device that has not begun: a
    millisecond and some memory every time, for as long as the process lives.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
