"""The running average of a model's weights: what is scored and kept, while the weights themselves go on training.

Steps of mini-batches are noisy, however true the batches are; their average is not. It is that of Shamir and Zhang
(Stochastic gradient descent for non-smooth optimization, ICML 2013),

    mean_t = mean_{t-1} + (MEMORY + 1) / (MEMORY + t) (w_t - mean_{t-1}),

in which about the last 1 / MEMORY of all steps count, however many there are: the run's length need not be known.

>>> model = nn.Linear(1, 1, bias=False)
>>> average = Average(model)
>>> for step in (1, 2, 3):
...     _ = model.weight.data.fill_(step)
...     average.add(step)
>>> with average.in_place():
...     print(f"{model.weight.item():.3f}")
2.889
>>> model.weight.item()
3.0
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from topoff.graph.operators import full_type

MEMORY = 16.0


class Average:
    """Average the weights of a model, and the running statistics of its norms, over its steps, if that is `wanted`.

    Other buffers are left as the model has them. Statistics are averaged as weights are, not measured anew.
    """

    def __init__(self, model: nn.Module, *, wanted: bool = True) -> None:
        self.model, self.wanted = model, wanted
        self.means: dict[str, Tensor] = {}  # by name; in half precision they are kept in float32

    def _weights(self) -> dict[str, Tensor]:
        """Return what is averaged, by name."""
        named = list[tuple[str, Tensor]](self.model.named_parameters())
        for name, module in self.model.named_modules():
            if isinstance(module, _NormBase):
                named += module.named_buffers(prefix=name, recurse=False)
        found = {name: each.detach() for name, each in named if not is_lazy(each)}
        return {name: each for name, each in found.items() if each.is_floating_point() or each.is_complex()}

    def add(self, step: int) -> None:
        """Take the weights after a step, the first of which is 1, into the average."""
        if not self.wanted:
            return
        weights = self._weights()
        means = list(self.means.values())
        now = [weights[name].to(mean.dtype) for name, mean in self.means.items()]
        if means:
            torch._foreach_lerp_(means, now, (MEMORY + 1) / (MEMORY + step))
        for name in weights.keys() - self.means.keys():  # the first step, or a lazy layer's
            kind = full_type(weights[name].dtype)
            self.means[name] = weights[name].to(kind, copy=True, memory_format=torch.contiguous_format)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Put the average, where there is one, into the model; its own weights are there again at the end."""
        weights = {name: each for name, each in self._weights().items() if name in self.means}
        own = {name: each.clone() for name, each in weights.items()}
        try:
            for name, each in weights.items():
                each.copy_(self.means[name])
            yield
        finally:
            for name, each in weights.items():
                each.copy_(own[name])

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return self.means

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what a checkpoint has kept, where the weights are."""
        own = self._weights()
        self.means = {name: each.to(own[name].device) if name in own else each for name, each in tensors.items()}
