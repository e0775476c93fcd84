"""Leave the halo out: batches with the weights of the whole graph, and no messages from outside; `TOP` at rank 0.

Two methods, so that two effects of `TOP` can be told apart: `drop` sees nothing outside a batch, `drop-ax` sees the
features there. What TOP gains over `drop-ax` is the compensation; what `drop-ax` gains over `drop` is the exact first
propagation, for A X is known.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from torch_geometric.data import Data

from topoff.methods.top import Top


class Drop(Top):
    """Leave out all messages from outside.

    >>> import torch
    >>> from torch_geometric.nn import GCN
    >>> from topoff import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> method = Drop(GCN(3, 4, num_layers=2, out_channels=2), data, ratio=0.5, batches="random")
    >>> method.certify()  # it misses everything
    1.0
    >>> [tuple(method.forward(batch).shape) for batch in method.batches()]
    [(10, 2), (10, 2)]
    """

    settings: ClassVar[tuple[str, ...]] = ("batches", "ratio", "parts", "regroup", "train_only", "accumulate")

    def __init__(self, model: nn.Module, data: Data, **settings: Any) -> None:
        super().__init__(model, data, **settings, rank=0, refresh="never", offset=False)


class DropEmbeddings(Drop):
    """Leave out the embeddings from outside; the features there are known, so that what reads them is exact."""

    keeps_features: ClassVar[bool] = True
