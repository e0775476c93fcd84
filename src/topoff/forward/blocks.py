"""Sampled messages, layer by layer: run an unmodified model on blocks of a few chosen edges each.

A batch of target nodes S_L needs sources S_(L-1) for its last propagation, those need S_(L-2), and so on: a sampler
chooses the edges of every step. The sets are nested and each is a prefix of the next, S_L first, so that a node's own
row is always at hand; after a propagation only the rows that are still needed are kept, where the model allows it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import Call, caller, device_of, evaluating
from topoff.forward.convs import Conv
from topoff.forward.foreign import raise_foreign
from topoff.forward.intercept import ConvCall, Handler, map_tensors
from topoff.forward.neighbours import Block, Chosen, Neighbors
from topoff.forward.plan import Plan
from topoff.graph.operators import Operator

SLICING = (gnn.GCN2Conv,)  # convs that cut their other arguments to the rows that `propagate` returns


class Layered(Handler):
    """Stand in for a model's message passing with the blocks of the current batch.

    A subclass that estimates the messages in another way (control variates) overrides `aggregate`.
    """

    carries: ClassVar[str] = "blocks"
    trims = True  # rows that no later step needs are dropped after a conv

    @contextmanager
    def on(self, batch: Data) -> Iterator[Data]:
        """Bind the model to a batch inside `with`."""
        self.step = 0  # propagations so far
        with super().on(batch) as seen:
            yield seen

    def convolve(self, call: ConvCall) -> Any:
        """Run a conv on the sampled messages of its step."""
        block: Block = self.batch.blocks.steps[self.step]
        if call.conv.path == "general":
            self.step += 1
            call.general = True
            args, kwargs = map_tensors((call.args, call.kwargs), partial(self._substituted, call.conv, block))
            out = call.forward(*args, **kwargs)
        else:
            out = call.run(self._given(call, block))
            block = self.batch.blocks.steps[self.step - 1]
        out = out[: block.targets]
        return out if self.trims else _padded(out, len(call.x))

    def _given(self, call: ConvCall, block: Block) -> dict[str, Any]:
        """Return the arguments of a linear conv: the sources' rows, or aggregated ones where that is the same."""
        given = call.linear(self.batch, among=block.matrices)
        call.aggregated = call.conv.transforms_first
        if call.aggregated:
            given["x"] = self.aggregate(self.step, call.operator, call.x[: block.sources])
            self.step += 1
        elif takes_pairs(call.conv):
            given["x"] = _pair(given["x"], block)
        else:
            call.pads = not isinstance(call.conv.module, SLICING)
        return given

    def propagate(self, call: ConvCall, operand: Tensor) -> Tensor:
        """Multiply with the sampled operator of the step."""
        if call.aggregated:
            return operand
        step, block = self.step, self.batch.blocks.steps[self.step]
        self.step += 1
        out = self.aggregate(step, call.operator, operand[: block.sources])
        return _padded(out, len(operand)) if call.pads else out

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return the sampled messages of a step; (sources, d) -> (targets, d)."""
        block: Block = self.batch.blocks.steps[step]
        return block.matrices[operator] @ h

    def _substituted(self, conv: Conv, block: Block, tensor: Tensor) -> Tensor | None:
        """Give a general conv the edges and edge values of a block, and the rows that those start from."""
        for name, rows in block.values.items():
            if tensor is self.batch[name]:
                return rows
        if not torch.is_floating_point(tensor) and tensor.dim() == 2 and tensor.size(0) == 2:
            if not torch.equal(tensor, self.batch.edge_index):
                raise_foreign(conv, "edge_index")
            return block.edge_index
        floating = torch.is_floating_point(tensor) and tensor.dim() > 0 and len(tensor) >= block.sources
        return tensor[: block.sources] if floating else tensor


def _padded(out: Tensor, rows: int) -> Tensor:
    """Append zero rows."""
    return torch.cat([out, out.new_zeros((rows - len(out), *out.shape[1:]))]) if rows > len(out) else out


def _pair(x: Any, block: Block) -> tuple[Tensor, Tensor | None]:
    """Return the rows of the sources and those of the targets; of a pair, the targets' from its second part."""
    source, target = x if isinstance(x, (tuple, list)) else (x, x)
    return source[: block.sources], None if target is None else target[: block.targets]


def takes_pairs(conv: Conv) -> bool:
    """Whether a conv takes rows of sources and of targets apart, as PyG's bipartite convs do, by its annotation.

    >>> from topoff.forward.convs import describe
    >>> [takes_pairs(describe(conv)[0]) for conv in (gnn.SAGEConv(2, 2), gnn.GCNConv(2, 2))]
    [True, False]
    """
    if getattr(conv.module, "combine_root", None) == "self_loop":  # SimpleConv refuses them then
        return False
    parameters = inspect.signature(type(conv.module).forward).parameters
    return "tuple" in str(parameters[conv.parameters[0]].annotation).lower()


def allows_trimming(model: nn.Module, neighbors: Neighbors, plan: Plan, *, call: Call | None = None) -> bool:
    """Try on a few nodes whether a model works, and says the same, when each conv returns fewer rows.

    A residual `x + conv(x)` does not, unless it is written for that (`x[: len(h)] + h`), nor does one that joins the
    layers (jumping knowledge); the model then gets padded rows, which are computed in vain and which a batch norm
    counts in training.
    """
    batch = trial_batch(neighbors, depth=plan.depth).to(device_of(model, neighbors.graph.data.x))
    layered, run = Layered(plan.convs), caller(model, call)

    def outputs() -> Tensor:
        """Run the model on the trial batch."""
        with evaluating(model), layered.on(batch):
            return run(model, batch)[: batch.batch_size]  # type: ignore[no-any-return]

    layered.trims = False
    padded = outputs()
    if not isinstance(padded, Tensor):
        raise ValueError(
            f"Expected the model to return one tensor for a method that samples (got a {type(padded).__name__}): use "
            f"top, or let the model return the rows of its nodes alone."
        )
    layered.trims = True
    try:
        trimmed = outputs()
    except (RuntimeError, IndexError, ValueError):  # shapes that do not fit
        return False
    return bool(torch.allclose(padded, trimmed, rtol=1e-3, atol=1e-4))


def trial_batch(neighbors: Neighbors, *, depth: int) -> Data:
    """Return a batch with some neighbours of a few nodes in which every step loses rows, whatever the graph."""
    few, steps = np.random.default_rng(0), []
    ends = np.linspace(0, neighbors.num_nodes - 1, 3).astype(np.int64)
    nodes = np.append(ends, np.argmax(neighbors.degree))
    for _ in range(depth):
        every = neighbors.all_of(nodes)
        keep = few.random(len(every.rows)) < 100 / max(100, len(every.rows))
        nodes, block = neighbors.block(nodes, Chosen(every.positions[keep], every.rows[keep], every.scale[keep]))
        nodes = np.append(nodes, nodes[:2])  # two rows more that nobody hears
        steps.append(replace(block, sources=len(nodes)))
    return neighbors.assembled(nodes, steps=tuple(reversed(steps)))
