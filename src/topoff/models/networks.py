"""Models as the paper sets them: plain PyG modules, written once, for whole graphs and batches alike.

Every model is called as `model(x, edge_index, edge_weight=None)` and has the options of `Network`, except for `SGC` and
`SIGN`, which propagate the features and nothing else; `topoff.models.by_name.make_model` makes one by its name.

>>> GCNII(8, 16, out_channels=3, num_layers=4, alpha=0.2)
GCNII(8, 16, 3, num_layers=4)
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import (
    ClusterGCNConv,
    GATConv,
    GCN2Conv,
    GCNConv,
    MessagePassing,
    PNAConv,
    SAGEConv,
)

from topoff.models.dropout import dropout as drop

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda width: nn.Identity(),
    "layer": nn.LayerNorm,  # per node
    "batch": nn.BatchNorm1d,  # over the nodes of a batch, in training
}
AGGREGATORS = ("sum", "mean", "min", "max", "var", "std")
SCALERS = ("identity", "amplification", "attenuation", "linear", "inverse_linear")


class Network(nn.Module):
    """Stack convs, each followed by a norm, a residual where shapes match, an activation and dropout.

    The last layer is a bare conv, except with `linear` or `jk`, whose output comes from linear layers. A model is made
    by a subclass that says what a conv is.

    Args:
        in_channels: width of the features.
        hidden_channels: width of the layers.
        out_channels: width of the output.
        num_layers: how many convs.
        dropout: after every layer.
        input_dropout: of the features.
        norm: "none", "layer" or "batch"; True and False are "layer" and "none".
        residual: add a layer's input to its output.
        jk: jumping knowledge, MLP_out(1/(L+1) sum_l MLP_l(H_l)), H_0 being the input (Appendix B.2); every MLP_l is a
            linear layer and ReLU, MLP_out has one hidden layer.
        linear: a linear layer and activation before the convs, a linear layer after them.
    """

    weighted = True  # whether the convs use edge weights

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        *,
        out_channels: int,
        num_layers: int = 3,
        dropout: float = 0.2,
        input_dropout: float = 0.0,
        norm: str | bool = "layer",
        residual: bool = True,
        jk: bool = False,
        linear: bool = False,
    ) -> None:
        super().__init__()
        check_positive(num_layers=num_layers, hidden_channels=hidden_channels, out_channels=out_channels)
        self.dropout, self.input_dropout, self.residual = dropout, input_dropout, residual
        self._sizes = in_channels, hidden_channels, out_channels
        width, ends = self._width(hidden_channels), jk or linear  # whether linear layers make the output
        widths = [width if linear else in_channels, *[width] * (num_layers - 1), width if ends else out_channels]
        self.convs = nn.ModuleList(
            self._conv(a, b, layer=layer, last=layer == num_layers and not ends)
            for layer, (a, b) in enumerate(itertools.pairwise(widths), start=1)
        )
        self.norms = nn.ModuleList(_make_norm(width, kind=norm) for _ in range(num_layers if ends else num_layers - 1))
        self.first = nn.Linear(in_channels, width) if linear else None
        self.jumps = nn.ModuleList(nn.Linear(size, width) for size in (widths if jk else []))
        self.mix = nn.Linear(width, width) if jk else None
        self.last = nn.Linear(width, out_channels) if ends else None

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        """Make the conv of one layer, counted from 1; the last one makes the model's output."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define _conv (got none); use one of its kinds.")

    def _width(self, hidden_channels: int) -> int:
        """Return the width of the embeddings."""
        return hidden_channels

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        """Apply the nonlinearity between layers."""
        return F.relu(x)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for module in (*self.convs, *self.norms, self.first, *self.jumps, self.mix, self.last):
            if module is not None and not isinstance(module, nn.Identity):
                module.reset_parameters()

    def outer_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the output layer and of linear layers around the convs, for `outer_decay`."""
        linear = [module for module in (self.first, *self.jumps, self.mix, self.last) if module is not None]
        outer = linear if self.last is not None else [*linear, self.convs[-1]]
        return [parameter for module in outer for parameter in module.parameters()]

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return (n, out_channels)."""
        if edge_weight is not None and not self.weighted:
            warnings.warn(f"{type(self).__name__} does not use edge weights; GCN and GCNII do.", stacklevel=2)
        edges = (edge_index, edge_weight) if self.weighted else (edge_index,)
        x = root = drop(x, self.input_dropout, training=self.training)
        if self.first is not None:
            root = self.activation(self.first(x))
            x = self._drop(root)
        total = x if self.mix is None else self.jumps[0](x).relu()
        for layer, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=False), start=1):
            h = norm(self._convolve(conv, x, root, edges))
            if self.residual and h.shape[1:] == x.shape[1:]:
                h = h + x[: len(h)]  # sampled layers return the rows that are still needed, the first ones
            x = self._drop(self.activation(h))
            if self.mix is not None:  # a running sum: exact inference then holds one matrix, not one per layer
                total = total[: len(x)] + self.jumps[layer](x).relu()
        if self.mix is not None:
            x = self._drop(self.mix(total / len(self.jumps)).relu())
        out: Tensor = self._convolve(self.convs[-1], x, root, edges) if self.last is None else self.last(x)
        return out

    def _convolve(self, conv: nn.Module, x: Tensor, root: Tensor, edges: tuple[Tensor | None, ...]) -> Tensor:
        """Call a conv; `root` is what the first one reads, before dropout."""
        out: Tensor = conv(x, *edges)
        return out

    def _drop(self, x: Tensor) -> Tensor:
        return drop(x, self.dropout, training=self.training)

    def __repr__(self) -> str:
        sizes = ", ".join(str(size) for size in self._sizes)
        return f"{type(self).__name__}({sizes}, num_layers={len(self.convs)})"


