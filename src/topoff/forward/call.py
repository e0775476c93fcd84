"""Call a user's model on batches: arguments by name or by the user's own function, to run it and to train it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.data.check import check
from topoff.forward.arguments import Arguments, fill, settle, signature_of
from topoff.forward.recompute import Binding, bind_in_backward
from topoff.machine.notices import notify
from topoff.models.dropout import fast_dropout

Call = Callable[[nn.Module, Data], Any]
LossOf = Callable[[Tensor, Data], Tensor]  # the loss of a batch's outputs: (batch_size, out) and the batch
Progress = Callable[[str, int, int], None]  # what is being done, how many are done, how many there are

HALF = (torch.bfloat16, torch.float16)


def caller(model: nn.Module, call: Call | None = None, *, arguments: Arguments | None = None) -> Call:
    """Return a function that calls the model (or a copy of it) on a batch, its arguments filled by name.

    `arguments` are those that were settled for the whole graph; without them the first batch decides by the same rule
    (see `forward/arguments`).

    Raises:
        ValueError: where an argument without a default is not in the batch; give `call=lambda model, batch: ...`.

    >>> import torch
    >>> from torch_geometric.nn import GCN
    >>> data = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0, 1], [1, 0]]))
    >>> model = GCN(3, 4, num_layers=1)
    >>> caller(model)(model, data).shape
    torch.Size([2, 4])
    """
    if call is not None:
        return call
    signature = signature_of(plain(model))  # now: a bound model has other forwards

    def by_name(module: nn.Module, batch: Data) -> Any:
        """Call the model with what the batch holds under the names of its arguments."""
        nonlocal arguments
        arguments = arguments or fill(signature, batch)
        values = {name: batch[key] if key else batch for name, key in arguments.given.items()}
        return module(*values.values()) if arguments.by_position else module(**values)

    return by_name


def plain(model: nn.Module) -> nn.Module:
    """Return the module that `torch.compile` wrapped, or the model itself.

    Raises:
        TypeError: it is no module, such as a class.
    """
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, nn.Module):
        got = f"{model!r:.60}"
        raise TypeError(f"Expected the model to be a torch.nn.Module (got {got}); pass one, such as GCN(...).")
    return inner


def in_precision(model: nn.Module, given: Data, checked: Data) -> Data:
    """Return a checked graph in the half precision that it was given in, where the model has it too.

    >>> given = Data(x=torch.ones(2, 3).bfloat16())
    >>> in_precision(nn.Linear(3, 3).bfloat16(), given, Data(x=given.x.float())).x.dtype
    torch.bfloat16
    """
    dtype = given.x.dtype
    if dtype not in HALF or all(parameter.dtype != dtype for parameter in model.parameters()):
        return checked
    for name in ("x", "edge_weight"):
        if given.get(name) is not None:
            checked[name] = given[name]
    return checked


def device_of(model: nn.Module, x: Tensor) -> torch.device:
    """Return the device on which a model runs; without parameters, that of the features."""
    return next(model.parameters(), x).device


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run in eval mode without gradients, and restore every module's mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def own_rows(out: Any, rows: int, size: int) -> Any:
    """Keep the first rows of every tensor with rows of nodes, in tuples, lists and dicts of outputs.

    >>> own_rows({"out": torch.zeros(4, 2), "loss": torch.tensor(1.0)}, 4, 3)["out"].shape
    torch.Size([3, 2])
    """
    if isinstance(out, Tensor):
        return out[:size] if out.dim() and len(out) == rows else out
    if isinstance(out, (tuple, list)):
        items = [own_rows(item, rows, size) for item in out]
        return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)
    return {key: own_rows(item, rows, size) for key, item in out.items()} if isinstance(out, dict) else out


class Learner(ABC):
    """Run a model on batches and train it there: what every method shares, `TOP` among them.

    A batch holds its nodes in `n_id`, of which the first `batch_size` are its targets.

    Args:
        model: any PyG model; it is called, never changed.
        data: the whole graph.
        call: how to call the model on a batch, where its arguments cannot be filled by name.
        fast_dropout: let `nn.Dropout` inside the model draw its masks faster on the CPU (see `models/dropout`).
        memory: GiB that may be taken, by default what is free; beyond, matrices over all nodes lie on disk.
        progress: told how far the preparation is.
    """

    handler: Binding  # what stands in for the model's message passing, once all is prepared
    refreshed_at: int | None = None  # the epoch (from 0) that the last refresh was made for, None before the first one
    frozen = False  # refresh nothing more: training has come to its end
    due: Any = False  # whether `exact` would take the occasion to refresh

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        call: Call | None = None,
        fast_dropout: bool = False,
        memory: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        plain(model)  # refuses what is no module
        self.model, self.data = model, in_precision(model, data, check(data, labels=False)).cpu()
        self.call, self.fast_dropout, self.memory, self.progress = call, fast_dropout, memory, progress
        self.arguments = settle(plain(model), self.data) if call is None else None
        self._run = caller(model, call, arguments=self.arguments)

    def _announce(self, remarks: Iterable[str] = ()) -> None:
        """Say how the model is called, unless the user has said so, and what else was found."""
        for line in (*((self.arguments.line,) if self.arguments else ()), *remarks):
            notify(line)

    # ---- training

    @abstractmethod
    def prepare(self) -> object:
        """Do once what training needs."""

    def __call__(self, batch: Data) -> Any:
        """Return the model's output on the batch, as if it ran on the whole graph; (batch_size, out).

        Where a model returns several tensors, in a tuple or a dict, so does this: rows of nodes are cut to the batch.
        """
        if not hasattr(self, "handler"):
            self.prepare()
        return self.forward(batch)

    def forward(self, batch: Data) -> Any:
        """Return the outputs of a batch's targets, with gradients; (batch_size, out), or what the model returns."""
        with self.handler.on(batch) as seen, fast_dropout(self.model) if self.fast_dropout else nullcontext():
            out = self._run(self.model, seen)
        if self.handler.recomputes:
            bind_in_backward(plain(self.model), self.handler, batch, out=out, fast=self.fast_dropout)
        if not isinstance(out, Tensor):
            return own_rows(out, seen.num_nodes, batch.batch_size)
        return out if len(out) == batch.batch_size else out[: batch.batch_size]

    def learn(self, batch: Data, loss_of: LossOf) -> Tensor:
        """Put the gradient of the batch's loss into the parameters; return the loss."""
        loss = loss_of(self.forward(batch), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def parameters(self) -> list[nn.Parameter]:
        """Return what is trained: the model's parameters, and the method's own where it has some."""
        return list(self.model.parameters())

    def freeze(self) -> None:
        """Refresh nothing from now on."""
        self.frozen = True

    # ---- what training sees

    @property
    def certificate_(self) -> float | None:
        """The method's own measure of what its batches miss, where it has one."""
        return None

    @abstractmethod
    def cover(self) -> Iterable[Data]:
        """Return batches that show what training sees, each node among the targets where that is possible."""

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the targets of one batch and the outputs that training sees for them, in eval mode."""
        batches = list(self.cover())
        return self._seen(batches[number % len(batches)])

    def outputs(self) -> Tensor:
        """Return what training sees of every node, in eval mode; NaN for nodes that are never targets."""
        whole: Tensor | None = None
        for batch in self.cover():
            nodes, out = self._seen(batch)
            if whole is None:
                whole = out.new_full((int(self.data.num_nodes or 0), *out.shape[1:]), float("nan"))
            whole[nodes] = out
        assert whole is not None
        return self._pooled(whole)

    def _pooled(self, outputs: Tensor) -> Tensor:
        """Return the outputs (n, out) of all processes; here there is one."""
        return outputs

    def _seen(self, batch: Data) -> tuple[Tensor, Tensor]:
        with evaluating(self.model):
            return batch.n_id[: batch.batch_size].cpu(), self.forward(self.placed(batch)).cpu()

    def report(self) -> list[Any]:
        """Describe the batches, where there is something to say."""
        return []

    # ---- the model's own face

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return device_of(self.model, self.data.x)

    def placed(self, batch: Data) -> Data:
        """Return a batch on the model's device; the batch itself, where it is there."""
        return batch if self.device.type == "cpu" else copy.copy(batch).to(self.device)

    def to(self, device: torch.device | str) -> Self:
        """Move the model; batches follow it."""
        self.model.to(device)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the user's own state_dict of the model."""
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the user's own state_dict."""
        self.model.load_state_dict(state)
