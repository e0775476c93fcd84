"""topoff: graph neural networks in mini-batches that behave like the whole graph, by topological compensation.

`TOP(model, data)` is the whole of it; the parts under it (`partition`, `Compensator`, `Loader`, `compensating`) are
public too. Names are imported when they are first used, so that the command line answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topoff.batching.node_sets import NodeSets
    from topoff.batching.partition import partition
    from topoff.compensation.compensated import compensating
    from topoff.compensation.estimator import Compensator
    from topoff.compensation.fidelity import Fidelity
    from topoff.compensation.loader import Loader
    from topoff.compensation.top import TOP
    from topoff.data.generate import generate
    from topoff.data.load import load
    from topoff.data.recipe import Recipe
    from topoff.forward.predict import predict

__version__ = "0.1.0"
__all__ = [
    "TOP",
    "Compensator",
    "Fidelity",
    "Loader",
    "NodeSets",
    "Recipe",
    "compensating",
    "generate",
    "load",
    "partition",
    "predict",
]

_ROOMS = {
    "TOP": "compensation.top",
    "Compensator": "compensation.estimator",
    "Fidelity": "compensation.fidelity",
    "Loader": "compensation.loader",
    "NodeSets": "batching.node_sets",
    "Recipe": "data.recipe",
    "compensating": "compensation.compensated",
    "generate": "data.generate",
    "load": "data.load",
    "partition": "batching.partition",
    "predict": "forward.predict",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(import_module(f"topoff.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'topoff' has no attribute '{name}'")
