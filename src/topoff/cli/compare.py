"""`topoff compare`: several methods side by side under one protocol."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topoff.cli.flags import (
    AsJson,
    ConfigFile,
    MaybeDataset,
    Quiet,
    Seeds,
    Trust,
    command,
    given_settings,
    named_model,
    new_folder,
    quoted,
    refuse_two_seeds,
)
from topoff.machine.lock import locked
from topoff.machine.places import remove_content, without_empty_parents
from topoff.training.config import Config, make_config, write_toml
from topoff.training.trust import refuse_foreign
from topoff.training.words import parse_seeds, parse_settings

if TYPE_CHECKING:
    from topoff.experiments.jobs import Job

EXAMPLES = """Examples:

  topoff compare wordnet --methods full,cluster,top --model gcn --epochs 30 --seeds 0-4

  topoff compare graph.npz --methods all --epochs 5 --seeds 0 --set top.rank=32 --json

  topoff compare wordnet --methods top,cluster,gas,ns,full --seconds 60 --seeds 0-4 --schedule cosine

  topoff compare wordnet --methods top,cluster,ns --seconds 60 --seeds 0-4 --schedule cosine --tune"""


def compare(
    dataset: MaybeDataset = None,
    methods: Annotated[str, typer.Option(help="Names of methods, comma-separated, or all.")] = "all",
    seeds: Seeds = None,
    target: Annotated[
        float | None,
        typer.Option(
            help="Report the time to this validation score, such as 0.75. [default: 99 % of what the best "
            "method reaches with its worst seed; with --seconds 98 % of --reference]",
            show_default=False,
        ),
    ] = None,
    reference: Annotated[
        float | None,
        typer.Option(
            help="Validation score of a converged model, such as 0.75: 95, 98 and 99 % of it are targets. [default: "
            "the best score of method full, or else of the best method]",
            show_default=False,
        ),
    ] = None,
    tuned: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="First try the same small grid for every method (learning rate, batch size, one setting of its own) "
            "on a seed apart, for a third of the length; keep what is best on the validation nodes.",
        ),
    ] = False,
    no_gradients: Annotated[
        bool, typer.Option("--no-gradients", help="Skip the gradient errors, which need the whole graph in memory.")
    ] = False,
    config: ConfigFile = None,
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
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    method: Annotated[str | None, typer.Option("--method", hidden=True)] = None,
    **settings: Any,
) -> None:
    """Compare training methods: exact scores, time to a target, memory, errors of outputs and gradients; and a page.

    Every method trains the same model on the same split for the same epochs, or seconds, each seed in a process of its
    own.
    """
    if method is not None:
        raise ValueError(f"Expected the methods as --methods (got --method {method}); add the s.")
    from topoff.experiments.jobs import parse_methods, split_settings
    from topoff.experiments.table import make_table

    names = parse_methods(methods)
    shared, own = split_settings(parse_settings(setting or []), names)
    refuse_two_seeds(seeds, settings, shared)
    given = given_settings(config, dataset, settings, shared)
    base, wanted = make_config(*given), {"--target": target, "--reference": reference}
    if reference is not None and base.seconds is None:
        raise ValueError("Expected --reference with --seconds (got it without); by epochs, give --target.")
    refuse_foreign(base.model, origin=config, named=named_model(given), trust=trust, command=command())
    _check_scores(wanted, base.metric)
    top = out or new_folder(base.dataset, base.model, kind="compare")
    numbers = [base.seed] if seeds is None else parse_seeds(seeds)
    job: dict[str, Any] = {"gradients": not no_gradients, "place": os.getcwd(), "trust": trust}
    plan = _Plan(base, top, names, numbers, job)
    _warn_of_unused([job.config for job in plan.jobs(own)], given[2:], own)
    found = _train(plan, own, wanted=wanted, tuned=tuned, quiet=quiet)
    about = {key: vars(base)[key] for key in ("dataset", "model", "epochs", "seconds")}
    about |= {"out": str(top), "command": command()}
    rows: dict[str, Any] = {"methods": names, "seeds": numbers, **found}
    _show(top, make_table(top, **rows, about=about, target=target, reference=reference), as_json=as_json)


@dataclass(frozen=True)
class _Plan:
    """Say what is compared."""

    base: Config  # what all share
    top: Path
    methods: list[str]
    seeds: list[int]
    job: dict[str, Any]  # what all jobs share

    def jobs(self, own: dict[str, dict[str, Any]]) -> list[Job]:
        """List what is to be trained, with the settings that each method has of its `own`."""
        from topoff.experiments.jobs import Job, config_of

        configs = [
            config_of(name, seed, base=vars(self.base), own=own[name]) for name in self.methods for seed in self.seeds
        ]
        return [Job(each, self.top / each.method / f"seed-{each.seed}", command(), **self.job) for each in configs]


def _train(
    plan: _Plan, own: dict[str, dict[str, Any]], *, wanted: dict[str, float | None], tuned: bool, quiet: bool
) -> dict[str, Any]:
    """Train all jobs, after the search for each method's best settings where it shall be `tuned`."""
    from topoff.cli.compare_progress import CompareProgress
    from topoff.experiments.processes import train_all
    from topoff.experiments.tune import Tuned, tune

    jobs, found = plan.jobs(own), dict[str, Tuned]()
    with _begun(plan.top, plan.base, [] if tuned else jobs), CompareProgress(quiet=quiet, targets=wanted) as progress:
        if tuned:
            found = tune(jobs, plan.top, watcher=progress)
            own = {name: given | (found[name].chosen if name in found else {}) for name, given in own.items()}
            jobs = plan.jobs(own)
            _begin_all(jobs)
        failures = train_all(jobs, watcher=progress)
    return {"own": own, "tuned": found, "failures": failures}


