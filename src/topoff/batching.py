"""Node sets for mini-batches: partition a graph, then merge its parts into balanced batches.

Two layers, both public. `partition` gives every node a part (KaMinPar, METIS or uniform random). `NodeSets` merges the
parts into batches, as Cluster-GCN does: each node once, balanced sizes, the same for every epoch or regrouped anew.

>>> import torch
>>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
>>> partition(ring, 6, parts=3, method="metis").bincount().tolist()
[2, 2, 2]
"""

from __future__ import annotations

import difflib
import heapq
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch_geometric.data import Data

Progress = Callable[[str], None]
Ints = npt.NDArray[np.int64]

METHODS = ("kaminpar", "metis", "random")
DEFAULT_PARTS = 200  # default number of parts on a large graph
NODES_PER_PART = 50  # parts are not made smaller than this by default
TOTAL_WEIGHT = 2**30  # METIS adds edge weights in its index type, which may have 32 bits


def partition(
    edge_index: Tensor,
    num_nodes: int,
    *,
    parts: int,
    method: str = "kaminpar",
    edge_weight: Tensor | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tensor:
    """Give every node a part in 0..parts-1, so that few (or light) edges run between parts.

    The graph is made undirected for this purpose only: both directions of an edge and all its duplicates are merged,
    their weights added (1 each without `edge_weight`), so that the cut counts the messages that cross parts. Self-loops
    and edges of weight 0 play no role. Weights are scaled to integers. Isolated nodes fill up the smaller parts.

    A graph without edges to cut has nothing to optimise: its nodes are cut into contiguous parts, sizes within 1.
    On tiny graphs either partitioner may leave parts empty. The same arguments give the same parts; no global generator
    is touched.

    Args:
        edge_index: (2, E) integers, any direction.
        num_nodes: number of nodes n.
        parts: number of parts, 1 to n.
        method: "kaminpar" (fast preset), "metis", or "random" (uniform, sizes within 1, edges ignored).
        edge_weight: (E,) finite and non-negative.
        seed: non-negative seed of the partitioner.
        progress: receives a line of text before each stage.

    Returns:
        (n,) int64 part of every node, on the CPU.

    Raises:
        ValueError: an argument is out of range; the sentence names it and the remedy.

    Example:
        >>> two_triangles = torch.tensor([[0, 1, 2, 3, 4, 5, 2], [1, 2, 0, 4, 5, 3, 3]])
        >>> part = partition(two_triangles, 6, parts=2)
        >>> part[:3].unique().numel(), part[3:].unique().numel()
        (1, 1)
    """
    _check_method(method)
    _check_seed(seed)
    _check_graph(edge_index, num_nodes, edge_weight=edge_weight)
    if not 1 <= parts <= num_nodes:
        raise ValueError(
            f"Expected 'parts' to be between 1 and the number of nodes, {num_nodes} (got {parts}); "
            f"ask for at most {num_nodes} parts."
        )
    report = progress or _silent
    if method == "random":
        return torch.from_numpy(_balanced(num_nodes, parts)[np.random.default_rng(seed).permutation(num_nodes)])
    if parts == 1 or parts == num_nodes:
        return torch.from_numpy(_balanced(num_nodes, parts))
    report(f"merging {edge_index.size(1):,} edges into an undirected graph")
    graph = _undirected(edge_index, num_nodes, edge_weight=edge_weight)
    if graph.nnz == 0:
        report("no edges to cut: contiguous parts")
        return torch.from_numpy(_balanced(num_nodes, parts))
    report(f"partitioning {num_nodes:,} nodes into {parts:,} parts with {method}")
    cut = _cut_with_metis if method == "metis" else _cut_with_kaminpar
    return torch.from_numpy(cut(graph, parts, seed=seed % 2**31))


@dataclass(kw_only=True, eq=False)
class NodeSets:
    """Merge parts into batches: every node (or training node) once, balanced sizes, deterministic.

    The constructor only stores; `fit` partitions the graph; `of` lists the batches of an epoch. There are
    `round(1 / ratio)` batches, none empty. Parts are shuffled, then each goes to the smallest batch so far, so batch
    sizes differ by at most the largest part. Without parts (method "random"), sizes differ by at most 1.

    Attributes:
        method: "kaminpar", "metis" or "random".
        ratio: fraction of the nodes in a batch, in (0, 1].
        parts: number of parts that are merged. None: `max(batches, min(max(200, 4 * batches), n // 50))` parts;
            with method "random", none at all: each batch is a piece of a random permutation.
        seed: seed of the partition and, together with the epoch, of the merging.
        regroup: merge the parts anew every epoch.
        train_only: batch the training nodes only; the whole graph is partitioned, training nodes are balanced.
        parts_: (n,) int64 part of every node, after `fit` (method "random" without `parts`: the node itself).
        nodes_: (m,) int64 the nodes that are batched, ascending, after `fit`.

    Example:
        >>> from torch_geometric.data import Data
        >>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), num_nodes=4)
        >>> sets = NodeSets(method="random", ratio=0.5).fit(ring)
        >>> [nodes.numel() for nodes in sets.of(0)]
        [2, 2]
    """

    method: str = "kaminpar"
    ratio: float = 0.1
    parts: int | None = None
    seed: int = 0
    regroup: bool = False
    train_only: bool = False
    parts_: Tensor | None = field(default=None, init=False, repr=False)
    nodes_: Tensor | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        """Count the batches of an epoch: `round(1 / ratio)`, at least 1."""
        if not 0 < self.ratio <= 1:
            raise ValueError(f"Expected 'ratio' to be in (0, 1] (got {self.ratio}); 0.1 gives 10 batches.")
        return max(1, round(1 / self.ratio))

    def fit(self, data: Data, *, progress: Progress | None = None) -> NodeSets:
        """Partition the graph of `data` (`edge_index`, `edge_weight` if present, `train_mask` with `train_only`).

        Returns:
            This object, with `parts_` and `nodes_`.

        Raises:
            ValueError: a parameter is out of range, or `data` lacks edges or training nodes.

        Example:
            >>> from torch_geometric.data import Data
            >>> pair = Data(edge_index=torch.tensor([[0, 2], [1, 3]]), num_nodes=4)
            >>> NodeSets(ratio=0.5, parts=2).fit(pair).parts_.bincount().tolist()
            [2, 2]
        """
        _check_method(self.method)
        _check_seed(self.seed)
        if getattr(data, "edge_index", None) is None:
            raise ValueError("Expected 'data' to have an edge_index (got none); set data.edge_index, of shape (2, E).")
        num_nodes = int(data.num_nodes)
        nodes = _training_nodes(data) if self.train_only else np.arange(num_nodes)
        if len(self) > len(nodes):
            raise ValueError(
                f"Expected 'ratio' to give at most {len(nodes)} batches, one per node to batch "
                f"(got {self.ratio}, {len(self)} batches); choose a larger ratio."
            )
        count = self._number_of_parts(num_nodes)
        if count is None:
            self.parts_ = torch.arange(num_nodes)
        else:
            part = partition(
                data.edge_index,
                num_nodes,
                parts=count,
                method=self.method,
                edge_weight=getattr(data, "edge_weight", None),
                seed=self.seed,
                progress=progress,
            )
            self.parts_ = torch.from_numpy(_split_until(part.numpy(), nodes, parts=count, wanted=len(self)))
        self.nodes_ = torch.from_numpy(nodes)
        return self

    def of(self, epoch: int) -> list[Tensor]:
        """List the batches of an epoch: int64 node ids, ordered by (part, id) so that communities are contiguous.

        Raises:
            RuntimeError: `fit` was not called.
            ValueError: `epoch` is negative.

        Example:
            >>> from torch_geometric.data import Data
            >>> pair = Data(edge_index=torch.tensor([[0, 2], [1, 3]]), num_nodes=4)
            >>> sets = NodeSets(ratio=0.5, parts=2, regroup=True).fit(pair)
            >>> sorted(torch.cat(sets.of(7)).tolist())
            [0, 1, 2, 3]
        """
        if self.parts_ is None or self.nodes_ is None:
            raise RuntimeError("Expected 'NodeSets' to be fitted before of() (got no parts); call fit(data) first.")
        if epoch < 0:
            raise ValueError(f"Expected 'epoch' to be at least 0 (got {epoch}); count epochs from 0.")
        return self._grouped(self.parts_, self.nodes_.numpy(), epoch=epoch if self.regroup else 0)

    def cover(self) -> list[Tensor]:
        """List as many sets that hold every node of the graph once, with `train_only` too; for exact inference.

        Example:
            >>> from torch_geometric.data import Data
            >>> pair = Data(edge_index=torch.tensor([[0, 2], [1, 3]]), num_nodes=4)
            >>> [nodes.numel() for nodes in NodeSets(ratio=0.5, parts=2).fit(pair).cover()]
            [2, 2]
        """
        if self.parts_ is None:
            raise RuntimeError("Expected 'NodeSets' to be fitted before cover() (got no parts); call fit(data) first.")
        return self._grouped(self.parts_, np.arange(self.parts_.numel()), epoch=0)

    def _grouped(self, parts: Tensor, nodes: Ints, *, epoch: int) -> list[Tensor]:
        """Merge the parts of some nodes into batches."""
        # a pair and not a sum: epoch 1 of seed 0 must not repeat epoch 0 of seed 1
        rng = np.random.default_rng([self.seed, epoch])
        part = parts.numpy()[nodes]
        batch_of_part = _merge(np.bincount(part), len(self), rng=rng)
        batch = batch_of_part[part]
        order = np.lexsort((nodes, part, batch))
        stops = np.cumsum(np.bincount(batch, minlength=len(self)))[:-1]
        return [torch.from_numpy(piece) for piece in np.split(nodes[order], stops)]

    def _number_of_parts(self, num_nodes: int) -> int | None:
        """Choose or check the number of parts; None where nodes are batched one by one."""
        if self.parts is None:
            if self.method == "random":
                return None
            return max(len(self), min(max(DEFAULT_PARTS, 4 * len(self)), num_nodes // NODES_PER_PART))
        if not len(self) <= self.parts <= num_nodes:
            raise ValueError(
                f"Expected 'parts' to be between the number of batches, {len(self)}, and the number of nodes, "
                f"{num_nodes} (got {self.parts}); leave it out for a sensible default, or change 'ratio'."
            )
        return self.parts


def _check_method(method: str) -> None:
    if method not in METHODS:
        near = difflib.get_close_matches(str(method), METHODS, n=1, cutoff=0.4)
        remedy = f"did you mean {near[0]!r}?" if near else "'kaminpar' is the default."
        raise ValueError(f"Expected 'method' to be one of {', '.join(METHODS)} (got {method!r}); {remedy}")


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise ValueError(f"Expected 'seed' to be at least 0 (got {seed}); choose a non-negative integer.")


def _check_graph(edge_index: Tensor, num_nodes: int, *, edge_weight: Tensor | None) -> None:
    """Refuse edges that no partitioner can read: the native ones would crash on them."""
    if edge_index.dim() != 2 or edge_index.size(0) != 2 or edge_index.is_floating_point():
        raise ValueError(
            f"Expected 'edge_index' to be integers of shape (2, E) (got {edge_index.dtype}, "
            f"{tuple(edge_index.shape)}); pass sources and targets as two rows."
        )
    edges = edge_index.size(1)
    if edges and not 0 <= int(edge_index.min()) <= int(edge_index.max()) < num_nodes:
        raise ValueError(
            f"Expected 'edge_index' to hold node ids from 0 to {num_nodes - 1} (got {int(edge_index.min())} to "
            f"{int(edge_index.max())}); correct the ids or 'num_nodes'."
        )
    if edge_weight is None:
        return
    if tuple(edge_weight.shape) != (edges,):
        raise ValueError(
            f"Expected 'edge_weight' to have shape ({edges},), one per edge (got {tuple(edge_weight.shape)}); "
            "give every edge one weight, or leave the weights out."
        )
    bad = int((~(torch.isfinite(edge_weight) & (edge_weight >= 0))).sum())
    if bad:
        raise ValueError(
            f"Expected 'edge_weight' to be finite and non-negative for a partition (got {bad} that are not); "
            "pass edge_weight.abs(), leave the weights out, or use method='random'."
        )


def _silent(message: str) -> None:
    """Report nothing."""


def _balanced(num_nodes: int, parts: int) -> Ints:
    """Cut 0..n-1 into contiguous parts whose sizes differ by at most 1."""
    return np.arange(num_nodes, dtype=np.int64) * parts // num_nodes


def _undirected(edge_index: Tensor, num_nodes: int, *, edge_weight: Tensor | None) -> Any:
    """Build the symmetric CSR matrix without diagonal; integer weights, all 1 where they are all equal."""
    from scipy.sparse import coo_array

    source, target = edge_index.detach().cpu().numpy()
    weight = np.ones(len(source)) if edge_weight is None else edge_weight.detach().cpu().double().numpy()
    keep = (source != target) & (weight > 0)
    directed = coo_array((weight[keep], (source[keep], target[keep])), shape=(num_nodes, num_nodes)).tocsr()
    graph = (directed + directed.T).tocsr()
    graph.sort_indices()
    graph.data = _whole(graph.data)
    return graph


def _whole(weight: npt.NDArray[np.float64]) -> Ints:
    """Scale positive weights to positive integers: 1 if all are equal, else a mean of 1000 within TOTAL_WEIGHT."""
    if not len(weight) or weight.min() == weight.max():
        return np.ones(len(weight), dtype=np.int64)
    if weight.sum() <= TOTAL_WEIGHT and bool((weight == np.rint(weight)).all()):
        return weight.astype(np.int64)
    share = weight / weight.sum()  # first to shares: a product of large weights and scale could overflow
    scaled: Ints = np.rint(np.maximum(1.0, share * min(1000 * len(weight), TOTAL_WEIGHT))).astype(np.int64)
    return scaled


def _cut_with_metis(graph: Any, parts: int, *, seed: int) -> Ints:
    """Run METIS."""
    import pymetis

    index = pymetis.zero_copy_dtype()
    adjacency = pymetis.CSRAdjacency(graph.indptr.astype(index), graph.indices.astype(index))
    weight = None if graph.data.max() == 1 else graph.data.astype(index)
    found = pymetis.part_graph(parts, adjacency, eweights=weight, options=pymetis.Options(seed=seed))
    return np.array(found.vertex_part, dtype=np.int64)


def _cut_with_kaminpar(graph: Any, parts: int, *, seed: int) -> Ints:
    """Run KaMinPar on one thread: more are neither deterministic nor, as measured, faster."""
    import kaminpar

    before = kaminpar.seed()
    with tempfile.TemporaryDirectory(prefix="topoff-") as folder:
        file = Path(folder) / "graph.parhip"
        _write_parhip(graph, file)
        loaded = kaminpar.load_graph(str(file), kaminpar.GraphFileFormat.PARHIP)
    try:
        kaminpar.reseed(seed)
        found = kaminpar.KaMinPar(1, kaminpar.fast_context()).compute_partition(loaded, parts, 0.03)
    finally:
        kaminpar.reseed(before)
    return np.array(found, dtype=np.int64)


def _write_parhip(graph: Any, file: Path) -> None:
    """Write the ParHIP binary format, the only one besides text that KaMinPar's Python package reads.

    Header of three 64-bit words (flags, nodes, directed edges); n+1 64-bit byte offsets from the start of the file;
    32-bit neighbours; 32-bit edge weights. A set flag says what is absent (1 edge weights, 2 node weights) or has only
    32 bits (8 node ids, 32 edge weights).
    """
    weighted = graph.data.max() > 1
    flags = (0 if weighted else 1) | 2 | 8 | 32
    nodes = graph.shape[0]
    first = 8 * (3 + nodes + 1)
    with file.open("wb") as out:
        out.write(np.array([flags, nodes, graph.nnz], dtype="<u8").tobytes())
        out.write((first + 4 * graph.indptr.astype("<u8")).tobytes())
        out.write(graph.indices.astype("<u4").tobytes())
        if weighted:
            out.write(graph.data.astype("<u4").tobytes())


def _training_nodes(data: Data) -> Ints:
    """List the training nodes, ascending."""
    mask = getattr(data, "train_mask", None)
    if mask is None or mask.dtype != torch.bool or tuple(mask.shape) != (int(data.num_nodes),) or not bool(mask.any()):
        came = "none" if mask is None else f"{mask.dtype}, {tuple(mask.shape)}, {int((mask != 0).sum())} nodes set"
        raise ValueError(
            f"Expected 'data.train_mask' to be a bool mask of shape (n,) with a training node for train_only=True "
            f"(got {came}); set the mask, or use train_only=False."
        )
    found: Ints = mask.cpu().numpy().nonzero()[0].astype(np.int64)
    return found


def _split_until(part: Ints, nodes: Ints, *, parts: int, wanted: int) -> Ints:
    """Halve the largest part, counted in `nodes`, until `wanted` parts hold some, so that no batch is empty."""
    part = part.copy()
    sizes = np.bincount(part[nodes], minlength=parts)
    while (sizes > 0).sum() < wanted:
        largest, empty = int(sizes.argmax()), int(sizes.argmin())
        members = nodes[part[nodes] == largest]
        part[members[len(members) // 2 :]] = empty
        sizes = np.bincount(part[nodes], minlength=parts)
    return part


def _merge(sizes: Ints, batches: int, *, rng: np.random.Generator) -> Ints:
    """Deal the parts, in random order, to the smallest batch so far: sizes differ by at most the largest part."""
    batch = np.zeros(len(sizes), dtype=np.int64)
    order = rng.permutation(len(sizes))
    order = order[sizes[order] > 0]
    if int(sizes.max()) == 1:  # the same rule in one step, for nodes dealt one by one
        batch[order] = np.arange(len(order)) % batches
        return batch
    heap = [(0, number) for number in range(batches)]
    for one in order:
        size, number = heap[0]
        batch[one] = number
        heapq.heapreplace(heap, (size + int(sizes[one]), number))
    return batch