class GCN(Network):
    """Stack GCNConv, a per-node LayerNorm, a residual where shapes match, ReLU and dropout; the last layer is a conv.

    >>> GCN(8, 16, out_channels=3, num_layers=2)
    GCN(8, 16, 3, num_layers=2)
    """

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        return GCNConv(inputs, outputs)


class GCNII(Network):
    """Stack GCN2Conv between two linear layers; every layer reads the first embedding, too.

    `alpha` is the share of that embedding, log(theta / l + 1) the share of layer l's weights, and without
    `shared_weights` that embedding has weights of its own. With `jk`, this is the paper's GCNII+JK.

    >>> GCNII(8, 16, out_channels=3, num_layers=4, jk=True)
    GCNII(8, 16, 3, num_layers=4)
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        *,
        alpha: float = 0.1,
        theta: float = 0.5,
        shared_weights: bool = True,
        norm: str | bool = "none",
        residual: bool = False,
        **options: Any,
    ) -> None:
        self.alpha, self.theta, self.shared_weights = alpha, theta, shared_weights
        options = {"num_layers": 4, "norm": norm, "residual": residual, **options}
        super().__init__(in_channels, hidden_channels, linear=True, **options)

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        return GCN2Conv(outputs, self.alpha, self.theta, layer=layer, shared_weights=self.shared_weights)

    def _convolve(self, conv: nn.Module, x: Tensor, root: Tensor, edges: tuple[Tensor | None, ...]) -> Tensor:
        out: Tensor = conv(x, root, *edges)
        return out


class GraphSAGE(Network):
    """Stack SAGEConv, which averages the neighbours and has weights of its own for the node itself.

    >>> GraphSAGE(8, 16, out_channels=3)
    GraphSAGE(8, 16, 3, num_layers=3)
    """

    weighted = False

    def _conv(self, inputs: int, outputs: int, *, layer: int, last: bool) -> MessagePassing:
        return SAGEConv(inputs, outputs)


class GAT(Network):
    """Stack GATConv with ELU: heads of width `hidden_channels` side by side, `out_heads` averaged in a last conv.

    Dropout acts on the attention, too.

    >>> GAT(8, 4, out_channels=3, heads=8)
    GAT(8, 4, 3, num_layers=3)
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
        _check_names(AGGREGATORS, aggregators=aggregators)
        _check_names(SCALERS, scalers=scalers)
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
    """Stack GCNConv and nothing else: the model for which compensation by linear combinations is exact.

    >>> LinearGNN(8, 16, out_channels=3)
    LinearGNN(8, 16, 3, num_layers=3)
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        *,
        out_channels: int,
        num_layers: int = 3,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
    ) -> None:
        options: dict[str, Any] = {"num_layers": num_layers, "dropout": dropout, "input_dropout": input_dropout}
        super().__init__(
            in_channels, hidden_channels, out_channels=out_channels, norm="none", residual=False, **options
        )

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        """Leave it as it is."""
        return x


class ClusterGCN(Network):
    """Stack ClusterGCNConv, Cluster-GCN's layer with an enhanced diagonal (Chiang et al., KDD 2019, Section 3.3).

    A conv is (A' + lambda diag(A')) X W_1 + X W_2 with A' = (D + I)^-1 (A + I): Eq. 10 and 11, lambda being
    `diag_lambda`, and PyG's weights of a node's own row besides. The authors' scripts take lambda = 1 for PPI, which is
    the default here, and 0.0001 for Reddit.

    >>> ClusterGCN(8, 16, out_channels=3, diag_lambda=0.5)
    ClusterGCN(8, 16, 3, num_layers=3)
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
    return torch.bincount(torch.bincount(edge_index[1], minlength=num_nodes))


def _make_norm(width: int, *, kind: str | bool) -> nn.Module:
    """Make a norm by its name; True is "layer", False is "none"."""
    name = ("layer" if kind else "none") if isinstance(kind, bool) else kind
    if name not in NORMS:
        raise ValueError(f"Expected norm to be one of {', '.join(NORMS)} (got {kind!r}); 'none' leaves it out.")
    return NORMS[name](width)


def check_positive(**values: int) -> None:
    """Refuse sizes below 1."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"Expected {name} to be at least 1 (got {value}); a model needs one.")


def _check_names(known: Sequence[str], **values: Sequence[str]) -> None:
    """Refuse an empty list, or names that are not known."""
    for name, given in values.items():
        if isinstance(given, str) or not given or not set(given) <= set(known):
            raise ValueError(f"Expected {name} to be a list of {', '.join(known)} (got {given!r}); name at least one.")
