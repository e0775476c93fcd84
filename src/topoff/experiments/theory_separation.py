"""Theorem E.3: with LeakyReLU a network of random weights separates, with probability one, what some GCN separates.

Checked on uniform random graphs with features of a finite set: whether one network of random weights separates every
pair of nodes that any of several wide ones separates, in each of three layers, by activation and width. LeakyReLU and
tanh do; ReLU, which is not injective, misses pairs, most in narrow networks. These classes are not always those of
the 1-WL test (with degrees, see `theory_colors`), as the paper says: 1-WL never tells less apart, but more on some
graphs, where a node whose neighbours have its features and degree has the embedding of a node without neighbours.

The theorem does not hold for all features. Its proof says that gamma != 0 for every pattern of signs; but the
difference of two embeddings is another linear function of the weights in every pattern, and may vanish in one of them.
On the path of four, features can be chosen so that nodes 0 and 3 agree wherever the first layer's weights are all
positive: probability 2^-width, measured. Such features are few (they solve an equation). For analytic activations such
as tanh the theorem holds whatever the features: an analytic function that is not zero is so on a null set only.

>>> [finding.holds for finding in check_separation(graphs=1, draws=2, trials=9).findings[:2]]
[True, True]
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.experiments.theory_colors import first_colors, refine
from topoff.experiments.theory_graphs import (
    ACTIVATIONS,
    embedder,
    network,
    operator_of,
    path,
    sparse_graph,
    with_weights,
)
from topoff.experiments.theory_record import BLUE, GRAY, RED, Check, Finding, new_panels

LAYERS, WIDTHS, WIDE, REFERENCES = 3, (1, 2, 4, 8), 16, 6
NEAR = 1e-9  # rows that differ by less, relative to themselves, are equal but for rounding
LEAK = 0.01  # LeakyReLU's slope
LOOKS = {"leaky_relu": (RED, "-"), "tanh": (BLUE, "--"), "relu": (GRAY, "-")}


def check_separation(*, graphs: int = 8, draws: int = 8, trials: int = 300) -> Check:
    """Measure how often random networks separate all there is, on `graphs` graphs with `draws` networks each."""
    rows = [_trial(number, draws=draws) for number in range(graphs)]
    shares: list[dict[str, Any]] = [
        {"act": act, "width": width, "whole": _mean(rows, f"{act}/{width}"), "networks": graphs * draws}
        for act in ACTIVATIONS
        for width in WIDTHS
    ]
    collisions = [_collisions(act, width, trials) for act in ("leaky_relu", "tanh") for width in WIDTHS]
    by_act = {act: [row["whole"] for row in shares if row["act"] == act] for act in ACTIVATIONS}
    missed = {act: [row["missed"] for row in collisions if row["act"] == act] for act in ("leaky_relu", "tanh")}
    findings = (
        Finding("LeakyReLU: share of networks that separate all", min(by_act["leaky_relu"]), 1.0, at_most=False),
        Finding("tanh: the same", min(by_act["tanh"]), 1.0, at_most=False, ours=True),
        Finding("ReLU: the same, for the narrowest", min(by_act["relu"]), 0.999, ours=True),
        Finding(
            "share of graphs where 1-WL tells no less apart", _mean(rows, "no less"), 1.0, at_most=False, ours=True
        ),
        Finding("LeakyReLU, chosen features: share that misses a pair", max(missed["leaky_relu"]), 0.0),
        Finding("tanh, the same features", max(missed["tanh"]), 0.0, ours=True),
    )
    statement = "With LeakyReLU, random weights separate non-isomorphic nodes with probability one (Theorem E.3)."
    shares.append({"act": "1-WL", "same": _mean(rows, "same"), "graphs": graphs})
    return Check("theory-separation", statement, findings, (*shares, *collisions))


def classes_of(rows: Tensor) -> Tensor:
    """Return (n, n), whether two rows (n, d) are equal but for rounding.

    >>> classes_of(torch.tensor([[1.0], [1.0], [2.0]]).double()).tolist()
    [[True, True, False], [True, True, False], [False, False, True]]
    """
    size = rows.abs().amax(1)
    near = NEAR * torch.maximum(size.unsqueeze(0), size.unsqueeze(1))
    return (rows.unsqueeze(0) - rows.unsqueeze(1)).abs().amax(2) <= near


def hidden_pair() -> Data:
    """Return the path of four whose ends agree in layer 2 of a LeakyReLU network while all first weights are positive.

    With z = A X the ends receive s(z_0) / 2 + s(z_1) / sqrt(6) and s(z_3) / 2 + s(z_2) / sqrt(6), s being LeakyReLU.
    z = (1, 1, 1 + sqrt(6) (1 + LEAK) / 2, -1) makes them equal; its negative, to which negative weights lead, does not.
    """
    z = torch.tensor([[1.0], [1.0], [1.0 + 6**0.5 * (1 + LEAK) / 2], [-1.0]], dtype=torch.float64)
    matrix = operator_of(path(z)) @ torch.eye(4, dtype=torch.float64)
    return path(torch.linalg.solve(matrix, z))


def _trial(number: int, *, draws: int) -> dict[str, float]:
    """Return, by activation and width, the share of networks that separate on one graph all that can be separated."""
    data = sparse_graph(30, degree=2.5, kinds=2, seed=100 + number)
    embed = embedder(network(data, layers=LAYERS + 1), data)

    def equal(model: nn.Module, seed: int) -> list[Tensor]:
        """Return which nodes are equal in every layer of a random network; (n, n) each."""
        return [classes_of(rows) for rows in embed(with_weights(model, seed=seed))]

    wide = [network(data, layers=LAYERS + 1, width=WIDE, act=act) for act in ("leaky_relu", "tanh")]
    seen = [equal(model, 500 + seed) for model in wide for seed in range(REFERENCES // 2)]
    known = [torch.stack(layer).all(0) for layer in zip(*seen, strict=True)]  # equal for all of them
    found = {}
    for act in ACTIVATIONS:
        for width in WIDTHS:
            model = network(data, layers=LAYERS + 1, width=width, act=act)
            whole = [_within(equal(model, seed), known) for seed in range(draws)]
            found[f"{act}/{width}"] = sum(whole) / draws
    colors = refine(data, first_colors(data, "degrees"), rounds=LAYERS)
    told = [each.unsqueeze(0) == each.unsqueeze(1) for each in colors]
    found["no less"] = float(_within(told, known))
    found["same"] = float(_within(told, known) and _within(known, told))
    return found


def _within(finer: list[Tensor], coarser: list[Tensor]) -> bool:
    """Tell whether nodes that are equal in the first are so in the second, layer by layer."""
    return all(bool((one <= other).all()) for one, other in zip(finer, coarser, strict=True))


def _collisions(act: str, width: int, trials: int) -> dict[str, Any]:
    """Return how many random networks give both ends of `hidden_pair` one embedding in layer 2."""
    data = hidden_pair()
    model = network(data, layers=3, width=width, act=act)
    same = [bool(classes_of(_second(with_weights(model, seed=seed), data))[0, 3]) for seed in range(trials)]
    predicted = 0.5**width if act == "leaky_relu" else 0.0
    return {"act": act, "width": width, "missed": sum(same) / trials, "predicted": predicted, "networks": trials}


def _second(model: nn.Module, data: Data) -> Tensor:
    """Return H^(2) by the network's own convs."""
    rows: Tensor = data.x
    with torch.no_grad():
        for conv in list(model.convs)[:2]:  # type: ignore[arg-type]  # PyG's list of convs, which torch does not know
            rows = model.act(conv(rows, data.edge_index))  # type: ignore[operator]  # and its activation
    return rows


def _mean(rows: list[dict[str, float]], name: str) -> float:
    return sum(row[name] for row in rows) / len(rows)


def draw_separation(check: Check) -> Figure:
    """Draw the share of networks that separate all there is, and the collisions on chosen features."""
    figure, (left, right) = new_panels(2)
    for act, (color, style) in LOOKS.items():
        for axes, what in (left, "whole"), (right, "missed"):
            rows = [row for row in check.rows if row["act"] == act and what in row]
            if rows:
                values = [row[what] for row in rows]
                axes.plot([row["width"] for row in rows], values, color=color, linestyle=style, marker="o", label=act)
    rows = [row for row in check.rows if "missed" in row and row["act"] == "leaky_relu"]
    right.plot(
        [row["width"] for row in rows], [row["predicted"] for row in rows], "k--", linewidth=0.8, label="2^-width"
    )
    left.set(
        xlabel="width", ylabel="networks that separate all", xscale="log", title="random graphs", ylim=(-0.05, 1.05)
    )
    right.set(xlabel="width", ylabel="networks that miss the pair", xscale="log", title="chosen features, path of four")
    for axes in (left, right):
        axes.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
        axes.minorticks_off()
        axes.legend(frameon=False)
    return figure
