"""Theorem E.4: a uniform batch of |B| >= t log(L t / eps) nodes is exact with probability 1 - eps, for t embeddings.

Checked on lifts, whose t classes are equally frequent: how often a uniform batch (drawn without replacement) holds
every class, and how often its outputs through TOP are exact for weights that the estimate has not seen, against the
bound 1 - L t (1 - 1/t)^|B| of the proof, for sizes up to what the theorem asks for, several t and eps. TOP may be exact
with fewer classes: only those of the halo count. The theorem names no frequencies, but its proof takes every
embedding to be equally likely, 1/t. Where they are not it does not hold, for no constant in O(eps): a star has two
classes, and a batch of the theorem's size holds its hub with probability |B| / n. With p the share of the
rarest class, the same proof gives |B| >= log(L t / eps) / p. Not checked: batches of clusters.

>>> [finding.holds for finding in check_coverage(classes=(4,), draws=20).findings]
[True, True, True, True, False]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Data

from topoff.compensation.compensated import compensating
from topoff.compensation.estimator import Compensator
from topoff.experiments.theory_graphs import embedder, lift, network, ring, star
from topoff.experiments.theory_record import BLUE, OCHRE, RED, Check, Finding, new_panels
from topoff.experiments.theory_trial import error_of, exact_output, random_networks
from topoff.forward.call import evaluating
from topoff.forward.subgraph import cut_batch
from topoff.forward.trial import make_plan
from topoff.graph.graph import Graph

LAYERS, COPIES, NODES = 3, 30, 200
SHARES = (0.2, 0.05)  # eps
EXACT = 1e-8  # classes may be nearly dependent, which costs digits
MANY = 50  # draws of classes alone per draw of a batch through TOP
COLORS = (RED, BLUE, OCHRE)


def check_coverage(*, classes: tuple[int, ...] = (4, 8, 12), draws: int = 80, seed: int = 0) -> Check:
    """Measure the probability that batches are exact, for several t and sizes of batch."""
    rows: list[dict[str, Any]] = []
    for t in classes:
        data = lift(ring(t, chords=0), copies=COPIES, seed=seed)
        asked = {enough(t, eps): eps for eps in SHARES}
        steps = sorted({*np.linspace(t, enough(t, min(SHARES)), 6).round().astype(int).tolist(), *asked})
        rows += [{"t": t, "eps": asked.get(size)} | row for size, row in _curve(data, t, steps, draws=draws)]
    eps = min(SHARES)
    size = enough(2, eps)
    unequal = {"t": 2, "eps": eps, "star": True} | _curve(star(NODES), 2, [size], draws=draws)[0][1]
    held = [row for row in rows if row["eps"]]
    noise = 2 / math.sqrt(draws)  # of a measured probability: four standard deviations at most
    missed = float(sum(row["missed"] for row in rows))
    gap = min(row["exact"] - max(0.0, row["bound"]) for row in rows)
    findings = (
        Finding(
            "asked size: batches with all classes, margin over 1 - eps", _margin(held, "covered"), 0.0, at_most=False
        ),
        Finding("asked size: exact batches, margin over 1 - eps", _margin(held, "exact"), 0.0, at_most=False),
        Finding("batches with all classes that TOP does not make exact", missed, 0.0),
        Finding("any size: exact batches, margin over the proof's bound", gap, -noise, at_most=False),
        Finding(
            "classes of unlike sizes (star): margin of exact batches", _margin([unequal], "exact"), 0.0, at_most=False
        ),
    )
    statement = "|B| >= t log(L t / eps) makes a uniform batch exact with probability 1 - O(eps) (Theorem E.4)."
    return Check("theory-coverage", statement, findings, (*rows, unequal))


def enough(t: int, eps: float) -> int:
    """Return the size of batch that the theorem asks for.

    >>> enough(4, 0.05)
    22
    """
    return math.ceil(t * math.log(LAYERS * t / eps))


def bound(t: int, size: int) -> float:
    """Return the proof's lower bound of the probability, 1 - L t (1 - 1/t)^|B|."""
    return 1 - LAYERS * t * (1 - 1 / t) ** size


def _margin(rows: Sequence[dict[str, Any]], what: str) -> float:
    return min(float(row[what] - 1 + row["eps"]) for row in rows)


def _curve(data: Data, t: int, sizes: Sequence[int], *, draws: int) -> list[tuple[int, dict[str, Any]]]:
    """Return, per size of batch, how often it holds all classes and how often it is exact."""
    trial, rng, kind = Trial(data, rank=t), np.random.default_rng(0), data.kind.numpy()
    found = []
    for size in sizes:
        drawn = [rng.choice(len(kind), size, replace=False) for _ in range(MANY * draws)]
        whole = [len(np.unique(kind[nodes])) == t for nodes in drawn]
        exact = [trial.error(torch.from_numpy(nodes)) < EXACT for nodes in drawn[:draws]]
        missed = sum(held and not good for held, good in zip(whole, exact, strict=False))
        row = {"size": size, "covered": sum(whole) / len(whole), "exact": sum(exact) / draws, "missed": missed}
        found.append((size, row | {"bound": bound(t, size)}))
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
    lifts = [row for row in check.rows if "star" not in row]
    for color, t in zip(COLORS, sorted({row["t"] for row in lifts}), strict=False):
        rows = [row for row in lifts if row["t"] == t]
        sizes = [row["size"] for row in rows]
        axes.plot(sizes, [row["exact"] for row in rows], color=color, marker="o", label=f"t = {t}: exact")
        axes.plot(sizes, [row["covered"] for row in rows], color=color, linestyle=":", label="all classes")
        axes.plot(
            sizes, [max(0.0, row["bound"]) for row in rows], color=color, linestyle="--", linewidth=0.9, label="bound"
        )
    for row in [row for row in check.rows if "star" in row]:
        axes.plot(row["size"], row["exact"], "kx", label="star: exact")
    axes.set(xlabel="nodes in the batch", ylabel="probability", title="Theorem E.4", ylim=(-0.03, 1.03))
    axes.legend(frameon=False, fontsize=7, ncols=2)
    return figure
