"""Theorem E.4: a uniform batch of |B| >= t log(L t / eps) nodes is exact with probability 1 - eps, for t embeddings.

Checked on lifts, whose t classes are equally frequent: how often a uniform batch (drawn without replacement) holds
every class, and how often its outputs through TOP are exact for weights that the estimate has not seen, against the
bound 1 - L t (1 - 1/t)^|B| of the proof, for sizes up to what the theorem asks for, several t and eps. TOP may be exact
with fewer classes: only those of the halo count. The theorem names no frequencies, but its proof takes every
embedding to be equally likely, 1/t. Where they are not it does not hold, for no constant in O(eps): a star has two
classes, and a batch of the theorem's size holds its hub with probability |B| / n. With p the share of the rarest
class, the same proof gives |B| >= log(L t / eps) / p, which is checked on a ring of hubs with leaves. Not checked:
batches of clusters.

>>> [finding.holds for finding in check_coverage(classes=(4,), draws=20).findings]
[True, True, True, True, False, False, True]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Data

from topoff.compensation.compensated import compensating
from topoff.compensation.estimator import Compensator
from topoff.experiments.theory_graphs import embedder, hubs, lift, network, ring, star
from topoff.experiments.theory_record import BLUE, OCHRE, RED, Check, Finding, new_panels
from topoff.experiments.theory_trial import error_of, exact_output, random_networks
from topoff.forward.call import evaluating
from topoff.forward.subgraph import cut_batch
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph

LAYERS, COPIES, NODES, HUBS, LEAVES = 3, 30, 200, 30, 9
SHARES = (0.2, 0.05)  # eps
EXACT = 1e-8  # classes may be nearly dependent, which costs digits
MANY = 50  # draws of classes alone per draw of a batch through TOP
COLORS = (RED, BLUE, OCHRE)


def check_coverage(*, classes: tuple[int, ...] = (4, 8, 12), draws: int = 80, seed: int = 0) -> Check:
    """Measure the probability that batches are exact, for several t and sizes of batch."""
    rows: list[dict[str, Any]] = []
    for t in classes:
        data = lift(ring(t, chords=0), copies=COPIES, seed=seed)
        sizes = {enough(t, eps): eps for eps in SHARES}
        steps = np.linspace(t, max(sizes), 6).round().astype(int).tolist()
        asked = {size: sizes.get(size) for size in sorted({*steps, *sizes})}
        rows += [{"graph": "lift", **row} for row in _curve(data, t, asked, share=1 / t, draws=draws)]
    eps = min(SHARES)
    rare = 1 / (1 + LEAVES)
    (far,) = _curve(star(NODES), 2, {enough(2, eps): eps}, share=1 / NODES, draws=draws)
    few, many = _curve(
        hubs(HUBS, leaves=LEAVES), 2, {enough(2, eps): eps, enough(2, eps, share=rare): eps}, share=rare, draws=draws
    )
    noise = 2 / math.sqrt(draws)  # of a measured probability: four standard deviations at most
    gap = min(row["exact"] - max(0.0, row["bound"]) for row in rows)
    held = [row for row in rows if row["eps"]]
    over = {"at_most": False}
    findings = (
        Finding("asked size: batches with all classes, margin over 1 - eps", _margin(held, "covered"), 0.0, **over),
        Finding("asked size: exact batches, margin over 1 - eps", _margin(held, "exact"), 0.0, **over),
        Finding("batches with all classes that TOP does not make exact", sum(row["missed"] for row in rows), 0.0),
        Finding("any size: exact batches, margin over the proof's bound", gap, -noise, **over),
        Finding("classes of unlike sizes (star): margin of exact batches", _margin([far], "exact"), 0.0, **over),
        Finding("the same, hubs with nine leaves", _margin([few], "exact"), 0.0, **over),
        Finding("and there with log(L t / eps) / p nodes", _margin([many], "exact"), 0.0, ours=True, **over),
    )
    statement = "|B| >= t log(L t / eps) makes a uniform batch exact with probability 1 - O(eps) (Theorem E.4)."
    unlike = [{"graph": "star", **far}, {"graph": "hubs", **few}, {"graph": "hubs", **many}]
    return Check("theory-coverage", statement, findings, (*rows, *unlike))


def enough(t: int, eps: float, *, share: float | None = None) -> int:
    """Return the size of batch that the theorem asks for; with the `share` of the rarest class, what its proof needs.

    >>> enough(4, 0.05), enough(2, 0.05), enough(2, 0.05, share=0.1)
    (22, 10, 48)
    """
    return math.ceil(math.log(LAYERS * t / eps) / (1 / t if share is None else share))


def bound(t: int, size: int, *, share: float) -> float:
    """Return the proof's lower bound of the probability, 1 - L t (1 - p)^|B|, p being the share of the rarest class."""
    return 1 - LAYERS * t * (1 - share) ** size


