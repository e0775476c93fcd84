"""topoff: graph neural networks in mini-batches that behave like the whole graph, by topological compensation.

`TOP(model, data)` is the whole of it; the parts under it (`partition`, `Compensator`, `Loader`, `compensating`) are
public too. Names are imported when they are first used, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topoff.batching import NodeSets, partition
    from topoff.compensated import compensating
    from topoff.data import load
    from topoff.estimator import Compensator
    from topoff.invariance import Fidelity
    from topoff.loader import Loader
    from topoff.top import TOP, predict

__version__ = "0.1.0"
__all__ = ["TOP", "Compensator", "Fidelity", "Loader", "NodeSets", "compensating", "load", "partition", "predict"]

_ROOMS = {
    "batching": ("NodeSets", "partition"),
    "compensated": ("compensating",),
    "data": ("load",),
    "estimator": ("Compensator",),
    "invariance": ("Fidelity",),
    "loader": ("Loader",),
    "top": ("TOP", "predict"),
}


def __getattr__(name: str) -> Any:
    for room, names in _ROOMS.items():
        if name in names:
            return getattr(import_module(f"topoff.{room}"), name)
    raise AttributeError(f"module 'topoff' has no attribute '{name}'")
