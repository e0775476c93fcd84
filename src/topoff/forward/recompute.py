"""Keep a model bound to its batch where the backward pass runs parts of the forward again.

Checkpointing and reversible layers (`torch.utils.checkpoint`, PyG's `DeepGCNLayer(ckpt_grad=True)` and `GroupAddRev`)
let go of what a layer computed, and compute it again when its gradient is due: long after the model was unbound. A
`Handler` notes that a conv ran without gradients, or under hooks on saved tensors, of which the forward around it knows
nothing (`recomputes`). When the gradient of such a forward's outputs arrives, the model is bound to the batch again
until that backward pass ends, well or in an error. Backward passes go from the last forward to the first, so that each
recomputation meets its own batch.

>>> from torch.utils.checkpoint import checkpoint
>>> from torch_geometric.nn import GCNConv
>>> from topoff import TOP, load
>>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
>>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
>>> class Frugal(nn.Module):
...     def __init__(self) -> None:
...         super().__init__()
...         self.first, self.conv = nn.Linear(3, 2), GCNConv(2, 2)
...     def forward(self, x, edge_index):
...         return checkpoint(self.conv, self.first(x), edge_index, use_reentrant=False)
>>> top = TOP(Frugal(), data, ratio=0.5, rank=2, batches="random")
>>> top(next(iter(top))).sum().backward()
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.models.dropout import fast_dropout

HELD = "_bound_in_backward"  # where a model notes what binds it


class Binding(Protocol):
    """Bind a model to a batch, so that something else stands in for its message passing: a `Handler`."""

    recomputes: bool  # whether the last forward is to be run again, in parts, by the backward pass

    def on(self, batch: Data) -> AbstractContextManager[Data]:
        """Bind the model inside `with`; yields what to call it with."""

    def bind(self, batch: Data) -> AbstractContextManager[Data]:
        """Do so, and nothing else."""


def bind_in_backward(model: nn.Module, handler: Binding, batch: Data, *, out: Any, fast: bool = False) -> None:
    """Bind the model to the batch again as soon as a backward pass reaches the outputs of its forward.

    Args:
        model: the model that was run.
        handler: what stood in for its message passing.
        batch: the batch that it ran on.
        out: what it returned: tensors, also inside of tuples, lists and dicts.
        fast: whether dropout was the fast one, as in the forward.
    """

    def bind(_: Tensor) -> None:
        """Bind the model, once a gradient is there."""
        if torch.is_grad_enabled():
            raise ValueError(
                "Expected first gradients of a model that computes parts again during backward, such as checkpointing "
                "(got create_graph=True): switch that off in the model to differentiate its gradients."
            )
        _Held(model, handler, batch, fast=fast)

    handler.recomputes = False  # taken care of
    for tensor in _tensors(out):
        if tensor.requires_grad:
            tensor.register_hook(bind)  # type: ignore[no-untyped-call]


class _Held:
    """Hold a model bound to a batch until the running backward pass is over.

    The engine calls it after a backward pass that went well, and lets go of it, its last owner, after one that failed.
    """

    def __init__(self, model: nn.Module, handler: Binding, batch: Data, *, fast: bool) -> None:
        self.model, self.stack = model, ExitStack()
        before = vars(model).get(HELD)
        if before is not None and before() is not None:  # of a later forward, whose part of the backward pass is over
            before()()
        self.stack.enter_context(handler.bind(batch))
        if fast:
            self.stack.enter_context(fast_dropout(model))
        vars(model)[HELD] = weakref.ref(self)
        torch.autograd.Variable._execution_engine.queue_callback(self)

    def __call__(self) -> None:
        """Unbind the model."""
        held = vars(self.model).get(HELD)
        if held is not None and held() in (self, None):  # nobody has unbound it yet
            del vars(self.model)[HELD]
            self.stack.close()

    def __del__(self) -> None:
        self()


def check_again(handler: Any, conv: Any) -> int:
    """Refuse to run a conv again where that is not what ran in the forward; return how often it runs there.

    Raises:
        ValueError: for a method that remembers or counts what convs compute, and for a conv whose calls differ in what
            is known beforehand, for nobody says which of them is run again.
    """
    if not handler.recomputable:
        raise ValueError(
            f"Expected {conv} to run once per step (got a second run during backward: checkpointing, or a reversible "
            f"layer), for this method remembers or draws what it reads: switch that off in the model, or use TOP."
        )
    plan = handler.batch.supplement.plan
    hops = plan.known_hops.get(conv.name) or (0,)
    if sum(place.startswith(f"{conv.name}/") for place in plan.moments) > 1:
        raise ValueError(
            f"Expected {conv} to run once in a forward that backward computes again (got several calls of one norm "
            f"over all nodes): use one norm per call, or switch checkpointing off."
        )
    if handler.by_place and len(hops) > 1:
        raise ValueError(
            f"Expected {conv} to run once in a forward that backward computes again (got {len(hops)} calls, of which "
            f"nobody says which one it is): use one conv per call, switch checkpointing off, or TOP(..., offset=False)."
        )
    if len(set(hops)) > 1:
        raise ValueError(
            f"Expected {conv} to read features in all its calls or in none (got {len(hops)} calls that differ, run "
            f"again during backward: checkpointing, or a reversible layer): use one conv per call, or switch that off."
        )
    return len(hops)


def _tensors(out: Any) -> Iterator[Tensor]:
    """Yield the tensors inside of what a model returns.

    >>> [int(tensor) for tensor in _tensors(({"mean": torch.tensor(1)}, [torch.tensor(2), None]))]
    [1, 2]
    """
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, (tuple, list, dict)):
        for item in out.values() if isinstance(out, dict) else out:
            yield from _tensors(item)
