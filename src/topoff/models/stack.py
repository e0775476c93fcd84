"""What the models share: their sizes and dropout, and a stack of convs that a kind of model fills.

>>> from topoff.models.networks import GCN
>>> GCN(8, 16, out_channels=3).reset_parameters()
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import dropout_edge

from topoff.models.dropout import dropout as drop

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "none": lambda width: nn.Identity(),
    "layer": nn.LayerNorm,  # per node
    "batch": nn.BatchNorm1d,  # over the nodes of a batch, in training
}


class Sized(nn.Module):
    """Hold the sizes and the dropout of a model.

    A subclass names its own options and hands the rest on, so that an option has one default: in the class that
    defines it, or in the one that changes it.

    Args:
        in_channels: width of the features.
        hidden_channels: width of the layers.
        out_channels: width of the output.
        num_layers: number of convs, or of propagations.
        dropout: after every layer.
        input_dropout: of the features.
    """

    fixed: ClassVar[Mapping[str, Any]] = {}  # options of a base class that this one decides itself
    supports_edge_attr: ClassVar[bool] = False  # as PyG's models say it: no edge features

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        *,
        out_channels: int,
        num_layers: int = 3,
        dropout: float = 0.2,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(num_layers=num_layers, hidden_channels=hidden_channels, out_channels=out_channels)
        self.dropout, self.input_dropout, self.num_layers = dropout, input_dropout, num_layers
        self._sizes = in_channels, hidden_channels, out_channels

    def _drop(self, x: Tensor) -> Tensor:
        return drop(x, self.dropout, training=self.training)

    def __repr__(self) -> str:
        sizes = ", ".join(str(size) for size in self._sizes)
        return f"{type(self).__name__}({sizes}, num_layers={self.num_layers})"


class Network(Sized):
    """Stack convs, each followed by a norm, a residual where shapes match, an activation and dropout.

    The last layer is a bare conv, except with `linear` or `jk`, whose output comes from linear layers. A model is made
    by a subclass that says what a conv is.

    Args:
        norm: "none", "layer" or "batch"; True and False are "layer" and "none".
        residual: add a layer's input to its output.
        jk: jumping knowledge, MLP_out(1/(L+1) sum_l MLP_l(H_l)), H_0 being the input (Appendix B.2); every MLP_l is a
            linear layer and ReLU, MLP_out has one hidden layer.
        linear: a linear layer and activation before the convs, a linear layer after them.
        edge_dropout: share of the edges that a forward in training leaves out, the same ones in all layers (DropEdge,
            Rong et al., ICLR 2020). The model then reads its edges itself, which makes batches costlier.
        options: those of `Sized`.
    """

    weighted = True  # whether the convs use edge weights

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        *,
        norm: str | bool = "layer",
        residual: bool = True,
        jk: bool = False,
        linear: bool = False,
        edge_dropout: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(in_channels, hidden_channels, **options)
        self.residual, self.edge_dropout = residual, edge_dropout
        num_layers, out_channels = self.num_layers, self._sizes[-1]
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
        if self.training and self.edge_dropout:
            edge_index, kept = dropout_edge(edge_index, p=self.edge_dropout)
            edge_weight = None if edge_weight is None else edge_weight[kept]
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
            del h  # or the next layer would run beside it
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
