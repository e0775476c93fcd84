"""PyG's norms over all nodes, from the sums over all nodes: each is a function of a row, the means, and the squares.

Exact inference adds up the sums of all batches. In training, the nodes outside a batch keep the sums of the last
refresh, and the batch has its own; where nothing is refreshed, a batch stands for all.

>>> x = torch.rand(5, 3, dtype=torch.float64)
>>> norm = gnn.PairNorm()
>>> torch.allclose(normalized(norm, x, sums_of(x) / 5, 5), norm(x))
True
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as gnn
from torch import Tensor, nn


@dataclass(frozen=True)
class Moments:
    """Hold what a norm over all nodes saw in an exact pass."""

    means: Tensor  # (2, d) of all rows, and of their squares
    own: dict[int, Tensor]  # (2, d) sums of each batch, by its nodes

    @classmethod
    def of(cls, sums: Sequence[Tensor], nodes: Sequence[Tensor], count: int) -> Moments:
        """Add up the sums of all batches."""
        own = {_key(each): part for each, part in zip(nodes, sums, strict=True)}
        return cls(torch.stack(list(sums)).sum(0) / count, own)

    def updated(self, sums: Tensor, nodes: Tensor, count: int) -> Tensor:
        """Return the means with a batch's own sums as they are now; all other nodes keep theirs."""
        own, means = self.own.get(_key(nodes)), self.means.to(sums)
        if own is None:  # batches were grouped anew
            return (sums + (count - nodes.numel()) * means) / count
        return means + (sums - own.to(sums)) / count


def _key(nodes: Tensor) -> int:
    return hash(nodes.cpu().numpy().tobytes())


def sums_of(rows: Tensor) -> Tensor:
    """Return the sums of rows (b, d) and of their squares, in float64; (2, d)."""
    wide = rows.double()
    return torch.stack([wide.sum(0), wide.square().sum(0)])


def normalized(norm: nn.Module, rows: Tensor, moments: Tensor, count: int) -> Tensor:
    """Apply a norm to rows (b, d), given the means of all rows and of their squares (2, d), and how many there are."""
    mean, second = moments[0], moments[1]
    variance = (second - mean.square()).clamp(min=0)
    out: Tensor = _apply(norm, rows.double(), mean, variance, count).to(rows.dtype)
    return out


def _apply(norm: Any, x: Tensor, mean: Tensor, variance: Tensor, count: int) -> Any:
    """Apply one of the norms in PyG's own arithmetic."""
    if isinstance(norm, gnn.GraphSizeNorm):
        return x / count**0.5
    if isinstance(norm, gnn.MeanSubtractionNorm):
        return x - mean
    if isinstance(norm, gnn.PairNorm):
        x = x - mean
        size = x.norm(2, -1, keepdim=True) if norm.scale_individually else (norm.eps + variance.sum()).sqrt()
        return norm.scale * x / (norm.eps + size if norm.scale_individually else size)
    if isinstance(norm, gnn.GraphNorm):
        rest = (1 - norm.mean_scale).square() * mean.square()  # what is left of the mean adds to the spread
        return norm.weight * (x - mean * norm.mean_scale) / (variance + rest + norm.eps).sqrt() + norm.bias
    if isinstance(norm, gnn.LayerNorm):
        middle = mean.mean()
        deviation = (variance + mean.square()).mean() - middle.square()
        out = (x - middle) / (deviation.clamp(min=0).sqrt() + norm.eps)
    else:  # InstanceNorm, BatchNorm1d
        out = (x - mean) / (variance + norm.eps).sqrt()
    return out if norm.weight is None else out * norm.weight + norm.bias


def apply_to_own(norm: Any, forward: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """Run a norm that learns from the rows it sees: from the batch's own; the rest are normalised by the same."""
    if not norm.training or len(x) == size:
        return forward(x)
    own = x[:size].detach() if x.dim() == 2 else x[:size].detach().transpose(1, 2).flatten(0, 1)
    mean, variance = own.mean(0), own.var(0, unbiased=False)
    shape = (1, -1) if x.dim() == 2 else (1, -1, 1)
    rest = (x[size:] - mean.view(shape)) / (variance + norm.eps).sqrt().view(shape)
    if norm.weight is not None:
        rest = rest * norm.weight.view(shape) + norm.bias.view(shape)
    return torch.cat([forward(x[:size]), rest])


def is_over_all(norm: Any) -> bool:
    """Whether a norm reads all nodes now, not the batch's alone.

    Instance norm with running statistics does not: in training it learns from the batch, as batch norm does. A batch
    norm without them does in eval mode.
    """
    if isinstance(norm, nn.modules.batchnorm._BatchNorm):
        return not norm.training
    return not getattr(norm, "track_running_stats", False)


def check_one_graph(call: Any, rows: int) -> None:
    """Refuse a norm per graph of several, or over other rows than those of nodes.

    Raises:
        ValueError: where the norm was given a batch vector, or rows of edges.
    """
    if len(call.x) != rows:
        raise ValueError(
            f"Expected {call.conv} to normalise rows of nodes (got {len(call.x)} rows for {rows} nodes): over edges or "
            f"messages, use a norm that acts on each alone, such as torch.nn.LayerNorm, or a batch norm."
        )
    if any(value is not None for value in (*call.args[1:], *call.kwargs.values())):
        raise ValueError(
            f"Expected {call.conv} to normalise over one graph (got a 'batch' vector, too): leave it out, all "
            f"nodes are of one graph."
        )
