"""Section 4.2.2: for a linear GNN one R serves all layers, and batches are exact once the rank is that of the features.

H^(l) = A^l X W, so what is linearly dependent in A^l X is so in H^(l), whatever the weights. The paper asks for full
column rank of (A^l X)_B, layer by layer, which gives every layer an R of its own; the one R that TOP estimates needs
more: the rows of [A X, ..., A^(L-1) X] in B must span those in C together. (X itself is left out: the first layer's
messages are known exactly.) Checked: the error of outputs and layers against the rank k, estimated from random
networks and measured on others, falls to rounding at the rank of that matrix and not before; batches that span every
layer alone but not all together are not exact. Not checked: real graphs.

>>> check_linear(draws=1, layers=(2,)).holds
True
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch_geometric.data import Data

from topoff.batching.node_sets import NodeSets
from topoff.experiments.theory_graphs import network, operator_of, ring, with_weights
from topoff.experiments.theory_record import BLUE, EXACT, FLOOR, OCHRE, RED, VIOLET, Check, Finding, new_panels
from topoff.experiments.theory_trial import compensated

FEATURES, NODES, RATIO = 3, 90, 1 / 3
FEW, DEEP = 1 / 15, 4  # batches of 6 nodes: more than a layer's 3 columns, fewer than the 9 of the 3 after the first
LOST = 1e-3  # an error above it is no rounding
COLORS = (RED, BLUE, OCHRE, VIOLET)


def check_linear(*, draws: int = 3, layers: tuple[int, ...] = (2, 3, 4), seed: int = 0) -> Check:
    """Measure the error of linear GNNs of some depths against the rank, up to one more than is needed."""
    data = ring(NODES, features=FEATURES, seed=seed)
    rows: list[dict[str, Any]] = []
    for depth in layers:
        needed = int(torch.linalg.matrix_rank(hops(data, depth)))
        for rank in range(needed + 2):
            rows.append({"rank": rank, "needed": needed, **_errors(data, depth, rank=rank, ratio=RATIO, draws=draws)})
    few = _errors(data, DEEP, rank=round(FEW * NODES), ratio=FEW, draws=draws)
    enough = [row for row in rows if row["rank"] >= row["needed"]]
    short = [row for row in rows if row["rank"] < row["needed"]]
    findings = (
        Finding("batches that span their halo, share", min(row["spans"] for row in enough), 1.0, at_most=False),
        Finding("output error from the rank of [AX, ..., A^(L-1)X] on", max(row["error"] for row in enough), EXACT),
        Finding("error of every layer there: one R serves all", max(row["layer"] for row in enough), EXACT),
        Finding("least error below that rank", min(row["least"] for row in short), LOST, at_most=False, ours=True),
        Finding("batches of 6 nodes: each layer alone spans, share", few["each"], 1.0, at_most=False, ours=True),
        Finding("and their output error: one R needs all layers", few["least"], LOST, at_most=False, ours=True),
    )
    statement = "For linear GNNs the linear dependence of A^l X is that of H^(l): H_C = R H_B for all weights (4.2.2)."
    return Check("theory-linear", statement, findings, tuple(rows))


def hops(data: Data, layers: int) -> Tensor:
    """Return [AX, ..., A^(L-1)X], what the layers after the first read up to weights; (n, (L - 1) d).

    >>> hops(ring(10, features=2), 3).shape
    torch.Size([10, 4])
    """
    operator, found = operator_of(data), [data.x]
    for _ in range(layers - 1):
        found.append(operator @ found[-1])
    return torch.cat(found[1:], dim=1)


def _errors(data: Data, layers: int, *, rank: int, ratio: float, draws: int) -> dict[str, Any]:
    """Return the errors of one depth and rank over all batches: the worst network's, and the best one's."""
    model = network(data, layers=layers, act=None)
    sets = NodeSets(method="random", ratio=ratio).fit(data)
    top = compensated(model, data, sets=sets, rank=rank)
    found = []
    for draw in range(draws):
        with_weights(model, seed=draw)
        found.append(top.fidelity())
    features, batches = hops(data, layers), sets.of(0)
    alone = [spans(block, nodes) for nodes in batches for block in features.tensor_split(layers - 1, dim=1)]
    return {
        "layers": layers,
        "error": max(fidelity.relative_error for fidelity in found),
        "least": min(fidelity.relative_error for fidelity in found),
        "layer": max((error for fidelity in found for _, error in fidelity.layers), default=0.0),
        "spans": sum(spans(features, nodes) for nodes in batches) / len(batches),
        "each": sum(alone) / len(alone),
    }


def spans(features: Tensor, nodes: Tensor) -> bool:
    """Tell whether the rows of some nodes span those of all.

    >>> spans(torch.eye(2).repeat(2, 1), torch.tensor([0, 2])), spans(torch.eye(2), torch.tensor([0, 1]))
    (False, True)
    """
    return bool(torch.linalg.matrix_rank(features[nodes]) == torch.linalg.matrix_rank(features))


def draw_linear(check: Check) -> Figure:
    """Draw the output error against the rank; a line marks the rank of the features."""
    figure, (axes,) = new_panels(1)
    for color, depth in zip(COLORS, sorted({row["layers"] for row in check.rows}), strict=False):
        rows = [row for row in check.rows if row["layers"] == depth]
        errors = [max(row["error"], FLOOR) for row in rows]
        axes.plot([row["rank"] for row in rows], errors, color=color, marker="o", label=f"{depth} layers")
        axes.axvline(rows[0]["needed"], color=color, linewidth=0.8, linestyle="--")
    axes.set(xlabel="rank k", ylabel="output error", yscale="log", title="linear GNN; dashed: rank of [AX, ...]")
    axes.legend(frameon=False)
    return figure
