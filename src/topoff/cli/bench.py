"""`topoff bench`: the promises of speed and memory as one table, met or missed."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topoff.cli.flags import AsJson, Quiet, command

if TYPE_CHECKING:
    from topoff.experiments.bench import Promise

QUICK = 0.1  # of the size of products
CASES = ("epoch", "products", "estimates")  # of `Bench.cases`
EXAMPLES = """Examples:

  topoff bench --quick

  topoff bench --out runs/bench --repeats 5 --json

  topoff bench --quick --only epoch,estimates"""


def bench(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help=f"Products at {QUICK:g} of its size, two runs of each case, estimates of four methods."
        ),
    ] = False,
    only: Annotated[
        str | None, typer.Option(help="Some cases, comma-separated: epoch, products, estimates.", show_default="all")
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help=f"Size of products, relative. [default: 1, or {QUICK:g}]", min=0.001, max=1)
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Runs of every case; the least time counts. [default: 3, or 2]", min=1)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Keep graphs and runs here; what is finished there is not run again.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure what is promised of speed and memory, as ratios against a peer on this machine; exit 1 if one is missed.

    Run it alone on the machine. Every case is a training in a process of its own, on generated stand-in graphs.
    """
    from topoff.cli.summaries import console, print_lines
    from topoff.experiments.bench import Bench
    from topoff.experiments.jobs import Watcher
    from topoff.machine.memory import machine
    from topoff.training.run_folder import RunFolder

    names = _chosen(only, CASES)  # before anything is written
    with ExitStack() as held:
        folder = out or Path(held.enter_context(tempfile.TemporaryDirectory(prefix="topoff-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {"scale": scale or (QUICK if quick else 1.0), "repeats": repeats or 3 - quick}
        every = not quick  # methods' estimates
        say = (lambda _: None) if quiet else (lambda text: print_lines([f"{text} ..."], to=console(stderr=True)))
        measuring = Bench(folder, **settings, every=every, watcher=Watcher(), say=say)
        load, cases = os.getloadavg()[0], measuring.cases()
        found = [promise for name in names for promise in cases[name]()]
        met = all(promise.met is not False for promise in found)
        about = {"command": command(), "load_before": round(load, 2), **settings, "machine": machine(), "met": met}
        result = about | {"promises": [promise.json() for promise in found]}
        RunFolder(folder).write("bench.json", result)
    typer.echo(json.dumps(result)) if as_json else _print_table(found, load)
    raise typer.Exit(0 if met else 1)


def _chosen(only: str | None, cases: Sequence[str]) -> Sequence[str]:
    """Read the names of some cases.

    Raises:
        ValueError: there is no such case.
    """
    names = cases if only is None else [name.strip() for name in only.split(",")]
    for name in names:
        if name not in cases:
            raise ValueError(f"Expected --only to name cases of {', '.join(cases)} (got '{name}').")
    return names


def _print_table(found: list[Promise], load: float) -> None:
    """Print every ratio with its bound."""
    from rich.table import Column, Table

    from topoff.cli.summaries import console

    right = (Column(name, justify="right") for name in ("measured", "promised"))
    title = f"Promises, met within 10 % (load before: {load:.1f})"
    table = Table("ratio", *right, "", title=title, title_justify="left")
    verdict = {True: "met", False: "missed", None: ""}
    for promise in found:
        bound = f"<= {promise.at_most:.3g}" if promise.at_most is not None else ""
        bound = f">= {promise.at_least:.3g}" if promise.at_least is not None else bound
        name = f"{promise.name} ({promise.note})" if promise.note else promise.name
        table.add_row(name, f"{promise.measured:.3g}", bound, verdict[promise.met])
    console().print(table)
