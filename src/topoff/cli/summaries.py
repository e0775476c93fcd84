"""Tables for people: what was chosen, what it will cost, what came out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topoff.cli.format import duration, percent
from topoff.data.layout import SPLITS
from topoff.machine.memory import readable

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from topoff.tasks.task import Task
    from topoff.training.config import Config
    from topoff.training.cost import Estimate
    from topoff.training.defaults import Choice


def print_choices(choices: list[Choice], *, notes: Sequence[str] = ()) -> None:
    """Say what was done to the user's tables and what was chosen, and why; on stderr, since it is no result."""
    from rich.console import Console

    console = Console(stderr=True, markup=False, emoji=False)
    for note in notes:
        console.print(f"tables: {note}", highlight=False, soft_wrap=True)
    for choice in choices:
        console.print(f"chosen: {choice.what} = {choice.value} ({choice.why})", highlight=False, soft_wrap=True)


def print_plan(config: Config, choices: list[Choice], cost: Estimate, *, task: Task, data: Data) -> None:
    """Print what a run would do, and an estimate of its cost."""
    from rich.console import Console
    from rich.table import Table

    from topoff.training.cost import in_words

    table = Table(title=f"Plan: {config.dataset}", show_header=False)
    table.add_row("graph", f"{data.num_nodes:,} nodes, {data.edge_index.size(1):,} edges, {data.num_features} features")
    table.add_row("task", f"{task.kind}, {task.outputs} outputs, scored by {task.metric}")
    table.add_row("model", f"{config.model}, {config.layers} x {config.hidden}")
    table.add_row("method", in_words(config, batches=cost.batches, batch_nodes=cost.batch_nodes))
    table.add_row("estimated time per epoch", f"about {duration(cost.epoch_seconds)}")
    table.add_row("estimated time", f"about {duration(cost.epoch_seconds * config.epochs)} for {config.epochs} epochs")
    table.add_row("estimated peak memory", f"about {readable(cost.memory)}")
    for choice in choices:
        table.add_row(f"chosen: {choice.what}", f"{choice.value} ({choice.why})")
    Console(markup=False, emoji=False).print(table)  # a folder may be called "[bold]"


def print_result(result: dict[str, Any], folder: Path, page: Path) -> None:
    """Print the scores of a finished run."""
    from rich.console import Console
    from rich.table import Table

    metric = result["metric"]
    table = Table(title=f"{result['dataset']}: {result['model']}, {result['method']}", show_header=False)
    for split in SPLITS:
        table.add_row(f"exact {split} {metric}", _spread(result[split], metric=metric))
    table.add_row("fidelity of the batches", _spread(result["fidelity"]))
    table.add_row("pre-processing", _time(result["preprocess_seconds"]))
    table.add_row("per epoch, refresh included", _time(result["epoch_seconds"]))
    table.add_row("total, evaluation included", _time(result["seconds"]))
    peak = result["peak_rss_mb"]
    table.add_row("peak memory", readable((peak["mean"] if isinstance(peak, dict) else peak) * 2**20))
    table.add_row("parameters", f"{result['parameters']:,}")
    if "seeds" in result:
        table.add_row("seeds", ", ".join(map(str, result["seeds"])))
    console = Console(markup=False, emoji=False)
    console.print(table)
    console.print(f"run: {folder}   report: {page}", highlight=False, soft_wrap=True)


def _spread(value: Any, *, metric: str = "accuracy") -> str:
    """Write a score, or mean and standard deviation of several."""
    if isinstance(value, dict):
        return f"{percent(value['mean'], metric=metric)} ± {percent(value['std'], metric=metric)}"
    return percent(value, metric=metric)


def _time(value: Any) -> str:
    return duration(value["mean"] if isinstance(value, dict) else value)
