"""A table or figure of the paper as a study: cells of work, each in a process of its own, and a sheet made of them.

A cell is a task with settings; its result is kept under their hash, so that studies share cells, and what was measured
once is not measured again. A cell that fails stands in the sheet with its reason.

>>> Cell("invariance", {"graph": "wordnet", "model": "gcn"}).key
'invariance-3bd3d78f0e4f'
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Found = Mapping[str, Any]  # the result of a cell; {"failed": reason} where it has none


@dataclass(frozen=True)
class Scope:
    """Say how much is to be reproduced, and from what."""

    root: str | None = None  # folder of the published graphs
    quick: bool = False  # few graphs, few epochs
    stand_in: bool = False  # generate a graph of the same size and density where the published one is not at hand
    scale: float = 1.0  # of stand-ins
    seed: int = 0


@dataclass(frozen=True)
class Cell:
    """Name a piece of work that has a process of its own."""

    task: str  # a name of `cells.TASKS`
    settings: dict[str, Any]  # its arguments, JSON-able
    weight: float = 1.0  # a guess of how long it takes, relative to others

    @property
    def key(self) -> str:
        """The name of its file."""
        text = json.dumps([self.task, self.settings], sort_keys=True)
        return f"{self.task}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Sheet:
    """Hold a table of words: ours beside what is printed."""

    columns: tuple[str, ...]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        r"""Write the table.

        >>> print(Sheet(("a", "b"), [["1", "|B|"]]).markdown())
        | a | b |
        |---|---|
        | 1 | \|B\| |
        """
        head, *rows = ([cell.replace("|", "\\|") for cell in line] for line in (self.columns, *self.rows))
        text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
        return "\n".join([*text, *(f"\n- {note}" for note in self.notes)])


Results = Callable[[Cell], Found]


@dataclass(frozen=True)
class Study:
    """Describe a table or figure: what to measure, and how to show it."""

    name: str  # as users type it: table3, figure2
    title: str
    about: str  # what the paper shows there, and what differs here
    cells: Callable[[Scope], Sequence[Cell]]
    sheet: Callable[[Scope, Results], Sheet]
    draw: Callable[[Scope, Results], Figure] | None = None


def percent(value: float | None, *, digits: int = 2) -> str:
    """Write a share; a dash where there is none.

    >>> percent(0.0312), percent(None), percent(float("nan"))
    ('3.12 %', '-', '-')
    """
    return "-" if value is None or value != value else f"{100 * value:.{digits}f} %"


def add_legend(axes: Axes) -> None:
    """Name the lines of a plot, where there are any."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7)


def failed(found: Found) -> str | None:
    """Return why a cell has no result."""
    reason: str | None = found.get("failed")
    return reason


class Kept:
    """Keep the results of cells as files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: Cell) -> Path:
        """Return where a cell's result is."""
        return self.folder / "cells" / f"{cell.key}.json"

    def has(self, cell: Cell) -> bool:
        """Whether a cell was measured; one that failed is tried again, for its graph may be there now."""
        return not failed(self.results(cell))

    def results(self, cell: Cell) -> Found:
        """Return a result; of a cell that was not run, that it was not."""
        path = self.path(cell)
        found: Found = json.loads(path.read_text())["result"] if path.is_file() else {"failed": "not run yet"}
        return found

    def put(self, cell: Cell, result: Found, *, seconds: float) -> None:
        """Keep a result, in one step."""
        from topoff.training.run_folder import RunFolder

        content = {**asdict(cell), "seconds": round(seconds, 2), "result": dict(result)}
        self.path(cell).parent.mkdir(parents=True, exist_ok=True)
        RunFolder(self.path(cell).parent).write(self.path(cell).name, content)
