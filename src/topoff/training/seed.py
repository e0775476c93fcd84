"""Train one seed in its folder: from settings to a finished run, or on from where it was interrupted."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch_geometric.data import Data

from topoff.batching.together import check_processes
from topoff.machine.lock import locked
from topoff.machine.memory import forget_peak, peak_memory
from topoff.machine.ranks import Ranks
from topoff.training.build import make_setup
from topoff.training.checkpoints import CHECKPOINT, PREVIOUS
from topoff.training.config import Config, difference, write_toml
from topoff.training.defaults import Choice
from topoff.training.followers import Orders, Unwritten, check_same_origin, check_shareable, give_orders, take_orders
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
    if config.train_only is None and not settings.config.train_only:  # false was written before it could be left open
        left_open["train_only"] = None
    if "average" not in settings.reasons and not (settings.config.average or config.average):  # of before it was there
        left_open["average"] = config.average
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
    ranks: Ranks | None = None,
) -> Training:
    """Train one model with one seed; leave all files of a run in the folder, and return the training at its end.

    An interrupted run is resumed, a finished one is only opened. What the settings leave open is chosen from the graph
    once, and written into config.toml with its reason; how tables were encoded is written beside it. A graph that is
    not given is loaded as the settings say, with `trust` also from files that run code; `command` is for the record.
    The caller vouches for a model of its own that `config` names. No other process can train in the folder meanwhile,
    but for the `ranks` that train with it: all but the first call `follow`.

    Raises:
        ValueError: the settings do not suit the graph, or are not those that the run was begun with; or another process
            trains there.
        KeyboardInterrupt: the training was stopped, and has saved where it stands.
    """
    ranks = ranks or Ranks()
    folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder.path):
        check_shareable(config, processes=ranks.size)
        return _train_first(config, folder, data=data, listener=listener, command=command, trust=trust, ranks=ranks)


def follow(
    ranks: Ranks, *, data: Data | None = None, listener: Listener | None = None, trust: bool = False
) -> Training | None:
    """Train what the first process trains by `train_seed`; None where it says that nothing is left.

    Raises:
        ValueError: the graph is another one than that of the first process.
        KeyboardInterrupt: a process was asked to stop.
    """
    orders = take_orders(ranks)
    if orders is None:
        return None
    graph = graph_of(orders.config, trust=trust) if data is None else data
    setup = make_setup(orders.config, graph, processes=ranks.size)
    training = Training(setup, folder=Unwritten(), listener=listener, ranks=ranks)
    (listener or Listener()).trains(training)
    check_same_origin(training.origin, ranks)
    training.run()
    if not orders.finished:
        write_result(training, command="")
    return training


def _train_first(
    config: Config,
    folder: RunFolder,
    *,
    data: Data | None,
    listener: Listener | None,
    command: str,
    trust: bool,
    ranks: Ranks,
) -> Training:
    """Train in a folder that is locked, and lead the other processes."""
    listener, inherited = listener or Listener(), 0 if forget_peak() else peak_memory()
    begin(config, folder, command=command)
    settings = folder.settings()
    begun = any((folder.path / name).is_file() for name in (CHECKPOINT, PREVIOUS))
    chosen = settings.config
    if begun and chosen.accumulate is None:  # it has gone on one batch at a time, and does so
        check_processes(ranks, accumulate=1, batches=ranks.size)
    if begun and chosen.average is None:  # of a version that did not, and goes on so
        chosen = dataclasses.replace(chosen, average=False)
    graph = graph_of(chosen, trust=trust) if data is None else data
    setup = make_setup(chosen, graph, processes=ranks.size)
    known = [Choice(key, settings.keys[key], why) for key, why in settings.reasons.items()]
    setup = dataclasses.replace(setup, choices=known + setup.choices)
    listener.set_up(setup)
    if setup.config != settings.config:
        reasons = {choice.what: choice.why for choice in setup.choices}
        folder.write("config.toml", write_toml(setup.config, command=settings.command, reasons=reasons))
    encoding = getattr(setup.data.get("names"), "encoding", None)
    if encoding and not begun:  # before training: a run that is killed can predict, too
        folder.write("encoding.json", encoding)
    give_orders(ranks, Orders(setup.config, folder.finished))
    training = Training(setup, folder=folder, listener=listener, inherited=inherited, ranks=ranks)
    listener.trains(training)
    check_same_origin(training.origin, ranks)
    training.run()
    if encoding and not folder.finished:  # again: a resumed run may have found it damaged
        folder.write("encoding.json", encoding)
    if not folder.finished:
        write_result(training, command=settings.command)
    return training
