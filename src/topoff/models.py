"""Models as the paper sets them: plain PyG modules, written once, for whole graphs and batches alike."""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv


class GCN(nn.Module):
    """Stack GCNConv, a per-node LayerNorm, a residual where shapes match, ReLU and dropout; the last layer is a conv.

    >>> GCN(8, 16, out_channels=3, num_layers=2)
    GCN(8, 16, 3, num_layers=2)
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        *,
        out_channels: int,
        num_layers: int = 3,
        dropout: float = 0.2,
        norm: bool = True,
        residual: bool = True,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"Expected num_layers to be at least 1 (got {num_layers}).")
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_channels) if norm else nn.Identity() for _ in widths[1:-1])
        self.dropout, self.residual, self._widths = dropout, residual, widths

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for module in (*self.convs, *self.norms):
            if not isinstance(module, nn.Identity):
                module.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Return (n, out_channels)."""
        for conv, norm in zip(self.convs, self.norms, strict=False):
            h = norm(conv(x, edge_index, edge_weight))
            if self.residual and h.shape == x.shape:
                h = h + x
            x = F.dropout(F.relu(h), self.dropout, self.training)
        out: Tensor = self.convs[-1](x, edge_index, edge_weight)
        return out

    def __repr__(self) -> str:
        first, hidden, last = self._widths[0], self._widths[-2] if len(self.convs) > 1 else 0, self._widths[-1]
        return f"GCN({first}, {hidden}, {last}, num_layers={len(self.convs)})"
