"""What the ablations vary: values of one setting each, with topoff's own among them.

>>> [ablation.name for ablation in TABLE][:3], RANK.mark(RANK.values[2])
(['estimator', 'rank', 'inits'], '16 (default)')
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HIDDEN = 64
OFF: dict[str, Any] = {"offset": False}


@dataclass(frozen=True)
class Value:
    """Name one value of an ablation: the settings in which it differs from the others."""

    label: str
    settings: dict[str, Any] = field(default_factory=dict)
    default: bool = False  # whether this is what topoff does where the user says nothing


@dataclass(frozen=True)
class Ablation:
    """Describe what is varied, and how it is looked at."""

    name: str
    title: str
    about: str
    values: tuple[Value, ...]
    common: dict[str, Any] = field(default_factory=dict)  # settings of all values
    measured: bool = False  # batches of a model that was trained full-batch are compared with the whole graph
    trained: bool = True  # a model is trained in such batches
    ordered: bool = False  # whether the values are numbers, drawn as a line

    def mark(self, value: Value) -> str:
        """Return a value's label; the default is marked, with what else is set where that is no default itself.

        >>> [INITS.mark(value) for value in INITS.values[:2]]
        ['1', '2 (default with refresh = never)']
        """
        if not value.default:
            return value.label
        set_too = ", ".join(f"{key} = {each}" for key, each in self.common.items())
        return f"{value.label} (default{' with ' + set_too if set_too else ''})"


def default(label: str) -> Value:
    """Return the value that is topoff's default: nothing is said."""
    return Value(label, default=True)


def varied(key: str, *found: Any) -> tuple[Value, ...]:
    """Return values of one setting."""
    return tuple(Value(str(each), {key: each}) for each in found)


ESTIMATOR = Ablation(
    "estimator",
    "how the compensation is estimated",
    "Ridge regression on a wide basis, with and without its offset, the paper's Eq. 12, and the released code.",
    (default("ridge"), Value("ridge, no offset", OFF), *varied("estimator", "released", "paper")),
    measured=True,
)
RANK = Ablation(
    "rank",
    "rank k of the compensation",
    "The paper has k = d, the hidden size. Rank 0 is the offset alone: exact embeddings as old as the refresh.",
    (*varied("rank", 0, 4), default("16"), *varied("rank", 32), Value(f"{HIDDEN} = d", {"rank": HIDDEN})),
    measured=True,
    ordered=True,
)
INITS = Ablation(
    "inits",
    "number N of networks behind a basis that is never refreshed",
    "Random initialisations, as in the paper. Where a basis is refreshed, it comes from the current weights alone.",
    (*varied("inits", 1), default("2"), *varied("inits", 4, 8)),
    common={"refresh": "never"},
    measured=True,
    ordered=True,
)
ANCHORS = Ablation(
    "anchors",
    "number S of nodes of a batch that are read",
    "The paper's estimators read S nodes of a batch; ridge regression reads all. Without offset, k = 64. S is an "
    "argument of TOP and no setting of a run, so nothing is trained.",
    (
        Value("paper, S = k", {"estimator": "paper"}),
        Value("paper, S = 2 k", {"estimator": "paper", "anchors": 128}),
        Value("paper, S = 4 k", {"estimator": "paper", "anchors": 256}),
        Value("released, S = 2 k", {"estimator": "released", "anchors": 128}),
        Value("released, all", {"estimator": "released"}),
        default("ridge, all"),
    ),
    common=OFF,
    measured=True,
    trained=False,
)
FIRST_LAYER = Ablation(
    "first-layer",
    "exact first layer",
    "A X is known, so the first layer is exact. drop leaves out all outside a batch, drop-ax all but the features. "
    "TOP without it is not varied: exact inference records no raw features, which basis and offset would need.",
    (*varied("method", "drop", "drop-ax"), default("top")),
)
OFFSET = Ablation(
    "offset",
    "what is compensated",
    "Only what has changed since the last refresh (offset, rank 16), all messages from outside as in the paper (no "
    "offset; rank 64 where none is given), or nothing but what they were at the refresh (rank 0).",
    (
        default("offset"),
        Value("no offset", OFF),
        Value("no offset, 16", OFF | {"rank": 16}),
        Value("rank 0", {"rank": 0}),
    ),
    measured=True,
)
REFRESH = Ablation(
    "refresh",
    "when the basis is estimated anew",
    "Never, every so many epochs, or as often as it pays (auto). Never has no offset and rank 64.",
    (*varied("refresh", "never", "every=20"), default("auto"), *varied("refresh", "every=5", "every=1")),
)
SHARE = Ablation(
    "ratio",
    "share of the nodes per batch",
    "The default is chosen from the graph: 400 to 3,000 nodes and at least 64 labels per batch.",
    (default("chosen"), *varied("ratio", 0.01, 0.03, 0.1, 0.3, 1.0)),
)
DEPTH = Ablation(
    "depth",
    "number of layers",
    "Errors of the halo pass through every further layer; GCN with residual connections.",
    (*varied("layers", 2), default("3"), *varied("layers", 4, 6, 8, 10)),
    ordered=True,
)
NORM = Ablation(
    "norm",
    "normalisation after each conv",
    "Batch norm sees the batch alone in training, and running means in evaluation.",
    (default("layer"), *varied("norm", "none", "batch")),
)
TRAIN_ONLY = Ablation(
    "train-only",
    "which nodes are batched",
    "All nodes, or where these are at most half of them those that reach a training node (reach, as topoff chooses "
    "it); or the training nodes alone with all others compensated (train_only), which topoff chooses where nodes have "
    "many messages. All other ablations batch all nodes.",
    (default("all, or those in reach"), Value("train_only", {"train_only": True})),
)
TABLE = (ESTIMATOR, RANK, INITS, ANCHORS, FIRST_LAYER, OFFSET, REFRESH, SHARE, DEPTH, NORM, TRAIN_ONLY)
