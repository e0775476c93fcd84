"""The folder of a run: settings, metrics, result and checkpoint, each written so that a killed process leaves it whole.

runs/<id>/config.toml          settings; the first line is the command, a comment says why a value was chosen
runs/<id>/metrics.jsonl        one line per epoch, and per evaluation in the middle of one
runs/<id>/pace.safetensors     the rate of every step of a run by seconds, and where it was evaluated
runs/<id>/result.json          the scores, at the end
runs/<id>/details.json         what the report shows beyond them
runs/<id>/encoding.json        how tables became features
runs/<id>/model.safetensors    the weights with the best validation score; with its checksum in it, as every such file
runs/<id>/checkpoint/          where training stands (latest.safetensors), and where it stood (previous.safetensors)
runs/<id>/.lock, .holder.json  while a process trains there (see machine/lock)
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from topoff.machine.files import is_draft, replacing
from topoff.machine.json_objects import checksum, parse_object, plain
from topoff.machine.lock import HOLDER, LOCK
from topoff.training.checkpoints import Checkpoint, Weights, load_checkpoint, save_checkpoint
from topoff.training.config import FIELDS, Config, make_config
from topoff.training.records import Epoch, Result
from topoff.training.toml import parse_toml

PACE = "pace.safetensors"
CHOSEN = re.compile(r'^(\w+) = (?:"(?:[^"\\\n]|\\.)*"|[^"#\n]*)  # chosen: (.+)$', re.MULTILINE)  # a setting, and why


@dataclass(frozen=True)
class Settings:
    """Hold what config.toml says."""

    keys: dict[str, Any]  # as they stand in the file; none of them need be a setting of this version
    command: str  # that began the run
    reasons: dict[str, str]  # of the settings that were chosen from the graph: why, by key
    path: Path = field(default=Path("config.toml"), compare=False)

    @property
    def config(self) -> Config:
        """Return the validated settings.

        Raises:
            ValueError: a setting that this version does not know, or a value that it cannot have.
        """
        try:
            return make_config(self.keys, origin=str(self.path))
        except ValueError as error:
            unknown = [key for key in self.keys if key not in FIELDS]
            newer = f" (topoff {version('topoff')} does not know '{unknown[0]}': a newer one may)" if unknown else ""
            raise ValueError(f"{error}{newer}") from error


@dataclass(frozen=True)
class Metrics:
    """Hold the lines of metrics.jsonl."""

    epochs: list[Epoch]
    cut: bool = False  # whether a last line was dropped, which a killed process had not finished


class RunFolder:
    """Read and write the files of one run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = RunFolder(Path(place) / "run").create()
    ...     folder.append(Epoch(1, loss=0.5))
    ...     folder.metrics()[0].loss
    0.5
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def create(self) -> RunFolder:
        """Make the folder; refuse one that holds something, but what a process leaves that is killed as it begins.

        Raises:
            FileExistsError: there is a run, or something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise FileExistsError(f"Expected --out to be a folder (got the file {self.path}); choose another place.")
        if (self.path / "config.toml").is_file():
            raise FileExistsError(
                f"Expected --out to be a new folder (got {self.path}, which holds a run); resume it with --resume "
                f"{self.path}, start anew with --overwrite, or choose another --out."
            )
        if self.path.is_dir() and not all(map(is_remnant, self.path.iterdir())):
            raise FileExistsError(
                f"Expected --out to be a new folder (got {self.path}, which holds other files); choose another --out."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        return self

    def must_exist(self) -> RunFolder:
        """Return this folder if it holds a run.

        Raises:
            FileNotFoundError: it does not.
        """
        if not (self.path / "config.toml").is_file():
            raise FileNotFoundError(
                f"Expected {self.path} to be the folder of a run (got no config.toml there); give the folder that "
                "`topoff train --out` wrote."
            )
        return self

    # ---- text files

    def write(self, name: str | Path, content: str | bytes | dict[str, Any]) -> None:
        """Write a file in one piece: bytes, text or JSON."""
        if isinstance(content, dict):
            content = json.dumps(plain(content), indent=1) + "\n"
        with replacing(self.path / name) as draft:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file.

        Raises:
            FileNotFoundError, ValueError: there is none, or it is damaged.
        """
        path = self.path / name
        if not path.is_file():
            raise FileNotFoundError(
                f"Expected {path} (got no such file): the run has not finished; resume it with topoff train --resume "
                f"{self.path}."
            )
        return parse_object(path.read_bytes(), path=path)

    def settings(self) -> Settings:
        """Read config.toml.

        Raises:
            ValueError: it is no flat TOML.
        """
        path = self.path / "config.toml"
        content = path.read_bytes()
        keys, text = parse_toml(content, origin=str(path)), content.decode("utf-8-sig")
        command = text.partition("\n")[0].removeprefix("#").strip() if text.startswith("#") else ""
        reasons = {key: why for key, why in CHOSEN.findall(text) if key in keys}
        return Settings(keys, command, reasons, path)

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "result.json").is_file()

    def result(self) -> Result:
        """Read the result of one seed."""
        return Result.of(self.read_json("result.json"), origin=str(self.path / "result.json"))

    def append(self, epoch: Epoch) -> None:
        """Add a line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(_line(epoch))

    def read_metrics(self) -> Metrics:
        """Read metrics.jsonl; of an epoch that was run again after a checkpoint, the last line counts.

        Raises:
            ValueError: a line that is not the last one is damaged, or has no epoch.
        """
        path, epochs = self.path / "metrics.jsonl", list[Epoch]()
        content = path.read_bytes() if path.is_file() else b""
        lines = [(number, line) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
        for number, line in lines:
            try:
                found = parse_object(line, path=path, line=number)
            except ValueError:
                if number < lines[-1][0]:
                    raise
                return Metrics(epochs, cut=True)
            if not isinstance(found.get("epoch"), int) or isinstance(found["epoch"], bool):
                got = f"{found.get('epoch')!r} in line {number}"
                raise ValueError(f"Expected {path} to give each line an epoch (got {got}); repair it.")
            epoch = Epoch.of(found, origin=f"line {number} of {path}")
            while epochs and epochs[-1].place >= epoch.place:
                epochs.pop()
            epochs.append(epoch)
        return Metrics(epochs)

    def metrics(self) -> list[Epoch]:
        """Return the whole lines of metrics.jsonl."""
        return self.read_metrics().epochs

    def keep_metrics(self, epochs: int, *, share: float = 0.0, mark: str | None = None) -> None:
        """Drop the lines after some epochs and a share of the next one: they are about to be written again.

        `mark` is what `mark_of` said of the file then; of one that has changed since a warning tells.
        """
        path = self.path / "metrics.jsonl"
        if mark is not None and not has_mark(path, mark):
            warnings.warn(
                f"{path} is not as the checkpoint left it: the curves of the report may be wrong; the weights do not "
                "depend on it.",
                RuntimeWarning,
                stacklevel=2,
            )
        self.write("metrics.jsonl", "".join(_line(epoch) for epoch in self.metrics() if epoch.place <= (epochs, share)))

    def mark_of_metrics(self) -> str | None:
        """Return what `mark_of` says of metrics.jsonl; None where there is none."""
        path = self.path / "metrics.jsonl"
        return mark_of(path.read_bytes()) if path.is_file() else None

    # ---- tensors

    def save_model(self, weights: Weights, *, metadata: dict[str, Any] | None = None) -> None:
        """Write the weights as the user's own state_dict."""
        from topoff.training.sealed import sealed

        self.write("model.safetensors", sealed(weights, metadata))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint in one step, so that there is always a whole one, and keep the one before."""
        save_checkpoint(self.path, checkpoint)

    def load(self, *, repair: bool = False) -> Checkpoint | None:
        """Read the checkpoint: see `load_checkpoint`."""
        return load_checkpoint(self.path, repair=repair)


def has_mark(path: Path, mark: str) -> bool:
    """Whether a file still begins with what `mark_of` was given."""
    content, size = path.read_bytes() if path.is_file() else b"", mark.partition(":")[0]
    return size.isdecimal() and mark_of(content[: int(size)]) == mark


def mark_of(content: bytes) -> str:
    """Return the length and the checksum of a file that only grows.

    >>> mark_of(b"{}")
    '2:a3a6bf43'
    """
    return f"{len(content)}:{checksum(content)}"


def is_remnant(path: Path) -> bool:
    """Whether a process that is killed as it begins a run leaves this: a lock, a draft, steps to repeat, a seed."""
    if path.name in (LOCK, HOLDER, PACE) or is_draft(path):
        return True
    seed = path.is_dir() and re.fullmatch(r"seed-\d+", path.name) is not None
    return seed and all(item.name == "config.toml" or is_remnant(item) for item in path.iterdir())


def _line(epoch: Epoch) -> str:
    """Write a line of metrics.jsonl."""
    return json.dumps(plain(epoch.line())) + "\n"
