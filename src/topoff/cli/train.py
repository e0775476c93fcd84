"""`topoff train`: from a graph to a trained model, exact scores and a report."""

from __future__ import annotations

import json
import re
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
from topoff.machine.lock import locked
from topoff.training.config import Config, difference, make_config
from topoff.training.new_run import has_trained, new_run, put_back
from topoff.training.records import Result
from topoff.training.run_folder import PACE, RunFolder
from topoff.training.trust import is_foreign, refuse_foreign
from topoff.training.words import parse_seeds, parse_settings

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
    records: dict[Path, bytes] = {}
    if resume is not None:
        others = {"--out": out, "--seeds": seeds, "--overwrite": overwrite or None, "--repeat": repeat}
        top, folders = resume, _begun(resume, given, others, allowed=allowed, flag="--resume")
    elif repeat is not None:
        begun = _begun(repeat, given, {"--seeds": seeds}, allowed=allowed, flag="--repeat")
        places = [(folder.path.relative_to(repeat), config) for folder, config in begun]
        records = {place / PACE: _record(repeat / place) for place, _ in places}
        top = out or new_folder(begun[0][1].dataset, begun[0][1].model, begun[0][1].method)
        folders = [(RunFolder(top / place), config) for place, config in places]
    else:
        base = make_config(*given)
        refuse_foreign(base.model, origin=config, **allowed)
        _warn_of_unused(base, given)
        top = out or new_folder(base.dataset, base.model, base.method)
        folders = _planned(base, top, seeds=None if seeds is None else parse_seeds(seeds))
    if dry_run:
        _explain(folders[0][1], as_json=as_json, trust=trust)
        return
    seeds_of = {folder.path.relative_to(top): config for folder, config in folders}
    held = locked(top, *(folder.path for folder, _ in folders)) if resume else None
    with held or new_run(top, seeds_of, records=records, command=command(), overwrite=overwrite):
        _train(top, folders, tensorboard=tensorboard, as_json=as_json, quiet=quiet, trust=trust)
    if repeat is not None:
        _compare_weights(repeat, top, records)


def _warn_of_unused(config: Config, given: list[dict[str, Any]]) -> None:
    """Warn of settings that the method or the model does not read."""
    from topoff.training.defaults import unused

    for reason in unused(config, dict.fromkeys(key for layer in given[-2:] for key in layer)):
        warnings.warn(f"{reason}; leave it out.", stacklevel=2)


Planned = list[tuple[RunFolder, Config]]


def _planned(base: Config, top: Path, *, seeds: list[int] | None) -> Planned:
    """List the folders and settings of a new run: the folder itself, or one per seed inside it."""
    if seeds is None or len(seeds) == 1:
        return [(RunFolder(top), make_config(vars(base), {"seed": seeds[0]} if seeds else {}))]
    return [(RunFolder(top / f"seed-{seed}"), make_config(vars(base), {"seed": seed})) for seed in seeds]


def _begun(
    top: Path, given: list[dict[str, Any]], others: dict[str, Any], *, allowed: dict[str, Any], flag: str
) -> Planned:
    """List the folders and settings of a run that is resumed or repeated; refuse settings that differ from its own.

    Raises:
        ValueError: a flag asks for something else than the run began with; the difference is shown.
    """
    put_back(top)
    RunFolder(top).must_exist()
    why = "a run is resumed in its own folder" if flag == "--resume" else "a run is repeated as it was"
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"Expected {flag} without {name} (got {value}): {why}.")
    seeds = [path for path in top.glob("seed-*") if re.fullmatch("seed-[0-9]+", path.name)]
    paths = sorted(seeds, key=lambda path: (len(path.name), path.name)) or [top]  # seed-2 before seed-10
    folders = []
    for path in paths:
        settings = RunFolder(path).settings()
        keys, config = settings.keys, settings.config
        asked = [{key: value for key, value in layer.items() if key != "seed" or len(paths) == 1} for layer in given]
        changed = difference(config, make_config(keys, *asked))
        if changed:
            raise ValueError(
                f"Expected {flag} to keep the settings of {top} (got {'; '.join(changed)}); leave them out, or "
                "start a new run."
            )
        refuse_foreign(config.model, origin=path / "config.toml", **allowed)
        folders.append((RunFolder(path), config))
    return folders


def _record(run: Path) -> bytes:
    """Read the steps that a run by seconds has taken.

    Raises:
        ValueError: it has left none.
    """
    if not (run / PACE).is_file():
        raise ValueError(
            f"Expected --repeat to name a run that --seconds ended (got {run} without {PACE}); one by epochs is "
            f"repeated with --config {run / 'config.toml'}, an unfinished one is first to be resumed."
        )
    return (run / PACE).read_bytes()


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


def _train(top: Path, folders: Planned, *, tensorboard: bool, as_json: bool, quiet: bool, trust: bool) -> None:
    """Train the seeds of a run, one after the other; print its result, of several seeds their mean and spread."""
    from topoff.cli.progress import Display, Interruption, TensorBoard
    from topoff.cli.summaries import print_result
    from topoff.report.page import write_report
    from topoff.training.records import summarize
    from topoff.training.seed import train_seed

    model = folders[0][1].model
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
                    train_seed(config, folder, listener=display, trust=trust)
            except KeyboardInterrupt as stop:
                raise KeyboardInterrupt(again if has_trained(top) else "") from stop
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
