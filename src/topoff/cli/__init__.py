"""The command line: one file per verb; the only place that prints. Heavy imports happen inside the verbs."""

from __future__ import annotations

import sys

import typer

from topoff import __version__
from topoff.cli import measure

app = typer.Typer(
    help="Graph neural networks in mini-batches that behave like the whole graph.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
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
    """Run a verb; a user error is one line on stderr and exit code 2, a traceback only with --debug."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(args=arguments, prog_name="topoff")
    except (ValueError, TypeError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
        if debug:
            raise
        typer.echo(f"topoff: {' '.join(str(error).split())}", err=True)
        raise SystemExit(2) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
