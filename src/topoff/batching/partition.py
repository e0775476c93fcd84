"""Parts of a graph: give every node a part, so that few edges run between parts (KaMinPar, METIS, LDG or random).

>>> import torch
>>> ring = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
>>> partition(ring, 6, parts=3, method="metis").bincount().tolist()
[2, 2, 2]
"""

from __future__ import annotations

import difflib
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from topoff.batching.pairs import Pairs, sorted_pairs
from topoff.batching.pattern import Floats, Ints
from topoff.batching.streaming import stream
from topoff.machine.cache import Arrays, cached, content_hash
from topoff.machine.memory import free_memory, readable

Announce = Callable[[str], None]  # told in one line what comes next

PARTITIONERS = ("kaminpar", "metis", "ldg", "random")
PACKAGES = {
    "kaminpar": "kaminpar",
    "metis": "pymetis",
    "ldg": "numpy",
    "random": "numpy",
}  # whose release decides the parts
REVISION = "1"  # of `partition` itself: raise it with a change that gives other parts, and stored ones are left behind
CHUNK = 2**22  # edges that are looked at, or written, together
LARGE = 2**26  # edges beyond which LDG reads those of a directed graph as they are
BYTES_PER_EDGE, BYTES_PER_NODE = 12, 32  # that KaMinPar takes (2.4M nodes, 120M directed edges: 1.3 GB)
FITS = 0.5  # of the free memory may go to a partitioner
TOTAL_WEIGHT = 2**30  # METIS adds edge weights in its index type, which may have 32 bits


