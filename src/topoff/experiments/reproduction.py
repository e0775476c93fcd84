"""Run studies: every cell that has no result yet in a process of its own, then their sheets, plots and one page.

>>> import tempfile
>>> from topoff.experiments.study import Sheet
>>> study = Study("nothing", "Nothing", "No cells.", lambda scope: [], lambda scope, results: Sheet(("a",), [["1"]]))
>>> with tempfile.TemporaryDirectory() as folder:
...     found = reproduce([study], Scope(), Path(folder), command="", tell=lambda *_: None)
...     [path.name for path in found], json.loads(found[0].read_text())["rows"]
(['nothing.json'], [['1']])
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib.metadata import version
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from topoff.experiments.cells import run_cell
from topoff.experiments.study import Cell, Kept, Scope, Study
from topoff.machine.memory import machine
from topoff.training.run_folder import RunFolder

IMPORTED = ["topoff.training.seed", "topoff.experiments.measure", "topoff.experiments.cells"]  # by every cell
SAFE = "PYTHONSAFEPATH"  # a numpy.py in the working folder is not run instead of numpy
NOTHING = "Nothing was measured: the graphs of the paper are not under --root; --stand-in generates some of their size."
Tell = Callable[[int, int, str, float], None]  # cells done, of how many, the name of the next one, seconds left


def reproduce(
    studies: Sequence[Study], scope: Scope, folder: Path, *, command: str, tell: Tell, seconds: float = math.inf
) -> list[Path]:
    """Run the studies and write NAME.json, NAME.md and NAME.svg of each; return the JSON files.

    After so many `seconds` no further cell is begun: what is missing stands there as not run yet.
    """
    kept = Kept(folder)
    measure([cell for study in studies for cell in study.cells(scope)], kept, tell=tell, seconds=seconds)
    return [write_study(study, scope, kept, command=command) for study in studies]


def measure(cells: Sequence[Cell], kept: Kept, *, tell: Tell, seconds: float = math.inf) -> None:
    """Measure every cell that has no result yet, one after the other, the light ones first, while there is time."""
    found = {cell.key: cell for cell in cells if not kept.has(cell)}
    wanted = sorted(found.values(), key=lambda cell: cell.weight)  # what is ended early has most of its cells
    left, spent, done, reached = sum(cell.weight for cell in wanted), 0.0, 0.0, 0
    for number, cell in enumerate(wanted):
        if spent >= seconds:
            break
        tell(number, len(wanted), cell.key, spent / done * left if done else 0.0)
        start = time.perf_counter()
        result = _apart(cell, kept.folder)
        took = time.perf_counter() - start
        kept.put(cell, result, seconds=took)
        left, spent, done, reached = left - cell.weight, spent + took, done + cell.weight, number + 1
    tell(reached, len(wanted), "", 0.0)


def _apart(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run a cell in a process of its own, which may be killed for its memory."""
    with ProcessPoolExecutor(1, mp_context=_processes()) as process:
        try:
            return process.submit(run_cell, cell.task, cell.settings, str(folder)).result()
        except BrokenProcessPool:
            return {"failed": "the process was killed: most likely the machine ran out of memory"}


def _processes() -> BaseContext:
    """Return how processes begin: where possible, as copies of one that has imported all, to save seconds."""
    if "forkserver" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":  # no copies of torch
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop(SAFE) if before is None else os.environ.update({SAFE: before})
    return context


def write_study(study: Study, scope: Scope, kept: Kept, *, command: str) -> Path:
    """Write what a study came to as JSON and Markdown, and its plot; return the JSON file."""
    sheet, folder = study.sheet(scope, kept.results), RunFolder(kept.folder)
    if not sheet.rows:
        sheet = dataclasses.replace(sheet, notes=[*sheet.notes, NOTHING])
    cells = {cell.key: {**vars(cell), "result": kept.results(cell)} for cell in study.cells(scope)}
    about: dict[str, Any] = {"name": study.name, "title": study.title, "about": study.about, "command": command}
    about |= {"date": datetime.date.today().isoformat(), "machine": machine(), "scope": vars(scope)}
    about["versions"] = versions()
    content = {**about, "columns": list(sheet.columns), "rows": sheet.rows, "notes": sheet.notes, "cells": cells}
    folder.write(f"{study.name}.json", content)
    plot = ""
    if study.draw is not None and sheet.rows:
        figure = study.draw(scope, kept.results)
        figure.savefig(kept.folder / f"{study.name}.svg", metadata={"Date": None, "Creator": None})
        plot = f"\n![{study.title}]({study.name}.svg)\n"
    words = f"{command}, {about['date']}, {_machine(machine())}, {_machine(about['versions'])}"
    text = f"# {study.title}\n\n{study.about}\n{plot}\n{sheet.markdown()}\n\n{words}\n"
    folder.write(f"{study.name}.md", text)
    return kept.folder / f"{study.name}.json"


def versions() -> dict[str, str]:
    """Return the versions that figures depend on."""
    return {name: version(name) for name in ("topoff", "torch", "torch_geometric")}


def _machine(found: dict[str, Any]) -> str:
    """Write a machine in one line."""
    return ", ".join(f"{key} {value}" for key, value in found.items() if value is not None)


def page(studies: Sequence[Study], folder: Path) -> Path:
    """Write one HTML page of all studies that are there, with their plots inside; return where it is."""
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup

    found = []
    for study in studies:
        path, drawn = folder / f"{study.name}.json", folder / f"{study.name}.svg"
        if path.is_file():
            text = drawn.read_text() if drawn.is_file() else ""
            plot = Markup(text[text.index("<svg") :]) if text else ""  # our own drawing
            content = json.loads(path.read_text())
            on = _machine(content["machine"] | content.get("versions", {}))
            found.append(content | {"plot": plot, "on": on})
    page = Environment(loader=PackageLoader("topoff.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = page.get_template("reproduce.html.j2").render(studies=found)
    RunFolder(folder).write("index.html", text)
    return folder / "index.html"
