"""Generate a stand-in graph into a store: seeded, vectorised, piece by piece.

Nodes have a place in the order of classes, and inside of these of communities; their ids are a random permutation of
the places, so that ids tell nothing. Every edge is begun by a node, as often as its expected degree says, and ends at
one that is drawn in the same way from its community, from the rest of its class or from all other classes. The same
seed gives the same bits with the same version of numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from topoff.data.array_file import Array
from topoff.data.edge_sort import Progress, Tidy
from topoff.data.recipe import Recipe, check_recipe, community_count, named, near_share
from topoff.data.refusal import refuse
from topoff.data.store import Store
from topoff.data.store_write import EdgePiece, Pieces, write_store

PAIRS = 1 << 21  # that are drawn in one go
ROWS = 1 << 16  # of features that are drawn in one go
TICKETS = 8  # of a node in the lottery for ends, on average
PILOT = 1 << 21  # pairs by which losses to duplicates are estimated
MOST_DRAWS = 8.0  # for one pair that is not drawn before, on average
CLASS_SIGNAL, COMMUNITY_SIGNAL = 0.8, 0.6  # parts of a node's centre; their squares add up to 1
STREAMS = ("layout", "pilot", "inside", "between", "topics", "labels", "split", "features")  # of random numbers

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Hold where nodes lie: in the order of classes, then of communities."""

    starts: Ints  # (k + 1,) where each community begins
    group: Ints  # (k,) the class of each community, ascending
    ids: npt.NDArray[np.int32]  # (n,) of the nodes in that order
    weight: npt.NDArray[np.float64]  # (n,) share of all ends of edges
    tickets: npt.NDArray[np.int32]  # (t,) places, each as often as its weight says
    ticket_starts: Ints  # (n + 1,) where the tickets of each place begin

    def ranges(self, bounds: Ints, some: slice) -> tuple[Ints, Ints]:
        """Return for some places where in the tickets their group begins and ends; groups begin at `bounds`."""
        own = np.searchsorted(bounds, np.arange(some.start, some.stop), side="right")
        return self.ticket_starts[bounds[own - 1]], self.ticket_starts[bounds[own]]

    @property
    def sociable(self) -> float:
        """Return the share of all ends of edges in classes with several communities: others have none nearby."""
        several = np.bincount(self.group)[self.group] > 1
        return float(np.add.reduceat(self.weight, self.starts[:-1])[several].sum())

    @property
    def class_starts(self) -> Ints:
        """Return where each class begins, (classes + 1,)."""
        first = np.flatnonzero(np.diff(self.group, prepend=-1))
        return np.append(self.starts[first], self.starts[-1])


