"""Sampled messages, layer by layer: run an unmodified model on blocks of a few chosen edges each.

A batch of target nodes S_L needs sources S_(L-1) for its last propagation, those need S_(L-2), and so on: a sampler
chooses the edges of every step. The sets are nested and each is a prefix of the next, S_L first, so that a node's own
row is always at hand; after a propagation only the rows that are still needed are kept, where the model allows it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import Call, caller, evaluating
from topoff.forward.convs import Conv
from topoff.forward.intercept import Interception, edge_values_of, first_input, raise_foreign, without_edges
from topoff.forward.neighbours import Block, Chosen, Neighbours
from topoff.forward.plan import Plan
from topoff.graph.operators import Operator

SLICING = (gnn.GCN2Conv,)  # convs that cut their other arguments to the rows that `propagate` returns


class Layered:
    """Stand in for a model's message passing with the blocks of the current batch; a `Handler` for its convs.

    A subclass that estimates the messages in another way (control variates) overrides `aggregate`.
    """

    def __init__(self, convs: list[Conv]) -> None:
        """Prepare the interception once; batches come later, with `on`."""
        self.batch: Data = Data()
        self.trims = True  # rows that no later step needs are dropped after a conv
        self._interception = Interception(convs, self)
        self._step = 0
        self._operator = Operator()
        self._aggregated = False  # the running conv was given its aggregated input
        self._pads = False  # the running conv wants as many rows back from `propagate` as it gave

    @contextmanager
    def on(self, batch: Data) -> Iterator[None]:
        """Bind the model to a batch inside `with`."""
        self.batch, self._step = batch, 0
        with self._interception:
            yield

    def convolve(self, conv: Conv, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a conv on the sampled messages of its step."""
        x = first_input(conv, args, kwargs)
        if conv.path == "general":
            block = self._take()
            out = forward(*self._substituted(conv, block, tuple(args)), **self._substituted(conv, block, kwargs))
            return self._kept(out[: block.targets], len(x))
        self._operator = self._operator_of(conv, args, kwargs)
        given = without_edges(conv, args, kwargs)
        self._aggregated = conv.transforms_first
        self._pads = False
        if self._aggregated:
            given["x"] = self.aggregate(self._step, self._operator, x[: self._ahead().sources])
            self._take()
        elif takes_pairs(conv):
            given["x"] = _pair(given["x"], self._ahead())
        else:
            self._pads = not isinstance(conv.module, SLICING)
        out = forward(**given)
        return self._kept(out[: self._past().targets], len(x))

    def _operator_of(self, conv: Conv, args: Any, kwargs: Any) -> Operator:
        """Return the operator of a linear conv, as it was found when the model was tried."""
        operator = conv.operators[edge_values_of(conv, self.batch, args, kwargs)]
        if operator not in self._ahead().matrices:
            raise ValueError(
                f"Expected {conv} to weigh its edges in training as in eval mode (got other edge weights): give it the "
                f"same edge_weight in both."
            )
        return operator

    def propagate(self, conv: Conv, operand: Tensor) -> Tensor:
        """Multiply with the sampled operator of the step."""
        if self._aggregated:
            return operand
        block, step = self._take(), self._step - 1
        out = self.aggregate(step, self._operator, operand[: block.sources])
        return _padded(out, len(operand)) if self._pads else out

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return the sampled messages of a step; (sources, d) -> (targets, d)."""
        block: Block = self.batch.blocks.steps[step]
        return block.matrices[operator] @ h

    def _ahead(self) -> Block:
        """Return the block of the next propagation."""
        block: Block = self.batch.blocks.steps[self._step]
        return block

    def _past(self) -> Block:
        """Return the block of the last propagation."""
        block: Block = self.batch.blocks.steps[self._step - 1]
        return block

    def _take(self) -> Block:
        block = self._ahead()
        self._step += 1
        return block

    def _kept(self, out: Tensor, rows: int) -> Tensor:
        return out if self.trims else _padded(out, rows)

    def _substituted(self, conv: Conv, block: Block, value: Any) -> Any:
        """Give a general conv the edges and edge values of a block, and the rows that those start from."""
        if isinstance(value, (tuple, list)):
            return type(value)(self._substituted(conv, block, item) for item in value)
        if isinstance(value, dict):
            return {key: self._substituted(conv, block, item) for key, item in value.items()}
        if not isinstance(value, Tensor):
            return value
        for name, rows in block.values.items():
            if value is self.batch[name]:
                return rows
        if not torch.is_floating_point(value) and value.dim() == 2 and value.size(0) == 2:
            if not torch.equal(value, self.batch.edge_index):
                raise_foreign(conv, "edge_index")
            return block.edge_index
        floating = torch.is_floating_point(value) and value.dim() > 0 and len(value) >= block.sources
        return value[: block.sources] if floating else value


def _padded(out: Tensor, rows: int) -> Tensor:
    """Append zero rows."""
    return torch.cat([out, out.new_zeros((rows - len(out), *out.shape[1:]))]) if rows > len(out) else out


def _pair(x: Any, block: Block) -> tuple[Tensor, Tensor | None]:
    """Return the rows of the sources and those of the targets; of a pair, the targets' from its second part."""
    source, target = x if isinstance(x, (tuple, list)) else (x, x)
    return source[: block.sources], None if target is None else target[: block.targets]