def partition(
    edge_index: Tensor,
    num_nodes: int,
    *,
    parts: int,
    method: str = "kaminpar",
    edge_weight: Tensor | None = None,
    seed: int = 0,
    progress: Announce | None = None,
    cache: str | Path | None = None,
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
        method: "kaminpar" (fast preset), "metis", "ldg" (in little memory, see `streaming`; of a large graph whose
            edges are sorted by target, only those that come in count), or "random" (uniform, sizes within 1, edges
            ignored).
        edge_weight: (E,) finite; its absolute values count, since a negative weight joins two nodes, too.
        seed: non-negative seed of the partitioner.
        progress: receives a line of text before each stage.
        cache: folder that keeps the parts between runs, in a file named by a hash of everything they depend on: the
            edges, the weights, every argument and the release of the partitioner; see `topoff.machine.cache`.

    Returns:
        (n,) int64 part of every node, on the CPU.

    Raises:
        ValueError: an argument is out of range; the sentence names it and the remedy.
    """
    check_method(method)
    check_seed(seed)
    _check_graph(edge_index, num_nodes, edge_weight=edge_weight)
    if not 1 <= parts <= num_nodes:
        raise ValueError(
            f"Expected 'parts' to be between 1 and the number of nodes, {num_nodes} (got {parts}); "
            f"ask for at most {num_nodes} parts."
        )
    announce = progress or (lambda message: None)
    weight = None if edge_weight is None else edge_weight.detach().cpu().double().abs().numpy()  # not bfloat16
    edges = edge_index.detach().cpu().numpy()

    def build() -> Arrays:
        """Partition anew."""
        return {"parts": _cut(edges, num_nodes, parts, method=method, weight=weight, seed=seed, announce=announce)}

    if cache is None:
        return torch.from_numpy(build()["parts"])
    announce(f"looking for the parts of {num_nodes:,} nodes in the cache")
    release = f"{PACKAGES[method]} {version(PACKAGES[method])}"
    numbers, weights = f"{num_nodes} {parts} {seed}", "unweighted" if weight is None else weight
    key = f"parts-{content_hash(REVISION, method, release, numbers, edges, weights)}"
    part = cached(key, build, folder=cache).get("parts")
    if part is None or part.shape != (num_nodes,) or part.dtype != np.int64 or part.min() < 0 or part.max() >= parts:
        warnings.warn(
            f"Expected the cache file {key}.npz to hold {num_nodes} parts from 0 to {parts - 1} (got something else); "
            "the graph is partitioned anew, delete the file.",
            RuntimeWarning,
            stacklevel=2,
        )
        part = build()["parts"]
    return torch.from_numpy(part)


def _cut(
    edges: Ints, num_nodes: int, parts: int, *, method: str, weight: Floats | None, seed: int, announce: Announce
) -> Ints:
    """Return the part of every node; (n,)."""
    contiguous = np.arange(num_nodes, dtype=np.int64) * parts // num_nodes  # sizes differ by at most 1
    if method == "random":
        return contiguous[np.random.default_rng(seed).permutation(num_nodes)]
    if parts == 1 or parts == num_nodes:
        return contiguous
    graph = sorted_pairs(edges, num_nodes, directed=method == "ldg" and edges.shape[1] > LARGE)
    if weight is not None or graph is None:
        announce(f"merging {edges.shape[1]:,} edges into an undirected graph")
        graph = _undirected(edges, num_nodes, weight=weight)
    if len(graph.ids) == 0:
        announce("no edges to cut: contiguous parts")
        return contiguous
    announce(f"partitioning {num_nodes:,} nodes into {parts:,} parts with {method}")
    if method == "ldg":
        return stream(graph, parts=parts, seed=seed)
    if method == "metis":
        return _cut_with_metis(graph, parts, seed=seed % 2**31)
    with tempfile.TemporaryDirectory(prefix="topoff-") as folder:
        file = Path(folder) / "graph.parhip"
        _write_parhip(graph, file)
        del graph  # KaMinPar has its own
        return _cut_with_kaminpar(file, parts, seed=seed % 2**31)


def memory_needed(edges: int, num_nodes: int) -> int:
    """Estimate the bytes that KaMinPar takes, for the graph and for its own work.

    >>> memory_needed(120_000_000, 2_400_000) // 10**8
    15
    """
    return BYTES_PER_EDGE * edges + BYTES_PER_NODE * num_nodes


def affordable(edges: int, num_nodes: int) -> tuple[str, str]:
    """Return the best partitioner that there is memory for, and why it is the one."""
    need, free = memory_needed(edges, num_nodes), free_memory()
    if free is None or need <= FITS * free:
        return "kaminpar", "clusters keep most messages inside a batch"
    return "ldg", f"clusters in little memory: KaMinPar takes about {readable(need)}, and {readable(free)} are free"


def check_method(method: str) -> None:
    """Refuse the name of an unknown method, and say which one is closest."""
    if method not in PARTITIONERS:
        near = difflib.get_close_matches(str(method), PARTITIONERS, n=1, cutoff=0.4)
        remedy = f"did you mean {near[0]!r}?" if near else "'kaminpar' is the default."
        raise ValueError(f"Expected 'method' to be one of {', '.join(PARTITIONERS)} (got {method!r}); {remedy}")


def check_seed(seed: int) -> None:
    """Refuse a negative seed."""
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
    bad = int((~torch.isfinite(edge_weight)).sum())
    if bad:
        raise ValueError(
            f"Expected 'edge_weight' to be finite for a partition (got {bad} that are not); correct them, or leave the "
            "weights out."
        )


def _undirected(edges: Ints, num_nodes: int, *, weight: Floats | None) -> Pairs:
    """Merge edges into pairs; integer weights, none where they are all equal."""
    from scipy.sparse import coo_array

    index = np.int32 if max(num_nodes, edges.shape[1]) < 2**31 else np.int64
    source, target = edges[0].astype(index, copy=False), edges[1].astype(index, copy=False)
    value = np.ones(len(source), dtype=np.int32) if weight is None else weight
    keep = (source != target) & (value > 0)
    if not keep.all():
        source, target, value = source[keep], target[keep], value[keep]
    graph = coo_array((value, (target, source)), shape=(num_nodes, num_nodes)).tocsr()
    back = graph.T.tocsr()
    if not all(np.array_equal(getattr(graph, name), getattr(back, name)) for name in ("indptr", "indices", "data")):
        graph = (graph + back).tocsr()  # else both directions are there, and twice the weight is as good as once
    del back
    graph.sort_indices()
    whole = _whole(graph.data)
    return Pairs(graph.indptr, graph.indices, whole if len(whole) and whole.max() > 1 else None)


def _whole(weight: Floats) -> Ints:
    """Scale positive weights to positive integers: 1 if all are equal, else a mean of 1000 within TOTAL_WEIGHT."""
    if not len(weight) or weight.min() == weight.max():
        return np.broadcast_to(np.ones(1, dtype=np.int64), weight.shape)  # which takes no memory
    if weight.sum() <= TOTAL_WEIGHT and bool((weight == np.rint(weight)).all()):
        return weight.astype(np.int64)
    share = weight / weight.sum()  # first to shares: a product of large weights and scale could overflow
    return np.asarray(np.rint(np.maximum(1.0, share * min(1000 * len(weight), TOTAL_WEIGHT))), np.int64)


def _cut_with_metis(graph: Pairs, parts: int, *, seed: int) -> Ints:
    """Run METIS."""
    import pymetis

    index = pymetis.zero_copy_dtype()
    adjacency = pymetis.CSRAdjacency(graph.offsets.astype(index), graph.ids.astype(index))
    weight = None if graph.weight is None else graph.weight.astype(index)
    found = pymetis.part_graph(parts, adjacency, eweights=weight, options=pymetis.Options(seed=seed))
    return np.array(found.vertex_part, dtype=np.int64)


def _cut_with_kaminpar(file: Path, parts: int, *, seed: int) -> Ints:
    """Run KaMinPar on one thread: more are neither deterministic nor, as measured, faster."""
    import kaminpar

    before = kaminpar.seed()
    loaded = kaminpar.load_graph(str(file), kaminpar.GraphFileFormat.PARHIP)
    try:
        kaminpar.reseed(seed)
        found = kaminpar.KaMinPar(1, kaminpar.fast_context()).compute_partition(loaded, parts, 0.03)
    finally:
        kaminpar.reseed(before)
    return np.array(found, dtype=np.int64)


def _write_parhip(graph: Pairs, file: Path) -> None:
    """Write the ParHIP binary format, the only one besides text that KaMinPar's Python package reads.

    Header of three 64-bit words (flags, nodes, directed edges); n+1 64-bit byte offsets from the start of the file;
    32-bit neighbours; 32-bit edge weights. A set flag says what is absent (1 edge weights, 2 node weights) or has only
    32 bits (8 node ids, 32 edge weights).
    """
    nodes, pairs = len(graph.offsets) - 1, len(graph.ids)
    flags = (1 if graph.weight is None else 0) | 2 | 8 | 32
    first = 8 * (3 + nodes + 1)
    with file.open("wb") as out:
        out.write(np.array([flags, nodes, pairs], dtype="<u8").tobytes())
        for start in range(0, nodes + 1, CHUNK):
            out.write((first + 4 * graph.offsets[start : start + CHUNK].astype("<u8")).tobytes())
        for values in (graph.ids, *(() if graph.weight is None else (graph.weight,))):
            for start in range(0, pairs, CHUNK):
                out.write(values[start : start + CHUNK].astype("<u4").tobytes())
