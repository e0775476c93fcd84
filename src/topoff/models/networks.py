"""Models as the paper sets them: plain PyG modules, written once, for whole graphs and batches alike.

Every model is called as `model(x, edge_index, edge_weight=None)` and has the options of `Network`, except for `SGC` and
`SIGN`, which propagate the features and nothing else; `topoff.models.by_name.make_model` makes one by its name.

>>> GCNII(8, 16, out_channels=3, num_layers=4, alpha=0.2)
GCNII(8, 16, 3, num_layers=4)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import ClusterGCNConv, GATConv, GCN2Conv, GCNConv, MessagePassing, PNAConv, SAGEConv

from topoff.models.stack import Network, check_positive

CHUNK = 2**22  # edges that are counted at once
AGGREGATORS = ("sum", "mean", "min", "max", "var", "std")
SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")


class GCN(Network):
    """Stack GCNConv, a per-node LayerNorm, a residual where shapes match, ReLU and dropout; the last layer is bare."""

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        return GCNConv(inputs, outputs)


class GCNII(Network):
    """Stack GCN2Conv between two linear layers; every layer reads the first embedding, too.

    `alpha` is the share of that embedding, log(theta / l + 1) the share of layer l's weights, and without
    `shared_weights` that embedding has weights of its own. With `jk`, this is the paper's GCNII+JK.
    """

    fixed: ClassVar[Mapping[str, Any]] = {"linear": True}

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        *,
        num_layers: int = 4,
        alpha: float = 0.1,
        theta: float = 0.5,
        shared_weights: bool = True,
        norm: str | bool = "none",
        residual: bool = False,
        **options: Any,
    ) -> None:
        self.alpha, self.theta, self.shared_weights = alpha, theta, shared_weights
        options = {"num_layers": num_layers, "norm": norm, "residual": residual, **options}
        super().__init__(in_channels, hidden_channels, **self.fixed, **options)

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        return GCN2Conv(outputs, self.alpha, self.theta, layer=layer, shared_weights=self.shared_weights)

    def _convolve(self, conv: nn.Module, x: Tensor, root: Tensor, edges: tuple[Tensor | None, ...]) -> Tensor:
        out: Tensor = conv(x, root, *edges)
        return out


class GraphSAGE(Network):
    """Stack SAGEConv, which averages the neighbours and has weights of its own for the node itself."""

    weighted = False

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        return SAGEConv(inputs, outputs)


class GAT(Network):
    """Stack GATConv with ELU: heads of width `hidden_channels` side by side, `out_heads` averaged in a last conv.

    Dropout acts on the attention, too.
    """

    weighted = False

    def __init__(
        self, in_channels: int, hidden_channels: int, *, heads: int = 4, out_heads: int = 1, **options: Any
    ) -> None:
        check_positive(heads=heads, out_heads=out_heads)
        self.heads, self.out_heads = heads, out_heads
        super().__init__(in_channels, hidden_channels, **options)

    def _width(self, hidden_channels: int) -> int:
        return hidden_channels * self.heads

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        """Apply ELU."""
        return F.elu(x)

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        if last:
            return GATConv(inputs, outputs, heads=self.out_heads, concat=False, dropout=self.dropout)
        return GATConv(inputs, outputs // self.heads, heads=self.heads, dropout=self.dropout)


class PNA(Network):
    """Stack PNAConv: every aggregator of the neighbours, times every scaler by the degree.

    `deg` is the histogram of the whole graph's in-degrees, see `degree_histogram`.

    >>> PNA(8, 16, out_channels=3, deg=torch.tensor([0, 2, 5]))
    PNA(8, 16, 3, num_layers=3)
    """

    weighted = False

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        *,
        deg: Tensor,
        aggregators: Sequence[str] = ("mean", "max"),
        scalers: Sequence[str] = ("identity", "amplification"),
        **options: Any,
    ) -> None:
        for name, known, given in ("aggregators", AGGREGATORS, aggregators), ("scalers", SCALERS, scalers):
            if isinstance(given, str) or not given or not set(given) <= set(known):
                names = ", ".join(known)
                raise ValueError(f"Expected {name} to be a list of {names} (got {given!r}); name at least one.")
        if not deg[1:].sum() > 0:
            raise ValueError(
                f"Expected deg to be the histogram of in-degrees of a graph with edges (got {deg.tolist()}); pass "
                f"degree_histogram(edge_index, num_nodes)."
            )
        self._settings = {"aggregators": list(aggregators), "scalers": list(scalers), "deg": deg}
        super().__init__(in_channels, hidden_channels, **options)

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        return PNAConv(inputs, outputs, **self._settings)


class LinearGNN(GCN):
    """Stack GCNConv and nothing else: the model for which compensation by linear combinations is exact."""

    fixed: ClassVar[Mapping[str, Any]] = {
        "norm": "none",
        "residual": False,
        "jk": False,
        "linear": False,
        "edge_dropout": 0.0,
    }

    def __init__(self, in_channels: int, hidden_channels: int, *, dropout: float = 0.0, **options: Any) -> None:
        super().__init__(in_channels, hidden_channels, dropout=dropout, **self.fixed, **options)

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        """Leave it as it is."""
        return x


class ClusterGCN(Network):
    """Stack ClusterGCNConv, Cluster-GCN's layer with an enhanced diagonal (Chiang et al., KDD 2019, Section 3.3).

    A conv is (A' + lambda diag(A')) X W_1 + X W_2 with A' = (D + I)^-1 (A + I): Eq. 10 and 11, lambda being
    `diag_lambda`, and PyG's weights of a node's own row besides. The authors' scripts take lambda = 1 for PPI, which is
    the default here, and 0.0001 for Reddit.
    """

    weighted = False

    def __init__(self, in_channels: int, hidden_channels: int, *, diag_lambda: float = 1.0, **options: Any) -> None:
        self.diag_lambda = diag_lambda
        super().__init__(in_channels, hidden_channels, **options)

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        return ClusterGCNConv(inputs, outputs, self.diag_lambda)


def degree_histogram(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return how many nodes have 0, 1, 2, ... incoming edges.

    >>> degree_histogram(torch.tensor([[0, 1, 2], [1, 0, 0]]), 4)
    tensor([2, 1, 1])
    """
    return torch.bincount(in_degrees(edge_index, num_nodes))


def in_degrees(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Count the incoming edges of every node.

    >>> in_degrees(torch.tensor([[0, 1, 2], [1, 0, 0]]), 4)
    tensor([2, 1, 0, 0])
    """
    degrees = torch.zeros(num_nodes, dtype=torch.int64, device="cpu")  # also where a model is made without weights
    for some in torch.split(edge_index[1].cpu(), CHUNK):  # torch makes int64 of all that it counts at once
        degrees += torch.bincount(some, minlength=num_nodes)
    return degrees
