"""What people see while something runs: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from topoff.cli.format import duration, percent
from topoff.cli.stopping import is_hang_up, stopping
from topoff.cli.summaries import console, print_choices, print_lines, working
from topoff.machine.memory import peak_memory, readable
from topoff.machine.notices import hearing
from topoff.training.build import Setup
from topoff.training.listener import Listener, Running
from topoff.training.records import Epoch

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn


def progress_bar(*columns: ProgressColumn, quiet: bool, transient: bool = False) -> Progress:
    """Make a bar on stderr for tasks with a note, disabled when quiet or not on a terminal.

    Between bar and note stand the columns, by default the percentage and the remaining time.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    place = console(stderr=True)
    columns = columns or (TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    shown = (TextColumn("{task.description}"), BarColumn(bar_width=24), *columns, TextColumn("{task.fields[note]}"))
    return Progress(*shown, console=place, transient=transient, disable=quiet or not place.is_terminal)


@contextmanager
def telling(*, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows what is done and the share of it: on a bar, or by a line for each work elsewhere."""
    told = ""
    with progress_bar(quiet=quiet, transient=True) as bar:
        task = bar.add_task("starting", total=1, note="")

        def tell(what: str, share: float) -> None:
            """Show what is done, and how much of it."""
            nonlocal told
            bar.update(task, description=what, completed=share)
            if bar.disable and not quiet and what != told:
                print_lines([f"{what} ..."], to=bar.console)
            told = what

        yield tell


class Display(Listener):
    """Show the progress of one training on stderr.

    Args:
        epochs: how many there are; None in a run by seconds.
        quiet: show nothing.
        choices: print what was chosen, the notes about tables and how the model is called.
        others: listeners that hear of the training and of its epochs, too.
    """

    def __init__(self, epochs: int | None, *, quiet: bool, choices: bool, others: Sequence[Listener]) -> None:
        self.epochs, self.metric, self.quiet = epochs, "", quiet
        self._bar = progress_bar(quiet=quiet)
        self._scores, self._told, self._choices, self._others = "", "", choices and not quiet, others
        self._task = self._bar.add_task("preparing", total=1, note="")
        self._shown = ExitStack()  # the spinner, then the bar

    def __enter__(self) -> Display:
        self._shown.enter_context(working("loading the graph", quiet=self.quiet))
        return self

    def __exit__(self, *_: object) -> None:
        self._shown.close()

    def set_up(self, setup: Setup) -> None:
        """Say what was chosen; from here on, show the bar."""
        self._shown.close()
        self.metric = setup.task.metric
        if self._choices:
            print_choices(setup.choices, notes=getattr(setup.data.get("names"), "notes", ()))
            self._shown.enter_context(hearing(lambda text: print_lines([text], to=self._bar.console)))
        self._shown.enter_context(self._bar)

    def trains(self, training: Running) -> None:
        """Pass it on."""
        for other in self._others:
            other.trains(training)

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the preparation."""
        self._bar.update(self._task, description=what, note=f"{done}/{total}")
        if what != self._told:
            self._told = what
            self._say(f"{what} ...")

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        """Move the bar."""
        text = f"{self._epoch(epoch)}, loss {loss:.3f}{self._scores}"
        self._bar.update(self._task, description=text, completed=share, note=readable(peak_memory()))

    def evaluated(self, epoch: Epoch) -> None:
        """Keep the exact scores in sight; on plain output, a line for every evaluation."""
        for other in self._others:
            other.evaluated(epoch)
        if not epoch.evaluated:
            return
        score = percent(epoch.val, metric=self.metric)
        self._scores = f", validation {score}, fidelity {percent(epoch.fidelity)}"
        words = f"{self._epoch(epoch.epoch)}: loss {epoch.loss:.4f}{self._scores}"
        self._say(f"{words}, {duration(epoch.seconds or 0.0)}, {readable(peak_memory())}")

    def _epoch(self, number: int) -> str:
        """Name an epoch; in a run by seconds nobody knows how many there will be."""
        return f"epoch {number}" if self.epochs is None else f"epoch {number}/{self.epochs}"

    def _say(self, text: str) -> None:
        """Print a line where no bar shows the same."""
        if self._bar.disable and not self.quiet:
            print_lines([text], to=self._bar.console)


class Interruption(Listener):
    """Let Ctrl-C, SIGTERM and SIGHUP stop training after the current step, saved; a second one stops immediately."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self.wished = quiet, False
        self._training: Running | None = None
        self._signals = ExitStack()

    def trains(self, training: Running) -> None:
        """Take over the signals, now that there is something to save."""
        self._training = training
        self._signals.enter_context(stopping(self._stop))

    def _stop(self, number: int, *_: object) -> None:
        assert self._training is not None
        if self.wished and not is_hang_up(number):
            raise KeyboardInterrupt
        told, self.wished, self._training.stop = self.wished or self.quiet, True, True
        if not told:
            with suppress(OSError):  # the terminal may be gone
                typer.echo("stopping after this step; press again to stop immediately", err=True)

    def __enter__(self) -> Interruption:
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.close()


class TensorBoard(Listener):
    """Write losses and scores for TensorBoard.

    Its own writer works in a thread, which prints a traceback where the disk is full: this one writes at once.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise ValueError(
                "Expected the package tensorboard for --tensorboard (got none installed); pip install tensorboard."
            ) from error
        self._event, self._records = Event, RecordWriter
        self._path = folder / f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def evaluated(self, epoch: Epoch) -> None:
        """Write the numbers of an epoch."""
        numbers = {name: value for name, value in epoch.line().items() if isinstance(value, int | float)}
        event = self._event(wall_time=time.time(), step=numbers.pop("epoch"))
        for name, value in numbers.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._append(event)

    def _append(self, event: Any) -> None:
        """Add a record to the file."""
        with self._path.open("ab") as file:
            self._records(file).write(event.SerializeToString())
