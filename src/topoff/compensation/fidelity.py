"""How far batches are from the whole graph: outputs, per layer, gradients (Section 5.2 of the paper).

relative error = sqrt(sum_i ||H*_Bi - H_Bi||_F^2) / ||H*||_F, in eval mode, against the exact forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import evaluating
from topoff.forward.convs import Conv
from topoff.tasks.task import Loss

Forward = Callable[[Data], Tensor]  # the model on a batch, compensated or not


@dataclass(frozen=True)
class Fidelity:
    """Say how close batches are to the whole graph; errors are relative, 0 is exact."""

    output: float  # 1 - relative error of the outputs
    relative_error: float
    layers: tuple[tuple[str, float], ...] = ()  # relative error of what each conv reads, in the order of the forward
    gradient_error: float | None = None  # ||sum_i g_Bi - g*|| / ||g*||
    gradient_cosine: float | None = None
    certificate: float | None = None  # the estimator's own measure, on the embeddings that it was last shown

    def __str__(self) -> str:
        """Say it in one line, without what was not measured."""
        parts = [f"fidelity {self.output:.1%}"]
        if self.gradient_error is not None:
            parts.append(f"gradient error {self.gradient_error:.1%} (cosine {self.gradient_cosine:.3f})")
        if self.certificate is not None:
            parts.append(f"certificate {self.certificate:.3f}")
        return ", ".join(parts)


def one_tensor(out: Any, *, purpose: str) -> Tensor:
    """Return the output of a model that returns one tensor.

    Raises:
        ValueError: for a model that returns several.
    """
    if not isinstance(out, Tensor):
        raise ValueError(
            f"Expected the model to return one tensor for {purpose} (got a {type(out).__name__}): say which one with "
            f"call=lambda model, batch: model(batch.x, batch.edge_index)[0], or use predict()."
        )
    return out


class RelativeError:
    """Pool squared differences over batches.

    >>> error = RelativeError()
    >>> error.add(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0]))
    >>> error.value()
    0.2
    """

    def __init__(self) -> None:
        self.difference, self.norm = 0.0, 0.0

    def add(self, exact: Tensor, approximate: Tensor) -> None:
        """Add rows of one batch."""
        self.difference += float((exact.double() - approximate.double()).square().sum())
        self.norm += float(exact.double().square().sum())

    def value(self) -> float:
        """Return the relative error so far."""
        if self.norm == 0:
            return 0.0 if self.difference == 0 else float("inf")
        return float((self.difference / self.norm) ** 0.5)


def output_error(run: Forward, batches: Sequence[Data], exact: Tensor) -> tuple[float, Tensor]:
    """Return the relative output error of the batches, and their outputs in the order of the nodes (n, out)."""
    error, outputs = RelativeError(), torch.full_like(exact, float("nan"))
    for batch in batches:
        out = run(batch)
        outputs[batch.n_id] = out.to(outputs.dtype)
        error.add(exact[batch.n_id], out)
    return error.value(), outputs


def fidelity_of(exact: Tensor, seen: Tensor) -> float:
    """Return 1 - the relative error of the outputs that training sees, over the nodes that have one: others are NaN."""
    known, error = ~seen.isnan().flatten(1).any(dim=1), RelativeError()
    error.add(exact[known], seen[known])
    return 1 - error.value()


def known_rows(seen: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the nodes that have outputs (n, out), and these; None, and all rows, where half of the nodes have some.

    Of few nodes in batches nearly all rows are NaN: they need not be held while the exact output is computed.

    >>> known_rows(torch.tensor([[float("nan")], [1.0], [float("nan")]]))
    (tensor([1]), tensor([[1.]]))
    """
    nodes = (~seen.isnan().flatten(1).any(dim=1)).nonzero().view(-1)
    return (None, seen) if 2 * len(nodes) >= len(seen) else (nodes, seen[nodes])


class LayerErrors:
    """Compare what each conv reads in the batches with what it reads exactly."""

    def __init__(self) -> None:
        self.exact: list[tuple[str, Tensor]] = []
        self.errors: list[RelativeError] = []

    def add_exact(self, place: str, rows: Tensor) -> None:
        """Note the exact (n, d) rows that a propagation reads."""
        name, _, hop = place.rsplit("/", 2)
        self.exact.append((name if hop == "0" else f"{name}[{hop}]", rows))
        self.errors.append(RelativeError())

    def comparing(self, nodes: Tensor) -> Callable[[Conv, int, Tensor], None]:
        """Return a `Collect` for the forward of one batch."""
        pairs = iter(zip(self.exact, self.errors, strict=True))

        def collect(conv: Conv, hop: int, rows: Tensor) -> None:
            """Compare the rows of the next conv."""
            (_, exact), error = next(pairs)
            error.add(exact[nodes], rows.detach().reshape(len(rows), -1))

        return collect

    def watching(self, run: Forward, handler: Any) -> Forward:
        """Return what runs a batch and compares what its convs read; `handler` tells of it."""

        def watched(batch: Data) -> Tensor:
            """Run a batch."""
            handler.collect = self.comparing(batch.n_id)
            try:
                return run(batch)
            finally:
                handler.collect = None

        return watched

    def values(self) -> tuple[tuple[str, float], ...]:
        """Return (name, relative error) per layer."""
        return tuple((name, error.value()) for (name, _), error in zip(self.exact, self.errors, strict=True))


def gradient(model: nn.Module, run: Forward, batches: Sequence[Data], *, loss: Loss) -> Tensor:
    """Return the gradient of the loss over all training nodes, summed over the batches; (parameters,)."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    count = sum(int(batch.train_mask.sum()) for batch in batches)
    for batch in batches:
        if not bool(batch.train_mask.any()):
            continue
        with evaluating(model), torch.enable_grad(), _no_gradients(parameters):
            value = loss(run(batch)[batch.train_mask], batch.y[batch.train_mask]) / count
            value.backward()  # type: ignore[no-untyped-call]  # checkpointing knows no torch.autograd.grad
            flat = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        total += torch.cat([part.reshape(-1) for part in flat]).double().cpu()
    return total


def gradient_gap(
    model: nn.Module, run: Forward, batches: Sequence[Data], *, whole: Data, loss: Loss
) -> tuple[float, float]:
    """Return the relative error of the batches' gradient against that of the whole graph, and the cosine of the two."""
    exact, estimate = (gradient(model, run, each, loss=loss) for each in ([whole], batches))
    return compare_gradients(estimate, exact)


@contextmanager
def _no_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Take the gradients away that parameters have, and give them back afterwards.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> weight.grad = torch.tensor([2.0])
    >>> with _no_gradients([weight]):
    ...     weight.grad
    >>> weight.grad
    tensor([2.])
    """
    before = [parameter.grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        yield
    finally:
        for parameter, grad in zip(parameters, before, strict=True):
            parameter.grad = grad


def gradient_memory(model: nn.Module, data: Data) -> int:
    """Estimate the bytes that the gradient of the whole graph takes: about four n x d matrices per layer."""
    widths = [parameter.size(0) for parameter in model.parameters() if parameter.dim() == 2]
    return 4 * int(data.num_nodes or 0) * sum(widths) * int(data.x.element_size())


def compare_gradients(estimate: Tensor, exact: Tensor) -> tuple[float, float]:
    """Return ||g - g*|| / ||g*|| and the cosine between them; both NaN where g* is zero."""
    norm = float(exact.norm())
    if norm == 0:
        return math.nan, math.nan
    cosine = float(estimate @ exact) / max(norm * float(estimate.norm()), 1e-300)
    return float((estimate - exact).norm()) / norm, cosine
