"""`topoff train`: from a graph to a trained model, exact scores and a report."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

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
from topoff.machine.ranks import LostError, Ranks, joined
from topoff.training.config import Config, make_config
from topoff.training.followers import check_shareable, give_orders
from topoff.training.new_run import has_trained
from topoff.training.records import Result
from topoff.training.run_folder import RunFolder
from topoff.training.trust import is_foreign, refuse_foreign
from topoff.training.words import parse_seeds, parse_settings
from topoff.training.work import Work, begun_folders, new_work, repeated_work

EXAMPLES = """Examples:

  topoff train wordnet --epochs 30 --out runs/first

  topoff train graph/ --model sage --seeds 0-4 --patience 10 --json

  topoff train --resume runs/first

  topoff train wordnet --seconds 60 --schedule cosine --out runs/minute

  topoff train --repeat runs/minute --out runs/again"""


def train(
    dataset: MaybeDataset = None,
    config: ConfigFile = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="key=value; wins over file and flags.")] = None,
    seeds: Seeds = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. [default: runs/<dataset>-<model>-<method>-<time>]")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Resume the run in this folder.")] = None,
    repeat: Annotated[
        Path | None,
        typer.Option(help="Take the steps of this run again, which --seconds ended, at its learning rates, in --out."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --out holds.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and its estimated cost, then stop.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard too.")] = False,
    trust: Trust = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train a model in mini-batches that behave like the whole graph; score it exactly, and write a report."""
    given = given_settings(config, dataset, settings, parse_settings(setting or []))
    allowed: dict[str, Any] = {"named": named_model(given), "trust": trust, "command": command()}
    refuse_two_seeds(seeds, *given[2:])
    others = {"--out": out, "--seeds": seeds, "--overwrite": overwrite or None, "--repeat": repeat}
    with joined() as ranks:
        if ranks.size > 1 and resume is repeat is None:  # in all of them, which then say the same
            check_shareable(make_config(*given), processes=ranks.size)
        if not ranks.is_first:
            _follow(ranks, trust=trust)
            return
        again = ranks.size > 1 and resume is repeat is None and _is_ours(out, overwrite=overwrite)
        if resume is not None or again:  # torchrun starts the same command again where a process was lost
            given, others = ([{}] * 4, {}) if again else (given, others)
            top = Path(resume or out or "")
            work = Work(top, begun_folders(top, given, others, allowed=allowed))
        elif repeat is not None:
            begun = begun_folders(repeat, given, {"--seeds": seeds}, allowed=allowed, flag="--repeat")
            work = repeated_work(begun, repeat=repeat, top=out or _named(begun[0][1]))
        else:
            base = make_config(*given)
            refuse_foreign(base.model, origin=config, **allowed)
            _warn_of_unused(base, given)
            work = new_work(base, out or _named(base), seeds=None if seeds is None else parse_seeds(seeds))
        if dry_run:
            _explain(work.folders[0][1], as_json=as_json, trust=trust)
        else:
            held = work.held(command(), overwrite=overwrite, new=resume is None and not again)
            with held:
                _train(work, ranks, tensorboard=tensorboard, as_json=as_json, quiet=quiet, trust=trust)
        give_orders(ranks, None)
    if repeat is not None and not dry_run:
        _compare_weights(repeat, work.top, work.records)


def _warn_of_unused(config: Config, given: list[dict[str, Any]]) -> None:
    """Warn of settings that the method or the model does not read."""
    from topoff.training.defaults import unused

    for reason in unused(config, dict.fromkeys(key for layer in given[-2:] for key in layer)):
        warnings.warn(f"{reason}; leave it out.", stacklevel=2)


def _named(config: Config) -> Path:
    """Name the folder of a run that was given none."""
    return new_folder(config.dataset, config.model, config.method)


