"""The folder of a run: settings, metrics, result and checkpoint, each written so that a killed process leaves it whole.

runs/<id>/config.toml          settings; the first line is the command
runs/<id>/metrics.jsonl        one line per epoch
runs/<id>/result.json          the scores, at the end
runs/<id>/details.json         what the report shows beyond them
runs/<id>/model.safetensors    the weights with the best validation score
runs/<id>/checkpoint/          where training stands
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topoff.machine.files import replacing

if TYPE_CHECKING:
    from torch import Tensor

Weights = dict[str, "Tensor"]
CHECKPOINT = Path("checkpoint") / "latest.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Hold where training stands: plain values, and named groups of tensors."""

    state: dict[str, Any]
    tensors: dict[str, Weights] = field(default_factory=dict)


class RunFolder:
    """Read and write the files of one run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = RunFolder(Path(place) / "run").create()
    ...     folder.append({"epoch": 1, "loss": 0.5})
    ...     folder.metrics()
    [{'epoch': 1, 'loss': 0.5}]
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
                f"Expected --out to be a new folder (got {self.path}, which holds a run); go on with --resume "
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

    def write(self, name: str, content: str | dict[str, Any]) -> None:
        """Write a text or JSON file in one piece."""
        text = content if isinstance(content, str) else json.dumps(_plain(content), indent=1) + "\n"
        _replace(self.path / name, text.encode())

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file.

        Raises:
            FileNotFoundError, ValueError: there is none, or it is damaged.
        """
        path = self.path / name
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"Expected {path} (got no such file); the run has not finished: go on with topoff train --resume "
                f"{self.path}."
            ) from error
        except json.JSONDecodeError as error:
            raise ValueError(f"Expected {path} to be JSON (got {error}); train again.") from error
        return found

    @property
    def finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "result.json").is_file()

    def append(self, record: dict[str, Any]) -> None:
        """Add a line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(_plain(record)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the whole lines of metrics.jsonl; a last one that a killed process left unfinished is dropped."""
        path = self.path / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.is_file() else []
        try:
            return [json.loads(line) for line in lines]
        except json.JSONDecodeError as error:
            raise ValueError(f"Expected {path} to have one JSON object per line (got {error}); train again.") from error

    def keep_metrics(self, epochs: int) -> None:
        """Drop the lines after some epochs: they are about to be written again."""
        lines = [json.dumps(record) + "\n" for record in self.metrics() if record["epoch"] <= epochs]
        _replace(self.path / "metrics.jsonl", "".join(lines).encode())

    # ---- tensors

    def save_model(self, weights: Weights) -> None:
        """Write the weights as the user's own state_dict."""
        from safetensors.torch import save

        _replace(self.path / "model.safetensors", save(_separate(weights)))

    def load_model(self) -> Weights:
        """Read the weights; where training has not finished, the best ones of its checkpoint."""
        if not (self.path / "model.safetensors").is_file():
            checkpoint = self.load()
            if checkpoint is None:
                raise FileNotFoundError(
                    f"Expected a trained model in {self.path} (got no model.safetensors and no checkpoint); "
                    f"go on with topoff train --resume {self.path}."
                )
            return checkpoint.tensors.get("best") or checkpoint.tensors["model"]
        return _load(self.path / "model.safetensors")[1]

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint: one file, moved into place in one step, so that there is always a whole one."""
        from safetensors.torch import save

        flat = {f"{group}/{key}": t for group, items in checkpoint.tensors.items() for key, t in items.items()}
        content = save(_separate(flat), metadata={"state": json.dumps(checkpoint.state)})
        _replace(self.path / CHECKPOINT, content)

    def load(self) -> Checkpoint | None:
        """Read the checkpoint; None where none was written yet."""
        if not (self.path / CHECKPOINT).is_file():
            return None
        metadata, flat = _load(self.path / CHECKPOINT)
        groups: dict[str, Weights] = {}
        for name, tensor in flat.items():
            group, _, key = name.partition("/")
            groups.setdefault(group, {})[key] = tensor
        try:
            return Checkpoint(json.loads(metadata["state"]), groups)
        except (KeyError, json.JSONDecodeError) as error:
            path, got = self.path / CHECKPOINT, f"{type(error).__name__}: {error}"
            raise ValueError(f"Expected {path} to be the checkpoint of a run (got {got}); train again.") from error


def _separate(weights: Weights) -> Weights:
    """Give every tensor its own contiguous memory on the CPU: safetensors refuses shared ones."""
    return {key: value.detach().cpu().clone().contiguous() for key, value in weights.items()}


def _load(path: Path) -> tuple[dict[str, str], Weights]:
    """Read a safetensors file and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            names = file.keys()
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"Expected {path} to be a whole safetensors file (got {error}); train again.") from error


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step."""
    with replacing(path) as draft:
        draft.write_bytes(content)


def _plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not know, by null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
