"""TOP: compensated mini-batches (Accurate and Scalable Graph Neural Networks via Message Invariance, ICLR 2025)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from torch_geometric.data import Data

from topoff.compensation.top import TOP


class Top(TOP):
    """Train in compensated batches; an exact evaluation refreshes the basis where that is due anyway."""

    settings: ClassVar[tuple[str, ...]] = (
        *("batches", "ratio", "parts", "regroup", "train_only"),
        *("rank", "estimator", "inits", "refresh", "offset"),
    )

    def __init__(self, model: nn.Module, data: Data, *, cache: bool = True, **settings: Any) -> None:
        super().__init__(model, data, cache=cache, **settings)


class Drop(Top):
    """Leave the halo out: the weights of the whole graph without the messages from outside; `TOP` at rank 0.

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

    settings: ClassVar[tuple[str, ...]] = ("batches", "ratio", "parts", "regroup", "train_only")

    def __init__(self, model: nn.Module, data: Data, **settings: Any) -> None:
        super().__init__(model, data, **settings, rank=0, refresh="never", offset=False)
