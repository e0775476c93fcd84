"""Lemma E.1: nodes that l rounds of the 1-WL test (Eq. 14) cannot tell apart have equal H^(l), for all weights.

Checked on graphs with known classes (lifts), on a path and on uniform random graphs whose features are drawn from a
finite set: the largest distance between embeddings of nodes of one colour, for random weights and three activations.
As printed, colours begin with the features alone, and the lemma does not hold for GCN: the weight 1 / sqrt(D_i D_u) of
a message knows the neighbour's degree D_u, which the multiset of features does not. On the path of five equal nodes,
one round gives nodes 1 and 2 the same colour, but they receive 1/3 + 1/sqrt(6) + 1/3 and 1. (The proof needs D_u for
all u within l hops and has it within l - 1.) With the degrees in the first colours it holds in every round, and it
holds as printed where equal features go with equal degrees, as on lifts of unlike nodes. Not checked: operators
without neighbours' degrees (mean, sum), for which the proof is complete.

>>> [finding.holds for finding in check_colors(graphs=1, draws=1).findings]
[True, True, False]
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import degree

from topoff.experiments.theory_graphs import ACTIVATIONS, embedder, lift, network, path, ring, sparse_graph
from topoff.experiments.theory_record import BLUE, EXACT, FLOOR, RED, Check, Finding, new_panels

ROUNDS = 3
FIRSTS = ("features", "degrees")  # what the colours begin with: features alone, as printed, or with the degrees


def check_colors(*, graphs: int = 6, draws: int = 3) -> Check:
    """Measure the distances inside colours on `graphs` graphs of each kind, with `draws` networks per activation."""
    rows: list[dict[str, Any]] = []
    for kind in ("lift", "path", "random"):
        for number in range(1 if kind == "path" else graphs):
            data = _graph(kind, number)
            for first in FIRSTS:
                rows += [{"kind": kind, "graph": number, **row} for row in _distances(data, first, draws=draws)]
    findings = (
        Finding("known classes (lifts): largest distance inside a colour", _worst(rows, "features", "lift"), EXACT),
        Finding("degrees in the first colours: the same, all graphs", _worst(rows, "degrees"), EXACT, ours=True),
        Finding("features alone, as printed: the same, all graphs", _worst(rows, "features"), EXACT),
    )
    statement = "Equal colours after l rounds of 1-WL give equal embeddings H^(l), for all weights (Lemma E.1)."
    return Check("theory-colors", statement, findings, tuple(rows))


def refine(data: Data, colors: Tensor, *, rounds: int) -> list[Tensor]:
    """Return the colours (n,) after 1, ..., `rounds` rounds of Eq. 14: the hash of the closed neighbourhood's multiset.

    >>> data = path(torch.ones(5, 1))
    >>> [found.tolist() for found in refine(data, torch.zeros(5, dtype=torch.int64), rounds=2)]
    [[0, 1, 1, 1, 0], [0, 1, 2, 1, 0]]
    """
    around: list[list[int]] = [[node] for node in range(int(data.num_nodes or 0))]
    for source, target in data.edge_index.T.tolist():
        around[target].append(source)
    found = []
    for _ in range(rounds):
        held = colors.tolist()
        names: dict[tuple[int, ...], int] = {}
        seen = [tuple(sorted(held[u] for u in nodes)) for nodes in around]
        colors = torch.tensor([names.setdefault(each, len(names)) for each in seen])
        found.append(colors)
    return found


def first_colors(data: Data, first: str) -> Tensor:
    """Return the colours (n,) that the test begins with: equal for equal features, and degrees with "degrees"."""
    known = data.x
    if first == "degrees":
        known = torch.cat([known, degree(data.edge_index[1], data.num_nodes).unsqueeze(1)], dim=1)
    colors: Tensor = torch.unique(known, dim=0, return_inverse=True)[1]
    return colors


def _graph(kind: str, seed: int) -> Data:
    """Return a graph of a kind; the path has equal nodes, random graphs two kinds of features."""
    if kind == "lift":
        return lift(ring(5, seed=seed), copies=8, seed=seed)
    return (
        path(torch.ones(5, 1, dtype=torch.float64))
        if kind == "path"
        else sparse_graph(40, degree=2.5, kinds=2, seed=seed)
    )


def _distances(data: Data, first: str, *, draws: int) -> list[dict[str, Any]]:
    """Return, per round, the number of colours and the largest relative distance inside one."""
    colors = refine(data, first_colors(data, first), rounds=ROUNDS)
    embed, worst = embedder(network(data, layers=ROUNDS + 1), data), [0.0] * ROUNDS
    for act in ACTIVATIONS:
        for draw in range(draws):
            layers = embed(network(data, layers=ROUNDS + 1, act=act, seed=draw))
            worst = [
                max(old, _inside(*pair)) for old, pair in zip(worst, zip(layers, colors, strict=True), strict=True)
            ]
    named = enumerate(zip(worst, colors, strict=True), start=1)
    return [{"first": first, "round": i, "colors": int(c.max()) + 1, "distance": far} for i, (far, c) in named]


def _inside(rows: Tensor, colors: Tensor) -> float:
    """Return the largest distance of rows (n, d) from the first of their colour, relative to the largest row."""
    leader = torch.stack([(colors == color).nonzero()[0, 0] for color in colors])
    return float((rows - rows[leader]).abs().max() / rows.abs().max().clamp(min=1e-300))


def _worst(rows: list[dict[str, Any]], first: str, kind: str | None = None) -> float:
    return max(float(row["distance"]) for row in rows if row["first"] == first and kind in (None, row["kind"]))


def draw_colors(check: Check) -> Figure:
    """Draw the distances inside colours, by kind of graph and by what the colours begin with."""
    figure, (axes,) = new_panels(1)
    kinds = list(dict.fromkeys(row["kind"] for row in check.rows))
    for shift, first, color in (-0.12, "features", RED), (0.12, "degrees", BLUE):
        rows = [row for row in check.rows if row["first"] == first]
        label = "features alone, as printed" if first == "features" else "features and degrees"
        heights = [max(row["distance"], FLOOR) for row in rows]
        places = [kinds.index(row["kind"]) + shift for row in rows]
        axes.scatter(places, heights, color=color, s=16, alpha=0.6, linewidths=0, label=label)
    axes.axhline(EXACT, color="#999999", linewidth=0.8, linestyle="--")
    axes.set(yscale="log", ylabel="distance inside a colour", title="Lemma E.1, rounds 1 to 3", ylim=(1e-18, 1e4))
    axes.set_xticks(range(len(kinds)), kinds)
    axes.legend(frameon=False, loc="upper left")
    return figure
