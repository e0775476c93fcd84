"""`topoff compare`: several methods side by side under one protocol."""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topoff.cli.flags import AsJson, Quiet
from topoff.training.config import Config, make_config, parse_seeds, parse_settings, read_config, write_toml

if TYPE_CHECKING:
    from topoff.experiments.jobs import Job

EXAMPLES = """Examples:

  topoff compare wordnet --methods full,cluster,top --model gcn --epochs 30 --seeds 0-4

  topoff compare graph.npz --methods all --epochs 5 --seeds 0 --set top.rank=32 --json"""


def compare(
    dataset: Annotated[
        str | None, typer.Argument(help="'wordnet', a PyG dataset's name, an .npz file or a folder of tables.")
    ] = None,
    methods: Annotated[str, typer.Option(help="Names of methods, comma-separated, or all.")] = "all",
    seeds: Annotated[str | None, typer.Option(help="Several seeds, such as 0-4 or 0,3; mean and std.")] = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Report the time to this validation score, such as 0.75. [default: 99 % of the best score of the best "
            "method's worst seed]",
            show_default=False,
        ),
    ] = None,
    no_gradients: Annotated[
        bool, typer.Option("--no-gradients", help="Skip the gradient errors, which need the whole graph in memory.")
    ] = False,
    config: Annotated[str | None, typer.Option(help="A TOML file, or a config that ships with topoff.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value, or method.key=value for one method; wins over file and flags."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the comparison; an unfinished one is resumed. "
            "[default: runs/compare-<dataset>-<model>-<time>]"
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    method: Annotated[str | None, typer.Option("--method", hidden=True)] = None,
    **settings: Any,
) -> None:
    """Compare training methods: exact scores, time to a target, memory, errors of outputs and gradients; and a page.

    Every method trains the same model on the same split for the same epochs, each seed in a process of its own.
    """
    from topoff.machine.memory import keep_freed_memory

    keep_freed_memory()
    if method is not None:
        raise ValueError(f"Expected the methods as --methods (got --method {method}); add the s.")
    if target is not None and not math.isfinite(target):
        raise ValueError(f"Expected --target to be a score, such as 0.75 (got {target}).")
    from topoff.experiments.jobs import config_of, parse_methods, split_settings

    names = parse_methods(methods)
    shared, own = split_settings(parse_settings(setting or []), names)
    given = [read_config(config)] if config else []
    given += [{"dataset": dataset} if dataset else {}, settings, shared]
    base = make_config(*given)
    numbers = parse_seeds(seeds) if seeds else [base.seed]
    layers = {key: value for layer in given for key, value in layer.items() if value is not None}
    configs = [config_of(name, seed, base=layers, own=own[name]) for name in names for seed in numbers]
    comparison = Comparison(base, out or Path("runs") / _name(base), methods=names, seeds=numbers, own=own)
    table = comparison.run(configs, gradients=not no_gradients, target=target, quiet=quiet, as_json=as_json)
    if as_json:
        typer.echo(json.dumps(table))
    if not any("test" in row for row in table["methods"].values()):
        raise typer.Exit(1)


def _name(config: Config) -> str:
    """Name a comparison by its graph, model and the time."""
    words = ["compare", Path(config.dataset).stem or config.dataset, config.model]
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return "-".join(re.sub(r"[^A-Za-z0-9._-]+", "-", word).strip("-") for word in words) + f"-{now}"


class Comparison:
    """Train what is compared, in one folder, and show what came out."""

    def __init__(
        self, base: Config, top: Path, *, methods: list[str], seeds: list[int], own: dict[str, dict[str, Any]]
    ) -> None:
        self.base, self.top, self.methods, self.seeds, self.own = base, top, methods, seeds, own
        self.command = f"topoff {shlex.join(sys.argv[1:])}"

    def run(
        self, configs: list[Config], *, gradients: bool, target: float | None, quiet: bool, as_json: bool
    ) -> dict[str, Any]:
        """Return the table."""
        from topoff.cli.compare_progress import CompareProgress, print_table
        from topoff.experiments.jobs import Job
        from topoff.experiments.page import write_page
        from topoff.experiments.processes import train_all
        from topoff.experiments.table import TABLE, make_table, write_summaries
        from topoff.training.run_folder import RunFolder

        jobs = [
            Job(config, self.top / config.method / f"seed-{config.seed}", self.command, gradients, os.getcwd())
            for config in configs
        ]
        with self._begun(jobs), CompareProgress(quiet=quiet) as progress:
            failures = train_all(jobs, watcher=progress)
        about = {"dataset": self.base.dataset, "model": self.base.model, "epochs": self.base.epochs}
        about |= {"out": str(self.top), "command": self.command}
        rows: dict[str, Any] = {"methods": self.methods, "seeds": self.seeds, "own": self.own, "failures": failures}
        table = make_table(self.top, **rows, about=about, target=target)
        write_summaries(self.top, self.methods, self.seeds, command=self.command)
        folder = RunFolder(self.top)
        folder.write(TABLE, table)
        page = write_page(self.top)
        table = folder.read_json(TABLE)
        if not as_json:
            print_table(table, page)
        return table

    @contextmanager
    def _begun(self, jobs: list[Job]) -> Iterator[None]:
        """Make the folders, or resume in those that are there; where nothing comes to be trained, leave nothing.

        Raises:
            FileExistsError: the folder holds something else than a comparison.
        """
        from topoff.experiments.table import SETTINGS
        from topoff.training.run_folder import RunFolder
        from topoff.training.seed import begin

        new = not (self.top / SETTINGS).is_file()
        if new and (self.top / "config.toml").is_file():
            raise FileExistsError(
                f"Expected --out to be a new folder or that of a comparison (got {self.top}, which holds a run of "
                "topoff train); choose another --out."
            )
        if new:
            RunFolder(self.top).create()
            RunFolder(self.top).write(SETTINGS, write_toml(self.base, command=self.command))
        try:
            for job in jobs:
                begin(job.config, RunFolder(job.folder), command=job.command)
            with _stopping():
                yield
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt(f"Stopped; resume with: {self._again()}") from stop
        except Exception:
            if new and not any(self.top.glob("*/seed-*/metrics.jsonl")):
                shutil.rmtree(self.top, ignore_errors=True)
            raise

    def _again(self) -> str:
        """Return the command that resumes the comparison in its folder."""
        named = any(word == "--out" or word.startswith("--out=") for word in sys.argv)
        return self.command if named else f"{self.command} --out {shlex.quote(str(self.top))}"


@contextmanager
def _stopping() -> Iterator[None]:
    """Let SIGTERM stop a comparison as Ctrl-C does, its processes included."""

    def stop(*_: object) -> None:
        """Do as Ctrl-C does."""
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
