"""`topoff train`: from a graph to a trained model, exact scores and a report."""

from __future__ import annotations

import datetime
import json
import re
import shlex
import shutil
import signal
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topoff.cli.flags import AsJson, Quiet
from topoff.training.config import (
    Config,
    make_config,
    parse_config,
    parse_seeds,
    parse_settings,
    read_config,
    write_toml,
)
from topoff.training.config import difference as config_difference
from topoff.training.run_folder import CHECKPOINT, RunFolder

if TYPE_CHECKING:
    from topoff.training.loop import Training

EXAMPLES = """Examples:

  topoff train wordnet --epochs 30 --out runs/first

  topoff train graph/ --model sage --seeds 0-4 --patience 10 --json

  topoff train --resume runs/first"""


def train(
    dataset: Annotated[
        str | None, typer.Argument(help="'wordnet', a PyG dataset's name, an .npz file or a folder of tables.")
    ] = None,
    config: Annotated[str | None, typer.Option(help="A TOML file, or a config that ships with topoff.")] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", help="key=value; wins over file and flags.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, such as 0-9 or 0,3; mean and std.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. [default: runs/<dataset>-<model>-<method>-<time>]")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --out holds.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, its cost, and stop.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard too.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    **settings: Any,
) -> None:
    """Train a model in mini-batches that behave like the whole graph; scores are exact, a report is written."""
    from topoff.machine.memory import keep_freed_memory

    keep_freed_memory()
    given = [read_config(config)] if config else []
    given += [{"dataset": dataset} if dataset else {}, settings, parse_settings(setting or [])]
    if resume is not None:
        folders = _resumed(resume, given, others={"--out": out, "--seeds": seeds, "--overwrite": overwrite or None})
        top = resume
    else:
        base = make_config(*given)
        _warn_of_unused(base, given)
        top = out or Path("runs") / _name(base)
        folders = _planned(base, top, seeds=parse_seeds(seeds) if seeds else None)
    job = Job(top, tensorboard=tensorboard, quiet=quiet, show=not as_json)
    if dry_run:
        job.explain(folders[0][1], as_json=as_json)
        return
    with nullcontext() if resume else _created(top, folders, overwrite=overwrite):
        result = job.run(folders)
    if as_json:
        typer.echo(json.dumps(result))


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


@contextmanager
def _created(top: Path, folders: Planned, *, overwrite: bool) -> Iterator[None]:
    """Make the folders of a run and write its settings; where nothing comes to be trained, leave all as it was.

    Raises:
        ValueError: the run to be replaced is where the user stands.
    """
    place = top.resolve()
    old = place.with_name(f".{place.name}.old") if overwrite and (top / "config.toml").is_file() else None
    if old is None:
        RunFolder(top).create()
    elif Path.cwd().is_relative_to(place):
        raise ValueError(f"Expected --overwrite from outside the run (got {top}, which holds this folder); go up.")
    else:
        shutil.rmtree(old, ignore_errors=True)  # left by a process that was killed
        place.rename(old)
    try:
        for folder, config in [(RunFolder(top), folders[0][1]), *folders]:
            folder.path.mkdir(parents=True, exist_ok=True)
            folder.write("config.toml", write_toml(config, command=command()))
        yield
    finally:
        trained = _trained(top)
        if not trained:
            shutil.rmtree(top, ignore_errors=True)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True) if trained else old.rename(place)


def _trained(top: Path) -> bool:
    """Whether a run, or one of its seeds, has finished an epoch or left a checkpoint."""
    kept = [path for folder in (top, *top.glob("seed-*")) for path in (folder / "metrics.jsonl", folder / CHECKPOINT)]
    return any(path.is_file() and path.stat().st_size for path in kept)


def _resumed(top: Path, given: list[dict[str, Any]], *, others: dict[str, Any]) -> Planned:
    """List the folders and settings of a run that goes on; refuse settings that differ from its own.

    Raises:
        ValueError: a flag asks for something else than the run began with; the difference is shown.
    """
    RunFolder(top).must_exist()
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"Expected --resume without {name} (got {value}): a run goes on in its own folder.")
    paths = sorted(top.glob("seed-*"), key=lambda path: int(path.name.partition("-")[2])) or [top]
    folders = []
    for path in paths:
        keys = parse_config((path / "config.toml").read_text(), origin=str(path / "config.toml"))
        config = make_config(keys)
        asked = [{key: value for key, value in layer.items() if key != "seed" or len(paths) == 1} for layer in given]
        changed = config_difference(config, make_config(keys, *asked))
        if changed:
            raise ValueError(
                f"Expected --resume to go on with the settings of {top} (got {'; '.join(changed)}); leave them out, or "
                "start a new run."
            )
        folders.append((RunFolder(path), config))
    return folders


