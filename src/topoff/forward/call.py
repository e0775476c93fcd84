"""How to call a user's model on a batch: arguments filled by name, or the user's own function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

Call = Callable[[nn.Module, Data], Any]

FILLED = ("x", "edge_index", "edge_weight", "edge_attr")  # filled by name even where the model has a default


def caller(model: nn.Module, call: Call | None = None) -> Callable[[nn.Module, Data], Any]:
    """Return a function that calls the model (or a copy of it) on a batch.

    `x, edge_index, edge_weight, edge_attr` are filled by name where the batch has them, and so is every other argument
    that has no default. A model with a single argument of another name gets the batch itself.

    Raises:
        ValueError: where an argument without a default is not in the batch; give `call=lambda model, batch: ...`.

    >>> import torch
    >>> from torch_geometric.nn import GCN
    >>> data = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]))
    >>> model = GCN(3, 4, num_layers=1)
    >>> caller(model)(model, data).shape
    torch.Size([2, 4])
    """
    if call is not None:
        return call
    parameters = [
        parameter
        for parameter in inspect.signature(plain(model).forward).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    required = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    if len(required) == 1 and required[0] not in FILLED:
        return lambda module, batch: module(batch)
    named = [parameter.name for parameter in parameters]
    optional = [name for name in FILLED if name in named and name not in required]

    def by_name(module: nn.Module, batch: Data) -> Any:
        """Call the model with what the batch holds under the names of its arguments."""
        for name in required:
            if name not in batch:
                raise ValueError(
                    f"Expected the graph to have '{name}', an argument of {type(plain(module)).__name__}.forward (got "
                    f"{', '.join(sorted(batch.keys()))}): add it to the Data or give call=lambda model, batch: ..."
                )
        names = required + [name for name in optional if name in batch]
        return module(**{name: batch[name] for name in names})

    return by_name


def plain(model: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` wrapped, or the model itself."""
    inner = getattr(model, "_orig_mod", model)
    assert isinstance(inner, nn.Module)
    return inner


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run in eval mode without gradients, and restore every module's mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
