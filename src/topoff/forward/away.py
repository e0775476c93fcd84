"""Batches where memory is short: their tensors lie on disk, mapped, and the next batch is read while one is used.

What the graph has as a whole stays as it is, and is the user's; so does what is small.

>>> import tempfile
>>> import torch
>>> from pathlib import Path
>>> from topoff.forward.plan import Plan
>>> from topoff.forward.subgraph import cut_batch
>>> ids = torch.arange(5000)
>>> graph = Graph(Data(x=torch.rand(5000, 3), edge_index=torch.stack([ids, ids.roll(1)])))
>>> batch = cut_batch(graph, Plan([], (), ()), ids)
>>> x = batch.x
>>> with tempfile.TemporaryDirectory() as folder:
...     put_away(batch, graph, Shelf(0, folder=Path(folder)))
...     bool((batch.x == x).all()), batch.x is x
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from topoff.graph.graph import Graph
from topoff.graph.operators import with_changed
from topoff.machine.scan import ahead
from topoff.machine.shelf import Shelf


def put_away(batch: Data, graph: Graph, shelf: Shelf) -> None:
    """Put the tensors of a batch on disk, each once: what was the same tensor stays the same."""
    known: dict[int, tuple[Tensor, Tensor]] = {}  # the tensor itself, too, so that no other gets its id

    def kept(value: Tensor) -> Tensor:
        """Return what stands for a tensor."""
        if id(value) not in known:
            known[id(value)] = value, shelf.keep(value)
        return known[id(value)][1]

    batch.update(_changed(batch, graph, kept))
    batch.supplement = replace(batch.supplement, structure=replace(batch.supplement.structure, lasting=False))


def bring(batch: Data, graph: Graph) -> None:
    """Let the tensors of a batch that lie on disk be read in the background."""

    def read(value: Tensor) -> Tensor:
        """Ask for a tensor."""
        ahead(value)
        return value

    _changed(batch, graph, read)


def _changed(batch: Data, graph: Graph, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return what a batch has of its nodes, its edges and its surroundings, with other tensors."""

    def changed(value: Any) -> Any:
        """Change a tensor, or, in place, those of what a wide model is called with."""
        if isinstance(value, Data):
            return value.update(_changed(value, graph, change))
        return change(value) if isinstance(value, Tensor) else value

    keys = ("edge_index", "n_id", *graph.node_level, *graph.edge_level, "supplement", "compensation")
    return {key: with_changed(batch[key], changed) for key in keys if batch.get(key) is not None}
