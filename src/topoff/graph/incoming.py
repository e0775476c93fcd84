"""The edges of a graph by receiver: what every operator and every cut shares, in as few bytes as it takes.

>>> import torch
>>> found = incoming_of(torch.tensor([[2, 0, 1], [1, 1, 0]]), 3, flow="source_to_target")
>>> found.senders, found.offsets, found.order
(array([1, 0, 2], dtype=int32), array([0, 1, 3, 3]), array([2, 1, 0], dtype=int32))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from torch import Tensor

Array = np.ndarray[Any, Any]

CHUNK = 2**22  # edges that are looked at together


@dataclass(frozen=True)
class Incoming:
    """Hold the edges of a graph receiver by receiver, the senders of each ascending."""

    offsets: Array  # (n + 1,) int64
    senders: Array  # (E,) of 32 bits where they suffice; the graph's own memory where that is sorted so
    order: Array | None  # (E,) positions in edge_index; None: the graph's edges are sorted so themselves

    def window(self, nodes: Array) -> tuple[slice, Array] | None:
        """Return where the edges into a range of nodes are, and how many each has; None where nodes are no range."""
        if not len(nodes) or nodes[-1] - nodes[0] != len(nodes) - 1 or not bool((np.diff(nodes) == 1).all()):
            return None
        offsets = self.offsets[nodes[0] : nodes[-1] + 2]
        return slice(int(offsets[0]), int(offsets[-1])), np.diff(offsets)

    def spans(self, nodes: Array) -> tuple[Array, Array]:
        """Return where the edges into some nodes are, node by node, and how many each has; (e,), (b,)."""
        start = self.offsets[nodes]
        counts = self.offsets[nodes + 1] - start
        first = np.cumsum(counts) - counts
        return np.repeat(start - first, counts) + np.arange(int(counts.sum())), counts

    @property
    def degrees(self) -> Array:
        """The messages that every node receives; (n,)."""
        degrees: Array = np.diff(self.offsets)
        return degrees

    @cached_property
    def is_distinct(self) -> bool:
        """Whether no node sends to another one twice."""
        return all(
            bool(((np.diff(senders) != 0) | (np.diff(receivers) != 0)).all()) for senders, receivers in self._chunks()
        )

    @cached_property
    def loops(self) -> Array:
        """The nodes that send to themselves, ascending."""
        found = [senders[senders == receivers] for senders, receivers in self._chunks()]
        return np.concatenate([np.zeros(0, dtype=np.int64), *found]).astype(np.int64)

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether every edge has its reverse, as often: sums of 64-bit hashes of all pairs, and of all reverse ones.

        Two sums of other pairs are equal by chance once in 2^64 graphs; nothing is sorted, and no transpose made.
        """
        there = back = 0
        for senders, receivers in self._chunks():
            one, other = senders.astype(np.uint64), receivers.astype(np.uint64)
            there, back = there + _hashes(one, other), back + _hashes(other, one)
        return there % 2**64 == back % 2**64

    def _chunks(self) -> Iterator[tuple[Array, Array]]:
        """Yield senders and receivers of whole receivers, some at a time."""
        n, row = len(self.offsets) - 1, 0
        while row < n:
            stop = int(np.searchsorted(self.offsets, self.offsets[row] + CHUNK, side="right")) - 1
            stop = min(n, max(row + 1, stop))
            counts = np.diff(self.offsets[row : stop + 1])
            yield self.senders[self.offsets[row] : self.offsets[stop]], np.repeat(np.arange(row, stop), counts)
            row = stop


def incoming_of(edge_index: Tensor, num_nodes: int, *, flow: str) -> Incoming:
    """Sort the edges of a graph by receiver; those that are sorted so already are neither copied nor sorted."""
    senders, receivers = edge_index.numpy() if flow == "source_to_target" else edge_index.numpy()[::-1]
    index = np.int32 if max(num_nodes, len(senders)) < 2**31 else np.int64
    counts = np.zeros(num_nodes, dtype=np.int64)
    for start in range(0, len(receivers), CHUNK):
        counts += np.bincount(receivers[start : start + CHUNK], minlength=num_nodes)
    offsets = np.append(0, np.cumsum(counts))
    if _is_sorted(senders, receivers):
        return Incoming(offsets, senders.astype(index, copy=False), None)
    positions = np.arange(len(senders), dtype=index)
    sides = receivers.astype(index, copy=False), senders.astype(index, copy=False)
    edges = sp.coo_array((positions, sides), shape=(num_nodes, num_nodes))
    edges.has_canonical_format = True  # so that scipy does not add up what it takes for duplicates
    rows = edges.tocsr()
    rows.sort_indices()
    return Incoming(offsets, rows.indices, rows.data)


def _is_sorted(senders: Array, receivers: Array) -> bool:
    """Whether edges are sorted by receiver, and those of one receiver by sender."""
    for start in range(0, len(senders), CHUNK):
        one, other = senders[start : start + CHUNK + 1], receivers[start : start + CHUNK + 1]
        steps = np.diff(other)
        if not bool(((steps > 0) | ((steps == 0) & (np.diff(one) >= 0))).all()):
            return False
    return True


def _hashes(one: Array, other: Array) -> int:
    """Return the sum of the hashes of some pairs (splitmix64)."""
    word = one * np.uint64(0x9E3779B97F4A7C15) + (other << np.uint64(32))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        word = (word ^ (word >> np.uint64(shift))) * np.uint64(factor)
    return int((word ^ (word >> np.uint64(31))).sum(dtype=np.uint64))
