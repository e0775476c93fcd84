"""Checkpoints of a run: the latest one and the one before, each whole or noticed, moved into place in one step.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as place:
...     save_checkpoint(Path(place), Checkpoint({"epoch": 1}))
...     load_checkpoint(Path(place)).state
{'epoch': 1}
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topoff.machine.files import replacing

if TYPE_CHECKING:
    from torch import Tensor

Weights = dict[str, "Tensor"]
CHECKPOINT = Path("checkpoint") / "latest.safetensors"
PREVIOUS = CHECKPOINT.with_name("previous.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """Hold where training stands: plain values, and named groups of tensors."""

    state: dict[str, Any]
    tensors: dict[str, Weights] = field(default_factory=dict)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in one step, so that there is always a whole one, and keep the one before."""
    content = content_of(checkpoint)
    with replacing(folder / CHECKPOINT, keep=folder / PREVIOUS) as draft:
        draft.write_bytes(content)


def content_of(checkpoint: Checkpoint) -> bytes:
    """Return the content of a checkpoint's file."""
    from topoff.training.sealed import sealed

    return sealed(flat(checkpoint.tensors), {"state": checkpoint.state})


def load_checkpoint(folder: Path, *, repair: bool = False) -> Checkpoint | None:
    """Read the checkpoint, where it is damaged the one before, with a warning; None where none was written yet.

    With `repair` the one before takes the place of the damaged one, so that it is not lost at the next save.

    Raises:
        ValueError: all of them are damaged.
    """
    damaged: list[str] = []
    for name in (CHECKPOINT, PREVIOUS):
        try:
            checkpoint = read_checkpoint(folder / name)
        except FileNotFoundError:
            continue
        except ValueError as error:
            damaged.append(f"Expected {folder / name} to be a whole checkpoint (got {error})")
            continue
        if damaged:
            warnings.warn(f"{damaged[0]}; the one before it is used.", RuntimeWarning, stacklevel=2)
        if repair and name == PREVIOUS:
            (folder / PREVIOUS).replace(folder / CHECKPOINT)
        return checkpoint
    if not damaged:
        return None
    can = "; model.safetensors can still predict" if (folder / "model.safetensors").is_file() else ""
    none = "and none before it that is whole" if len(damaged) > 1 else "and there is none before it"
    raise ValueError(f"{damaged[0]}, {none}; restore it from a copy, or start again with --overwrite{can}.")


def trained_weights(folder: Path) -> tuple[Weights, dict[str, Any]]:
    """Read the weights of a run, and what is known beside them; where training has not finished, of its checkpoint.

    Raises:
        FileNotFoundError: nothing was trained yet.
        ValueError: the file is damaged.
    """
    from topoff.training.sealed import unsealed

    path = folder / "model.safetensors"
    if path.is_file():
        try:
            metadata, weights = unsealed(path)
        except ValueError as error:
            raise ValueError(
                f"Expected {path} to be a whole safetensors file (got {error}); train again, with "
                "--overwrite, or restore it from a copy."
            ) from error
        return weights, metadata
    checkpoint = load_checkpoint(folder)
    if checkpoint is None:
        raise FileNotFoundError(
            f"Expected a trained model in {folder} (got no model.safetensors and no checkpoint); resume it with topoff "
            f"train --resume {folder}."
        )
    found = checkpoint.tensors.get("best") or checkpoint.tensors.get("model")
    if not found:
        raise ValueError(f"Expected the checkpoint in {folder} to hold weights (got none); train again.")
    return found, checkpoint.state


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


def read_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged; what came, without a sentence around it.
    """
    from topoff.training.sealed import unsealed  # late: `--help` does without torch

    if not path.is_file():
        raise FileNotFoundError(path)
    metadata, tensors = unsealed(path)
    try:
        state = metadata["state"]
        state = json.loads(state) if isinstance(state, str) else state  # a text in older versions
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"a state that is a {type(state).__name__}")
    return Checkpoint(state, grouped(tensors))
