"""Run a verb on whatever was drawn, and demand one of two outcomes: a right result, or one sentence and exit code 2.

Outcomes are counted by kind; where $TOPOFF_OUTCOMES names a file, the counts are written there for docs/reliability.md.
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch
from warnings import catch_warnings, simplefilter

from topoff.cli import app

LEAKS = ("Traceback", "(unexpected;", "codec can't", "invalid literal", "indices must be", "surrogates not", "NoneType")
COUNTS: dict[str, Counter[str]] = defaultdict(Counter)  # by kind of input: tried, right, refused


@dataclass(frozen=True)
class Outcome:
    """Hold what a verb left behind."""

    code: int
    out: str
    err: str

    @property
    def right(self) -> bool:
        """Say whether the verb did what it was asked to."""
        return self.code == 0

    @property
    def warnings(self) -> list[str]:
        """Return what was warned of."""
        return [line for line in self.err.splitlines() if line.startswith("topoff: warning:")]


def run_verb(*arguments: object) -> Outcome:
    """Run a verb in this process through the entry point of `python -m topoff`."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    streams = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with patch.object(sys, "argv", ["topoff", *map(str, arguments)]), streams[0], streams[1], catch_warnings():
        simplefilter("default")  # for users, a warning is a line on stderr
        try:
            app.main()
        except SystemExit as left:
            code = left.code
    return Outcome(int(code or 0) if isinstance(code, int | None) else 1, out.getvalue(), err.getvalue())


def outcome_of(*arguments: object, kind: str, beside: Path) -> Outcome:
    """Run a verb; demand that it does as asked or refuses in one sentence and leaves the folder `beside` as it was."""
    before = listing(beside)
    done = run_verb(*arguments)
    said = [line for line in done.err.splitlines() if line.startswith("topoff: ") and line not in done.warnings]
    shown = f"{' '.join(map(str, arguments))}\nexit code {done.code}\n{done.err}"
    assert not [leak for leak in LEAKS if leak in done.err], shown
    assert done.code in (0, 2), shown
    if done.code == 2:
        assert len(said) == 1, shown
        assert len(said[0]) < 1500, f"a sentence of {len(said[0])} characters: {shown[:3000]}"
        assert listing(beside) == before, f"{listing(beside) ^ before} came or went: {shown}"
    COUNTS[kind]["tried"] += 1
    COUNTS[kind]["right" if done.right else "refused"] += 1
    return done


def listing(folder: Path) -> set[str]:
    """Return the paths of all files and folders below one."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """Yield a new folder for one example, and stand in it; pytest's own would serve all examples of a test."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        yield Path(name)


def write_counts() -> None:
    """Write the counts, where a file is named for them."""
    if place := os.environ.get("TOPOFF_OUTCOMES"):
        Path(place).write_text(json.dumps({kind: dict(counts) for kind, counts in sorted(COUNTS.items())}, indent=1))
