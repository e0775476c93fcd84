"""What people see of a comparison: a live bar on a terminal, a line per run elsewhere, and the table in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from topoff.cli.format import duration, graph_name, percent
from topoff.cli.progress import progress_bar
from topoff.cli.summaries import console, print_lines
from topoff.experiments.columns import (
    COLUMNS,
    Column,
    about_targets,
    best_of,
    cell,
    gap,
    length_of,
    marked,
    time_to,
    written,
)
from topoff.experiments.jobs import Failure, Job, Watcher
from topoff.experiments.targets import SHARES, check_target
from topoff.training.records import Epoch
from topoff.training.run_folder import RunFolder

PARTS = ((13,), (6, 7), (3, 5, 5), (3, 3, 2, 2, 3))  # columns of each part of the table, for narrower terminals


class CompareProgress(Watcher):
    """Show the progress of a comparison on stderr."""

    def __init__(self, *, quiet: bool, targets: Mapping[str, float | None] | None = None) -> None:
        from rich.progress import TimeElapsedColumn

        self._bar = progress_bar(TimeElapsedColumn(), quiet=quiet)
        self._quiet, self._live = quiet, not self._bar.disable
        self._task = self._bar.add_task("starting", total=1, note="")
        self._before, self._metric, self._score = 0, "accuracy", ""
        self._epochs: int | None = None
        self._name, self._told, self._kept, self._targets = "", set[str](), 0, targets or {}

    def __enter__(self) -> CompareProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._kept:
            runs, are = ("run", "is") if self._kept == 1 else ("runs", "are")
            self._say(f"{self._kept} {runs} had finished earlier and {are} not run again")

    def started(self, job: Job, number: int, total: int) -> None:
        """Name the run."""
        self._name, self._before, self._score = f"{job.name} ({number}/{total})", number - 1, ""
        self._bar.update(self._task, description=self._name, total=total, completed=number - 1, note="starting")
        if not self._live:
            self._say(f"{self._name} ...")

    def kept(self, job: Job, number: int, total: int) -> None:
        """Count a run that had finished."""
        self._kept += 1
        self._bar.update(self._task, description=f"{job.name} ({number}/{total})", total=total, completed=number)

    def skipped(self, jobs: Sequence[Job]) -> None:
        """Name the seeds that are not tried."""
        seeds = ("seed " if len(jobs) == 1 else "seeds ") + ", ".join(str(job.config.seed) for job in jobs)
        self._say(f"{jobs[0].config.method}, {seeds}: not tried, for the same reason")

    def knows(self, metric: str, epochs: int | None) -> None:
        """Remember the score and the epochs, if known; a target that is no such score is refused before training."""
        for flag, value in self._targets.items():
            if value is not None:
                check_target(value, metric=metric, flag=flag)
        self._metric, self._epochs = metric, epochs

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the preparation."""
        self._bar.update(self._task, note=what)

    def stepped(self, epoch: int, share: float, loss: float) -> None:
        """Move the bar."""
        where = f"epoch {epoch}, {share:.0%} of the time" if self._epochs is None else f"epoch {epoch}/{self._epochs}"
        self._bar.update(self._task, completed=self._before + share, note=f"{where}{self._score}")

    def evaluated(self, epoch: Epoch) -> None:
        """Keep the exact score in sight."""
        if epoch.val is not None:
            self._score = f", validation {percent(epoch.val, metric=self._metric)}"

    def warned(self, text: str) -> None:
        """Print a warning that was not printed yet."""
        if text not in self._told:
            self._told.add(text)
            print_lines([f"topoff: warning: {self._name}: {' '.join(text.split())}"], to=self._bar.console)

    def ended(self, job: Job, failure: Failure | None) -> None:
        """Say how a run went."""
        if failure is not None:
            self._say(f"{job.name}: {failure.reason}")
        elif not self._live:
            result = RunFolder(job.folder).result()
            scores = [percent(score, metric=result.metric) for score in (result.val, result.test)]
            words = f"validation {scores[0]}, test {scores[1]} at epoch {result.best_epoch}"
            self._say(f"{job.name}: {words}, {duration(result.epoch_seconds or 0.0)} per epoch")

    def _say(self, text: str) -> None:
        if not self._quiet:
            print_lines([text], to=self._bar.console)


def print_table(table: dict[str, Any], page: Path) -> None:
    """Print the table, in parts where the terminal is narrow, the best value of each column in bold."""
    place = console()
    unbound = place.options.update(max_width=10_000)
    for sizes in PARTS:
        parts = [
            _rich_table(table, COLUMNS[end - size : end]) for size, end in zip(sizes, accumulate(sizes), strict=True)
        ]
        if all(place.measure(part, options=unbound).maximum <= place.width for part in parts):
            break
    for part in parts:
        place.print(part)
    rows = table["methods"]
    for name, row in rows.items():
        errors = [row["error"]] if "error" in row else []
        print_lines([f"{name}: {note}" for note in (*errors, *row.get("notes", ()))])
    print_lines([f"note: {note}" for note in table["notes"]])
    own = [f"{name} trains {row['own_model']}" for name, row in rows.items() if "own_model" in row]
    print_lines([f"* a model of its own: {', '.join(own)}"] if own else [])
    own = [f"{name}: {written(row['own_settings'])}" for name, row in rows.items() if "own_settings" in row]
    print_lines([f"+ settings of its own: {'; '.join(own)}"] if own else [])
    if table.get("seconds") is not None:
        times = {name: [f"{share} %: {time_to(row, share)}" for share in SHARES] for name, row in rows.items()}
        print_lines([about_targets(table)] + [f"{name}: time to {', '.join(found)}" for name, found in times.items()])
    for name, row in rows.items():
        if "tuned" in row:
            print_lines([f"{name}: tuned in {row['tuned']['runs']} runs, {duration(row['tuned']['seconds'])}"])
    gaps = {name: gap(row, metric=table["metric"] or "score") for name, row in rows.items() if row.get("paired")}
    print_lines([f"{name} minus {next(iter(rows))}, test: {text}" for name, text in gaps.items()])
    if table["target"] is not None:
        print_lines([f"target: validation {percent(table['target'], metric=table['metric'] or 'score')}"])
    print_lines([f"runs: {table['out']}   page: {page}"])


def _rich_table(table: dict[str, Any], columns: tuple[Column, ...]) -> Any:
    """Make the part of the table that has these columns."""
    from rich import table as rich_table
    from rich.text import Text

    rows, metric = table["methods"], table["metric"] or "score"
    graph = graph_name(table["dataset"], table.get("stand_in"))
    title = f"{graph}: {table['model']}, {length_of(table)}, {metric}"
    titles = (rich_table.Column(column.title, justify="right", no_wrap=True) for column in columns)
    made = rich_table.Table("method", *titles, title=Text(title))
    best = {column.key: best_of(rows, column, metric=metric) for column in columns}
    for name, row in rows.items():
        texts = (cell(row, column, metric=metric).replace("\xa0", " ") for column in columns)
        styles = ("bold" if name in best[column.key] else "" for column in columns)
        made.add_row(marked(name, row), *map(Text, texts, styles))
    return made
