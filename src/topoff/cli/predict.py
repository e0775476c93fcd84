"""`topoff predict`: a prediction for every node, by the user's own node ids."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from topoff.cli.flags import (
    AsJson,
    Overwrite,
    OwnModel,
    Quiet,
    Root,
    Run,
    SpreadsheetSafe,
    Trust,
    refuse_foreign_run,
)
from topoff.data.write import check_spelling
from topoff.machine.places import without_empty_parents

EXAMPLES = """Examples:

  topoff predict runs/first --out predictions.parquet

  topoff predict runs/first --data new_graph/ --out predictions.csv"""


def predict(
    run: Run,
    out: Annotated[Path, typer.Option(help="Where to write: .parquet, .csv or .npz.")] = Path("predictions.parquet"),
    data: Annotated[str | None, typer.Option(help="A graph other than the run's own; it needs no labels.")] = None,
    root: Root = None,
    compensated: Annotated[
        bool, typer.Option("--compensated", help="Predict in compensated batches instead of exactly.")
    ] = False,
    spreadsheet_safe: SpreadsheetSafe = False,
    overwrite: Overwrite = False,
    model: OwnModel = None,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict the label of every node, with probabilities, exactly on the whole graph.

    Ids and labels are written as they came, so that the result can be joined with the tables of the graph.
    """
    if out.suffix not in (".parquet", ".csv", ".npz"):
        raise ValueError(f"Expected --out to end in .parquet, .csv or .npz (got '{out}').")
    if out.is_dir():
        raise ValueError(f"Expected --out to be a file (got the folder {out}); choose another name.")
    if spreadsheet_safe and out.suffix != ".csv":
        raise ValueError(f"Expected --out to end in .csv with --spreadsheet-safe (got '{out}'); leave the flag out.")
    check_spelling(out)
    from topoff.cli.summaries import working
    from topoff.data.places import refuse_source
    from topoff.training.predictions import prediction_table, write_predictions
    from topoff.training.trained import graph_for, has_changed, open_run, outputs

    refuse_foreign_run(run, named=model, trust=trust)
    trained = open_run(run, trust=trust, model=model)
    config = trained.config
    for source, place in {(config.dataset, config.root), (data or config.dataset, root or config.root)}:
        refuse_source(out, source, root=place)
    if out.exists() and not overwrite:
        raise ValueError(f"Expected --out to be a new file (got {out}, which exists); add --overwrite, or rename it.")
    with without_empty_parents(out), working("predicting", quiet=quiet):
        _check_writable(out)
        graph = graph_for(trained, data, root=root, labels=False)
        changed = has_changed(trained, graph) if data is None else None
        table = prediction_table(trained, graph, outputs(trained, graph, compensated=compensated))
        write_predictions(table, out, safe=spreadsheet_safe)
    summary = {"out": str(out), "nodes": len(table["node"]), "columns": list(table), "exact": not compensated}
    summary["data_changed"] = changed
    text = f"{len(table['node']):,} predictions ({', '.join(list(table)[:4])}, ...) -> {out}"
    typer.echo(json.dumps(summary) if as_json else text)


def _check_writable(out: Path) -> None:
    """Refuse a path that cannot be written, before anything is computed.

    Raises:
        ValueError: nothing can be written there.
    """
    place = next(folder for folder in out.absolute().parents if folder.exists())  # the others are made at the end
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(out)) from error
