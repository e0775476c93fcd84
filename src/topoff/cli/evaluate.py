"""`topoff evaluate`: the exact scores of a trained run, on its own graph or on another one."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from topoff.cli.flags import AsJson, OwnModel, Quiet, Root, Run, Trust, refuse_foreign_run
from topoff.cli.format import percent
from topoff.data.layout import SPLITS

EXAMPLES = """Examples:

  topoff evaluate runs/first

  topoff evaluate runs/first --data other.npz --compensated --json"""


def evaluate(
    run: Run,
    data: Annotated[str | None, typer.Option(help="A graph other than the run's own, with labels.")] = None,
    root: Root = None,
    compensated: Annotated[
        bool,
        typer.Option("--compensated", help="Also score batches, compensated without an offset."),
    ] = False,
    model: OwnModel = None,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Score a trained run exactly: on the whole graph, over all nodes of a split at once."""
    from rich.table import Table

    from topoff.cli.summaries import console, working
    from topoff.training.trained import evaluate as score
    from topoff.training.trained import graph_for, has_changed, open_run

    refuse_foreign_run(run, named=model, trust=trust)
    trained = open_run(run, trust=trust, model=model)
    with working("scoring", quiet=quiet):
        graph = graph_for(trained, data, root=root, labels=True)
        changed = has_changed(trained, graph) if data is None else None
        result = score(trained, graph, compensated=compensated)
    result = json.loads(json.dumps(result), parse_constant=lambda _: None)  # an empty split scores NaN: no JSON
    if as_json:
        typer.echo(json.dumps({"run": str(run), **result, "data_changed": changed}))
        return
    beside = result.get("compensated")
    table = Table("split", f"exact {result['metric']}", *(["compensated"] if beside else []), title=str(run))
    for split in SPLITS:
        cells = [result[split], *([beside[split]] if beside else [])]
        table.add_row(split, *(percent(value, metric=result["metric"]) for value in cells))
    if beside:
        table.add_row("fidelity", "", percent(beside["fidelity"]))
    console().print(table)
