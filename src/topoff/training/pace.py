"""When a run steps, at which rate, when it is evaluated and when it is over: by epochs, by seconds, or as another did.

A run by seconds depends on the clock. What it did is written to pace.safetensors: the rate of every step, and where it
was evaluated, which may refresh. A folder that holds this file is trained by it, step by step, to the same bits.

>>> from topoff.training.config import make_config
>>> pace = BySeconds(make_config({"dataset": "x", "lr": 1.0, "seconds": 4, "schedule": "linear"}))
>>> pace.rate(RunState(train_seconds=0.5), waited=0.5), pace.over(RunState(stepped_at=4.1))
(0.75, True)
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from topoff.training.build import learning_rate
from topoff.training.config import EPOCHS, Config
from topoff.training.run_folder import PACE, RunFolder
from topoff.training.sealed import sealed, unsealed
from topoff.training.state import THREADS, RunState

EVALUATIONS = 32  # of a run by seconds, at most: evenly over its time
REFRESHING = 0.1  # share of the time that evaluations may take for refreshes


class Pace:
    """Say how a run goes on from where it stands: this one by epochs."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def rate(self, progress: RunState, *, waited: float) -> float:
        """Return the learning rate of the next step, for whose batch the run has `waited` seconds."""
        return learning_rate(self.config, progress.epoch)

    def over(self, progress: RunState) -> bool:
        """Whether no step is left."""
        return progress.epoch >= (self.config.epochs or EPOCHS)

    def due(self, progress: RunState, *, whole: bool) -> bool:
        """Whether the run is to be evaluated now, at the end of a `whole` epoch or in the middle of one."""
        return whole and progress.epoch % (self.config.eval_every or 1) == 0

    def share(self, progress: RunState, *, part: float) -> float:
        """Return how much of the run is done, with this `part` of the current epoch."""
        return (progress.epoch + part) / (self.config.epochs or EPOCHS)

    def refreshes(self, progress: RunState) -> bool:
        """Whether an evaluation now may be a refresh, too, where the method wishes so; that counts as training."""
        return True

    def evaluated(self, progress: RunState, *, may_refresh: bool) -> None:
        """Hear of an evaluation."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from what a checkpoint has kept."""

    def write(self, folder: RunFolder) -> None:
        """Leave what is needed to repeat the run, beside its settings."""


class BySeconds(Pace):
    """Train for some seconds of preparation, refreshes and steps; the schedule runs over them.

    Evaluations are spread over the time, unless `eval_every` was given; what is off the clock stays within what is on
    it, however long an evaluation takes.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.seconds is not None
        self.seconds = config.seconds
        self.rates: list[float] = []  # of every step
        self.places: list[list[int]] = []  # steps and finished epochs at every evaluation; whether it might refresh

    def rate(self, progress: RunState, *, waited: float) -> float:
        """Return the learning rate at this moment, and keep it."""
        self.rates.append(learning_rate(self.config, min(self.seconds, progress.spent + waited)))
        return self.rates[-1]

    def over(self, progress: RunState) -> bool:
        """Whether a step has crossed the end of the time; a refresh that does is followed by one more."""
        return progress.stepped_at >= self.seconds

    def due(self, progress: RunState, *, whole: bool) -> bool:
        """Whether the next part of the time has begun, and the last evaluation has been paid for."""
        if self.config.eval_every:
            return super().due(progress, whole=whole)
        parts = (int(EVALUATIONS * moment / self.seconds) for moment in (progress.evaluated_at, progress.spent))
        return next(parts) < next(parts) and progress.spent - progress.evaluated_at >= (
            progress.evaluation_seconds or 0.0
        )

    def share(self, progress: RunState, *, part: float) -> float:
        """Return the share of the time that is spent."""
        return min(1.0, progress.spent / self.seconds)

    def refreshes(self, progress: RunState) -> bool:
        """Whether such refreshes have not taken too much: histories (gas) would be refreshed by every evaluation."""
        first = progress.evaluated_at == 0  # just prepared, and the first evaluation is slow
        return not first and progress.refresh_seconds <= REFRESHING * progress.spent

    def evaluated(self, progress: RunState, *, may_refresh: bool) -> None:
        """Keep where it was."""
        self.places.append([progress.steps, progress.epoch, int(may_refresh)])

    def tensors(self) -> dict[str, Tensor]:
        """Return the rates (steps,) and places (evaluations, 3) so far."""
        places = torch.tensor(self.places, dtype=torch.long).view(-1, 3)
        return {"rates": torch.tensor(self.rates, dtype=torch.float64), "places": places}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from those."""
        self.rates, self.places = tensors["rates"].tolist(), tensors["places"].tolist()

    def write(self, folder: RunFolder) -> None:
        """Write them, with the number of threads, on which sums depend to the last bit."""
        folder.write(PACE, sealed(self.tensors(), {"threads": torch.get_num_threads()}))


class Repeated(Pace):
    """Take the steps that a run by seconds took, at its rates, evaluated where it was.

    Raises:
        ValueError: the file is damaged.
    """

    def __init__(self, config: Config, path: Path) -> None:
        super().__init__(config)
        try:
            metadata, tensors = unsealed(path)
            self._rates: list[float] = tensors["rates"].tolist()
            self._places = {(steps, epochs): bool(may) for steps, epochs, may in tensors["places"].tolist()}
            self._threads = int(metadata["threads"])
            if not 1 <= self._threads <= THREADS:
                raise ValueError(f"{self._threads} threads")
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"Expected {path} to be a whole record of a run by seconds (got {type(error).__name__}: {error}); "
                "restore it from a copy, or train anew."
            ) from error
        torch.set_num_threads(self._threads)

    def rate(self, progress: RunState, *, waited: float) -> float:
        """Return the rate that the step had."""
        return self._rates[progress.steps]

    def over(self, progress: RunState) -> bool:
        """Whether all steps are taken."""
        return progress.steps >= len(self._rates)

    def due(self, progress: RunState, *, whole: bool) -> bool:
        """Whether it was evaluated here."""
        return (progress.steps, progress.epoch) in self._places

    def refreshes(self, progress: RunState) -> bool:
        """Whether the evaluation might refresh here."""
        return self._places.get((progress.steps, progress.epoch), False)

    def share(self, progress: RunState, *, part: float) -> float:
        """Return the share of the steps that is taken."""
        return progress.steps / max(1, len(self._rates))


def pace_of(config: Config, folder: RunFolder) -> Pace:
    """Return the pace of a run: that of the record in its folder, where there is one, else as its settings say."""
    if config.seconds is None:
        return Pace(config)
    path = folder.path / PACE
    return Repeated(config, path) if path.is_file() else BySeconds(config)
