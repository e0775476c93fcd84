"""How processes of their own begin: where possible, as copies of one that has imported all, which saves seconds each.

>>> starting("topoff.experiments.jobs").get_start_method() in ("forkserver", "spawn")
True
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.context import BaseContext


def starting(*modules: str) -> BaseContext:
    """Return what starts processes that have imported some modules already; the first call decides which these are."""
    if "forkserver" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":  # no copies of torch
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(modules))
    return context
