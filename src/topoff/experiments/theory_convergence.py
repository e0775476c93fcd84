"""Theorems D.1 and 5.1: uniform batches have unbiased gradients, and SGD on them needs O(eps^-4) steps.

D.1 says E[d] = grad L where Eq. 4 holds. Checked: the mean gradient of all batches of a partition into equal sizes, one
of which a step draws uniformly, against the plain full-batch gradient, on a lift (Eq. 4 holds) and on a ring of
unlike nodes (it does not): there the bias is measured. L is divided by |V|: divided by |B|, as Theorem 5.1 prints
it, every batch gradient would be |V| / |B| times too small in the mean.

5.1 says E||grad L(W_R)||^2 <= 2 (L(W_1) - L*) / (N eta) + 8 G^2 eta gamma = O(N^-1/2) for eta = O(N^-1/2) < 1 / gamma
and R uniform in 1..N, hence E||grad L(W_R)|| <= eps after N = O(eps^-4) steps. Checked: the left side for several N
with eta = c / sqrt(N), a non-convex loss (GCN with tanh, labels drawn at random so that noise stays at the minimum),
its slope against N in logarithms, and the bound. G and gamma are the largest gradients and difference quotients that
runs meet (in the bound at least 1, as assumed), L* is taken as 0: not the true constants, which no finite run can
show. Not checked: that the rate cannot be better, and other losses.

>>> check_convergence(lengths=(4, 16), seeds=1).findings[0].holds
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.compensation.top import TOP
from topoff.experiments.theory_graphs import lift, network, ring, with_weights
from topoff.experiments.theory_record import BLUE, EXACT, FLOOR, GRAY, RED, Check, Finding, Row, new_panels
from topoff.experiments.theory_trial import compensated, error_of, exact_output

CLASSES, COPIES, RATIO, LAYERS, WIDTH = 4, 24, 1 / 6, 3, 6
STEP = 2.0  # c in eta = c / sqrt(N)
LOOKS = 24  # uniform draws of R per run
SLOPE = -0.45  # N^-1/2, with room for the noise of a fit
RANKS = {"top": CLASSES, "drop": 0}


@dataclass
class Seen:
    """Gather what the runs of one way to compensate meet."""

    norms: list[float] = field(default_factory=list)  # ||grad L||^2 at R
    largest: float = 0.0  # G
    lipschitz: float = 0.0  # gamma
    first: float = 0.0  # L(W_1), the largest


def check_convergence(*, lengths: tuple[int, ...] = (16, 64, 256, 1024), seeds: int = 4) -> Check:
    """Measure the bias of gradients against the rank, and gradients along SGD against its length N."""
    data = _with_random_labels(lift(ring(CLASSES), copies=COPIES, seed=0))
    unlike = _with_random_labels(ring(CLASSES * COPIES))
    bias = [_bias(data, "lift", rank) for rank in (0, 1, 2, 3, CLASSES)]
    bias += [_bias(unlike, "ring", rank) for rank in (0, 1, 2, 4, 8, 12)]
    runs = [_run_all(data, way, length, seeds=seeds) for way in RANKS for length in lengths]
    top, drop = ([row for row in runs if row["way"] == way] for way in RANKS)
    findings = (
        Finding("bias of the mean gradient where Eq. 4 holds (lift)", bias[4]["bias"], EXACT),
        Finding("the same with the halo left out", bias[0]["bias"], 0.01, at_most=False, ours=True),
        Finding("least bias where it does not hold (ring)", _least(bias, "ring"), 1e-4, at_most=False, ours=True),
        Finding("slope of the mean squared gradient against N", slope(top), SLOPE),
        Finding("and its share of the bound, largest", max(row["square"] / row["bound"] for row in top), 1.0),
        Finding("eta gamma, largest", max(row["eta"] * max(1.0, row["gamma"]) for row in top), 1.0),
        Finding("squared gradient with the halo left out / TOP", _ratio(drop, top), 2.0, at_most=False, ours=True),
    )
    statement = "E[d] = grad L (D.1), and E||grad L(W_R)|| <= eps after N = O(eps^-4) steps of eta = O(eps^2) (5.1)."
    return Check("theory-convergence", statement, findings, (*bias, *runs))


def slope(rows: Sequence[Row]) -> float:
    """Fit the slope of the mean squared gradient against N, in logarithms.

    >>> round(slope([{"steps": 1, "square": 4.0}, {"steps": 4, "square": 2.0}]), 6)
    -0.5
    """
    steps, squares = (np.log([row[name] for row in rows]) for name in ("steps", "square"))
    return float(np.polyfit(steps, squares, 1)[0])


def _least(rows: list[dict[str, Any]], graph: str) -> float:
    return float(min(row["bias"] for row in rows if row["graph"] == graph))


def _ratio(above: list[dict[str, Any]], below: list[dict[str, Any]]) -> float:
    return float(above[-1]["square"] / below[-1]["square"])


def _with_random_labels(data: Data) -> Data:
    data.y = torch.randint(WIDTH, (data.num_nodes,), generator=torch.Generator().manual_seed(5))
    return data


def _compensated(data: Data, rank: int) -> TOP:
    """Return TOP on six uniform batches of equal size."""
    model = network(data, layers=LAYERS, width=WIDTH)
    return compensated(model, data, sets=NodeSets(method="random", ratio=RATIO).fit(data), rank=rank)


def _bias(data: Data, graph: str, rank: int) -> dict[str, Any]:
    """Return the relative difference between the mean gradient of the batches and that of the whole graph."""
    top = _compensated(data, rank)
    with_weights(top.model, seed=1)
    found = [gradient_of(top.model, top(batch), batch.y) for batch in top.cover()]
    exact = full_gradient(top.model, data)
    mean = torch.stack(found).mean(0)
    noise = max(float((one - exact).norm() / exact.norm()) for one in found)
    return {"graph": graph, "rank": rank, "bias": error_of(mean, exact), "noise": noise}


def gradient_of(model: nn.Module, out: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the mean loss of some outputs (b, classes), flat."""
    found = torch.autograd.grad(F.cross_entropy(out, y), list(model.parameters()))
    return torch.cat([each.flatten() for each in found])


