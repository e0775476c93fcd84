"""The global aggregation operator A: weighed once with the degrees of the whole graph, cut into what batches need.

Every mini-batch takes its rows from the same A, so a node's message weights never depend on the batch that it is in. A
shares the edges with all other operators: besides them it is a number per node, and no value per edge is kept unless
the graph has such weights.

>>> import torch
>>> path = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
>>> A = aggregation(path, Operator(aggr="mean"))
>>> A.all() @ path.x
tensor([[0.0000, 1.0000, 0.0000],
        [0.5000, 0.0000, 0.5000],
        [0.0000, 1.0000, 0.0000]])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.graph.incoming import Array, Incoming, incoming_of
from topoff.graph.operators import Operator, Sparse, full_type, to_sparse
from topoff.machine.shelf import Shelf

Empty = Callable[[tuple[int, ...], torch.dtype], Tensor]  # makes a matrix of all nodes, to be filled

ROWS = 2**15  # of A that are cut at a time where all of them are multiplied
MOSTLY = 0.75  # of a batch's rows: where more have neighbours outside, to add to all is cheaper than to pick those


@dataclass(frozen=True)
class Aggregation:
    """Hold A (n x n) = diag(left) P diag(right) + diag(loops), P being the edges, and cut what batches need."""

    operator: Operator
    dtype: torch.dtype  # of the features, and of PyG's own weights
    incoming: Incoming  # P: each pair once
    values: Array | None = None  # (m,) float64, the entries of P; None: all are 1
    left: Array | None = None  # (n,) float64
    right: Array | None = None  # (n,) float64
    loops: Array | None = None  # (n,) float64; then P has none
    widens: bool = False  # the features are kept in a narrower type than `dtype`, which products have

    @classmethod
    def of(cls, operator: Operator, dtype: torch.dtype, matrix: Any) -> Aggregation:
        """Return A of a scipy matrix (n, n) without duplicates."""
        matrix = matrix.tocsr()
        return cls(operator, dtype, Incoming(matrix.indptr.astype(np.int64), matrix.indices, None), matrix.data)

    @property
    def num_nodes(self) -> int:
        """The rows and columns of A."""
        return len(self.incoming.offsets) - 1

    @cached_property
    def matrix(self) -> Any:
        """A itself, as scipy.sparse.csr_array (n, n), for methods that look at all of its entries."""
        return self._rows(np.arange(self.num_nodes))

    @cached_property
    def symmetric(self) -> bool:
        """Whether A equals A^T, exactly; then so does every A[B, B]."""
        if self.values is None:
            scales = self.left is self.right or (self.right is None and self._is_even)
            return scales and self.incoming.is_symmetric
        difference = self.matrix - self.matrix.T
        return bool(difference.nnz == 0 or np.abs(difference.data).max() == 0.0)

    @property
    def _is_even(self) -> bool:
        """Whether all messages have the same weight."""
        assert self.left is not None
        weights = self.left[self.incoming.degrees > 0]
        return not len(weights) or bool((weights == weights[0]).all())

    def all(self) -> Sparse:
        """Return the whole of A."""
        return self._sparse(self.matrix, symmetric=self.symmetric)

    def product(self, h: Tensor, *, dtype: torch.dtype | None = None, shelf: Shelf | None = None) -> Tensor:
        """Return A h (n, d), some rows at a time, without a gradient.

        With a shelf it may lie on disk, and as many columns of h are read into memory at a time as may be there: rows
        of neighbours are all over it.
        """
        shape, dtype = (self.num_nodes, *h.shape[1:]), dtype or h.dtype
        if shelf is None or h.dim() != 2:
            out, width = torch.empty(shape, dtype=dtype), max(1, h.size(-1))
        else:
            size = len(h) * full_type(h.dtype).itemsize
            out, most = shelf.empty(shape, dtype), max(1, shelf.room() // max(1, size))
            passes = max(1, -(-h.size(1) // most))
            width = max(1, -(-h.size(1) // passes))
        for first in range(0, h.size(-1), width):
            last = first + width
            part = h if shelf is None else h[:, first:last].to(full_type(h.dtype)).contiguous()
            for start in range(0, self.num_nodes, ROWS):
                stop = min(start + ROWS, self.num_nodes)
                out[start:stop, ..., first:last] = self.rows(torch.arange(start, stop)) @ part
            del part  # before the next columns are read
        return out

    def rows(self, nodes: Tensor) -> Sparse:
        """Return A[B, :], the columns numbered globally."""
        return self._sparse(self._rows(_array(nodes)), transpose=False)

    def within(self, nodes: Tensor) -> Sparse:
        """Return A[B, B], both sides numbered by position in the batch."""
        return self._within(*self._placed(nodes))

    def cut(self, nodes: Tensor) -> tuple[Sparse, Tensor, Sparse]:
        """Return A[B, B], the boundary rows (positions in the batch), and A[boundary, not B], its columns global.

        Where most rows have neighbours outside, all of them are taken for boundary rows.
        """
        rows, column = self._placed(nodes)
        outside = column < 0
        pointers = _pointers(rows, outside)
        boundary = np.flatnonzero(np.diff(pointers))
        if len(boundary) > MOSTLY * rows.shape[0]:
            boundary = np.arange(rows.shape[0])
        entries = (rows.data[outside], rows.indices[outside], np.append(0, pointers[boundary + 1]))
        halo = sp.csr_array(entries, shape=(len(boundary), self.num_nodes))
        return self._within(rows, column), torch.from_numpy(boundary), self._sparse(halo, transpose=False)

    def _rows(self, nodes: Array) -> Any:
        """Return A[B, :] as scipy.sparse.csr_array, in float64, columns ascending."""
        positions, counts = self.incoming.window(nodes) or self.incoming.spans(nodes)
        columns, pointers = self.incoming.senders[positions], np.append(0, np.cumsum(counts))
        values = np.ones(len(columns)) if self.values is None else np.array(self.values[positions])  # a copy
        if self.right is not None:
            values *= self.right[columns]
        if self.left is not None:
            values *= np.repeat(self.left[nodes], counts)
        if self.loops is not None:
            smaller = np.append(0, np.cumsum(columns < np.repeat(nodes, counts)))[pointers]
            at = pointers[:-1] + np.diff(smaller)  # columns stay ascending
            columns, values = np.insert(columns, at, nodes), np.insert(values, at, self.loops[nodes])
            pointers = pointers + np.arange(len(pointers))
        return sp.csr_array((values, columns, pointers), shape=(len(nodes), self.num_nodes))

    def _placed(self, nodes: Tensor) -> tuple[Any, Array]:
        """Return A[B, :] and, for each of its entries, the column's position in the batch, -1 outside."""
        ids = _array(nodes)
        position = np.full(self.num_nodes, -1, dtype=np.int32)
        position[ids] = np.arange(len(ids))
        rows = self._rows(ids)
        return rows, position[rows.indices]

    def _within(self, rows: Any, column: Array) -> Sparse:
        keep, size = column >= 0, rows.shape[0]
        inside = sp.csr_array((rows.data[keep], column[keep], _pointers(rows, keep)), shape=(size, size))
        return self._sparse(inside, symmetric=self.symmetric)

    def _sparse(self, matrix: Any, **kind: bool) -> Sparse:
        """Convert a piece; a product with it has the type of PyG's own."""
        return replace(to_sparse(matrix, self.dtype, **kind), weighs=self.weighs)

    @property
    def weighs(self) -> torch.dtype | None:
        """The type of the weights that PyG's messages are multiplied with; None where there are none."""
        return self.dtype if self.operator.weighted or self.widens else None