def _margin(rows: Sequence[dict[str, Any]], what: str) -> float:
    return min(float(row[what] - 1 + row["eps"]) for row in rows)


def _curve(data: Data, t: int, asked: Mapping[int, float | None], *, share: float, draws: int) -> list[dict[str, Any]]:
    """Return, per size of batch, how often it holds all classes and how often it is exact."""
    trial, rng, kind = Trial(data, rank=t), np.random.default_rng(0), data.kind.numpy()
    found = []
    for size, eps in asked.items():
        drawn = [rng.choice(len(kind), size, replace=False) for _ in range(MANY * draws)]
        whole = [len(np.unique(kind[nodes])) == t for nodes in drawn]
        exact = [trial.error(torch.from_numpy(nodes)) < EXACT for nodes in drawn[:draws]]
        missed = sum(held and not good for held, good in zip(whole, exact, strict=False))
        row = {"t": t, "eps": eps, "size": size, "covered": sum(whole) / len(whole), "exact": sum(exact) / draws}
        found.append(row | {"missed": missed, "bound": bound(t, size, share=share)})
    return found


class Trial:
    """Compensate any batch of a graph from one basis of random networks, and measure it on other weights.

    >>> trial = Trial(star(20), rank=2)
    >>> [trial.error(torch.tensor(nodes)) < EXACT for nodes in ([0, 1, 2], [1, 2, 3])]
    [True, False]
    """

    def __init__(self, data: Data, *, rank: int) -> None:
        self.model = network(data, layers=LAYERS, seed=1)
        self.graph, self.truth = Graph(data), exact_output(self.model, data)
        self.plan, embed = make_plan(self.model, self.graph), embedder(self.model, data)
        blocks = [rows for one in random_networks(self.model, 3) for rows in embed(one)]
        self.compensator = Compensator(rank, ridge=0.0).fit(self.graph, self.plan, blocks=blocks)

    def error(self, nodes: Tensor) -> float:
        """Return the relative error of the outputs of one batch."""
        batch = cut_batch(self.graph, self.plan, nodes)
        batch.compensation = self.compensator.of(batch.supplement.structure)
        with evaluating(self.model), compensating(self.model, batch):
            return error_of(self.model(batch.x, batch.edge_index), self.truth[nodes])


def draw_coverage(check: Check) -> Figure:
    """Draw the probability against the size of the batch: measured, and the bound of the proof."""
    figure, (axes,) = new_panels(1, height=3.4)
    lifts = [row for row in check.rows if row["graph"] == "lift"]
    for color, t in zip(COLORS, sorted({row["t"] for row in lifts}), strict=False):
        rows = [row for row in lifts if row["t"] == t]
        sizes = [row["size"] for row in rows]
        axes.plot(sizes, [row["exact"] for row in rows], color=color, marker="o", label=f"t = {t}: exact")
        axes.plot(sizes, [row["covered"] for row in rows], color=color, linestyle=":", label="all classes")
        axes.plot(
            sizes, [max(0.0, row["bound"]) for row in rows], color=color, linestyle="--", linewidth=0.9, label="bound"
        )
    for graph, marker in ("star", "kx"), ("hubs", "k+"):
        rows = [row for row in check.rows if row["graph"] == graph]
        axes.plot([row["size"] for row in rows], [row["exact"] for row in rows], marker, label=f"{graph}: exact")
    axes.set(xlabel="nodes in the batch", ylabel="probability", title="Theorem E.4", ylim=(-0.03, 1.03))
    axes.legend(frameon=False, fontsize=7, ncols=2)
    return figure
