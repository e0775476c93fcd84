"""Batches where memory is short: their tensors lie on disk, mapped, and the next batch is read while one is used.

>>> import tempfile
>>> import torch
>>> from pathlib import Path
>>> batch = Data(x=torch.rand(5000, 3))
>>> x = batch.x
>>> with tempfile.TemporaryDirectory() as folder:
...     put_away(batch, Shelf(0, folder=Path(folder)))
...     bool((batch.x == x).all()), batch.x is x
(True, False)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from topoff.graph.operators import with_changed
from topoff.machine.scan import ahead
from topoff.machine.shelf import Shelf


def put_away(batch: Data, shelf: Shelf) -> None:
    """Put the tensors of a batch on disk, each once: what was the same tensor stays the same."""
    known: dict[int, tuple[Any, Any]] = {}  # the tensor itself, too, so that no other gets its id

    def kept(value: Any) -> Any:
        """Return what stands for a tensor."""
        if isinstance(value, Data):  # what a wide model is called with
            change(value)
            return value
        if not isinstance(value, Tensor):
            return value
        return known.setdefault(id(value), (value, shelf.keep(value)))[1]

    def change(data: Data) -> None:
        """Put away what a graph holds."""
        for key, value in list(data.to_dict().items()):
            data[key] = with_changed(value, kept)

    change(batch)


def bring(batch: Data) -> None:
    """Let the tensors of a batch that lie on disk be read in the background."""

    def read(value: Any) -> Any:
        """Ask for a tensor."""
        if isinstance(value, Tensor):
            ahead(value)
        return value

    for value in batch.to_dict().values():
        with_changed(value, read)
