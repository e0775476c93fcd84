"""What is to be trained: the folders and settings of a new run, or of one that is resumed or repeated.

>>> from topoff.training.config import make_config
>>> work = new_work(make_config({"dataset": "wordnet"}), Path("runs/x"), seeds=[0, 1])
>>> [str(folder.path) for folder, _ in work.folders]
['runs/x/seed-0', 'runs/x/seed-1']
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from topoff.machine.lock import locked
from topoff.training.config import Config, difference, make_config
from topoff.training.new_run import new_run, put_back
from topoff.training.run_folder import PACE, RunFolder
from topoff.training.trust import refuse_foreign

Planned = list[tuple[RunFolder, Config]]


@dataclass(frozen=True)
class Work:
    """Hold what is to be trained."""

    top: Path
    folders: Planned
    records: dict[Path, bytes] = field(default_factory=dict)  # of the steps of another run, by their place below `top`

    def held(self, command: str, *, overwrite: bool, new: bool) -> AbstractContextManager[None]:
        """Return what holds the folders for this process: those of a `new` run, which it makes, or of one that is."""
        if not new:
            return locked(self.top, *(folder.path for folder, _ in self.folders))
        seeds = {folder.path.relative_to(self.top): config for folder, config in self.folders}
        return new_run(self.top, seeds, records=self.records, command=command, overwrite=overwrite)


def new_work(base: Config, top: Path, *, seeds: list[int] | None) -> Work:
    """List the folders and settings of a new run: the folder itself, or one per seed inside it."""
    if seeds is None or len(seeds) == 1:
        return Work(top, [(RunFolder(top), make_config(vars(base), {"seed": seeds[0]} if seeds else {}))])
    configs = [(seed, make_config(vars(base), {"seed": seed})) for seed in seeds]
    return Work(top, [(RunFolder(top / f"seed-{seed}"), config) for seed, config in configs])


def repeated_work(begun: Planned, *, repeat: Path, top: Path) -> Work:
    """List the folders and settings of a run that takes the steps of another one again."""
    places = [  # a run of before weights were averaged is repeated without
        (folder.path.relative_to(repeat), replace(config, average=bool(config.average))) for folder, config in begun
    ]
    records = {place / PACE: _record(repeat / place) for place, _ in places}
    return Work(top, [(RunFolder(top / place), config) for place, config in places], records)


def begun_folders(
    top: Path,
    given: list[dict[str, Any]],
    others: dict[str, Any],
    *,
    allowed: dict[str, Any],
    flag: str = "--resume",
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
