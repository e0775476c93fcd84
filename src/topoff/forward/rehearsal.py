"""Rehearse a copy of a model on a piece of a graph, and compare exact batches with its plain forward there.

>>> from torch_geometric.nn import GCN
>>> from topoff.forward.piece import piece_of
>>> ring = Data(x=torch.rand(6, 3), edge_index=torch.stack([torch.arange(6), torch.arange(6).roll(1)]))
>>> rehearsal = Rehearsal(GCN(3, 4, num_layers=2), piece_of(Graph(ring)), call=None, perturbed=True)
>>> rehearsal.expected.shape, rehearsal.expected.dtype
(torch.Size([6, 4]), torch.float64)
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import Call, caller, device_of, evaluating, own_rows
from topoff.forward.convs import describe
from topoff.forward.copies import copied, default_type, perturb, restored, undrawn
from topoff.forward.difference import is_finite, relative_error
from topoff.forward.finite import refuse_not_finite
from topoff.forward.foreign import raise_broken, raise_in_place
from topoff.forward.intercept import Handler, map_tensors, uncached
from topoff.forward.lockstep import Lockstep
from topoff.forward.piece import beside_another, cloned, padded
from topoff.forward.plan import Plan
from topoff.forward.refusals import refusing_global
from topoff.graph.graph import Graph
from topoff.machine.draws import seed_draws

TOLERANCE, COARSE = 1e-9, 1e-3  # relative, in float64 and for a model that runs in its own type alone
Kind = TypeVar("Kind", bound=Lockstep)


class Rehearsal:
    """Hold a copy of a model in float64, a piece of a graph, and the output of the one on the other.

    Args:
        model: the user's own; only copied.
        piece: a small graph.
        call: how to call the model.
        perturbed: whether the copy's weights are changed at random, so that none is zero.

    Raises:
        ValueError: where the model does not run on the piece.
    """

    def __init__(self, model: nn.Module, piece: Data, *, call: Call | None, perturbed: bool) -> None:
        self.call, self.run = call, caller(model, call)
        self.device = device_of(model, piece.x)
        forwards = [vars(module).get("forward") for module in model.modules()]  # bound to a module, and not a method:
        self.bound = any(found and not isinstance(found, MethodType) for found in forwards)  # a copy's runs the model
        problem: Exception | None = None
        for dtype, changed in itertools.product((torch.float64, None), sorted({perturbed, False}, reverse=True)):
            try:
                self._take(model, piece, dtype, perturbed=changed)
                self.expected = self.plainly(self.piece)
            except Exception as error:  # a type that the model cannot compute in; the last try is the model as it is
                problem = error
                continue
            problem = None
            if is_finite(self.expected):
                return
        if problem is not None and perturbed:
            raise_broken(problem, int(piece.num_nodes or 0))
        if problem is not None:  # it ran before: an error of its own
            raise problem

    def _take(self, model: nn.Module, piece: Data, dtype: torch.dtype | None, *, perturbed: bool) -> None:
        """Copy model and piece into a type."""
        try:
            self.model = model if self.bound else copied(model)
        except Exception:  # locks, open files, generators: there is no copy
            self.bound, self.model = True, model
        self.dtype = None if self.bound else dtype
        self.piece = copy.copy(piece)
        if self.dtype is not None:
            self.model = self.model.to(dtype)
            for key, value in piece:
                if isinstance(value, Tensor) and torch.is_floating_point(value):
                    self.piece[key] = value.to(dtype)
        if perturbed and not self.bound:
            perturb(self.model)
        self.piece = self.piece.to(self.device)
        self.graph, self.convs = Graph(copy.copy(self.piece).cpu()), describe(self.model)

    def plainly(self, data: Data) -> Any:
        """Return the output of the plain forward in eval mode."""
        own = cloned(data)  # some models change their input
        with self._typed(), evaluating(self.model), uncached(self.convs), refusing_global(self.model):
            return self.run(self.model, own)

    def copy(self, *, training: bool) -> nn.Module:
        """Return the model, or a copy of it for training mode, which moves statistics."""
        return copied(self.model) if training and not self.bound else self.model

    def trace(self, model: nn.Module, tracer: Handler, watch: Any, *, training: bool) -> Any:
        """Run a copy of the model under something that stands in for its convs, in one of its modes.

        Raises:
            ValueError: where the model changes its input in place.
        """
        own = cloned(self.piece)
        watch.watched = [own[key] for key in ("edge_index", *self.graph.edge_level)]
        watched = {key: value for key, value in own if isinstance(value, Tensor) and not value.is_inference()}
        before = {key: value._version for key, value in watched.items()}
        with (
            self._typed(),
            undrawn(),
            restored(model, training=training),
            refusing_global(model),
            torch.no_grad(),
            tracer.on(own),
            watch,
        ):
            out = self.run(model, own)
        written = [key for key, version in before.items() if own[key]._version != version]
        if written:
            raise_in_place(written[0])
        return out

    def mixes_in_training(self) -> bool:
        """Whether rows read other nodes' in training mode, outside of norms that learn from a batch.

        A model with such norms, or one that draws anything, is not looked at: nobody could tell.
        """
        if any(conv.path == "norm" or conv.path == "batch" for conv in self.convs):
            return False
        model, count = self.copy(training=True), self.graph.num_nodes
        runs: list[Any] = []
        for data in (self.piece, self.piece, beside_another(self.piece, 0, larger=False)):
            with self._typed(), undrawn(), restored(model, training=True), torch.no_grad(), uncached(describe(model)):
                seed_draws(len(runs))
                try:
                    runs.append(own_rows(self.run(model, cloned(data)), int(data.num_nodes or 0), count))
                except Exception:  # it cannot train on the piece: nothing is learnt
                    return False
        first, again, beside = runs
        drawn = not relative_error(again, first) <= self.tolerance
        return not drawn and not relative_error(beside, first) <= self.tolerance

    def trained(self, model: nn.Module, handler: Handler, batch: Data) -> Any:
        """Run a copy of the model in training mode on a batch."""
        with self._typed(), undrawn(), restored(model, training=True), torch.no_grad(), handler.on(batch) as seen:
            return self.run(model, seen)

    def lockstep(self, plan: Plan, *, kind: type[Kind] = Lockstep) -> Kind:  # type: ignore[assignment]
        """Return what runs the model exactly on three batches of the piece, drawn at random."""
        order = torch.randperm(self.graph.num_nodes, generator=torch.Generator().manual_seed(0))
        batches = [self.graph.induced(part) for part in order.tensor_split(3) if part.numel()]
        return kind(self.convs, self.graph, batches, plan, device=self.device)

    # ---- the checks

    def check_finite(self) -> None:
        """Refuse a model whose plain output is not finite: that batches differ says nothing then."""
        refuse_not_finite(self.expected, run=self.plainly, piece=self.piece, model=self.model)

    def check_repeatable(self) -> None:
        """Refuse a model that is random in eval mode."""
        if not relative_error(self.plainly(self.piece), self.expected) <= self.tolerance:
            self.check_finite()
            raise ValueError(
                "Expected the model to return the same output twice in eval mode (got two different ones): look for "
                "dropout without training=self.training, or other randomness."
            )

    def check_apart(self, rows: int, *, where: str = "") -> None:
        """Refuse a model whose output at some nodes changes with nodes that no edge connects with them."""
        for larger in (True, False):  # larger values may be too large, or none that the model knows: categories
            longer = beside_another(self.piece, rows, larger=larger)
            try:
                out = self.plainly(longer)
            except Exception as error:
                if not larger:
                    raise_broken(error, int(longer.num_nodes or 0))
                continue
            if is_finite(out) or not is_finite(self.expected):
                break
        count, more = self.graph.num_nodes, int(longer.num_nodes or 0)

        place = lambda: self._first_of(self._outputs(self.piece, count, count), self._outputs(longer, more, count))  # noqa: E731
        self._check_same_size(self.expected, out, count, more, where=where or place)

    def _check_same_size(self, few: Any, many: Any, count: int, rows: int, *, where: str | Callable[[], str]) -> None:
        out = map_tensors(many, lambda tensor: tensor[:count] if tensor.dim() and len(tensor) == rows else tensor)
        if not relative_error(out, few) <= self.tolerance:
            self.check_finite()
            where = where if isinstance(where, str) else where()
            raise ValueError(
                f"Expected the model's output at a node to depend on the node and its neighbours alone (got another "
                f"one after {rows - count} nodes that no edge connects with it were added to {count}{where}): look for "
                f"a mean, maximum, norm, softmax or order over all nodes or edges, a branch on the number of nodes, or "
                f"self-loops that leave out the last nodes (num_nodes not given)."
            )

    def _check_few(self) -> None:
        """Refuse a model that treats two nodes without edges in another way when they are alone."""
        pair = self.graph.induced(torch.arange(min(2, self.graph.num_nodes))).to(self.device)
        pair.edge_index = pair.edge_index[:, :0]
        for key in self.graph.edge_level:
            pair[key] = pair[key][:0]
        try:
            few, many = self.plainly(pair), self.plainly(padded(pair, self.graph.num_nodes))
        except Exception:  # it cannot do without edges: nothing is learnt
            return
        self._check_same_size(few, many, 2, self.graph.num_nodes, where="")

    def compare(self, lockstep: Callable[[], Lockstep], *, normalizes: bool = False) -> None:
        """Compare exact batches with the plain forward, and raise where they differ."""
        try:
            with self._typed():
                out = lockstep().run_model(self.model, self.call)
        except Exception as problem:
            raise_broken(problem, self.graph.num_nodes)
        error = relative_error(out, self.expected)
        if not error <= self.tolerance:
            self.check_finite()
            where = self._first_difference(lockstep())
            if not normalizes:
                self.check_apart(3 * self.graph.num_nodes, where=where)
            self._check_few()
            raise ValueError(
                f"Expected the model's output at a node to depend on the node and its neighbours alone (got a relative "
                f"difference of {error:.1e} between exact batches and the plain forward on {self.graph.num_nodes} "
                f"nodes{where}): look there for a mean, norm, softmax or attention over all nodes, for edges that are "
                f"not the graph's own, for self-loops that leave out the last nodes (num_nodes not given), or convs "
                f"that are not registered (use nn.ModuleList)."
            )

    @property
    def tolerance(self) -> float:
        """The relative difference that is rounding."""
        return COARSE if self.dtype is None else TOLERANCE

    def _first_difference(self, lockstep: Lockstep) -> str:
        """Say after which module the batches first differ from the plain forward."""
        count = self.graph.num_nodes
        expected = self._outputs(self.piece, count, count)
        found: dict[str, Tensor] = {}
        filled: dict[str, Tensor] = {}

        def note_rows(name: str, out: Any) -> None:
            """Keep what a module returned for a batch."""
            batch = lockstep.awake
            if name in expected and isinstance(out, Tensor) and out.dim() and len(out) >= batch.size:
                whole = found.setdefault(name, expected[name].new_zeros(expected[name].shape))
                times = filled.setdefault(name, torch.zeros(count, dtype=torch.bool))
                if not times[batch.nodes].any() and whole.shape[1:] == out.shape[1:]:
                    whole[batch.nodes.to(whole.device)], times[batch.nodes] = out[: batch.size], True

        with self._hooked(note_rows), self._typed():
            lockstep.run_model(self.model, self.call)
        return self._first_of(expected, {name: rows for name, rows in found.items() if bool(filled[name].all())})

    def _outputs(self, data: Data, rows: int, count: int) -> dict[str, Tensor]:
        """Return the first `count` rows of what each module first returns in the plain forward, where it has rows."""
        kept: dict[str, Tensor] = {}

        def note(name: str, out: Any) -> None:
            """Keep what a module returned."""
            if isinstance(out, Tensor) and torch.is_floating_point(out) and out.dim() and len(out) == rows:
                kept.setdefault(name, out[:count].clone())

        with self._hooked(note):
            self.plainly(data)
        return kept

    def _first_of(self, expected: dict[str, Tensor], found: dict[str, Tensor]) -> str:
        """Name the first module whose rows differ."""
        for name, rows in expected.items():
            if name in found and not relative_error(found[name], rows) <= self.tolerance:
                return f", first at the output of {type(self.model.get_submodule(name)).__name__} '{name}'"
        return ", behind its last layer"

    @contextmanager
    def _hooked(self, note: Callable[[str, Any], None]) -> Iterator[None]:
        """Tell of the outputs of all modules inside the model."""
        hooks = [
            module.register_forward_hook(lambda _, __, out, name=name: note(name, out))
            for name, module in self.model.named_modules()
            if name and not any(name.startswith(f"{conv.name}.") for conv in self.convs)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _typed(self) -> AbstractContextManager[None]:
        """Let tensors that the model makes itself have its type."""
        return default_type(self.dtype)
