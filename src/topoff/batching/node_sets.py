"""Node sets for mini-batches: merge the parts of a graph into balanced batches.

`partition` gives every node a part; `NodeSets` merges the parts into batches, as Cluster-GCN does: each node once,
balanced sizes, the same for every epoch or regrouped anew.

>>> import torch
>>> from torch_geometric.data import Data
>>> ring = Data(edge_index=torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]]), num_nodes=6)
>>> [nodes.numel() for nodes in NodeSets(method="metis", ratio=1 / 3, parts=3).fit(ring).of(0)]
[2, 2, 2]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from topoff.batching.partition import Announce, check_method, check_seed, partition
from topoff.batching.pattern import Floats, Ints
from topoff.batching.ratio import count_batches, near_training
from topoff.batching.stored import STORED, brought
from topoff.machine.cache import cache_dir

if TYPE_CHECKING:
    from torch_geometric.data import Data

QUARTERS = 4  # classes that a regression target is cut into, for balance
DEFAULT_PARTS = 3000  # default number of parts on a large graph: small ones mix well into batches
LARGE = 1_000_000  # nodes of a graph whose pieces are ranges
PIECE = 2**17  # nodes that exact inference takes at a time, at most
NODES_PER_PART = 50  # parts are not made smaller than this by default


@dataclass(kw_only=True, eq=False)
class NodeSets:
    """Merge parts into batches: every node (or training node) once, balanced sizes, deterministic.

    The constructor only stores; `fit` partitions the graph; `of` lists the batches of an epoch. There are
    `round(1 / ratio)` batches, none empty. Parts are shuffled, then each goes where nodes, training nodes and training
    labels stay balanced: a batch of few classes makes noisy steps. No batch exceeds its share by more than the largest
    part. Without parts (method "random"), sizes differ by at most 1.

    Attributes:
        method: "kaminpar", "metis", "ldg" (in little memory) or "random"; "stored" for the parts that a graph brings
            along, in `data.names.parts`, since its nodes lie by part.
        ratio: fraction of the nodes in a batch, in (0, 1].
        parts: number of parts that are merged. None: `max(batches, min(max(3000, 4 * batches), n // 50))` parts, one
            for a single batch; with method "random", none at all: each batch is a piece of a random permutation.
        seed: seed of the partition and, together with the epoch, of the merging.
        regroup: merge the parts anew every epoch.
        train_only: batch the training nodes only; the whole graph is partitioned, training nodes are balanced.
        reach: batch the nodes within so many edges of a training node only; None: all.
        parts_: (n,) int64 part of every node, after `fit` (method "random" without `parts`: the node itself).
        nodes_: (m,) int64 the nodes that are batched, ascending, after `fit`.
    """

    method: str = "kaminpar"
    ratio: float = 0.1
    parts: int | None = None
    seed: int = 0
    regroup: bool = False
    train_only: bool = False
    reach: int | None = None
    parts_: Tensor | None = field(default=None, init=False, repr=False)
    nodes_: Tensor | None = field(default=None, init=False, repr=False)
    _pairs: Ints = field(default_factory=lambda: np.zeros((2, 0), dtype=np.int64), init=False, repr=False)

    @property
    def covers(self) -> bool:
        """Whether every node of the graph is in exactly one batch."""
        return not self.train_only and self.reach is None

    def __len__(self) -> int:
        """Count the batches of an epoch: `round(1 / ratio)`, at least 1."""
        return count_batches(self.ratio)

    def fit(
        self, data: Data, *, progress: Announce | None = None, cache: bool = False, parts: Tensor | None = None
    ) -> NodeSets:
        """Partition the graph of `data` (`edge_index`, `edge_weight` if present, `train_mask` with `train_only`).

        Args:
            data: the whole graph.
            progress: receives a line of text before each stage.
            cache: keep the parts in `cache_dir()` and take them from there the next time; they are the
                same either way. Method "random" without `parts` has nothing to keep.
            parts: (n,) the part of every node, where another process has found them.

        Returns:
            This object, with `parts_` and `nodes_`.

        Raises:
            ValueError: a parameter is out of range, or `data` lacks edges or training nodes.
        """
        if self.method != STORED:
            check_method(self.method)
        check_seed(self.seed)
        if self.reach is not None and self.train_only:
            raise ValueError(f"Expected 'reach' or train_only (got both, reach={self.reach}); leave one of them out.")
        if getattr(data, "edge_index", None) is None:
            raise ValueError("Expected 'data' to have an edge_index (got none); set data.edge_index, of shape (2, E).")
        num_nodes = int(data.num_nodes)
        nodes = np.arange(num_nodes)
        if not self.covers:
            nodes = _training_nodes(data)
            nodes = nodes if self.train_only else near_training(data, 0 if self.reach is None else self.reach)
        if len(self) > len(nodes):
            raise ValueError(
                f"Expected 'ratio' to give at most {len(nodes)} batches, one per node to batch "
                f"(got {self.ratio}, {len(self)} batches); choose a larger ratio."
            )
        self.parts_ = self._fitted(data, nodes, progress=progress, cache=cache) if parts is None else parts
        self.nodes_, self._pairs = torch.from_numpy(nodes), _label_pairs(data)
        return self

    def of(self, epoch: int) -> list[Tensor]:
        """List the batches of an epoch: int64 node ids, ordered by (part, id) so that communities are contiguous.

        Raises:
            RuntimeError: `fit` was not called.
            ValueError: `epoch` is negative.
        """
        if self.parts_ is None or self.nodes_ is None:
            raise RuntimeError("Expected 'NodeSets' to be fitted before of() (got no parts); call fit(data) first.")
        if epoch < 0:
            raise ValueError(f"Expected 'epoch' to be at least 0 (got {epoch}); count epochs from 0.")
        return self._grouped(self.parts_, self.nodes_.numpy(), epoch=epoch if self.regroup else 0)

    def cover(self) -> list[Tensor]:
        """List sets that hold every node of the graph once, whatever is batched, for exact inference.

        They are as many as the batches, or more where these would be large; part by part, but for a large graph, one
        batch and some nodes that are dealt one by one: those are ranges of nodes, as they lie on disk.
        """
        if self.parts_ is None:
            raise RuntimeError("Expected 'NodeSets' to be fitted before cover() (got no parts); call fit(data) first.")
        n = self.parts_.numel()
        in_order = n > LARGE or (self.parts is None and self.method == "random" and not self.covers)
        if n <= PIECE * len(self) and not in_order:
            return self._grouped(self.parts_, np.arange(n), epoch=0)
        order = torch.arange(n) if in_order else torch.argsort(self.parts_, stable=True)
        return list(order.tensor_split(max(len(self), -(-len(order) // PIECE))))

    def _grouped(self, parts: Tensor, nodes: Ints, *, epoch: int) -> list[Tensor]:
        """Merge the parts of some nodes into batches."""
        # a pair and not a sum: epoch 1 of seed 0 must not repeat epoch 0 of seed 1
        rng = np.random.default_rng([self.seed, epoch])
        part = parts.numpy()[nodes]
        if self.parts is None and self.method == "random":
            batch = _dealt(nodes, len(self), rng=rng)
        else:
            batch = _merge(_counts(part, nodes, self._pairs), len(self), rng=rng)[part]
        order = np.lexsort((nodes, part, batch))
        stops = np.cumsum(np.bincount(batch, minlength=len(self)))[:-1]
        return [torch.from_numpy(piece) for piece in np.split(nodes[order], stops)]

    def _fitted(self, data: Data, nodes: Ints, *, progress: Announce | None, cache: bool) -> Tensor:
        """Return the part of every node: from the partitioner or the cache, split so that no batch is empty."""
        num_nodes = int(data.num_nodes)
        if self.method == STORED:
            parts = brought(data, asked=self.parts)
            most = max(int(parts.max()) + 1, len(self))
            return torch.from_numpy(_split_until(parts, nodes, parts=most, wanted=len(self)))
        count = self._number_of_parts(num_nodes)
        if count is None:
            return torch.arange(num_nodes)
        if count == 1:  # nothing to cut
            return torch.zeros(num_nodes, dtype=torch.int64)
        part = partition(
            data.edge_index,
            num_nodes,
            parts=count,
            method=self.method,
            edge_weight=getattr(data, "edge_weight", None),
            seed=self.seed,
            progress=progress,
            cache=cache_dir() if cache else None,
        )
        return torch.from_numpy(_split_until(part.numpy(), nodes, parts=count, wanted=len(self)))

    def _number_of_parts(self, num_nodes: int) -> int | None:
        """Choose or check the number of parts; None where nodes are batched one by one."""
        if self.parts is None:
            if self.method == "random":
                return None
            return usual_parts(num_nodes, batches=len(self)) if len(self) > 1 else 1
        if not len(self) <= self.parts <= num_nodes:
            raise ValueError(
                f"Expected 'parts' to be between the number of batches, {len(self)}, and the number of nodes, "
                f"{num_nodes} (got {self.parts}); leave it out for a sensible default, or change 'ratio'."
            )
        return self.parts


def usual_parts(num_nodes: int, *, batches: int = 1) -> int:
    """Return how many parts are merged into some batches, unless the user says.

    >>> usual_parts(117_791, batches=40)
    2355
    """
    return max(batches, min(max(DEFAULT_PARTS, 4 * batches), num_nodes // NODES_PER_PART))


def _training_nodes(data: Data) -> Ints:
    """List the training nodes, ascending."""
    mask = getattr(data, "train_mask", None)
    if mask is None or mask.dtype != torch.bool or tuple(mask.shape) != (int(data.num_nodes),) or not bool(mask.any()):
        came = "none" if mask is None else f"{mask.dtype}, {tuple(mask.shape)}, {int((mask != 0).sum())} nodes set"
        raise ValueError(
            f"Expected 'data.train_mask' to be a bool mask of shape (n,) with a training node for train_only=True or "
            f"a reach (got {came}); set the mask, or leave both out."
        )
    return np.flatnonzero(mask.cpu().numpy())


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


def _merge(counts: Floats, batches: int, *, rng: np.random.Generator) -> Ints:
    """Deal the parts, in random order, so that every batch gets its share of every column of `counts`.

    `counts` (parts, columns) are nodes, training nodes and training nodes of each class. A part goes to the batch where
    the sum over batches and columns of count^2 / total grows least, as long as that batch has room for it: batches
    whose classes are those of the whole graph give less noisy steps. No batch exceeds its share of the nodes by more
    than the largest part, and none stays empty.
    """
    batch = np.zeros(len(counts), dtype=np.int64)
    order = rng.permutation(len(counts))
    order = order[counts[order, 0] > 0]
    if int(counts[:, 0].max()) == 1:  # nodes dealt one by one: chance balances the classes
        batch[order] = np.arange(len(order)) % batches
        return batch
    share = counts / np.sqrt(counts.sum(axis=0).clip(min=1))
    held = np.zeros((batches, counts.shape[1]))
    most = share[:, 0].sum() / batches + share[:, 0].max()
    for one in order:
        growth = (2 * held + share[one]) @ share[one]
        number = int(np.where(held[:, 0] + share[one, 0] <= most, growth, np.inf).argmin())
        batch[one] = number
        held[number] += share[one]
    return batch


def _dealt(nodes: Ints, batches: int, *, rng: np.random.Generator) -> Ints:
    """Deal nodes, ascending, one by one, as `_merge` does with parts of one node, each of which has a row of counts."""
    order, place = rng.permutation(int(nodes[-1]) + 1), np.full(int(nodes[-1]) + 1, -1, dtype=np.int64)
    place[nodes] = 0
    order = order[place[order] == 0]
    place[order] = np.arange(len(order)) % batches
    return np.asarray(place[nodes])


def _label_pairs(data: Data) -> Ints:
    """Return (2, m) pairs of a training node and a column: 0 for itself, then its class, labels or target's quarter."""
    y, mask = getattr(data, "y", None), getattr(data, "train_mask", None)
    if y is None or mask is None or mask.dtype != torch.bool or len(mask) != len(y) or y.dim() > 2:
        return np.zeros((2, 0), dtype=np.int64)
    nodes = mask.cpu().nonzero().view(-1)
    label = y.cpu()[nodes]
    if label.dim() == 2:
        row, column = (label > 0).nonzero().T
    elif label.is_floating_point():
        known = label.isfinite().nonzero().view(-1)
        order = label[known].argsort().argsort()
        row, column = known, order * QUARTERS // max(1, len(known))
    else:
        row = (label >= 0).nonzero().view(-1)
        column = label[row]
    pairs = torch.stack([torch.cat([nodes, nodes[row]]), torch.cat([torch.zeros_like(nodes), column.long() + 1])])
    return np.asarray(pairs)


def _counts(part: Ints, nodes: Ints, pairs: Ints) -> Floats:
    """Count nodes, training nodes and training labels per part; (parts, columns)."""
    of_node = np.full(int(max(nodes.max(), pairs[0].max(initial=0))) + 1, -1)
    of_node[nodes] = part
    where, column = of_node[pairs[0]], pairs[1]
    inside = where >= 0
    parts, columns = int(part.max()) + 1, int(column.max(initial=-1)) + 1
    labels = np.bincount(where[inside] * columns + column[inside], minlength=parts * columns).reshape(parts, columns)
    sizes = np.bincount(part, minlength=parts)
    return np.concatenate([sizes[:, None], labels], axis=1).astype(np.float64)
