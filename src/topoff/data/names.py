"""What a graph's nodes and classes are called, and where it comes from: `data.names` holds it.

>>> Names(class_names=["a", "b"], stand_in="stand-in of products, seed 1")
Names(2 classes, stand-in of products, seed 1)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from topoff.data.array_file import Array
from topoff.data.store import Store


@dataclass(frozen=True, repr=False)
class Names:
    """Hold what a graph's nodes and classes are called; PyG carries it along in `data.names` and never slices it."""

    node_ids: list[str] | list[int] | None = None  # (n,) the user's own, in the order of x
    class_names: list[str] | None = None  # in the order of y's classes, or of its columns
    encoding: dict[str, Any] | None = None  # JSON-able: how tables became features, for load(encoding=...)
    notes: tuple[str, ...] = ()  # what was done to tables, one sentence each
    ids: Any = field(default=None, compare=False)  # pyarrow.Array (n,), the node ids as they are in the file of a table
    folder: Path | None = field(default=None, compare=False)  # of the tables
    store: Store | None = field(default=None, compare=False)  # that the graph was loaded from: see `store.stored`
    stand_in: str | None = None  # what a generated graph stands in for; None for data of the world

    @property
    def parts(self) -> Array | None:
        """The part of every node, (n,), of a store whose nodes lie by part; else None."""
        return self.store.array("part") if self.store is not None and "part" in self.store.header.arrays else None

    def __repr__(self) -> str:
        counts = {"node ids": self.node_ids, "classes": self.class_names, "notes": self.notes}
        parts = [f"{len(part)} {name}" for name, part in counts.items() if part]
        return f"Names({', '.join([*parts, *([self.stand_in] if self.stand_in else [])])})"
