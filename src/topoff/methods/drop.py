"""Leave the halo out: what TOP is at rank 0, the weights of the whole graph without the messages from outside."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from torch_geometric.data import Data

from topoff.methods.top import Compensate


class Drop(Compensate):
    """Run `TOP` at rank 0."""

    settings: ClassVar[tuple[str, ...]] = ("batches", "ratio", "parts", "regroup", "train_only")

    def __init__(self, model: nn.Module, data: Data, **settings: Any) -> None:
        super().__init__(model, data, **settings, rank=0, refresh="never")
