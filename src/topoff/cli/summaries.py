"""What people read: a spinner, what was chosen, what it will cost, what came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topoff.cli.format import duration, graph_name, harmless, percent
from topoff.data.layout import SPLITS
from topoff.machine.memory import readable
from topoff.machine.notices import hearing
from topoff.training.config import EPOCHS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text
    from torch_geometric.data import Data

    from topoff.tasks.task import Task
    from topoff.training.config import Config
    from topoff.training.cost import Estimate
    from topoff.training.defaults import Choice


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a place to print; without markup, since a class or a folder may be called "[bold]", or "\\x1b[2J"."""
    from rich.console import Console

    class Harmless(Console):
        """Print names of other people's files without what a terminal takes for commands."""

        def render_str(self, text: str, **options: Any) -> Text:
            """Turn a string into text, control characters by number."""
            return super().render_str(harmless(text, kept="\n\t"), **options)

    return Harmless(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)


@contextmanager
def working(what: str, *, quiet: bool) -> Iterator[Status]:
    """Turn a spinner beside a few words on a terminal, until the work inside is done; show nothing elsewhere.

    Notices take the place of the words.
    """
    with console(stderr=True, quiet=quiet).status(what) as status, hearing(status.update):
        yield status


def print_lines(lines: Sequence[str], *, to: Console | None = None) -> None:
    """Print lines of any length, which the terminal breaks."""
    for line in lines:
        (to or console()).print(line, soft_wrap=True)


def print_pairs(title: str, rows: Mapping[str, str], **look: Any) -> None:
    """Print a table of names and values."""
    from rich.table import Table

    table = Table(title=title, show_header=False, **look)
    for row in rows.items():
        table.add_row(*row)
    console().print(table)


def print_choices(choices: list[Choice], *, notes: Sequence[str] = ()) -> None:
    """Say what was done to the user's tables and what was chosen, and why; on stderr, since it is no result."""
    chosen = [f"chosen: {choice.what} = {choice.value} ({choice.why})" for choice in choices]
    print_lines([*(f"tables: {note}" for note in notes), *chosen], to=console(stderr=True))


def print_plan(config: Config, choices: list[Choice], cost: Estimate, *, task: Task, data: Data) -> None:
    """Print what a run would do, and an estimate of its cost."""
    from topoff.training.cost_words import in_words

    rows = {
        "graph": f"{data.num_nodes:,} nodes, {data.edge_index.size(1):,} edges, {data.num_features} features",
        "task": f"{task.kind}, {task.outputs} outputs, scored by {task.metric}",
        "model": f"{config.model}, {config.layers} x {config.hidden}",
        "method": in_words(config, batches=cost.batches, batch_nodes=cost.batch_nodes),
        "estimated time per epoch": f"about {duration(cost.epoch_seconds)}",
        "estimated time": _length(config, epoch_seconds=cost.epoch_seconds),
        "estimated peak memory": f"about {readable(cost.memory)}",
    }
    chosen = {f"chosen: {choice.what}": f"{choice.value} ({choice.why})" for choice in choices}
    graph = graph_name(config.dataset, getattr(data.get("names"), "stand_in", None))
    print_pairs(f"Plan: {graph}", rows | chosen)


def _length(config: Config, *, epoch_seconds: float) -> str:
    """Say how long a run will be."""
    if config.seconds is not None:
        return f"{duration(config.seconds)} of training, about {config.seconds / max(epoch_seconds, 1e-9):.3g} epochs"
    return f"about {duration(epoch_seconds * (config.epochs or EPOCHS))} for {config.epochs} epochs"


def print_result(result: dict[str, Any], folder: Path, page: Path) -> None:
    """Print the scores of a finished run."""
    metric, peak = result["metric"], result["peak_rss_mb"]
    peak = peak["mean"] if isinstance(peak, dict) else peak
    rows = {f"exact {split} {metric}": _spread(result[split], metric=metric) for split in SPLITS} | {
        "fidelity of the batches": _spread(result["fidelity"]),
        "pre-processing": _time(result["preprocess_seconds"]),
        "per epoch, refresh included": _time(result["epoch_seconds"]),
        "total, evaluation included": _time(result["seconds"]),
        "peak memory": "-" if peak is None else readable(peak * 2**20),
        "parameters": f"{result['parameters']:,}",
    }
    rows |= _traffic(result)
    if "seeds" in result:
        rows["seeds"] = ", ".join(map(str, result["seeds"]))
    graph = graph_name(result["dataset"], result.get("stand_in"))
    print_pairs(f"{graph}: {result['model']}, {result['method']}", rows)
    print_lines([f"run: {folder}   report: {page}"])


def _traffic(result: Mapping[str, Any]) -> dict[str, str]:
    """Say what passed between processes, beside what other methods would send; nothing where there was one."""
    if not result.get("processes"):
        return {}
    rivals = result["rivals_bytes_per_epoch"] or {}
    others = "".join(f"; {name} would send {readable(number)}" for name, number in rivals.items())
    refresh = result["bytes_per_refresh"]
    return {
        "processes": str(result["processes"]),
        "sent per epoch": f"{readable(result['bytes_per_epoch'])}{others}",
        "sent per refresh": "-" if refresh is None else readable(refresh),
    }


def _spread(value: Any, *, metric: str = "accuracy") -> str:
    """Write a score, or mean and standard deviation of several."""
    if isinstance(value, dict):
        return f"{percent(value['mean'], metric=metric)} ± {percent(value['std'], metric=metric)}"
    return percent(value, metric=metric)


def _time(value: Any) -> str:
    seconds = value["mean"] if isinstance(value, dict) else value
    return "-" if seconds is None else duration(seconds)
