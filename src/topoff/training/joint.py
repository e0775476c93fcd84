"""A step over several batches, of one process or of many: the gradient of one loss over all of their training nodes.

Every batch counts by its training nodes (`Task.batch_weight`). Dropout is drawn from a seed of the step and the batch's
place in it, and batch norms remember the mean of what the batches of a step would have made of their last state: so a
step is the same, to rounding, in one process that takes all batches and in many that share them out.

>>> norms = Norms(nn.Sequential(nn.BatchNorm1d(1, momentum=1.0)))
>>> for row in (2.0, 4.0):
...     norms.rewind()
...     _ = norms.model(torch.full((2, 1), row))
...     norms.note()
>>> norms.settle(batches=2)
>>> norms.model[0].running_mean, norms.model[0].num_batches_tracked
(tensor([3.]), tensor(1))
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch_geometric.data import Data

from topoff.forward.call import LossOf
from topoff.machine.draws import seed_draws
from topoff.machine.gradients import sum_gradients
from topoff.machine.ranks import Ranks
from topoff.methods.protocol import Method
from topoff.tasks.task import Task

DRAWS = 8  # tells the seeds of steps from others that are made of the same numbers


@dataclass(frozen=True)
class Outcome:
    """Hold what all processes know after a step."""

    loss: float | None  # over all training nodes; None where the step had none
    stop: bool  # whether a process was asked to stop


class JointStep:
    """Put the gradient of one loss over several batches into the parameters, the same in all processes.

    Args:
        method: runs the model on batches.
        task: weighs them.
        ranks: the processes that take a step together.
        seed: of dropout.
    """

    def __init__(self, method: Method, task: Task, *, ranks: Ranks, seed: int) -> None:
        self.method, self.task, self.ranks, self.seed = method, task, ranks, seed
        self.parameters = [parameter for parameter in method.parameters() if parameter.requires_grad]

    def gradient(self, batches: Sequence[Data], *, number: int, stop: bool) -> Outcome:
        """Take the batches of this process in a step, as many as its places; those without targets count nothing."""
        like = self.parameters[0]
        norms, total = Norms(self.method.model), torch.zeros(4, dtype=torch.promote_types(like.dtype, torch.float32))
        total[3] = float(stop)
        for turn, batch in enumerate(batches):
            weight = self.task.batch_weight(batch)
            if not weight:
                continue
            self._seed(number, turn)
            norms.rewind()
            loss = self.method.learn(batch, self._weighted(weight))
            norms.note()
            total += torch.tensor([weight, float(loss), 1.0, 0.0], dtype=total.dtype)
        with self.ranks.counting("steps"):
            sum_gradients(self.parameters, [total, *norms.sums], ranks=self.ranks)
        weight, loss_sum, count, stops = total.tolist()
        if not weight:
            return Outcome(None, stops > 0)
        norms.settle(batches=round(count))
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.div_(weight)
        return Outcome(loss_sum / weight, stops > 0)

    def _weighted(self, weight: float) -> LossOf:
        """Return the loss of a batch times its weight."""
        return lambda out, batch: weight * self.task.batch_loss(out, batch)

    def _seed(self, number: int, turn: int) -> None:
        """Seed torch for a batch, by its place in its step."""
        place = self.ranks.rank + turn * self.ranks.size
        seed_draws(int(np.random.SeedSequence([self.seed, number, place, DRAWS]).generate_state(1)[0]))


class Norms:
    """Keep the running statistics of a model's batch norms as they were before a step, and their mean after it."""

    def __init__(self, model: nn.Module) -> None:
        """Note what they are now."""
        self.model = model
        norms = [norm for norm in model.modules() if isinstance(norm, _NormBase)]
        self._now = [each for norm in norms for each in (norm.running_mean, norm.running_var) if each is not None]
        self._counts = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
        self._before = [each.clone() for each in (*self._now, *self._counts)]
        self.sums = [torch.zeros_like(each) for each in self._now]

    def rewind(self) -> None:
        """Go back to where the step began."""
        for now, before in zip((*self._now, *self._counts), self._before, strict=True):
            now.copy_(before)

    def note(self) -> None:
        """Add what a batch has made of them."""
        for total, now in zip(self.sums, self._now, strict=True):
            total.add_(now)

    def settle(self, *, batches: int) -> None:
        """Take the mean over the batches of all processes: one step is one more."""
        for now, total in zip(self._now, self.sums, strict=True):
            now.copy_(total / batches)
        for count, before in zip(self._counts, self._before[len(self._now) :], strict=True):
            count.copy_(before + 1)


def steps_of(method: Method, each: int) -> Iterator[list[Data]]:
    """Yield the batches that this process has of every step, so many, those without targets among them."""
    batches = iter(method.batches())
    for first in batches:
        yield [first, *islice(batches, each - 1)]


def check_same_weights(model: nn.Module, ranks: Ranks) -> None:
    """Compare the weights and buffers of all processes, bit by bit.

    Raises:
        ValueError: some differ, with their names.
    """
    state = {name: each for name, each in model.state_dict().items() if isinstance(each, Tensor) and each.numel()}
    marks = torch.tensor([_mark(each) for each in state.values()], dtype=torch.int64).view(1, -1)
    found = torch.cat(ranks.gather(marks, counts=[1] * ranks.size))
    other = [name for name, same in zip(state, (found == found[0]).all(dim=0).tolist(), strict=True) if not same]
    if other:
        raise ValueError(
            f"Expected the same weights and buffers in all processes (got others for {', '.join(other[:3])}): a model "
            "whose forward changes its buffers, other than batch norms do, is to be trained in one process."
        )


def _mark(tensor: Tensor) -> int:
    """Return a checksum of a tensor's bits."""
    return zlib.crc32(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
