"""The command line: one file per verb; the only place that prints. Heavy imports happen inside the verbs."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from topoff import __version__
from topoff.cli import (
    bench,
    compare,
    convert,
    evaluate,
    generate,
    info,
    measure,
    partition,
    predict,
    report,
    reproduce,
    train,
)
from topoff.cli.flags import with_settings
from topoff.cli.format import one_line
from topoff.cli.stopping import interrupt, stopping
from topoff.cli.usage import UsageError, Verb, check_words, usage_sentence
from topoff.machine.memory import free_memory, keep_freed_memory, readable
from topoff.machine.notices import hearing
from topoff.machine.ranks import LostError
from topoff.machine.user_code import is_out_of_memory, told, user_code

MISTAKES = (ValueError, TypeError, FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError)
NO_PLACE = (errno.EROFS, errno.EISDIR, errno.ENAMETOOLONG)  # mistakes that have no exception of their own


class Stopped(Exception):  # noqa: N818
    """Say that the user stopped a verb, and how to continue."""


class _Verbs(TyperGroup):
    """Run a verb; typer would turn Ctrl-C into a silent exit."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that the command line names."""
        try:
            with user_code("the model to run", remedy="correct it there", anything=False):
                return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise Stopped(str(stop) or "Stopped.") from None


app = typer.Typer(cls=_Verbs, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("info", cls=Verb, epilog=info.EXAMPLES)(info.info)
app.command("generate", cls=Verb, epilog=generate.EXAMPLES)(generate.generate)
app.command("convert", cls=Verb, epilog=convert.EXAMPLES)(convert.convert)
app.command("partition", cls=Verb, epilog=partition.EXAMPLES)(partition.partition)
app.command("train", cls=Verb, epilog=train.EXAMPLES)(with_settings(train.train))
app.command("evaluate", cls=Verb, epilog=evaluate.EXAMPLES)(evaluate.evaluate)
app.command("predict", cls=Verb, epilog=predict.EXAMPLES)(predict.predict)
app.command("report", cls=Verb, epilog=report.EXAMPLES)(report.report)
app.command("measure", cls=Verb, epilog=measure.EXAMPLES)(measure.measure)
app.command("compare", cls=Verb, epilog=compare.EXAMPLES)(with_settings(compare.compare))
app.command("reproduce", cls=Verb, epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.command("bench", cls=Verb, epilog=bench.EXAMPLES)(bench.bench)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"topoff {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error; also allowed after the verb."),
) -> None:
    """Graph neural networks in mini-batches that behave like the whole graph."""
    keep_freed_memory()  # before a verb imports torch


def main() -> None:
    """Run a verb. Exit code 2: a user error, one line on stderr; 1: stopped or failed; tracebacks only with --debug."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"] or ["--help"]
    try:
        with _output_of_any_kind(), stopping(interrupt):
            code = _run(arguments)
    except (Stopped, KeyboardInterrupt) as stop:
        raise SystemExit(_say(str(stop) or "Stopped.", 1)) from None
    except BrokenPipeError:  # who reads has read enough: `topoff info wordnet | head -1`
        raise SystemExit(1) from None
    except Exception as error:
        if debug:
            raise
        raise SystemExit(_say(*_sentence(error))) from error
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process; one of several at once, now that all is written: some thread makes tearing it down abort."""
    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def _run(arguments: list[str]) -> int:
    """Run a verb with warnings of one line; return the exit code."""
    check_words(arguments)
    with warnings.catch_warnings(), hearing(lambda _: None):  # a verb that wants notices listens itself
        warnings.filterwarnings("ignore", message=r"`torch\.jit", category=FutureWarning)  # of PyG, for torch >= 2.15
        warn = cache(_warn)  # once, wherever it is
        warnings.showwarning = lambda message, *_, **__: warn(str(message))
        return int(app(args=arguments, prog_name="topoff", standalone_mode=False) or 0)


@contextmanager
def _output_of_any_kind() -> Iterator[None]:
    """Write what an encoding lacks by its number, and notice here, not at exit, that stdout cannot be written.

    Raises:
        OSError: stdout cannot be written; a BrokenPipeError where nobody reads it.
    """
    if sys.stdout is None:  # `>&-`: nobody wants the output
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _flush()
        raise
    _flush()


def _flush() -> None:
    """Write what waits in stdout; where that fails let it go, or Python would fail again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def _sentence(error: Exception) -> tuple[str, int]:
    """Return what to say of an error, and the exit code."""
    mistake = isinstance(error, MISTAKES) or getattr(error, "errno", None) in NO_PLACE
    if isinstance(error, OSError) and error.filename is not None and mistake:  # the system's own: it names no remedy
        blocked = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a file is where a folder is needed" if blocked else str(error.strerror).lower()
        locked = os.path.exists(error.filename) and not os.access(error.filename, os.R_OK)
        return f"Cannot {'read' if locked else 'write'} {error.filename}: {reason}. Choose another path.", 2
    if isinstance(error, LostError):
        return str(error), 1
    if isinstance(error, UsageError):
        return usage_sentence(error, sys.argv[1:]), 2
    if isinstance(error, UnicodeError):  # its own text names neither file nor remedy
        return "Expected UTF-8 text in every file and name (got other bytes); save or rename it as UTF-8.", 2
    if mistake:
        return str(error), 2
    if is_out_of_memory(error):
        came = f"{told(error)}; {readable(free_memory() or 0)} are free"
        return f"Expected enough memory (got {came}); choose smaller batches (--ratio), --hidden or --layers.", 2
    if isinstance(error, OSError):
        place, reason = error.filename or "the output", str(error.strerror or error).lower()
        remedy = "nothing that was saved is lost: make room or choose another disk, then run it again (train: --resume)"
        return f"The system refuses {place}: {reason}; {remedy}.", 1
    return f"{type(error).__name__}: {error} (unexpected; --debug shows where).", 1


def _warn(text: str) -> None:
    """Print a warning in one line, without its place in the code."""
    _say(f"warning: {text}", 0)


def _say(text: str, code: int) -> int:
    """Print one line on stderr, if there is one; return the exit code."""
    rank = os.environ.get("RANK") if os.environ.get("WORLD_SIZE", "1") != "1" else None
    with suppress(OSError):
        typer.echo(f"topoff{f' (rank {rank})' if rank else ''}: {one_line(text)}", err=True)
    return code
