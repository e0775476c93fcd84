"""Give a general conv the rows of a batch's halo, and take its own rows back (9, 10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.forward.foreign import raise_foreign
from topoff.forward.intercept import ConvCall, map_tensors
from topoff.graph.graph import Neighborhood

LOOKED_AT = 128  # rows by which dropout is recognised


@dataclass(frozen=True)
class Extended:
    """Run a general conv on the batch and its halo: every argument gets the rows and edges about the batch.

    A *wide* model has those rows and edges already, but behind its first conv the halo's rows are not computed right:
    there, too, they are replaced.
    """

    call: ConvCall
    batch: Data  # what the model was called with
    size: int  # b, rows of the batch itself
    around: Neighborhood
    halo_rows: Callable[[Tensor], Tensor]  # (b, d) -> (c, d): what stands in for the halo of an embedding
    wide: bool = False
    exact_features: bool = True  # whether the halo's own attributes may be used

    @property
    def rows(self) -> int:
        """Rows of the batch, its halo and what lies beyond."""
        return self.size + self.around.halo.numel() + self.around.others

    def run(self) -> Any:
        """Call the conv's own forward; keep the batch's rows of its output, in a wide model all."""
        self.call.general, self.call.extended = True, self
        args, kwargs = map_tensors((self.call.args, self.call.kwargs), self._extend)
        out = self.call.forward(*args, **kwargs)
        return out if self.wide else self.narrow(out)

    def heal(self, tensor: Tensor) -> Tensor:
        """Replace the halo's rows of what a conv has computed, before another propagation reads them."""
        axis = self.axis(tensor, self.rows)
        if axis is None or not torch.is_floating_point(tensor):
            return tensor
        return self._with_halo(tensor.narrow(axis, 0, self.size), axis)

    def axis(self, tensor: Tensor, rows: int) -> int | None:
        """Return the axis of a tensor that counts the nodes: the first one, or the conv's own; None without one."""
        own = int(getattr(self.call.conv.module, "node_dim", 0))
        if tensor.dim() and tensor.size(0) == rows:
            return 0
        fits = tensor.dim() >= (-own if own < 0 else own + 1) and tensor.dim() > 1
        return own % tensor.dim() if fits and tensor.size(own) == rows else None

    def narrow(self, given: Any) -> Any:
        """Keep the batch's rows of arguments or outputs."""

        def own(tensor: Tensor) -> Tensor:
            """Cut a tensor, where it has rows of nodes."""
            axis = self.axis(tensor, self.rows)
            return tensor if axis is None else tensor.narrow(axis, 0, self.size)

        return map_tensors(given, own)

    def widen(self, given: Any, *, value: float = 0.0) -> Any:
        """Append rows to the batch's own of outputs; nobody reads them."""

        def longer(tensor: Tensor) -> Tensor:
            """Append rows to a tensor, where it has rows of nodes."""
            axis = self.axis(tensor, self.size)
            if axis is None:
                return tensor
            shape = list(tensor.shape)
            shape[axis] = self.rows - self.size
            return torch.cat([tensor, tensor.new_full(shape, value)], dim=axis)

        return map_tensors(given, longer)

    def _with_halo(self, own: Tensor, axis: int) -> Tensor:
        """Append the halo's rows, and zeros for what lies beyond."""
        h = own.movedim(axis, 0) if axis else own  # the tensor itself: some look who it is
        parts = [h, self.halo_rows(h)]
        if self.around.others:
            parts.append(h.new_zeros((self.around.others, *h.shape[1:])))
        return torch.cat(parts).movedim(0, axis) if axis else torch.cat(parts)

    def _extend(self, tensor: Tensor) -> Any:
        """Return a tensor for the batch and its halo; by what it is: edges, edge values, features or an embedding."""
        if self.wide:
            own = self.exact_features and any(is_alias(tensor, self.batch[name]) for name in self.around.features)
            return tensor if self.call.known or own else self.heal(tensor)
        for name, values in self.around.values.items():
            if is_alias(tensor, self.batch[name]):
                return values
        if tensor is self.batch.edge_index:
            return self.around.edge_index
        for name, rows in self.around.features.items():
            if is_alias(tensor, self.batch[name]) and (self.exact_features or not torch.is_floating_point(tensor)):
                return torch.cat([tensor, rows])
        axis = self.axis(tensor, self.size)
        if axis is None:
            return self._other(tensor)
        if self.call.known and tensor is self.call.x:  # after dropout: their halo is known
            return torch.cat([tensor, self.around.features["x"].to(tensor.dtype)])
        if not torch.is_floating_point(tensor):
            raise_foreign(self.call.conv, "node attributes")
        return self._with_halo(tensor, axis)

    def _other(self, tensor: Tensor) -> Tensor:
        """Return a tensor that has no rows of nodes as it is, but for edges that are not the batch's own objects."""
        edges = self.batch.edge_index
        if tensor.shape == edges.shape and not torch.is_floating_point(tensor):
            if not torch.equal(tensor, edges):
                raise_foreign(self.call.conv, "edge_index")
            return self.around.edge_index
        if tensor.dim() and tensor.size(0) == edges.size(1):
            raise_foreign(self.call.conv, "edge_attr")
        return tensor


def check_dense(call: ConvCall) -> None:
    """Refuse a conv that is given a sparse matrix.

    Raises:
        ValueError: with what to call it with instead.
    """

    def look(tensor: Tensor) -> None:
        """Refuse a sparse tensor."""
        if tensor.layout != torch.strided:
            raise ValueError(
                f"Expected {call.conv} to receive edges as edge_index (got a sparse matrix, {tensor.layout}): call it "
                f"with edge_index, and the weights beside it."
            )

    map_tensors((call.args, call.kwargs), look)


def is_alias(tensor: Tensor, own: Tensor) -> bool:
    """Whether two tensors are one: the same object, or detached from it, as checkpointing does."""
    if tensor is own:
        return True
    same = tensor.shape == own.shape and tensor.dtype == own.dtype and tensor.stride() == own.stride()
    return bool(same and tensor.numel() > 0 and tensor.data_ptr() == own.data_ptr())


def is_dropped_out(given: Any, own: Tensor) -> bool:
    """Whether rows are features after dropout: some are zero, all others scaled by what keeps the mean.

    What is known of the features then holds for them on average. Other changes (masked columns, noise) are none.

    >>> x = torch.ones(100, 10)
    >>> [is_dropped_out(rows, x) for rows in (torch.nn.functional.dropout(x), x * 0.5, x * 2)]
    [True, False, False]
    """
    if not isinstance(given, Tensor) or given.shape != own.shape or given.dtype != own.dtype:
        return False
    step = max(1, len(own) // LOOKED_AT)
    given, own = given.detach()[::step], own[::step]
    kept, there = given != 0, own != 0
    count, total = int(kept.sum()), int(there.sum())
    if count == 0:
        return total == 0
    if bool((kept & ~there).any()):
        return False
    place = kept.reshape(-1).nonzero()[0]
    factor = given.reshape(-1)[place] / own.reshape(-1)[place]
    if not torch.allclose(given, own * kept * factor, rtol=64 * torch.finfo(own.dtype).eps, atol=0):
        return False
    share = 1 / float(factor)
    deviation = (share * max(0.0, 1 - share) / total) ** 0.5
    return bool(abs(count / total - share) <= 6 * deviation + 1e-6)
