"""Small files in the exact layouts in which graphs are published, as PyG and OGB unpack them below a root."""

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from topoff.data.published import Counts

N = 6
X = np.arange(2 * N, dtype=np.float32).reshape(N, 2) / 4
CLASSES = [0, 1, 2, 0, 1, 2]
LABELS = [[0, 1], [1, 1], [0, 0], [1, 0], [0, 1], [1, 1]]
SPLIT = {"train": [0, 3], "valid": [1], "test": [2, 5]}  # node 4 is in none
CITATIONS = [(0, 1), (1, 0), (2, 1), (3, 3), (4, 5)]  # a pair that cites each other, and a self-citation
BOTH_WAYS = {(0, 1), (1, 0), (2, 1), (1, 2), (3, 3), (4, 5), (5, 4)}
PAIRS = [(0, 1), (1, 0), (1, 2), (2, 1), (3, 3), (4, 0), (0, 4)]  # both ways already, one loop
COUNTS = Counts(nodes=N, edges=(5,), features=2, classes=3, split=(2, 1, 2))


@dataclass(frozen=True)
class Written:
    """Hold what was written: the folder of the graph, and its raw files."""

    folder: Path
    files: list[Path]


def write_gz(path: Path, rows: Iterable[Any]) -> None:
    """Write lines as OGB does: gzip, no header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (",".join(map(str, row)) if isinstance(row, list | tuple) else str(row) for row in rows)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def write_split(folder: Path, kind: str, split: Mapping[str, list[int]] = SPLIT) -> None:
    """Write OGB's split."""
    for part, ids in split.items():
        write_gz(folder / "split" / kind / f"{part}.csv.gz", ids)


def write_ogb(root: Path, name: str = "ogbn-arxiv", edges: list[tuple[int, int]] = CITATIONS) -> Written:
    """Write ogbn-arxiv or ogbn-products, with the files that we do not read."""
    folder = root / name.replace("-", "_")
    raw = folder / "raw"
    write_gz(raw / "num-node-list.csv.gz", [N])
    write_gz(raw / "num-edge-list.csv.gz", [len(edges)])
    write_gz(raw / "edge.csv.gz", edges)
    write_gz(raw / "node-feat.csv.gz", X.tolist())
    write_gz(raw / "node-label.csv.gz", CLASSES)
    write_gz(raw / "node_year.csv.gz", [2015] * N)
    write_split(folder, "time" if name == "ogbn-arxiv" else "sales_ranking")
    (folder / "mapping").mkdir()
    return Written(folder, sorted(path for path in folder.rglob("*.gz") if path.name not in UNREAD))


UNREAD = ("num-edge-list.csv.gz", "node_year.csv.gz")


def write_papers(root: Path, **changes: Any) -> Written:
    """Write ogbn-papers100M: features in half of the width that OGB has, labels with nan."""
    folder = root / "ogbn_papers100M"
    (folder / "raw").mkdir(parents=True)
    arrays = {
        "edge_index": np.array(CITATIONS).T.copy(),
        "node_feat": X,
        "node_year": np.full((N, 1), 2015),
        "num_nodes_list": np.array([N]),
        "num_edges_list": np.array([len(CITATIONS)]),
    }
    np.savez_compressed(folder / "raw" / "data.npz", **{**arrays, **changes})
    labels = np.array(CLASSES, np.float32)
    labels[4] = np.nan
    np.savez_compressed(folder / "raw" / "node-label.npz", node_label=labels[:, None])
    write_split(folder, "time")
    return Written(folder, sorted(path for path in folder.rglob("*.*") if path.is_file()))


def write_saint(root: Path, name: str = "Flickr", labels: list[Any] = CLASSES) -> Written:
    """Write one of GraphSAINT's graphs, with the matrix of training nodes that we do not read."""
    raw = root / name / "raw"
    raw.mkdir(parents=True)
    ends = np.array(PAIRS).T
    adjacency = scipy.sparse.csr_matrix((np.ones(len(PAIRS)), ends), shape=(N, N))
    scipy.sparse.save_npz(raw / "adj_full.npz", adjacency)
    scipy.sparse.save_npz(raw / "adj_train.npz", adjacency)
    np.save(raw / "feats.npy", X.astype(np.float64))
    (raw / "class_map.json").write_text(json.dumps({str(i): label for i, label in enumerate(labels)}))
    (raw / "role.json").write_text(json.dumps({"tr": [0, 3], "va": [1], "te": [5, 2]}))
    files = [raw / file for file in ("adj_full.npz", "feats.npy", "class_map.json", "role.json")]
    return Written(root / name, files)


def write_reddit(root: Path) -> Written:
    """Write Reddit as PyG and DGL have it."""
    raw = root / "Reddit" / "raw"
    raw.mkdir(parents=True)
    types = np.array([1, 2, 3, 1, 0, 3])
    np.savez(raw / "reddit_data.npz", feature=X, label=np.array(CLASSES), node_types=types, node_ids=np.arange(N))
    doubled = np.array([*PAIRS, PAIRS[0]], np.int32).T
    adjacency = scipy.sparse.coo_matrix((np.ones(len(PAIRS) + 1), tuple(doubled)), shape=(N, N))
    scipy.sparse.save_npz(raw / "reddit_graph.npz", adjacency)
    return Written(root / "Reddit", [raw / "reddit_data.npz", raw / "reddit_graph.npz"])


def write_ppi(root: Path) -> Written:
    """Write PyG's PPI: two tissues for training, one for validation, one for the test; links in networkx's JSON."""
    raw = root / "PPI" / "raw"
    raw.mkdir(parents=True)
    tissues = {"train": [1, 1, 1, 2, 2], "valid": [3, 3], "test": [4, 4, 4]}
    links = {"train": [(0, 1), (1, 0), (1, 2), (2, 2), (3, 4)], "valid": [(0, 1)], "test": [(2, 0), (1, 1)]}
    for number, (part, ids) in enumerate(tissues.items()):
        n = len(ids)
        np.save(raw / f"{part}_feats.npy", np.arange(2.0 * n).reshape(n, 2) + 100 * number)
        np.save(raw / f"{part}_labels.npy", np.arange(3 * n).reshape(n, 3) % 2)
        np.save(raw / f"{part}_graph_id.npy", np.array(ids))
        graph = {"directed": True, "multigraph": False, "graph": {}, "nodes": [{"id": i} for i in range(n)]}
        ends = [{"source": source, "target": target} for source, target in links[part]]
        (raw / f"{part}_graph.json").write_text(json.dumps({**graph, "links": ends}))
    return Written(root / "PPI", sorted(raw.iterdir()))
