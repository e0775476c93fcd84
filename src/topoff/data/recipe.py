"""What a stand-in graph is made of, and the recipes that are named after published graphs.

A stand-in has the size, the split and roughly the degrees, classes and homophily of the graph that it is named after,
and nothing of its content: no result on it is a result on that graph.

>>> recipe = scaled(PRESETS["products"], 0.01)
>>> recipe.nodes, recipe.edges, recipe.classes
(24490, 1237183, 47)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from topoff.data.refusal import refuse

KINDS = ("classes", "multilabel")
CROWD = 4  # times its degree that a node's community has nodes, at least, in a scaled recipe
FEWEST = 20  # nodes per community, on average, that a scaled recipe keeps


@dataclass(frozen=True)
class Recipe:
    """Hold what a generated graph is to be like.

    Nodes lie in communities, and communities in classes. Degrees follow a power law; with `exponent` None all nodes are
    alike. Of the edges between communities, as many stay within a class as `homophily` asks for.
    """

    nodes: int
    edges: int  # directed; an undirected edge is two
    features: int = 64
    classes: int = 10  # or labels, of which a node may have several
    task: str = "classes"  # or multilabel
    communities: int | None = None  # None: one per 1,000 nodes, at least one per class
    between: float = 0.2  # share of the edges that join two communities
    homophily: float | None = None  # share of the edges that join nodes of one class; None: half of `between` do
    exponent: float | None = 2.6  # of the power law of degrees
    largest: int | None = None  # degree that a node is expected to have at most; None: 300 times the mean
    label_noise: float = 0.1  # share of the nodes whose label is drawn anew, from all classes
    feature_noise: float = 0.5  # deviation along any direction, in distances of a class's centre from the origin
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)  # shares of train, validation, test; the rest has no label
    undirected: bool = True


ARXIV = Recipe(
    nodes=169_343,
    edges=2_315_598,
    features=128,
    classes=40,
    communities=340,
    between=0.25,
    homophily=0.65,
    largest=13_000,
    label_noise=0.18,
    split=(90_941 / 169_343, 29_799 / 169_343, 48_603 / 169_343),
)
REDDIT = Recipe(
    nodes=232_965,
    edges=114_615_892,
    features=602,
    classes=41,
    communities=82,
    homophily=0.72,
    exponent=3.0,
    largest=20_000,
    label_noise=0.12,
    feature_noise=0.4,
    split=(153_431 / 232_965, 23_831 / 232_965, 55_703 / 232_965),
)
YELP = Recipe(
    nodes=716_847,
    edges=13_954_819,
    features=300,
    classes=100,
    task="multilabel",
    communities=1_400,
    between=0.25,
    label_noise=0.2,
    feature_noise=0.3,
    split=(0.75, 0.15, 0.10),
)
PRODUCTS = Recipe(
    nodes=2_449_029,
    edges=123_718_280,
    features=100,
    classes=47,
    communities=2_450,
    homophily=0.75,
    largest=17_000,
    label_noise=0.11,
    feature_noise=0.4,
    split=(196_615 / 2_449_029, 39_323 / 2_449_029, 2_213_091 / 2_449_029),
)
PAPERS = Recipe(
    nodes=111_059_956,
    edges=3_228_124_712,
    features=128,
    classes=172,
    communities=111_000,
    between=0.25,
    homophily=0.57,
    largest=100_000,
    label_noise=0.2,
    split=(1_207_179 / 111_059_956, 125_265 / 111_059_956, 214_338 / 111_059_956),
)
PRESETS: Mapping[str, Recipe] = {
    "arxiv": ARXIV,
    "reddit": REDDIT,
    "yelp": YELP,
    "products": PRODUCTS,
    "papers100M": PAPERS,
}


def named(preset: str) -> Recipe:
    """Return a preset by its name.

    Raises:
        ValueError: there is none of that name.

    >>> named("arXiv")
    Traceback (most recent call last):
    ValueError: Expected the name of a preset (got 'arXiv'); did you mean arxiv?
    """
    if preset not in PRESETS:
        near = {name.lower(): name for name in PRESETS}.get(preset.lower())
        remedy = f"did you mean {near}?" if near else f"the presets are {', '.join(PRESETS)}."
        raise ValueError(f"Expected the name of a preset (got '{preset}'); {remedy}")
    return PRESETS[preset]


def scaled(recipe: Recipe, scale: float) -> Recipe:
    """Return a recipe for a share of the nodes, edges and communities, with the same degrees.

    There are no fewer communities than classes: where these become too small for their edges, there are fewer edges.

    Raises:
        ValueError: the scale is not above 0.
    """
    if not (scale > 0 and math.isfinite(scale)):
        refuse("'scale' to be above 0", f"{scale}", "1 is the size of the published graph, 0.1 a tenth of it")
    nodes = max(1, round(recipe.nodes * scale))
    communities = round(community_count(recipe) * scale)
    fewer = max(1, min(communities, nodes // FEWEST), min(recipe.classes, nodes))
    room = nodes * nodes // fewer // CROWD
    return replace(recipe, nodes=nodes, edges=min(round(recipe.edges * scale), room), communities=fewer)


def community_count(recipe: Recipe) -> int:
    """Return the number of communities."""
    if recipe.communities is not None:
        return recipe.communities
    return max(recipe.classes, recipe.nodes // 1000)


def check_recipe(recipe: Recipe) -> None:
    """Refuse what no graph can be like.

    Raises:
        ValueError: a number is out of its range, or two contradict each other.

    >>> check_recipe(Recipe(nodes=5, edges=30))
    Traceback (most recent call last):
    ValueError: Expected at most 20 edges among 5 nodes (got 30); give fewer edges or more nodes.
    """
    n, communities = recipe.nodes, community_count(recipe)
    least = {"nodes": 2, "edges": 2, "features": 1, "classes": 2, "communities": 1}
    counts = {"nodes": n, "edges": recipe.edges, "features": recipe.features, "classes": recipe.classes}
    for name, value in {**counts, "communities": communities}.items():
        if value < least[name]:
            refuse(f"'{name}' to be {least[name]} or more", f"{value}", "give a larger number")
    if n > 2**31:
        refuse("'nodes' to be at most 2^31", f"{n}", "give a smaller number, or a smaller scale")
    if recipe.edges > n * (n - 1):
        refuse(f"at most {n * (n - 1)} edges among {n} nodes", f"{recipe.edges}", "give fewer edges or more nodes")
    if recipe.task not in KINDS:
        refuse(f"'task' to be {' or '.join(KINDS)}", f"'{recipe.task}'", "choose one of them")
    if not recipe.classes <= communities <= n:
        expected = f"as many communities as classes, {recipe.classes}, or more, and no more than nodes, {n}"
        refuse(expected, f"{communities}", "change 'communities', 'classes' or 'nodes'")
    _check_shares(recipe, communities=communities)
    if recipe.exponent is not None and not 2 < recipe.exponent <= 100:
        remedy = "the degrees of published graphs have 2.1 to 3; 0 makes all nodes alike"
        refuse("'exponent' to be above 2 and at most 100", f"{recipe.exponent}", remedy)
    near_share(recipe)


def _check_shares(recipe: Recipe, *, communities: int) -> None:
    """Refuse shares outside of 0 to 1, and what they cannot be together."""
    shares = {name: getattr(recipe, name) for name in ("between", "label_noise")}
    splits = dict(zip(("train", "val", "test"), recipe.split, strict=True))
    for name, share in (shares | {f"the split's {key}": share for key, share in splits.items()}).items():
        if not 0 <= share <= 1:
            refuse(f"'{name}' to be a share from 0 to 1", f"{share}", "give a share, such as 0.2")
    if not recipe.split[0] > 0 or sum(recipe.split) > 1 + 1e-9:
        got = ", ".join(f"{share:g}" for share in recipe.split)
        refuse("a split with training nodes and shares that add up to 1 at most", got, "change the shares")
    if not 0 <= recipe.feature_noise < math.inf:
        refuse("'feature_noise' to be 0 or more", f"{recipe.feature_noise}", "0.5 makes features alone a poor guide")
    if communities == 1 and recipe.between > 0:
        refuse("'between' to be 0 with one community", f"{recipe.between:g}", "set it to 0, or ask for more")


def near_share(recipe: Recipe) -> float:
    """Return which share of the edges between communities stays within a class, for the homophily that is asked for.

    With labels drawn anew for a share v of the nodes, edges within a true class, of share g, join equal labels with
    chance (1 - v)^2 + r / c, others with r / c, where r = 1 - (1 - v)^2: h = g (1 - v)^2 + r / c.

    Raises:
        ValueError: no share of them gives this homophily.

    >>> near_share(Recipe(nodes=1000, edges=5000, between=0.5, homophily=0.75, label_noise=0.0))
    0.5
    """
    if recipe.homophily is None or recipe.task != "classes":
        if recipe.homophily is not None:
            refuse("no 'homophily' with several labels per node", f"{recipe.homophily:g}", "leave it out")
        return 0.5
    kept = (1 - recipe.label_noise) ** 2
    chance = (1 - kept) / recipe.classes
    low, high = (1 - recipe.between) * kept + chance, kept + chance
    if not low - 1e-9 <= recipe.homophily <= high + 1e-9:
        expected = f"'homophily' from {low:.3f} to {high:.3f}, as 'between' and 'label_noise' leave it"
        refuse(expected, f"{recipe.homophily:g}", "change one of them: more edges between communities lower it")
    within = (recipe.homophily - chance) / kept if kept else 1.0
    share = (within - (1 - recipe.between)) / recipe.between if recipe.between else 0.0
    return min(1.0, max(0.0, share))
