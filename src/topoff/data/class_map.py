"""Read GraphSAINT's class_map.json, {"0": 3, ...} or {"0": [0, 1, ...], ...}, without holding it as Python objects.

That of AmazonProducts has 171 million numbers: as lists they would take more memory than the whole graph.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "class_map.json"
...     _ = path.write_text('{"0": [0, 1], "2": [1, 1]}')
...     read_class_map(path, 3).tolist()
[[0, 1], [0, 0], [1, 1]]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from topoff.data.array_file import Array
from topoff.data.refusal import refuse

BLOCK = 1 << 22  # characters that are read at a time
BIT = r"[01](?:\.0*)?"
ENTRY = re.compile(
    rf'\s*"(\d{{1,12}})"\s*:\s*(\[\s*{BIT}(?:\s*,\s*{BIT})*\s*\]|-?\d{{1,9}}(?:\.0*)?(?![\d.]))\s*([,}}])'
)


def read_class_map(path: Path, nodes: int) -> Array:
    """Return classes int64 (n,), -1 for nodes that are not listed; or 0/1 uint8 (n, c), where nodes have several.

    Raises:
        ValueError: the file ends early, or is no such map.
    """
    y: Array | None = None
    for number, (node, text) in enumerate(_entries(path)):
        several = text.startswith("[")
        values = np.fromstring(text.strip("[]"), sep=",") if several else np.array([float(text)])
        if y is None:
            y = _unlabelled(nodes, len(values) if several else None)
        if node >= nodes:
            _refuse(path, f"node {node}, and {nodes} nodes")
        if several != (y.ndim == 2) or (several and len(values) != y.shape[1]):
            _refuse(path, f"{text[:40]} as entry {number}")
        y[node] = values if several else int(values[0])
    if y is None:
        _refuse(path, "no entry")
    return y


def _unlabelled(nodes: int, labels: int | None) -> Array:
    return np.full(nodes, -1, np.int64) if labels is None else np.zeros((nodes, labels), np.uint8)


def _entries(path: Path) -> Iterator[tuple[int, str]]:
    """Yield nodes and what stands for their labels."""
    with path.open(encoding="ascii", errors="replace") as file:
        rest, ended = file.read(BLOCK).lstrip(), False
        if not rest.startswith("{"):
            _refuse(path, f"{rest[:20]!r} at its beginning")
        rest = rest[1:]
        while True:
            at = 0
            while not ended and (found := ENTRY.match(rest, at)):
                yield int(found[1]), found[2]
                at, ended = found.end(), found[3] == "}"
            more = file.read(BLOCK)
            rest = rest[at:] + more
            if ended and not rest.strip() and not more:
                return
            if (ended and rest.strip()) or not more or len(rest) > 2 * BLOCK:
                _refuse(path, f"{rest.strip()[:40]!r} {'behind its end' if ended else 'where an entry should be'}")


def _refuse(path: Path, got: str) -> NoReturn:
    refuse(f"{path} to map every node to its class or labels", got, "fetch it again")
