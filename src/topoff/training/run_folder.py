"""The folder of a run: settings, metrics, result and checkpoint, each written so that a killed process leaves it whole.

runs/<id>/config.toml          settings; the first line is the command, a comment says why a value was chosen
runs/<id>/metrics.jsonl        one line per epoch
runs/<id>/result.json          the scores, at the end
runs/<id>/details.json         what the report shows beyond them
runs/<id>/model.safetensors    the weights with the best validation score
runs/<id>/checkpoint/          where training stands
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topoff.machine.files import replacing
from topoff.training.config import Config, make_config
from topoff.training.records import Epoch, Result
from topoff.training.toml import parse_toml

if TYPE_CHECKING:
    from torch import Tensor

Weights = dict[str, "Tensor"]
CHECKPOINT = Path("checkpoint") / "latest.safetensors"
CHOSEN = re.compile(r'^(\w+) = (?:"(?:[^"\\\n]|\\.)*"|[^"#\n]*)  # chosen: (.+)$', re.MULTILINE)  # a setting, and why


@dataclass(frozen=True)
class Checkpoint:
    """Hold where training stands: plain values, and named groups of tensors."""

    state: dict[str, Any]
    tensors: dict[str, Weights] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """Hold what config.toml says."""

    keys: dict[str, Any]  # as they stand in the file; none of them need be a setting of this version
    command: str  # that began the run
    reasons: dict[str, str]  # of the settings that were chosen from the graph: why, by key
    origin: str = ""  # the file

    @property
    def config(self) -> Config:
        """Return the validated settings."""
        return make_config(self.keys, origin=self.origin)


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
        """Make the folder; refuse one that holds something.

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
        if self.path.is_dir() and any(self.path.iterdir()):
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
            content = json.dumps(_plain(content), indent=1) + "\n"
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
        return _parse(path.read_bytes(), path=path)

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
        return Settings(keys, command, reasons, str(path))

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "result.json").is_file()

    def result(self) -> Result:
        """Read the result of one seed."""
        return Result.of(self.read_json("result.json"))

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
                found = _parse(line, path=path, line=number)
            except ValueError:
                if number < lines[-1][0]:
                    raise
                return Metrics(epochs, cut=True)
            if not isinstance(found.get("epoch"), int):
                got = f"{found.get('epoch')!r} in line {number}"
                raise ValueError(f"Expected {path} to give each line an epoch (got {got}); repair it.")
            while epochs and epochs[-1].epoch >= found["epoch"]:
                epochs.pop()
            epochs.append(Epoch.of(found))
        return Metrics(epochs)

    def metrics(self) -> list[Epoch]:
        """Return the whole lines of metrics.jsonl."""
        return self.read_metrics().epochs

    def keep_metrics(self, epochs: int) -> None:
        """Drop the lines after some epochs: they are about to be written again."""
        self.write("metrics.jsonl", "".join(_line(epoch) for epoch in self.metrics() if epoch.epoch <= epochs))

    # ---- tensors

    def save_model(self, weights: Weights) -> None:
        """Write the weights as the user's own state_dict."""
        self._save("model.safetensors", weights)

    def load_model(self) -> Weights:
        """Read the weights; where training has not finished, the best ones of its checkpoint."""
        if (self.path / "model.safetensors").is_file():
            return _load(self.path / "model.safetensors")[1]
        checkpoint = self.load()
        if checkpoint is None:
            raise FileNotFoundError(
                f"Expected a trained model in {self.path} (got no model.safetensors and no checkpoint); "
                f"resume it with topoff train --resume {self.path}."
            )
        return checkpoint.tensors.get("best") or checkpoint.tensors["model"]

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint: one file, moved into place in one step, so that there is always a whole one."""
        self._save(CHECKPOINT, flat(checkpoint.tensors), metadata={"state": json.dumps(checkpoint.state)})

    def _save(self, name: str | Path, weights: Weights, *, metadata: dict[str, str] | None = None) -> None:
        """Write tensors, each with contiguous memory of its own on the CPU: safetensors refuses shared ones."""
        from safetensors.torch import save

        separate = {key: value.detach().cpu().clone().contiguous() for key, value in weights.items()}
        self.write(name, save(separate, metadata=metadata))

    def load(self) -> Checkpoint | None:
        """Read the checkpoint; None where none was written yet."""
        if not (self.path / CHECKPOINT).is_file():
            return None
        metadata, tensors = _load(self.path / CHECKPOINT)
        try:
            return Checkpoint(json.loads(metadata["state"]), grouped(tensors))
        except (KeyError, json.JSONDecodeError) as error:
            path, got = self.path / CHECKPOINT, f"{type(error).__name__}: {error}"
            raise ValueError(f"Expected {path} to be the checkpoint of a run (got {got}); train again.") from error


def flat(groups: Mapping[Any, Weights]) -> Weights:
    """Name the tensors of several groups "group/key"."""
    return {f"{group}/{key}": tensor for group, weights in groups.items() for key, tensor in weights.items()}


def grouped(weights: Weights) -> dict[str, Weights]:
    """Undo `flat`; an empty group is lost."""
    groups: dict[str, Weights] = {}
    for name, tensor in weights.items():
        group, _, key = name.partition("/")
        groups.setdefault(group, {})[key] = tensor
    return groups


def _load(path: Path) -> tuple[dict[str, str], Weights]:
    """Read a safetensors file and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            names = file.keys()
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"Expected {path} to be a whole safetensors file (got {error}); train again.") from error


def _line(epoch: Epoch) -> str:
    """Write a line of metrics.jsonl."""
    return json.dumps(_plain(epoch.line())) + "\n"


def _parse(text: bytes, *, path: Path, line: int = 1) -> dict[str, Any]:
    """Parse a JSON object that starts in some line of a file."""
    try:
        found = json.loads(text.decode())
    except json.JSONDecodeError as error:
        reason, line = error.msg, line + error.lineno - 1
    except UnicodeDecodeError as error:
        reason, line = "bytes that are not UTF-8", line + text.count(b"\n", 0, error.start)
    else:
        if isinstance(found, dict):
            return found
        reason = f"a {type(found).__name__}"
    raise ValueError(f"Expected {path} to hold a JSON object (got {reason} in line {line}); repair it or run again.")


def _plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not know, by null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
