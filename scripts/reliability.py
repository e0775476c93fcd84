"""Write docs/reliability.md from the figures that the other scripts left in docs/results.

    python scripts/reliability.py

kills.json, caches.json (scripts/kills.py), disks.json (scripts/disks.py), soak.json (scripts/soak.py), versions.json
(scripts/versions.py) and inputs.json (the property-based tests). A page that does not show them fails a test.
"""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from topoff.machine.memory import machine

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGE = ROOT / "docs" / "reliability.md"
Figures = dict[str, Any]


def record(kind: str, figures: Figures) -> None:
    """Keep figures with the command, date, machine and versions that they come from; write the page anew."""
    names = ("topoff", "torch", "torch_geometric", "numpy")
    command = " ".join(["python", f"scripts/{Path(sys.argv[0]).name}", *map(shlex.quote, sys.argv[1:])])
    origin = {"command": command, "date": str(datetime.date.today()), "machine": machine()}
    origin["versions"] = {"python": platform.python_version(), **{name: version(name) for name in names}}
    (RESULTS / f"{kind}.json").write_text(json.dumps(origin | figures, indent=1) + "\n")
    PAGE.write_text(page())


def read(kind: str) -> Figures | None:
    """Read the figures of a kind; None where nothing was measured yet."""
    path = RESULTS / f"{kind}.json"
    if not path.is_file():
        return None
    found: Figures = json.loads(path.read_text())
    return found


def origin_of(found: Figures) -> str:
    """Say where figures come from."""
    runs, computer = found["versions"], found["machine"]
    packages = ", ".join(f"{name} {runs[name]}" for name in ("python", "torch", "torch_geometric"))
    where = f"{computer['cpu']}, {computer['cores']} cores, {computer['memory_gb']} GB"
    return f"`{found['command']}`, {found['date']}; {where}; {packages}.\n\n"


def table(head: list[str], rows: list[list[object]]) -> str:
    """Write a table."""
    lines: list[list[Any]] = [[*head], ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines) + "\n"


def kills(found: Figures) -> str:
    """Show where runs were killed, and what came of them."""
    rows: list[list[object]] = [[where, row["tried"], row["same"]] for where, row in found["phases"].items()]
    rows.append(["**together**", found["tried"], found["same"]])
    return (
        "A run is killed (SIGKILL) and resumed; weights, metrics, scores, details and predictions must have the bits "
        f"of a run that was left alone, and no draft may lie about. {found['twice']} of the runs were killed again "
        f"while they were resumed. Moments are drawn from seed {found['seed']}.\n\n"
        + table(["killed in", "runs killed", "ended in the same bits"], rows)
    )


def caches(found: Figures) -> str:
    """Show what became of several processes on one empty cache."""
    return (
        f"{found['processes']} processes began at once with one empty cache, {found['rounds']} times: "
        f"{found['right']} of {found['tried']} ended with the bits of a run alone; {found['damaged']} damaged files "
        f"and {found['left']} drafts were left in the cache.\n"
    )


def disks(found: Figures) -> str:
    """Show how failing disks were survived."""
    rows: list[list[object]] = [
        [what, row["tried"], row["refused"], row["finished"], row["same"]] for what, row in found["errors"].items()
    ]
    injected = sum(row["tried"] for what, row in found["errors"].items() if not what.startswith("a real"))
    return (
        f"A small run makes {found['changes']} changes of the disk (files opened, written and flushed, folders made, "
        f"names moved and removed). {injected} of them failed, a write after half of its bytes. Every run must end in "
        "one sentence, or finish with a warning where only the cache failed; resumed when the disk is sound again, it "
        "must end in the bits of a run that was left alone.\n\n"
        + table(["error", "tried", "one sentence", "finished all the same", "same bits when resumed"], rows)
    )


def soak(found: Figures) -> str:
    """Show what grew in a long run."""
    head = ["loop", "epochs", "memory after warm-up (MB)", "at the end (MB)", "files open", "threads"]
    rows: list[list[object]] = []
    for name, loop in found["loops"].items():
        counts = [f"{loop[what][0]} -> {loop[what][1]}" for what in ("files", "threads")]
        rows.append([name, loop["epochs"], *(f"{size:.1f}" for size in loop["memory_mb"]), *counts])
    return f"{found['epochs']} epochs on {found['nodes']} nodes, a checkpoint and an evaluation in each.\n\n" + table(
        head, rows
    )


def versions(found: Figures) -> str:
    """Show which versions the tests passed with."""
    rows: list[list[object]] = []
    for name, row in found["environments"].items():
        shown = ", ".join(f"{package} {number}" for package, number in row["packages"].items())
        rows.append([name, row["python"], shown, row["passed"], row["skipped"], row["failed"], row["date"]])
    head = ["environment", "Python", "packages", "tests passed", "skipped", "failed", "date"]
    return "The bounds in pyproject.toml are the versions of `oldest`; a test compares them.\n\n" + table(head, rows)


def inputs(found: Figures) -> str:
    """Show how many inputs were tried."""
    rows: list[list[object]] = [
        [kind, row["tried"], row["right"], row["refused"]] for kind, row in found["kinds"].items()
    ]
    return (
        "Random graphs, tables, files and settings, and mutations of them: the only outcomes are right results or one "
        "sentence.\n\n" + table(["input", "tried", "right result", "refused in one sentence"], rows)
    )


SECTIONS = {
    "inputs": ("Inputs tried", inputs),
    "kills": ("Killed and resumed", kills),
    "caches": ("Several processes, one empty cache", caches),
    "disks": ("A disk that fails", disks),
    "soak": ("A long run", soak),
    "versions": ("Versions", versions),
}


def page() -> str:
    """Write docs/reliability.md."""
    parts = [
        "# What was tried to break it\n\nWritten by `scripts/reliability.py` from docs/results; nothing by hand.\n"
    ]
    for kind, (title, show) in SECTIONS.items():
        found = read(kind)
        if found is not None:
            parts.append(f"## {title}\n\n{show(found)}\n{origin_of(found).rstrip()}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE.relative_to(ROOT)} written")