def generate(
    recipe: Recipe | str,
    path: str | Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    label: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> Store:
    """Write a graph as a recipe, or the preset of that name, says to the store `path`, and return the store.

    `label` (preset, scale) is added to what its header says of its origin: for a recipe that was made of a preset.

    Raises:
        ValueError: the recipe contradicts itself.
        OSError: the disk is full; then nothing is left.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     store = generate(Recipe(nodes=1000, edges=10_000), Path(place) / "small", seed=1)
    ...     store.header.nodes, abs(store.header.edges - 10_000) < 200, store.header.statistics["undirected"]
    (1000, True, True)
    """
    if isinstance(recipe, str):
        recipe, label = named(recipe), {"preset": recipe, **(label or {})}
    check_recipe(recipe)
    layout = _layout(recipe, seed)
    community = np.empty(recipe.nodes, np.int32)  # by id
    community[layout.ids] = np.repeat(np.arange(len(layout.group), dtype=np.int32), np.diff(layout.starts))
    split, topic = _split(recipe, seed), _topics(recipe, layout.group[community], seed)
    pieces = Pieces(
        nodes=recipe.nodes,
        edges=_edges(recipe, layout, seed),
        expected_edges=recipe.edges // (2 if recipe.undirected else 1),
        x=_features(recipe, topic, community, seed),
        y=_labels(recipe, topic, split, seed),
        split=split,
        stand_in={**(label or {}), "seed": seed, **asdict(recipe)},
    )
    tidy = Tidy(undirected=recipe.undirected, self_loops=False, duplicates=False)
    return write_store(Path(path), pieces, dtype=dtype, tidy=tidy, progress=progress)


def _stream(name: str, seed: int, piece: int = 0) -> np.random.Generator:
    """Return the random numbers of one piece, whatever was drawn elsewhere."""
    return np.random.default_rng([seed, STREAMS.index(name), piece])


# ---- where nodes lie


def _layout(recipe: Recipe, seed: int) -> Layout:
    """Draw communities, their classes, ids and expected degrees."""
    rng, n, count = _stream("layout", seed), recipe.nodes, community_count(recipe)
    popular = np.arange(1, recipe.classes + 1) ** -0.7  # classes of different sizes
    more = rng.choice(recipe.classes, count - recipe.classes, p=popular / popular.sum())
    group = np.sort(np.concatenate([np.arange(recipe.classes), more]))
    sizes = np.exp(0.5 * rng.standard_normal(count))
    inner = np.floor(np.cumsum(sizes) / sizes.sum() * (n - count)).astype(np.int64)  # one node each is certain
    starts = np.concatenate([[0], inner + np.arange(1, count + 1)])
    starts[-1] = n
    weight = _weights(recipe, rng)
    tickets = np.maximum(1, _rounded(weight * n * TICKETS, rng))
    return Layout(
        starts=starts,
        group=group,
        ids=rng.permutation(np.arange(n, dtype=np.int32)),
        weight=weight,
        tickets=np.repeat(np.arange(n, dtype=np.int32), tickets),
        ticket_starts=np.concatenate([[0], np.cumsum(tickets)]),
    )


def _weights(recipe: Recipe, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Draw shares of all ends of edges, (n,): alike, or by a power law up to the largest degree."""
    n = recipe.nodes
    if recipe.exponent is None:
        return np.full(n, 1 / n)
    mean = recipe.edges / n
    most = min(recipe.largest or 300 * mean, n - 1) / mean
    weight = (1 - rng.random(n)) ** (-1 / (recipe.exponent - 1))
    for _ in range(3):  # what is cut off makes all others larger
        weight = np.minimum(weight / weight.mean(), max(1.0, most))
    return np.asarray(weight / weight.sum())


def _rounded(values: npt.NDArray[np.float64], rng: np.random.Generator) -> Ints:
    """Round up or down by chance, so that the mean stays."""
    return np.floor(values + rng.random(len(values))).astype(np.int64)


# ---- edges


def _edges(recipe: Recipe, layout: Layout, seed: int) -> Iterator[EdgePiece]:
    """Draw the edges: those inside of communities first."""
    pairs = recipe.edges / (2 if recipe.undirected else 1)
    often = _draws_per_pair(recipe, layout, pairs * (1 - recipe.between), seed)
    near = min(1.0, near_share(recipe) / max(layout.sociable, 1e-9))
    parts = (("inside", pairs * (1 - recipe.between) * often), ("between", pairs * recipe.between))
    for name, count in parts:
        begins = _rounded(layout.weight * count, _stream(name, seed))
        bounds = np.concatenate([[0], np.cumsum(begins)])
        low, number = 0, 0
        while low < recipe.nodes and count:
            number += 1
            high = min(recipe.nodes, max(low + 1, int(np.searchsorted(bounds, bounds[low] + PAIRS))))
            rng = _stream(name, seed, number)
            if name == "inside":
                first, second = _inside(layout, begins, slice(low, high), rng)
            else:
                first, second = _between(layout, begins, slice(low, high), rng, near=near)
            yield EdgePiece(layout.ids[first], layout.ids[second])
            low = high


def _inside(layout: Layout, begins: Ints, some: slice, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw pairs (m,), (m,) of places in one community, begun by some of the nodes."""
    low, high = (np.repeat(bound, begins[some]) for bound in layout.ranges(layout.starts, some))
    first = np.repeat(np.arange(some.start, some.stop, dtype=np.int32), begins[some])
    return first, layout.tickets[low + (rng.random(len(low)) * (high - low)).astype(np.int64)]


def _between(
    layout: Layout, begins: Ints, some: slice, rng: np.random.Generator, *, near: float
) -> tuple[Array, Array]:
    """Draw pairs (m,), (m,) of places in two communities: of one class, for a share `near`, or of two."""
    own = [np.repeat(bound, begins[some]) for bound in layout.ranges(layout.starts, some)]
    group = [np.repeat(bound, begins[some]) for bound in layout.ranges(layout.class_starts, some)]
    first = np.repeat(np.arange(some.start, some.stop, dtype=np.int32), begins[some])
    everything = len(layout.tickets)
    stays = rng.random(len(first)) < near
    stays &= (group[1] - group[0]) > (own[1] - own[0])  # the class has other communities
    stays |= (group[1] - group[0]) == everything  # there are no other classes
    low, high = np.where(stays, group[0], 0), np.where(stays, group[1], everything)
    gap, after = (np.where(stays, own[end], group[end]) for end in (0, 1))  # what is left out
    drawn = low + (rng.random(len(first)) * (high - low - (after - gap))).astype(np.int64)
    drawn += np.where(drawn >= gap, after - gap, 0)
    return first, layout.tickets[drawn]


def _draws_per_pair(recipe: Recipe, layout: Layout, pairs: float, seed: int) -> float:
    """Estimate how many pairs inside of communities must be drawn for one that is neither a loop nor a duplicate.

    Raises:
        ValueError: there are hardly as many pairs.
    """
    rng, often = _stream("pilot", seed), 1.0
    sums = np.add.reduceat(layout.weight, layout.starts[:-1]) * pairs  # pairs that each community shall have
    order = rng.permutation(len(sums))
    chosen = np.sort(order[: max(1, int(np.searchsorted(np.cumsum(sums[order]), PILOT)))])
    some = np.concatenate([np.arange(layout.starts[one], layout.starts[one + 1]) for one in chosen])
    wanted = float(layout.weight[some].sum() * pairs)
    for _ in range(12):
        begins = np.zeros(recipe.nodes, np.int64)
        begins[some] = _rounded(layout.weight[some] * pairs * often, rng)
        first, second = _inside(layout, begins, slice(0, recipe.nodes), rng)
        different = first != second
        ends = np.stack([first[different], second[different]]).astype(np.int64)
        ends = np.sort(ends, axis=0) if recipe.undirected else ends
        found = len(np.unique(ends[0] * recipe.nodes + ends[1]))
        if abs(found - wanted) <= 0.002 * wanted + 1:
            break
        often *= wanted / max(1, found)
        if often > MOST_DRAWS:
            got = f"{recipe.edges:,} edges among {len(sums):,} communities of {recipe.nodes / len(sums):,.0f} nodes"
            refuse("communities that are large enough for their edges", got, "ask for fewer edges or communities")
    return often


# ---- what nodes carry


def _split(recipe: Recipe, seed: int) -> npt.NDArray[np.int8]:
    """Draw the split, (n,)."""
    order = _stream("split", seed).permutation(np.arange(recipe.nodes, dtype=np.int32))
    bounds = np.round(np.cumsum(recipe.split) * recipe.nodes).astype(np.int64)
    bounds[0] = max(1, bounds[0])
    split = np.full(recipe.nodes, -1, np.int8)
    for code, nodes in enumerate(np.split(order, bounds)[:3]):
        split[nodes] = code
    return split


def _topics(recipe: Recipe, group: Ints, seed: int) -> npt.NDArray[np.int32]:
    """Draw what nodes are about, (n,): the class of their community, for some of them drawn anew."""
    rng = _stream("topics", seed)
    anew = rng.random(recipe.nodes, dtype=np.float32) < recipe.label_noise
    other = rng.integers(recipe.classes, size=recipe.nodes, dtype=np.int32)
    return np.where(anew, other, group.astype(np.int32))


def _labels(recipe: Recipe, topic: Array, split: Array, seed: int) -> Iterator[Array]:
    """Return labels, (m,) or (m, c); none where there is no split."""
    sets = _label_sets(recipe, seed)
    for low in range(0, recipe.nodes, ROWS):
        some = slice(low, low + ROWS)
        yield sets[topic[some]] if recipe.task == "multilabel" else np.where(split[some] < 0, -1, topic[some])


def _label_sets(recipe: Recipe, seed: int) -> npt.NDArray[np.bool_]:
    """Draw which labels (c, c) the nodes of a class have, where they may have several."""
    rng = _stream("labels", seed)
    often = 0.5 * np.arange(1, recipe.classes + 1) ** -0.5  # half of the classes have the first label, few the last
    return np.asarray((rng.random((recipe.classes, recipe.classes)) < often) | np.eye(recipe.classes, dtype=bool))


def _features(recipe: Recipe, topic: Array, community: Array, seed: int) -> Iterator[Array]:
    """Draw features (m, F): the centres of what the node is about and of its community, and noise."""
    rng, width = _stream("features", seed), recipe.features
    noise = recipe.feature_noise * np.sqrt(width)  # centres have this distance from the origin
    scale = np.sqrt(1 + noise**2)  # so that features have deviation 1
    of_class, of_community = (
        rng.standard_normal((count, width), np.float32) * np.float32(signal / scale)
        for count, signal in ((recipe.classes, CLASS_SIGNAL), (community_count(recipe), COMMUNITY_SIGNAL))
    )
    for number, low in enumerate(range(0, recipe.nodes, ROWS), start=1):
        some = slice(low, min(low + ROWS, recipe.nodes))
        drawn = _stream("features", seed, number).standard_normal((some.stop - low, width), np.float32)
        drawn *= np.float32(noise / scale)
        drawn += of_class[topic[some]]
        drawn += of_community[community[some]]
        yield drawn
