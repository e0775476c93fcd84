"""What people see while something runs: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topoff.machine.memory import peak_memory, readable
from topoff.training.loop import Listener

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
from topoff.cli.format import duration, percent


def working(what: str, *, quiet: bool) -> Status:
    """Turn a spinner beside a few words on a terminal, until the work inside is done; show nothing elsewhere."""
    from rich.console import Console

    return Console(stderr=True, quiet=quiet).status(what)


class Display(Listener):
    """Show the progress of one training on stderr."""

    def __init__(self, epochs: int, *, metric: str, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console: Console = Console(stderr=True)
        self.epochs, self.metric, self.quiet = epochs, metric, quiet
        self.live = console.is_terminal and not quiet
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f} %"))
        self._bar = Progress(
            *columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=console, disable=not self.live
        )
        self._console, self._scores, self._told = console, "", ""
        self._task = self._bar.add_task("loading", total=epochs, note="")

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the preparation."""
        self._bar.update(self._task, description=what, note=f"{done}/{total}")
        if not self.live and not self.quiet and what != self._told:
            self._told = what
            self._say(f"{what} ...")

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        """Move the bar."""
        text = f"epoch {epoch}/{self.epochs}, loss {loss:.3f}{self._scores}"
        self._bar.update(self._task, description=text, completed=epoch - 1 + share, note=readable(peak_memory()))

    def evaluated(self, record: dict[str, Any]) -> None:
        """Keep the exact scores in sight; on plain output, a line for every evaluation."""
        if "fidelity" not in record:
            return
        score = percent(record["val"], metric=self.metric)
        self._scores = f", validation {score}, fidelity {percent(record['fidelity'])}"
        if not self.live and not self.quiet:
            words = f"epoch {record['epoch']}/{self.epochs}: loss {record['loss']:.4f}{self._scores}"
            self._say(f"{words}, {duration(record['seconds'])}, {readable(peak_memory())}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


class Board(Listener):
    """Write losses and scores for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ValueError(
                "Expected the package tensorboard for --tensorboard (got none installed); pip install tensorboard."
            ) from error
        self._writer = SummaryWriter(str(folder))

    def evaluated(self, record: dict[str, Any]) -> None:
        """Write the numbers of an epoch."""
        for name, value in record.items():
            if name != "epoch" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, record["epoch"], walltime=time.time())
        self._writer.flush()


class Several(Listener):
    """Tell several listeners."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def preparing(self, what: str, done: int, total: int) -> None:
        """Pass on."""
        for listener in self._listeners:
            listener.preparing(what, done, total)

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        """Pass on."""
        for listener in self._listeners:
            listener.stepped(epoch, share, loss)

    def evaluated(self, record: dict[str, Any]) -> None:
        """Pass on."""
        for listener in self._listeners:
            listener.evaluated(record)
