"""Models that propagate the raw features and then learn: SGC and SIGN; plain PyG modules, for every method.

>>> SGC(8, out_channels=3)
SGC(8, 3, num_layers=2)
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, SGConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from topoff.models.dropout import dropout as drop
from topoff.models.stack import Sized, check_positive


class SGC(nn.Module):
    """Return A^K X W + b with GCN's A, K being `num_layers` (SGC, Wu et al., ICML 2019, Section 2.2).

    There is no hidden layer and nothing to drop: the model is a logistic regression on propagated features, its
    softmax being part of the loss.
    """

    supports_edge_attr: ClassVar[bool] = False  # as PyG's models say it: no edge features

    def __init__(self, in_channels: int, *, out_channels: int, num_layers: int = 2) -> None:
        super().__init__()
        check_positive(num_layers=num_layers, out_channels=out_channels)
        self.conv = SGConv(in_channels, out_channels, K=num_layers)

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        self.conv.reset_parameters()

    def outer_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the output layer, which are all, for `outer_decay`."""
        return list(self.parameters())

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return (n, out_channels)."""
        out: Tensor = self.conv(x, edge_index, edge_weight)
        return out

    def __repr__(self) -> str:
        return f"SGC({self.conv.in_channels}, {self.conv.out_channels}, num_layers={self.conv.K})"


class Powers(MessagePassing):  # type: ignore[misc]  # PyG has no types
    """Return [X, A X, ..., A^K X] side by side, with GCN's A = D^-1/2 (A + I) D^-1/2; there is nothing to learn.

    >>> Powers(2)(torch.eye(2), torch.tensor([[0, 1], [1, 0]])).shape
    torch.Size([2, 6])
    """

    def __init__(self, hops: int) -> None:
        super().__init__(aggr="add")
        check_positive(hops=hops)
        self.hops, self.add_self_loops = hops, True

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return (n, (hops + 1) f) of features (n, f)."""
        edges, weight = gcn_norm(
            edge_index, edge_weight, x.size(0), add_self_loops=self.add_self_loops, flow=self.flow, dtype=x.dtype
        )
        powers = [x]
        for _ in range(self.hops):
            powers.append(self.propagate(edges, x=powers[-1], edge_weight=weight))
        return torch.cat(powers, dim=1)

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        """Weigh a neighbour's row."""
        return edge_weight.view(-1, 1) * x_j

    def __repr__(self) -> str:
        return f"Powers({self.hops})"


class SIGN(Sized):
    """Return PReLU([X T_0, A X T_1, ..., A^K X T_K]) W (SIGN, Frasca et al., 2020, Eq. 4), K being `num_layers`.

    A is GCN's, the paper's SIGN(K, 0, 0); its operators of personalised PageRank and of triangles are left out, and so
    is the batch norm of the authors' code. Every T_k has `hidden_channels` columns. `dropout` acts before W,
    `input_dropout` on the features *after* their propagation: what is propagated is always X itself.

    >>> SIGN(8, 16, out_channels=3)
    SIGN(8, 16, 3, num_layers=3)
    """

    def __init__(self, in_channels: int, hidden_channels: int, **options: Any) -> None:
        super().__init__(in_channels, hidden_channels, **options)
        self.powers = Powers(self.num_layers)
        self.branches = nn.ModuleList(nn.Linear(in_channels, hidden_channels) for _ in range(self.num_layers + 1))
        self.activation = nn.PReLU()
        self.last = nn.Linear(len(self.branches) * hidden_channels, self._sizes[-1])

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for module in (*self.branches, self.activation, self.last):
            module.reset_parameters()

    def outer_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the output layer, for `outer_decay`."""
        return list(self.last.parameters())

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return (n, out_channels)."""
        powers = drop(self.powers(x, edge_index, edge_weight), self.input_dropout, training=self.training)
        parts = powers.tensor_split(len(self.branches), dim=1)
        hidden = torch.cat([branch(part) for branch, part in zip(self.branches, parts, strict=True)], dim=1)
        out: Tensor = self.last(self._drop(self.activation(hidden)))
        return out
