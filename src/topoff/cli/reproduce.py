"""`topoff reproduce`: a table or figure of the paper as a command, ours beside the printed figures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated

import typer

from topoff.cli.flags import AsJson, Quiet, Root, command
from topoff.cli.format import duration
from topoff.training.config import LARGEST_SEED

QUICK = 0.02  # of the size of the published graphs
EXAMPLES = """Examples:

  topoff reproduce all --quick --root data --out runs/paper

  topoff reproduce table3,figure2 --root data --out runs/paper

  topoff reproduce table5 --stand-in --scale 0.1 --out runs/paper --json"""


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="table1 to table8, figure2 to figure9, theory-symmetry, ..., ablation-rank, ...; comma-separated, "
            "or all."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the results; what is measured there is not measured again.")],
    root: Root = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help=f"Few graphs, few epochs, stand-ins at {QUICK:g} of the published size."),
    ] = False,
    stand_in: Annotated[
        bool, typer.Option("--stand-in", help="Generate a graph of the same size where the published one is missing.")
    ] = False,
    scale: Annotated[
        float | None, typer.Option(help=f"Size of stand-ins, relative. [default: 1, or {QUICK:g}]", min=0.0001, max=1)
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Begin no further cell after so long, and write what there is; the same command goes on.", min=0
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0, max=LARGEST_SEED)] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce tables and figures of the paper, and ablations beyond it.

    Writes NAME.json, NAME.md and NAME.svg of each, and one page, index.html.
    Every cell runs in a process of its own; one that cannot be measured stands there with its reason.
    """
    from topoff.cli.progress import progress_bar
    from topoff.cli.summaries import console, print_lines
    from topoff.experiments.catalogue import STUDIES, chosen
    from topoff.experiments.reproduction import page
    from topoff.experiments.reproduction import reproduce as measure
    from topoff.experiments.study import Scope

    studies = chosen(what)
    if root is not None and not Path(root).is_dir():  # or stand-ins would take the place of what it was to hold
        raise ValueError(f"Expected --root to be a folder (got {root}, which is none); name that of the raw files.")
    scope = Scope(
        root=root, quick=quick, stand_in=stand_in or quick, scale=scale or (QUICK if quick else 1.0), seed=seed
    )
    out.mkdir(parents=True, exist_ok=True)
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task("measuring", total=1, note="")

        def tell(done: int, total: int, name: str, left: float) -> None:
            """Show how far it is."""
            note = f"{done}/{total}" + (f", about {duration(left)} left" if left else "")
            bar.update(task, completed=done, total=max(1, total), description=name or "done", note=note)
            if bar.disable and not quiet and name:
                print_lines([f"{note}: {name} ..."], to=console(stderr=True))

        seconds = math.inf if hours is None else 3600 * hours
        found = measure(studies, scope, out, command=command(), tell=tell, seconds=seconds)
    where = page(list(STUDIES.values()), out)
    if as_json:
        typer.echo(json.dumps({"studies": {path.stem: str(path) for path in found}, "page": str(where)}))
        return
    for path in found:
        print_lines([path.with_suffix(".md").read_text()])
    print_lines([f"written to {where}"])
