"""`topoff report`: one self-contained page about a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from topoff.cli.flags import AsJson, Quiet, Run

EXAMPLES = """Examples:

  topoff report runs/first

  topoff report runs/first --out first.html"""


def report(
    run: Run,
    out: Annotated[Path | None, typer.Option(help="Where to write the page. [default: RUN/report.html]")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Build one HTML page with the curves, scores, settings and machine of a run; it opens without a network."""
    from topoff.report.page import write_report

    page = write_report(run, out=out)
    told = {"report": str(page), "bytes": page.stat().st_size}
    typer.echo(json.dumps(told) if as_json else f"report: {page}")