def aggregation(
    data: Data, operator: Operator, *, incoming: Incoming | None = None, dtype: torch.dtype | None = None
) -> Aggregation:
    """Build A of an operator on the whole graph, as PyG's own layer weighs its messages there.

    A[i, j] is the weight of the message from j to i; duplicate edges add up. `incoming` are the edges by receiver,
    where they are at hand; `dtype` is the type of products, where the features are kept in a narrower one.
    """
    n, dtype = int(data.num_nodes or 0), dtype or data.x.dtype
    widens = dtype != data.x.dtype
    if operator.weight is None and operator.norm != "cluster" and not operator.improved:
        incoming = incoming or incoming_of(data.edge_index, n, flow=operator.flow)
        if incoming.is_distinct and not (operator.self_loops and len(incoming.loops)):
            return Aggregation(operator, dtype, incoming, **_scales(operator, incoming), widens=widens)
    edge_index, weight = _weighted_edges(data, operator)
    source, target = edge_index if operator.flow == "source_to_target" else edge_index.flip(0)
    if operator.aggr == "mean":
        weight = weight / torch.bincount(target, minlength=n).clamp(min=1).to(weight.dtype)[target]
    entries = (_array(weight), (_array(target), _array(source)))
    return replace(Aggregation.of(operator, dtype, sp.coo_array(entries, shape=(n, n))), widens=widens)


def _scales(operator: Operator, incoming: Incoming) -> dict[str, Array | None]:
    """Return what an operator multiplies the rows, the columns and the diagonal of unweighted edges with."""
    received = (incoming.degrees + operator.self_loops).astype(np.float64)
    one = np.ones(len(received)) if operator.self_loops else None
    scales: dict[str, Array | None] = {"loops": one}
    if operator.norm == "gcn":
        root = np.divide(1.0, np.sqrt(received), out=np.zeros_like(received), where=received > 0)
        scales = {"left": root, "right": root, "loops": None if one is None else root * root}
    if operator.aggr == "mean":
        share = 1.0 / np.maximum(received, 1.0)
        left, loops = scales.get("left"), scales["loops"]
        scales["left"] = share if left is None else left * share
        scales["loops"] = None if loops is None else loops * share
    return scales


def _weighted_edges(data: Data, operator: Operator) -> tuple[Tensor, Tensor]:
    """Return the edges and weights that PyG's layer hands to `propagate` on the whole graph, in float64."""
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import add_self_loops, degree, remove_self_loops

    edges = data.edge_index.long()
    n = int(data.num_nodes or 0)
    weight = None if operator.weight is None else data[operator.weight].detach().to(torch.float64).view(-1)
    if operator.norm == "gcn":
        loops = {"improved": operator.improved, "add_self_loops": operator.self_loops, "flow": operator.flow}
        return gcn_norm(edges, weight, n, dtype=torch.float64, **loops)  # type: ignore[no-any-return]
    if operator.norm == "cluster":
        if operator.self_loops:
            edges, _ = add_self_loops(remove_self_loops(edges)[0], num_nodes=n)
        share = (1.0 / degree(edges[1], n).clamp_(1.0))[edges[1]]  # in the default type, as PyG does
        loop = edges[0] == edges[1]
        return edges, torch.where(loop, share + operator.diag_lambda * share, share).to(torch.float64)
    if operator.self_loops:
        edges, weight = add_self_loops(edges, weight, num_nodes=n)
    return edges, torch.ones(edges.size(1), dtype=torch.float64) if weight is None else weight


def _pointers(rows: Any, keep: Array) -> Array:
    """Return the row pointers that are left when only the entries in `keep` stay."""
    pointers: Array = np.append(0, np.cumsum(keep))[rows.indptr]
    return pointers


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()