def _name(config: Config) -> str:
    """Name a run by its graph, model, method and the time."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(config.dataset).stem or config.dataset).strip("-")
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return f"{stem}-{re.sub(r'[^A-Za-z0-9._-]+', '-', config.model)}-{config.method}-{now}"


def command() -> str:
    """Return the command line of this process."""
    return f"topoff {shlex.join(sys.argv[1:])}"


class Job:
    """Train the seeds of a run, one after the other, and write what they leave."""

    def __init__(self, top: Path, *, tensorboard: bool, quiet: bool, show: bool) -> None:
        self.top, self.tensorboard, self.quiet, self.show = top, tensorboard, quiet, show
        self.stopped = False  # by the user, after the last step of a seed

    def run(self, folders: Planned) -> dict[str, Any]:
        """Return the result of the run; of several seeds, their mean and spread."""
        from topoff.report.page import write_report
        from topoff.training.result import summarise

        results: list[dict[str, Any]] = []
        for folder, config in folders:
            if self.stopped:  # the wish came after the last step of the seed before
                raise KeyboardInterrupt(f"Stopped; go on with: topoff train --resume {shlex.quote(str(self.top))}")
            results.append(self._seed(folder, config))
        result = results[0]
        if len(results) > 1:
            result = summarise(results, command=_command_of(self.top))
            RunFolder(self.top).write("result.json", result)
        page = write_report(self.top)
        if self.show:
            from topoff.cli.summaries import print_result

            print_result(result, self.top, page)
        return result

    def explain(self, config: Config, *, as_json: bool) -> None:
        """Say what would be done and what it would cost."""
        from dataclasses import asdict

        from topoff.cli.summaries import print_plan
        from topoff.tasks.task import task_of
        from topoff.training.build import model_for
        from topoff.training.cost import estimate
        from topoff.training.defaults import choose
        from topoff.training.trained import graph_of

        data = graph_of(config)
        chosen, choices = choose(config, data)
        task = task_of(data.y, train_mask=data.train_mask, metric=config.metric, class_weight=config.class_weight)
        cost = estimate(chosen, data, model_for(chosen, data, outputs=task.outputs))
        if as_json:
            plan = {"config": vars(chosen), "chosen": [asdict(choice) for choice in choices], "task": task.kind}
            typer.echo(json.dumps(plan | {"metric": task.metric, "estimate": asdict(cost)}))
        elif self.show:
            print_plan(chosen, choices, cost, task=task, data=data)

    def _seed(self, folder: RunFolder, config: Config) -> dict[str, Any]:
        """Train one seed, or read what it left when it finished earlier."""
        if folder.finished:
            return folder.read_json("result.json")
        from topoff.cli.progress import Board, Display, Several, working
        from topoff.cli.summaries import print_choices
        from topoff.tasks.task import task_of
        from topoff.training.defaults import choose
        from topoff.training.loop import Training
        from topoff.training.result import write_result
        from topoff.training.trained import graph_of

        with working("loading the graph", quiet=self.quiet):
            data = graph_of(config)
        chosen, choices = choose(config, data)
        names = data.get("names")
        if self.show and not self.quiet:
            print_choices(choices, notes=getattr(names, "notes", ()))
        if getattr(names, "encoding", None):  # before training: a run that is killed can predict, too
            folder.write("encoding.json", names.encoding)
        task = task_of(data.y, train_mask=data.train_mask, metric=config.metric)
        with Display(config.epochs, metric=task.metric, quiet=self.quiet) as display:
            board = [Board(folder.path / "tensorboard")] if self.tensorboard else []
            training = Training(chosen, data, folder=folder, listener=Several(display, *board), choices=choices)
            with _stopping(training, self.top, quiet=self.quiet):
                training.run()
                result = write_result(training, command=_command_of(folder.path))
        self.stopped = training.stop
        return result


def _command_of(path: Path) -> str:
    """Return the command that began a run: the first line of its config."""
    return (path / "config.toml").read_text().partition("\n")[0].removeprefix("# ")


class _stopping:  # noqa: N801
    """Let Ctrl-C and SIGTERM stop training after the current step, saved; a second one stops at once."""

    def __init__(self, training: Training, top: Path, *, quiet: bool) -> None:
        self.training, self.top, self.quiet = training, top, quiet

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}

    def _stop(self, number: int, frame: types.FrameType | None) -> None:
        if self.training.stop:
            raise KeyboardInterrupt
        self.training.stop = True
        if not self.quiet:
            typer.echo("stopping after this step; once more stops at once", err=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is KeyboardInterrupt and _trained(self.top):
            error.args = (f"Stopped; go on with: topoff train --resume {shlex.quote(str(self.top))}",)  # type: ignore[union-attr]
