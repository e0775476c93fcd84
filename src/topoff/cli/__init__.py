"""The command line: one file per verb; the only place that prints. Heavy imports happen inside the verbs."""

from __future__ import annotations

import sys

import typer

from topoff import __version__
from topoff.cli import convert, evaluate, info, measure, partition, predict, report, train
from topoff.cli.options import with_settings

app = typer.Typer(
    help="Graph neural networks in mini-batches that behave like the whole graph.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("info", epilog=info.EXAMPLES)(info.info)
app.command("convert", epilog=convert.EXAMPLES)(convert.convert)
app.command("partition", epilog=partition.EXAMPLES)(partition.partition)
app.command("train", epilog=train.EXAMPLES)(with_settings(train.train))
app.command("evaluate", epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("predict", epilog=predict.EXAMPLES)(predict.predict)
app.command("report", epilog=report.EXAMPLES)(report.report)
app.command("measure", epilog=measure.EXAMPLES)(measure.measure)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topoff {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Graph neural networks in mini-batches that behave like the whole graph."""


def main() -> None:
    """Run a verb. Exit code 2: a user error, one line on stderr; 1: stopped or failed; tracebacks only with --debug."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(args=arguments, prog_name="topoff")
    except KeyboardInterrupt as stop:
        raise SystemExit(_say(str(stop) or "Stopped.", code=1)) from None
    except (ValueError, TypeError, FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError) as error:
        if debug:
            raise
        raise SystemExit(_say(str(error), code=2)) from error
    except OSError as error:
        if debug:
            raise
        raise SystemExit(_say(f"{error}; nothing that was saved is lost.", code=1)) from error


def _say(text: str, *, code: int) -> int:
    """Print one line on stderr; return the exit code."""
    typer.echo(f"topoff: {' '.join(text.split())}", err=True)
    return code
