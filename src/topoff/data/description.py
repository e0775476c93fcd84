"""The record of a graph that `topoff.data.describe.describe` fills, and the warning signs in it."""

from __future__ import annotations

from dataclasses import dataclass, field

HUB_NODES = 20  # below which any node may be next to a quarter of the others
TINY = 5  # training nodes below which a class is called tiny
IMBALANCE = 20  # times the smallest class that the largest may hold
SCALES = 1000  # times the smallest standard deviation that the largest may be


@dataclass(frozen=True)
class Degrees:
    """Hold the spread of the nodes' degrees."""

    min: int
    median: float
    mean: float
    max: int


@dataclass(frozen=True)
class ClassCount:
    """Hold how often a class (or, multi-label, a label) occurs."""

    name: str
    count: int  # among all nodes, also those in no split
    train: int
    val: int
    test: int


@dataclass(frozen=True)
class Target:
    """Hold the spread of the training nodes' regression targets."""

    min: float
    mean: float
    std: float
    max: float


@dataclass(frozen=True)
class Features:
    """Hold what the columns of x are like."""

    count: int
    dtype: str
    min: float
    max: float
    zeros: float  # share of the entries
    constant: int  # columns with one value
    scale_ratio: float  # largest over smallest standard deviation of the others; 1 where there are none


@dataclass(frozen=True)
class Description:
    """Hold what `describe` found; `dataclasses.asdict` gives plain JSON."""

    nodes: int
    edges: int  # directed: columns of edge_index
    undirected: bool  # every edge has its reverse
    weighted: bool
    negative_weights: int
    edge_features: int
    self_loops: int
    duplicates: int  # copies beyond the first
    isolated: int  # nodes without an edge to or from another node
    unreached: int  # nodes without an edge from another node
    degree: Degrees  # incoming edges: messages that a node gets
    degree_out: Degrees | None  # None where undirected: the same
    histogram: dict[str, list[int]]  # of the incoming edges: see `degree_histogram`
    components: int  # weakly connected
    largest_component: int
    homophily: float | None  # None without classes, or without an edge between labelled nodes
    adjusted_homophily: float | None
    task: str  # classes, binary, multilabel or regression
    classes: list[ClassCount]  # empty for regression
    balance: float | None  # entropy of the training classes over its maximum: 1 is balanced
    majority: float | None  # share of the largest training class: the accuracy of always guessing it
    target: Target | None
    splits: dict[str, int]  # nodes in train, val, test and in none of them
    unlabelled: int  # the spelling of the JSON contract
    features: Features
    memory: dict[str, int]  # bytes of x and of the edges with their weights and features
    warnings: list[str] = field(default_factory=list)


def list_warnings(found: Description) -> list[str]:
    """List what would go wrong or cost accuracy, each with its remedy.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from topoff.data.describe import describe
    >>> every, none = torch.tensor([[True, True], [False, False]])
    >>> pair = Data(x=torch.eye(2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1]),
    ...             train_mask=every, val_mask=none, test_mask=none)
    >>> list_warnings(describe(pair))[1]
    'There are no test nodes, so no score on unseen nodes: mark some as test nodes.'
    """
    said = {**_edge_warnings(found), **_split_warnings(found), **_class_warnings(found), **_feature_warnings(found)}
    return [sentence for sentence, holds in said.items() if holds]


def _edge_warnings(found: Description) -> dict[str, bool]:
    """Say what is wrong with edges that are missing, one-way, double, negative or all at one node, and if it is so."""
    nodes, edges = f"{found.nodes:,} nodes", f"{found.edges:,} edges"
    both, merge = (
        f"run `topoff convert GRAPH NEW {flag}` and use NEW" for flag in ("--undirected", "--remove-duplicates")
    )
    if found.edge_features:  # which no one way merges
        both, merge = "write every edge both ways, with its features", "leave out all but one"
    hub = max(found.degree.max, found.degree_out.max if found.degree_out else 0)
    return {
        f"Isolated nodes get no messages ({found.isolated:,} of {nodes}): give them edges, or trust their features.": (
            found.isolated > 0
        ),
        f"Edges are directed: messages go one way only, and {found.unreached:,} of {nodes} get none from others; most "
        f"models want both ways: {both}.": not found.undirected,
        f"Duplicate edges count again in every sum and mean ({found.duplicates:,} of {edges}): {merge}, "
        "unless they are meant as weights.": found.duplicates > 0,
        f"Negative weights break GCN's normalisation and the partitioners ({found.negative_weights:,} of {edges}): "
        "shift them, or move them to edge_attr.": found.negative_weights > 0,
        f"One node has {hub:,} edges in a graph of {nodes}: nearly every batch borders on this hub; remove it if it "
        "stands for nothing real, such as a missing value.": hub > found.nodes / 4 and found.nodes >= HUB_NODES,
    }


def _split_warnings(found: Description) -> dict[str, bool]:
    """Say what is wrong with splits that are empty or too small."""
    train, classes = found.splits["train"], len(found.classes)
    return {
        "There are no validation nodes, so no early stopping and no choice of the best epoch: mark some as "
        "validation nodes.": not found.splits["val"],
        "There are no test nodes, so no score on unseen nodes: mark some as test nodes.": not found.splits["test"],
        f"There are more classes ({classes:,}) than training nodes ({train:,}): label more nodes, or, if y is a "
        "quantity, make it floating point for regression.": classes > train,
    }


def _class_warnings(found: Description) -> dict[str, bool]:
    """Say what is wrong with classes that are hardly learnt, or not at all, and with large ones that drown them."""
    missing = [one.name for one in found.classes if not one.train]
    tiny = [one.name for one in found.classes if 0 < one.train < TINY]
    counts = [one.train for one in found.classes if one.train] if found.task != "multilabel" else []
    ratio = max(counts) / min(counts) if counts else 1.0
    alone = len(counts) == 1 and found.splits["train"] > 1
    return {
        "The training nodes have one class only, so that there is nothing to learn: label nodes of other classes, "
        "too.": alone,
        f"Without training nodes, a class is never predicted ({_listed(missing)}): label some, or draw another "
        "split.": missing != [],
        f"With fewer than {TINY} training nodes, a class is hardly learnt ({_listed(tiny)}): label more, or merge it "
        "with a similar one.": tiny != [],
        f"The largest class has {ratio:,.0f} times the training nodes of the smallest: weight the classes in the loss "
        '(class_weight "balanced") if the small ones matter.': ratio > IMBALANCE,
    }


def _feature_warnings(found: Description) -> dict[str, bool]:
    """Say what is wrong with features that say nothing, or that drown each other."""
    ratio = found.features.scale_ratio
    return {
        "All features are constant, so models see degrees at best: add features that tell nodes apart.": (
            found.features.constant == found.features.count
        ),
        f"Features are on very different scales (standard deviations differ by a factor of {ratio:,.3g}): standardise "
        "the columns to mean 0 and deviation 1.": ratio > SCALES,
    }


def _listed(names: list[str], *, most: int = 5) -> str:
    """Name the first few."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
