"""The graphs of the paper, and those at hand: where they are, and what stands in for one that is not.

>>> source("wordnet", Scope()).label
'wordnet'
>>> source("ogbn-arxiv", Scope(stand_in=True, scale=0.1)).label
'ogbn-arxiv (stand-in, scale 0.1)'
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topoff.experiments.study import Scope

PRESETS = {  # the paper's graphs, and the recipes of their stand-ins
    "ogbn-arxiv": "arxiv",
    "Reddit": "reddit",
    "Yelp": "yelp",
    "ogbn-products": "products",
    "ogbn-papers100M": "papers100M",
}
LARGEST = {"ogbn-papers100M": 0.02}  # scale of a stand-in, whatever is asked for
HETEROPHILOUS = ("amazon-ratings", "minesweeper", "questions", "roman-empire", "tolokers")
AT_HAND = ("Cora", "CiteSeer", "PubMed", "Computers", "CS", "minesweeper", "tolokers", "facebook_pagepage", "wordnet")
LOADS = {  # seconds of a cell, about, on one core: a guess, by which the light ones come first
    "Cora": 15.0,
    "minesweeper": 15.0,
    "CiteSeer": 20.0,
    "PubMed": 25.0,
    "Computers": 60.0,
    "tolokers": 70.0,
    "CS": 250.0,
    "facebook_pagepage": 250.0,
    "wordnet": 400.0,
}
USUAL = 15.0
MODEL_LOADS = {"gat": 1.5, "pna": 2.0}


@dataclass(frozen=True)
class Source:
    """Say how a graph is loaded, and what it is called in a table."""

    name: str
    label: str
    settings: dict[str, Any]  # of a cell: dataset and root, or preset and scale


def source(name: str, scope: Scope) -> Source:
    """Find a graph: the published one under --root, or its stand-in where that is wanted."""
    if name in PRESETS and scope.stand_in and not is_there(name, scope.root):
        scale = min(scope.scale, LARGEST.get(name, 1.0))
        label = f"{name} (stand-in, scale {scale:g})"
        return Source(name, label, {"preset": PRESETS[name], "scale": scale})
    root = None if scope.root is None else Path(scope.root).resolve()  # however it is spelt, cells are kept by it
    own = None if root is None else root / name / "graph.npz"
    dataset = str(own) if own is not None and own.is_file() and name != "wordnet" else name
    return Source(name, name, {"dataset": dataset, "root": None if root is None else str(root)})


def load_of(place: Source, model: str) -> float:
    """Guess how many seconds a cell takes; of a stand-in, whatever its scale, as many as of a small graph.

    >>> load_of(source("wordnet", Scope()), "gat")
    600.0
    """
    return LOADS.get(place.name, USUAL) * MODEL_LOADS.get(model, 1.0)


def is_there(name: str, root: str | None) -> bool:
    """Whether files of a graph lie under a folder, as PyG, OGB or we lay them out."""
    if name == "wordnet":
        return True
    if root is None:
        return False
    wanted = {name.lower(), name.lower().replace("-", "_"), name.lower().replace("-", "")}
    places = [place for place in Path(root).iterdir() if place.name.lower() in wanted] if Path(root).is_dir() else []
    return any((place / "raw").is_dir() or (place / "graph.npz").is_file() for place in places)
