"""What is published of graphs: where, which raw files, and how large they are; what is read is compared with it.

>>> check_count("ogbn-arxiv", "nodes", 169_342)
Traceback (most recent call last):
ValueError: Expected ogbn-arxiv to have 169,343 nodes, as published (got 169,342); fetch its raw files again from \
https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from topoff.data.array_file import Array
from topoff.data.layout import MASKS, SPLITS
from topoff.data.refusal import refuse

OGB = "https://snap.stanford.edu/ogb/data/nodeproppred"
SAINT = "https://drive.google.com/drive/folders/1zycmmDES39zVlbVCYs88JTJ1Wm5FbfLz (GraphSAINT)"
YANDEX = "https://github.com/yandex-research/heterophilous-graphs/tree/main/data"
PLANETOID = "https://github.com/kimiyoung/planetoid"


@dataclass(frozen=True)
class RawFiles:
    """Say which raw files a graph has, as PyG and OGB lay them out."""

    kind: str  # ogb, ogb-binary, saint, reddit or ppi: who reads them
    folder: str  # below root
    files: tuple[str, ...]  # below the folder

    def paths(self, root: Path) -> list[Path]:
        """Return where they are, or would be."""
        return [root / self.folder / file for file in self.files]


@dataclass(frozen=True)
class Counts:
    """Hold the published sizes of a graph; several, where publications differ: any of them."""

    nodes: int | tuple[int, ...]
    edges: tuple[int, ...]  # that the raw files list; of PyG's datasets, those of its edge_index
    features: int
    classes: int  # or labels, where a node may have several
    split: tuple[int, int, int] | None = None  # train, validation, test; None where only shares are published


def _ogb(folder: str, split: str, *raw: str) -> tuple[str, str, tuple[str, ...]]:
    parts = tuple(f"split/{split}/{part}.csv.gz" for part in ("train", "valid", "test"))
    return ("ogb" if "edge.csv.gz" in raw else "ogb-binary", folder, (*(f"raw/{file}" for file in raw), *parts))


_CSV = ("num-node-list.csv.gz", "edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz")
_SAINT = tuple(f"raw/{file}" for file in ("adj_full.npz", "feats.npy", "class_map.json", "role.json"))
_PPI = tuple(
    f"raw/{split}_{file}"
    for split in ("train", "valid", "test")
    for file in ("feats.npy", "labels.npy", "graph_id.npy", "graph.json")
)
RAW: Mapping[str, RawFiles] = {
    "ogbn-arxiv": RawFiles(*_ogb("ogbn_arxiv", "time", *_CSV)),
    "ogbn-products": RawFiles(*_ogb("ogbn_products", "sales_ranking", *_CSV)),
    "ogbn-papers100M": RawFiles(*_ogb("ogbn_papers100M", "time", "data.npz", "node-label.npz")),
    **{name: RawFiles("saint", name, _SAINT) for name in ("Reddit2", "Flickr", "Yelp", "AmazonProducts", "PPI")},
    "Reddit": RawFiles("reddit", "Reddit", ("raw/reddit_data.npz", "raw/reddit_graph.npz")),
    "PPI-large": RawFiles("ppi", "PPI", _PPI),
}
ALIASES = {"Reddit-SAINT": "Reddit2"}  # as its authors call it -> as PyG does
URLS: Mapping[str, str] = {
    "ogbn-arxiv": f"{OGB}/arxiv.zip",
    "ogbn-products": f"{OGB}/products.zip",
    "ogbn-papers100M": f"{OGB}/papers100M-bin.zip",
    "Reddit": "https://data.dgl.ai/dataset/reddit.zip",
    "PPI-large": "https://data.dgl.ai/dataset/ppi.zip",
    **dict.fromkeys(("Reddit2", "Flickr", "Yelp", "AmazonProducts", "PPI"), SAINT),
    **dict.fromkeys(("Cora", "CiteSeer", "PubMed"), PLANETOID),
    **dict.fromkeys(("Roman-empire", "Amazon-ratings", "Minesweeper", "Tolokers", "Questions"), YANDEX),
}
COUNTS: Mapping[str, Counts] = {
    "ogbn-arxiv": Counts(169_343, (1_166_243,), 128, 40, (90_941, 29_799, 48_603)),
    "ogbn-products": Counts(2_449_029, (61_859_140,), 100, 47, (196_615, 39_323, 2_213_091)),
    "ogbn-papers100M": Counts(111_059_956, (1_615_685_872,), 128, 172, (1_207_179, 125_265, 214_338)),
    "Reddit": Counts(232_965, (114_615_892, 114_615_873), 602, 41, (153_431, 23_831, 55_703)),
    "Reddit2": Counts(232_965, (23_213_838,), 602, 41, (153_932, 23_699, 55_334)),
    "Flickr": Counts(89_250, (899_756,), 500, 7, (44_625, 22_312, 22_313)),
    "Yelp": Counts(716_847, (13_954_819,), 300, 100),
    "AmazonProducts": Counts((1_569_960, 1_598_960), (264_339_468,), 200, 107),  # PyG's, GraphSAINT's
    # 225,270 edges are published, and not whether the file lists them once
    "PPI": Counts(14_755, (225_270, 450_540), 50, 121),
    "PPI-large": Counts(56_944, (793_632,), 50, 121, (44_906, 6_514, 5_524)),  # without self-loops, each edge once
    "Cora": Counts(2_708, (10_556,), 1_433, 7, (140, 500, 1_000)),
    "CiteSeer": Counts(3_327, (9_104,), 3_703, 6, (120, 500, 1_000)),
    "PubMed": Counts(19_717, (88_648,), 500, 3, (60, 500, 1_000)),
    # ten splits each, 50/25/25 %
    "Roman-empire": Counts(22_662, (65_854,), 300, 18),
    "Amazon-ratings": Counts(24_492, (186_100,), 300, 5),
    "Minesweeper": Counts(10_000, (78_804,), 7, 2, (5_000, 2_500, 2_500)),
    "Tolokers": Counts(11_758, (1_038_000,), 10, 2, (5_879, 2_939, 2_940)),
    "Questions": Counts(48_921, (307_080,), 301, 2),
}


def check_count(name: str, what: str, got: int) -> None:
    """Compare one count with the published one; a graph that has none passes.

    `what` is nodes, edges, features, classes, or a split with the word that belongs to it, such as "train nodes".

    Raises:
        ValueError: they differ.
    """
    counts = COUNTS.get(name)
    if counts is None:
        return
    split = what.removesuffix(" nodes")
    if split in SPLITS:
        wanted: tuple[int, ...] = counts.split[SPLITS.index(split) :][:1] if counts.split else (got,)
    else:
        value = getattr(counts, what)
        wanted = value if isinstance(value, tuple) else (value,)
    if got not in wanted:
        numbers = " or ".join(f"{number:,}" for number in wanted)
        remedy = f"fetch its raw files again from {URLS.get(name, 'where it is published')}"
        refuse(f"{name} to have {numbers} {what}, as published", f"{got:,}", remedy)


def check_labels(name: str, y: Array, masks: Mapping[str, Array]) -> None:
    """Compare the number of nodes, of classes, and the sizes of the splits; masks (n,), or (n, splits).

    Raises as `check_count` does.
    """
    check_count(name, "nodes", len(y))
    check_count(name, "classes", y.shape[1] if y.ndim == 2 else int(y.max(initial=-1)) + 1)
    for split, mask in zip(SPLITS, MASKS, strict=True):
        for size in {int(size) for size in masks[mask].reshape(len(y), -1).sum(axis=0)} if mask in masks else ():
            check_count(name, f"{split} nodes", size)


def refuse_missing(name: str, missing: list[Path]) -> None:
    """Say which raw files are missing, where they belong, and where they are published.

    Raises:
        FileNotFoundError: always.
    """
    files = ", ".join(map(str, missing))
    raise FileNotFoundError(
        f"Expected the raw files of {name} at {files} (got no such file{'s' if len(missing) > 1 else ''}); {name} is "
        f"published at {URLS[name]}: put them there, or name another folder with 'root' (--root)."
    )