def _is_ours(out: Path | None, *, overwrite: bool) -> bool:
    """Whether a folder holds a run of this very command, which goes on.

    One that is to be overwritten is so once; when torchrun starts its processes again, what they have trained stays.
    """
    if out is None or not (out / "config.toml").is_file() or RunFolder(out).settings().command != command():
        return False
    return not overwrite or (os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0" and has_trained(out))


def _follow(ranks: Ranks, *, trust: bool) -> None:
    """Train with the first process, and say nothing."""
    from topoff.cli.progress import Interruption
    from topoff.training.seed import follow

    warnings.simplefilter("ignore")  # the first process says the same
    interruption, training = Interruption(quiet=True), True
    while training:
        try:
            with interruption:
                training = follow(ranks, listener=interruption, trust=trust) is not None
        except KeyboardInterrupt:
            raise typer.Exit(1) from None


def _compare_weights(old: Path, new: Path, places: Iterable[Path]) -> None:
    """Warn where a repeated run has not come to the same weights."""
    names = [place.with_name("model.safetensors") for place in places]
    if any((old / name).is_file() and (old / name).read_bytes() != (new / name).read_bytes() for name in names):
        warnings.warn(
            f"The weights differ from those of {old}: the graph, the versions or the machine are not the same.",
            stacklevel=2,
        )


def _explain(config: Config, *, as_json: bool, trust: bool) -> None:
    """Say what would be done and what it would cost."""
    from dataclasses import asdict

    from topoff.cli.summaries import print_plan
    from topoff.training.build import make_setup
    from topoff.training.cost import estimate
    from topoff.training.trained import graph_of

    setup = make_setup(config, graph_of(config, trust=trust))
    cost = estimate(setup.config, setup.data, setup.model)
    if as_json:
        told = {"config": vars(setup.config), "chosen": [asdict(choice) for choice in setup.choices]}
        typer.echo(json.dumps(told | {"task": setup.task.kind, "metric": setup.task.metric, "estimate": asdict(cost)}))
    else:
        print_plan(setup.config, setup.choices, cost, task=setup.task, data=setup.data)


def _train(work: Work, ranks: Ranks, *, tensorboard: bool, as_json: bool, quiet: bool, trust: bool) -> None:
    """Train the seeds of a run, one after the other; print its result, of several seeds their mean and spread."""
    from topoff.cli.progress import Display, Interruption, TensorBoard
    from topoff.cli.summaries import print_result
    from topoff.report.page import write_report
    from topoff.training.records import summarize
    from topoff.training.seed import train_seed

    top, folders, model = work.top, work.folders, work.folders[0][1].model
    known = " --trust" if trust else f" --model {quoted(model)}" if is_foreign(model) else ""
    again = f"Stopped; resume with: topoff train --resume {quoted(top)}{known}"
    interruption = Interruption(quiet=quiet)
    for folder, config in folders:
        if interruption.wished:  # after the last step of the seed before
            raise KeyboardInterrupt(again)
        if not folder.finished:
            board = [TensorBoard(folder.path / "tensorboard")] if tensorboard else []
            display = Display(config.epochs, quiet=quiet, choices=not as_json, others=[interruption, *board])
            try:
                with display, interruption:
                    train_seed(config, folder, listener=display, trust=trust, ranks=ranks)
            except KeyboardInterrupt as stop:
                raise KeyboardInterrupt(again if has_trained(top) else "") from stop
            except LostError as lost:
                raise LostError(
                    f"{str(lost).rstrip('.')}; the same command with --out {quoted(top)} goes on."
                ) from lost
    results = [_result(folder) for folder, _ in folders]
    result = results[0].json()
    if len(results) > 1:
        result = summarize(results, command=RunFolder(top).settings().command).json()
        RunFolder(top).write("result.json", result)
    page = write_report(top)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        print_result(result, top, page)


def _result(folder: RunFolder) -> Result:
    """Read the result of a seed that has finished, now or earlier.

    Raises:
        ValueError: the file holds none.
    """
    found = folder.result()
    if not found.metric:
        raise ValueError(
            f"Expected {folder.path / 'result.json'} to hold the result of a run (got no 'metric'); remove it, and "
            "resume the run to write it again."
        )
    return found