def takes_pairs(conv: Conv) -> bool:
    """Whether a conv takes rows of sources and of targets apart, as PyG's bipartite convs do, by its annotation."""
    if getattr(conv.module, "combine_root", None) == "self_loop":  # SimpleConv refuses them then
        return False
    parameters = inspect.signature(type(conv.module).forward).parameters
    return "tuple" in str(parameters[conv.parameters[0]].annotation).lower()


def allows_trimming(model: nn.Module, neighbours: Neighbours, plan: Plan, *, call: Call | None = None) -> bool:
    """Try on a few nodes whether a model works, and says the same, when each conv returns fewer rows.

    A residual `x + conv(x)` does not, unless it is written for that (`x[: len(h)] + h`), nor does one that joins the
    layers (jumping knowledge); the model then gets padded rows, which are computed in vain and which a batch norm
    counts in training.
    """
    batch = trial_batch(neighbours, depth=plan.depth).to(next(model.parameters(), neighbours.graph.data.x).device)
    layered, run = Layered(plan.convs), caller(model, call)

    def outputs() -> Tensor:
        """Run the model on the trial batch."""
        with evaluating(model), layered.on(batch):
            return run(model, batch)[: batch.batch_size]  # type: ignore[no-any-return]

    layered.trims = False
    padded = outputs()
    layered.trims = True
    try:
        trimmed = outputs()
    except (RuntimeError, IndexError, ValueError):  # shapes that do not fit
        return False
    return bool(torch.allclose(padded, trimmed, rtol=1e-3, atol=1e-4))


def trial_batch(neighbours: Neighbours, *, depth: int) -> Data:
    """Return a batch with some neighbours of a few nodes in which every step loses rows, whatever the graph."""
    few, steps = np.random.default_rng(0), []
    ends = np.linspace(0, neighbours.num_nodes - 1, 3).astype(np.int64)
    nodes = np.append(ends, np.argmax(neighbours.degree))
    for _ in range(depth):
        every = neighbours.all_of(nodes)
        keep = few.random(len(every.rows)) < 100 / max(100, len(every.rows))
        nodes, block = neighbours.block(nodes, Chosen(every.positions[keep], every.rows[keep], every.scale[keep]))
        nodes = np.append(nodes, nodes[:2])  # two rows more that nobody hears
        steps.append(replace(block, sources=len(nodes)))
    return neighbours.assembled(nodes, steps=tuple(reversed(steps)))
