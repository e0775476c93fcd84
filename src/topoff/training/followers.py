"""The other processes of a run: they follow what the first one says, compute with it, and write nothing.

>>> Unwritten().append(Epoch(1))  # nothing happens
>>> check_shareable(make_config({"dataset": "x", "method": "gas"}), processes=2)
Traceback (most recent call last):
ValueError: Expected method top, drop or drop-ax with several processes (got 'gas', whose batches would need rows of \
other processes in every step); start it in one process.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from topoff.machine.ranks import Ranks
from topoff.training.checkpoints import Checkpoint, Weights
from topoff.training.config import Config, make_config
from topoff.training.records import Epoch, Result
from topoff.training.run_folder import RunFolder

SHAREABLE = ("top", "drop", "drop-ax")  # methods whose batches need nobody else


class Unwritten(RunFolder):
    """Stand for the folder of a run in a process that does not write it."""

    def __init__(self) -> None:
        super().__init__(Path("the folder of the first process"))

    def write(self, name: str | Path, content: str | bytes | dict[str, Any]) -> None:
        """Leave it to the first process."""

    def append(self, epoch: Epoch) -> None:
        """Leave it to the first process."""

    def keep_metrics(self, epochs: int, *, share: float = 0.0, mark: str | None = None) -> None:
        """Leave it to the first process."""

    def save_model(self, weights: Weights, *, metadata: dict[str, Any] | None = None) -> None:
        """Leave it to the first process."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Leave it to the first process."""

    def result(self) -> Result:
        """Return nothing: the first process has the result."""
        return Result()


@dataclasses.dataclass(frozen=True)
class Orders:
    """Hold what the first process says before a training."""

    config: Config  # with nothing left open
    finished: bool  # nothing is left to be written


def give_orders(ranks: Ranks, orders: Orders | None) -> None:
    """Tell the other processes what is trained next; None: nothing more."""
    ranks.tell(b"" if orders is None else json.dumps(dataclasses.asdict(orders)).encode())


def take_orders(ranks: Ranks) -> Orders | None:
    """Hear what the first process says."""
    content = ranks.tell(b"")
    if not content:
        return None
    said = json.loads(content)
    return Orders(make_config(said["config"]), finished=said["finished"])


def check_shareable(config: Config, *, processes: int) -> None:
    """Refuse a run that several processes cannot share.

    Raises:
        ValueError: the method needs more than its own batch, or the time of each process would decide.
    """
    if processes > 1 and config.method not in SHAREABLE:
        raise ValueError(
            f"Expected method {', '.join(SHAREABLE[:-1])} or {SHAREABLE[-1]} with several processes (got "
            f"'{config.method}', whose batches would need rows of other processes in every step); start it in one "
            "process."
        )
    if processes > 1 and config.seconds is not None:
        raise ValueError(
            f"Expected epochs with several processes (got seconds = {config.seconds:g}), for each has a clock of its "
            "own; give --epochs, or start one process."
        )


def check_same_origin(origin: dict[str, Any], ranks: Ranks) -> None:
    """Compare the graph and the versions of all processes.

    Raises:
        ValueError: one has others than the first, which is said in all of them.
    """
    if ranks.size == 1:
        return
    said = [json.loads(text) for text in ranks.texts(json.dumps({key: origin[key] for key in ("data", "versions")}))]
    for rank, other in enumerate(said):
        if other["data"] != said[0]["data"]:
            raise ValueError(
                f"Expected the same graph in all processes (got content {other['data'][:8]} in rank {rank} and "
                f"{said[0]['data'][:8]} in rank 0); give all of them the same files."
            )
        names = [name for name, version in said[0]["versions"].items() if other["versions"].get(name) != version]
        if names:
            old, new = (f"{names[0]} {each['versions'].get(names[0])}" for each in (said[0], other))
            raise ValueError(
                f"Expected the same versions in all processes (got {new} in rank {rank} and {old} in rank 0); install "
                "the same ones."
            )
