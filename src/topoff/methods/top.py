"""TOP: compensated mini-batches (Accurate and Scalable Graph Neural Networks via Message Invariance, ICLR 2025)."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from torch_geometric.data import Data

from topoff.compensation.top import TOP
from topoff.machine.notices import notify


class Top(TOP):
    """Train in compensated batches; an exact evaluation refreshes the basis where that is due anyway.

    >>> Top.settings[:3]  # of a run, those that the method reads
    ('batches', 'ratio', 'parts')
    """

    settings: ClassVar[tuple[str, ...]] = (
        *("batches", "ratio", "parts", "regroup", "train_only", "reach"),
        *("rank", "estimator", "inits", "refresh", "offset", "late", "accumulate"),
    )

    def __init__(self, model: nn.Module, data: Data, *, cache: bool = True, **settings: Any) -> None:
        super().__init__(model, data, cache=cache, **settings)

    @property
    def due(self) -> bool:
        """Whether an exact evaluation is to refresh: the basis is old enough, and training has not come to its end."""
        self.prepare()
        return self.basis.due() and not self.frozen

    def freeze(self) -> None:
        """Refresh nothing from now on; say where nothing was ever estimated."""
        super().freeze()
        if self._loader is not None and self.basis.bare and self.basis.loader.position.epoch == 0:
            notify("training ended within its first epoch, in which nothing is compensated: --no-late compensates it")