def _check_scores(wanted: dict[str, float | None], metric: str) -> None:
    """Refuse what can be no score; where the labels decide on the metric, the rest is known later."""
    from topoff.experiments.targets import check_target
    from topoff.tasks.metrics import METRICS

    for flag, value in wanted.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"Expected {flag} to be a score, such as 0.75 (got {value}).")
        if value is not None and metric in METRICS:
            check_target(value, metric=metric, flag=flag)


def _warn_of_unused(configs: list[Config], given: list[dict[str, Any]], own: dict[str, dict[str, Any]]) -> None:
    """Warn of settings that no method or model reads, and of those for one method that it does not."""
    from topoff.training.defaults import unused

    first: dict[str, Config] = {config.method: config for config in reversed(configs)}
    reasons = [reason for method, keys in own.items() for reason in unused(first[method], keys)]
    for key in dict.fromkeys(key for layer in given for key in layer):
        found = [unused(config, [key]) for config in first.values()]
        reasons += found[0] if all(found) else []
    for reason in reasons:
        warnings.warn(f"{reason}; leave it out.", stacklevel=2)


def _show(top: Path, made: dict[str, Any], *, as_json: bool) -> None:
    """Write what a comparison came to, and print it; exit with 1 where no method could be trained."""
    from topoff.cli.compare_progress import print_table
    from topoff.experiments.page import write_page
    from topoff.experiments.table import TABLE, write_summaries
    from topoff.training.run_folder import RunFolder

    write_summaries(top, list(made["methods"]), made["seeds"], command=command())
    RunFolder(top).write(TABLE, made)
    page = write_page(top)
    table = RunFolder(top).read_json(TABLE)  # in which NaN is null
    if as_json:
        typer.echo(json.dumps(table))
    else:
        print_table(table, page)
    if not any("test" in row for row in table["methods"].values()):
        raise typer.Exit(1)


def _begin_all(jobs: list[Job]) -> None:
    """Write the settings of every job, or refuse those that differ from what its folder was begun with."""
    from topoff.training.run_folder import RunFolder
    from topoff.training.seed import begin

    begun = [job for job in jobs if (job.folder / "config.toml").is_file()]
    for job in (*begun, *jobs):  # those that may be refused come before any is written
        begin(job.config, RunFolder(job.folder), command=job.command)


@contextmanager
def _begun(top: Path, base: Config, jobs: list[Job]) -> Iterator[None]:
    """Make the folders, or resume in those that are there; where nothing comes to be trained, leave nothing.

    Raises:
        FileExistsError: the folder holds something else than a comparison.
        ValueError: another process is at work there.
    """
    from topoff.experiments.table import SETTINGS
    from topoff.training.run_folder import RunFolder

    new = not (top / SETTINGS).is_file()
    if new and (top / "config.toml").is_file():
        raise FileExistsError(
            f"Expected --out to be a new folder or that of a comparison (got {top}, which holds a run of topoff "
            "train); choose another --out."
        )
    with without_empty_parents(top / SETTINGS), ExitStack() as held:
        if new:
            RunFolder(top).create()
        held.enter_context(locked(top))
        try:
            if not (top / SETTINGS).is_file():
                RunFolder(top).create().write(SETTINGS, write_toml(base, command=command()))
            _begin_all(jobs)
            yield
        except KeyboardInterrupt as stop:
            named = any(word == "--out" or word.startswith("--out=") for word in sys.argv)
            again = command() if named else f"{command()} --out {quoted(top)}"
            raise KeyboardInterrupt(f"Stopped; resume with: {again}") from stop
        except Exception:
            if new and not any(top.rglob("metrics.jsonl")):
                remove_content(top)
            raise
