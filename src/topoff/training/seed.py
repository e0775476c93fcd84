"""Train one seed in its folder: from settings to a finished run, or on from where it was interrupted."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch_geometric.data import Data

from topoff.machine.lock import locked
from topoff.machine.memory import forget_peak, peak_memory
from topoff.training.build import make_setup
from topoff.training.checkpoints import CHECKPOINT, PREVIOUS
from topoff.training.config import Config, difference, write_toml
from topoff.training.defaults import Choice
from topoff.training.listener import Listener
from topoff.training.loop import Training
from topoff.training.result import write_result
from topoff.training.run_folder import RunFolder
from topoff.training.trained import graph_of


def begin(config: Config, folder: RunFolder, *, command: str) -> None:
    """Write the settings of a new run; of one that was begun, check that they are the same.

    What was left open then may be left open again, or be given as it was chosen.

    Raises:
        ValueError: the run was begun with other settings.
    """
    if not (folder.path / "config.toml").is_file():
        folder.write("config.toml", write_toml(config, command=command))
        return
    settings = folder.settings()
    left_open: dict[str, Any] = {key: None for key in settings.reasons if getattr(config, key) is None}
    changed = difference(dataclasses.replace(settings.config, **left_open), config)
    if changed:
        raise ValueError(
            f"Expected the settings that {folder.path} was begun with (got {'; '.join(changed)}); use those, or choose "
            "another folder."
        )


def train_seed(
    config: Config,
    folder: RunFolder,
    *,
    data: Data | None = None,
    listener: Listener | None = None,
    command: str = "",
    trust: bool = False,
) -> Training:
    """Train one model with one seed; leave all files of a run in the folder, and return the training at its end.

    An interrupted run is resumed, a finished one is only opened. What the settings leave open is chosen from the graph
    once, and written into config.toml with its reason; how tables were encoded is written beside it. A graph that is
    not given is loaded as the settings say, with `trust` also from files that run code; `command` is for the record.
    The caller vouches for a model of its own that `config` names. No other process can train in the folder meanwhile.

    Raises:
        ValueError: the settings do not suit the graph, or are not those that the run was begun with; or another process
            trains there.
        KeyboardInterrupt: the training was stopped, and has saved where it stands.
    """
    folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder.path):
        return _train_alone(config, folder, data=data, listener=listener, command=command, trust=trust)


def _train_alone(
    config: Config, folder: RunFolder, *, data: Data | None, listener: Listener | None, command: str, trust: bool
) -> Training:
    """Train in a folder that is locked."""
    listener, inherited = listener or Listener(), 0 if forget_peak() else peak_memory()
    begin(config, folder, command=command)
    settings = folder.settings()
    setup = make_setup(settings.config, graph_of(settings.config, trust=trust) if data is None else data)
    known = [Choice(key, settings.keys[key], why) for key, why in settings.reasons.items()]
    setup = dataclasses.replace(setup, choices=known + setup.choices)
    listener.set_up(setup)
    if setup.config != settings.config:
        reasons = {choice.what: choice.why for choice in setup.choices}
        folder.write("config.toml", write_toml(setup.config, command=settings.command, reasons=reasons))
    encoding = getattr(setup.data.get("names"), "encoding", None)
    begun = any((folder.path / name).is_file() for name in (CHECKPOINT, PREVIOUS))
    if encoding and not begun:  # before training: a run that is killed can predict, too
        folder.write("encoding.json", encoding)
    training = Training(setup, folder=folder, listener=listener, inherited=inherited)
    listener.trains(training)
    training.run()
    if encoding and not folder.finished:  # again: a resumed run may have found it damaged
        folder.write("encoding.json", encoding)
    if not folder.finished:
        write_result(training, command=settings.command)
    return training