def full_gradient(model: nn.Module, data: Data) -> Tensor:
    """Return the gradient of the mean loss over the whole graph, by the plain forward, flat."""
    return gradient_of(model, model(data.x, data.edge_index), data.y)


def _run_all(data: Data, way: str, steps: int, *, seeds: int) -> dict[str, Any]:
    """Run SGD of one length with several seeds; return the mean squared gradient at uniform R, and the bound."""
    top, seen, eta = _compensated(data, RANKS[way]), Seen(), STEP / math.sqrt(steps)
    seeds = seeds if way == "top" else (seeds + 1) // 2  # only the order of magnitude counts
    for seed in range(seeds):
        _run(top, data, steps, eta=eta, seed=seed, seen=seen)
    bound = 2 * seen.first / (steps * eta) + 8 * max(1.0, seen.largest) ** 2 * eta * max(1.0, seen.lipschitz)
    square = sum(seen.norms) / len(seen.norms)
    found = {"eta": eta, "square": square, "bound": bound, "G": seen.largest, "gamma": seen.lipschitz}
    return {"way": way, "steps": steps, **found}


def _run(top: TOP, data: Data, steps: int, *, eta: float, seed: int, seen: Seen) -> None:
    """Take steps along batches drawn uniformly, and look at the full gradient where R falls."""
    model, rng, batches = with_weights(top.model, seed=7 + seed), np.random.default_rng(seed), top.cover()
    times = np.bincount(rng.integers(steps, size=min(LOOKS, 4 * steps)), minlength=steps)
    seen.first = max(seen.first, float(F.cross_entropy(exact_output(model, data), data.y)))
    for step in range(steps):
        batch = batches[rng.integers(len(batches))]
        moved = gradient_of(model, top(batch), batch.y)
        before = full_gradient(model, data) if times[step] else None
        with torch.no_grad():
            shift = -eta * moved
            nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()) + shift, model.parameters())
        seen.largest = max(seen.largest, float(moved.norm()))
        if before is not None:
            seen.norms += [float(before.square().sum())] * int(times[step])
            seen.largest = max(seen.largest, float(before.norm()))
            change = float((full_gradient(model, data) - before).norm() / shift.norm())
            seen.lipschitz = max(seen.lipschitz, change)


def draw_convergence(check: Check) -> Figure:
    """Draw the bias against the rank, and the mean squared gradient against the number of steps."""
    figure, (left, right) = new_panels(2)
    for graph, color in ("lift", RED), ("ring", BLUE):
        rows = [row for row in check.rows if row.get("graph") == graph]
        errors = [max(row["bias"], FLOOR) for row in rows]
        left.plot([row["rank"] for row in rows], errors, color=color, marker="o", label=graph)
    left.set(xlabel="rank k", ylabel="bias of the mean gradient", yscale="log", title="D.1: unbiased where Eq. 4 holds")
    left.legend(frameon=False)
    for way, label, color in ("top", "TOP", RED), ("drop", "halo left out", GRAY):
        rows = [row for row in check.rows if row.get("way") == way]
        label = f"{label}, slope {slope(rows):.2f}"
        right.plot(
            [row["steps"] for row in rows], [row["square"] for row in rows], color=color, marker="o", label=label
        )
    rows = [row for row in check.rows if row.get("way") == "top"]
    right.plot(
        [row["steps"] for row in rows], [row["bound"] for row in rows], "k--", linewidth=0.8, label="bound of 5.1"
    )
    right.set(xscale="log", yscale="log", xlabel="steps N, eta = 2 / sqrt(N)", ylabel="mean squared gradient")
    right.set(title="5.1: at most N^-1/2", ylim=(None, 3 * max(row["bound"] for row in rows) ** 2))
    right.legend(frameon=False, loc="upper right")
    return figure
