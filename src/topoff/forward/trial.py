"""Try a model on a small piece of the graph before anything else: what does it need, and can it be batched?

The trial runs a copy of the model in float64 with perturbed weights, so that what is zero at initialisation counts and
a difference means something. It finds out who reads the edges (`watch`), what the convs propagate, and, with NaN in
every row that must not be read, what depends on what; then exact batches are compared with the plain forward.

>>> from torch_geometric.data import Data
>>> from torch_geometric.nn import GCN
>>> data = Data(x=torch.rand(4, 3), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
>>> plan = make_plan(GCN(3, 8, num_layers=2, out_channels=2), Graph(data))
>>> [operator.norm for operator in plan.operators], plan.known_hops
(['gcn'], {'convs.0': (1,), 'convs.1': (0,)})
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from topoff.forward.call import Call, caller, evaluating, own_rows, plain
from topoff.forward.convs import Conv, describe
from topoff.forward.difference import is_finite
from topoff.forward.extended import Extended
from topoff.forward.foreign import ForeignInputError, is_refusal
from topoff.forward.intercept import ConvCall, map_tensors
from topoff.forward.lockstep import Lockstep
from topoff.forward.member import Handed
from topoff.forward.piece import piece_of
from topoff.forward.plan import Plan
from topoff.forward.rehearsal import Rehearsal
from topoff.forward.rows import raise_rows
from topoff.forward.subgraph import Subgraph, cut_batch
from topoff.forward.watch import Tracer, Watch
from topoff.graph.graph import Graph


def make_plan(model: nn.Module, graph: Graph, *, call: Call | None = None) -> Plan:
    """Try the model on a small piece of the graph; return what batches must carry for it.

    Raises:
        ValueError: for a model that cannot be batched, with the reason.
    """
    model, piece = plain(model), piece_of(graph)
    _check_dtype(model, graph.dtype)
    if any(is_lazy(parameter) for parameter in model.parameters()):
        with evaluating(model):
            caller(model, call)(model, piece.clone().to(next(model.parameters()).device))
    convs = {conv.name: conv for conv in describe(model)}
    plan = _tried(Rehearsal(model, piece, call=call, perturbed=True), graph.num_nodes)
    return replace(plan, convs=[convs[conv.name] for conv in plan.convs], num_nodes=graph.num_nodes)


def recheck(
    model: nn.Module, graph: Graph, plan: Plan, *, call: Call | None = None, seed: int = 0, perturbed: bool = False
) -> dict[str, Tensor]:
    """Compare exact batches with the plain forward again, on another piece and with the weights as they are now.

    Returns what is read of the piece, by place, in the order of the forward. With `perturbed` weights, none of which is
    zero, only rows that are the same by construction are equal.

    Raises:
        ValueError: where they differ, with the place.
    """
    rehearsal = Rehearsal(plain(model), piece_of(graph, seed=seed), call=call, perturbed=perturbed)
    plan = replace(plan, num_nodes=rehearsal.graph.num_nodes)
    read: dict[str, Tensor] = {}

    def noting() -> Lockstep:
        """Note what is read."""
        steps: Lockstep = rehearsal.lockstep(plan)
        steps.remember = read.__setitem__
        return steps

    rehearsal.compare(noting, normalizes=plan.normalizes)
    return read


def check_same_convs(model: nn.Module, plan: Plan) -> None:
    """Refuse a model whose convs are others than when it was prepared.

    Raises:
        ValueError: with what to do.
    """
    known = {conv.name: conv.module for conv in plan.convs}
    now = {conv.name: conv.module for conv in describe(model) if conv.name in known or conv.path != "batch"}
    other = sorted(name for name in known | now if known.get(name) is not now.get(name))
    if other:
        raise ValueError(
            f"Expected the layers that were there when the model was prepared (got others: {', '.join(other)}): "
            f"prepare a model whose layers were replaced anew, with a new TOP or method."
        )


def _check_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    """Refuse a model in another floating type than the features."""
    for name, parameter in model.named_parameters():
        if not is_lazy(parameter) and torch.is_floating_point(parameter) and parameter.dtype != dtype:
            raise ValueError(
                f"Expected the model in the type of the features, {dtype} (got {parameter.dtype} for '{name}'): "
                f"convert one of them, for example model.to({dtype})."
            )


def _tried(rehearsal: Rehearsal, num_nodes: int) -> Plan:
    """Return the plan of a rehearsed model."""
    watch = Watch([])
    seen = {False: _traced(rehearsal, watch, training=False)}
    try:
        seen[True] = _traced(rehearsal, watch, training=True)
    except Exception as error:  # a model that cannot train on the piece may still predict, or train on more
        if is_refusal(error):
            raise
        seen[True] = seen[False]
    rehearsal.check_repeatable()
    _check_same_depth(seen)
    narrow, wide = (_noted(rehearsal, seen[False], seen[True], wide=how) for how in (False, True))
    plan = wide if "" in watch.readers or _changes_features(seen) else narrow
    seen.clear()
    try:
        plan = _compared(rehearsal, plan)
    except ForeignInputError:
        if plan.wide:
            raise
        plan = _compared(rehearsal, wide)
    if plan.wide:
        _check_training(rehearsal, plan)
    if not plan.normalizes:
        rehearsal.check_apart(max(num_nodes, rehearsal.graph.num_nodes + 8))
    _warn_of_nan(rehearsal)
    return replace(plan, mixes=rehearsal.mixes_in_training())


def _warn_of_nan(rehearsal: Rehearsal) -> None:
    """Warn where the plain output is not finite already; -inf may be meant, to rule classes out."""
    try:
        rehearsal.check_finite()
    except ValueError as error:
        if "(got -inf" not in str(error):
            warnings.warn(str(error), stacklevel=2)


def _traced(rehearsal: Rehearsal, watch: Watch, *, training: bool) -> Tracer:
    """Run the model on the piece in one of its modes, and note what its convs do."""
    model = rehearsal.copy(training=training)
    tracer = Tracer(describe(model), rehearsal.graph, watch)
    out = rehearsal.trace(model, tracer, watch, training=training)
    if isinstance(out, Tensor) and (not out.dim() or len(out) != rehearsal.graph.num_nodes):
        count = rehearsal.graph.num_nodes
        raise_rows(out, of=f"the output in {'training' if training else 'eval'} mode", size=count)
    return tracer


def _check_same_depth(seen: dict[bool, Tracer]) -> None:
    """Refuse a general conv that propagates more often in training: only eval mode tells what reads what."""
    for name, most in seen[True].propagations.items():
        conv, least = seen[True].general[name], seen[False].propagations.get(name, most)
        if most > least:
            raise ValueError(
                f"Expected {conv} to propagate as often in training as in eval mode (got {most} times instead of "
                f"{least}): use one conv for each propagation that training adds."
            )


def _changes_features(seen: dict[bool, Tracer]) -> bool:
    """Whether a conv that reads the features in eval mode reads changed ones in training, other than dropped out."""
    for name, calls in seen[False].hops.items():
        training = seen[True].hops.get(name, [])
        if len(training) == len(calls) and any(now < then for now, then in zip(training, calls, strict=True)):
            return True
    return False


def _noted(rehearsal: Rehearsal, evaluated: Tracer, trained: Tracer, *, wide: bool) -> Plan:
    """Make a plan of what was noted in both modes."""
    watch = evaluated.watch
    degrees = evaluated.degrees() | trained.degrees()
    plan = Plan(
        [conv for conv in rehearsal.convs if conv.path != "batch" or wide or _is_inside(conv, rehearsal.convs)],
        tuple(dict.fromkeys([*evaluated.operators, *trained.operators])),
        (),
        {} if wide else {name: tuple(calls) for name, calls in evaluated.hops.items()},
        () if wide else tuple(dict.fromkeys([*evaluated.chains(), *trained.chains()])),
        depth=evaluated.depth,
        degrees=degrees,
        wide=wide,
        coarse=rehearsal.dtype is None and is_finite(rehearsal.expected),
        apart=watch.sorts,
        rewired=frozenset(evaluated.rewired if wide else ()),
        num_nodes=rehearsal.graph.num_nodes,
    )
    general = (evaluated.general | trained.general).values()
    return replace(plan, flows=(plan.around,) if wide else tuple(dict.fromkeys(plan.flow_of(conv) for conv in general)))


def _is_inside(norm: Conv, convs: list[Conv]) -> bool:
    """Whether a batch norm belongs to a general conv, which runs on more rows than the batch's."""
    return any(conv.path == "general" and norm.name.startswith(f"{conv.name}.") for conv in convs)


def _compared(rehearsal: Rehearsal, plan: Plan) -> Plan:
    """Compare exact batches with the plain forward, and note which propagations read another's result."""
    tainted: list[Tainted] = []

    def lockstep() -> Tainted:
        """Start anew."""
        tainted.append(rehearsal.lockstep(plan, kind=Tainted))
        return tainted[-1]

    rehearsal.compare(lockstep, normalizes=plan.normalizes)
    deep = {name: frozenset(steps) for name, steps in tainted[0].deep.items()}
    known = {name: tuple(calls) for name, calls in tainted[0].known.items()} if plan.wide else plan.known_hops
    return replace(plan, deep=deep, known_hops=known)


def _check_training(rehearsal: Rehearsal, plan: Plan) -> None:
    """Refuse a wide model that reads rows outside the batch in training mode, where they are not computed right.

    Raises:
        ValueError: with what to look for.
    """
    nodes = torch.randperm(rehearsal.graph.num_nodes, generator=torch.Generator().manual_seed(1))
    batch = cut_batch(rehearsal.graph, plan, nodes[: max(2, len(nodes) // 3)]).to(rehearsal.device)
    model = rehearsal.copy(training=True)
    bound = {conv.name for conv in plan.convs}
    handler = TaintedTraining([conv for conv in describe(model) if conv.name in bound])
    out = rehearsal.trained(model, handler, batch)
    if not is_finite(own_rows(out, batch.supplement.wide.num_nodes, batch.num_nodes)) and is_finite(rehearsal.expected):
        raise ValueError(
            "Expected the model to treat each row alone in training mode, outside its convs and norm modules (got rows "
            "that read those of other nodes): look for F.batch_norm (use nn.BatchNorm1d), a mean over nodes, or rows "
            "that are mixed or permuted."
        )


class TaintedTraining(Subgraph):
    """Run a wide model in training, with NaN in the rows that its convs leave behind outside the batch."""

    def convolve(self, call: ConvCall) -> Any:
        """Taint what a conv leaves behind."""
        out = super().convolve(call)
        if call.conv.path == "norm" or call.conv.path == "batch":
            return out
        extended = self._general(call)
        return extended.widen(extended.narrow(out), value=float("nan"))


class Tainted(Lockstep):
    """Put NaN into all rows outside the batches that a conv leaves behind, and note who reads them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deep: dict[str, set[int]] = {}
        self.known: dict[str, list[int]] = {}

    def knows(self, call: ConvCall) -> int:
        """Whether no argument holds a tainted row, in any batch."""
        near = self.awake.neighborhood(self.plan.flow_of(call.conv))
        extended = Extended(call, self.awake.data, self.awake.size, near, lambda h: h, wide=True)
        known = int(not self._any_tainted(call, extended, (call.args, call.kwargs)))
        calls = self.known.setdefault(call.conv.name, [])
        if call.number == len(calls):
            calls.append(known)
        return known

    def leave(self, extended: Extended, out: Any) -> Any:
        """Taint the rows outside the batch."""
        return extended.widen(extended.narrow(out), value=float("nan"))

    def propagate_own(self, call: ConvCall, spread: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        """Heal what another propagation has tainted, and note that; taint the result."""
        step, call.propagations = call.propagations, call.propagations + 1
        if self._any_tainted(call, call.extended, given):
            self.deep.setdefault(call.conv.name, set()).add(step)
            given = map_tensors(given, call.extended.heal)
        return self.leave(call.extended, spread(given))

    def _any_tainted(self, call: ConvCall, extended: Extended, given: Any) -> bool:
        """Whether tensors of some batch hold a tainted row of its halo; all batches learn it together."""
        found: list[bool] = []

        def look(tensor: Tensor) -> None:
            """Note whether a tensor is tainted."""
            axis = extended.axis(tensor, extended.rows)
            if axis is not None and torch.is_floating_point(tensor):
                found.append(bool(tensor.narrow(axis, extended.size, extended.rows - extended.size).isnan().any()))

        map_tensors(given, look)
        flag = torch.tensor([float(any(found))], device=self.awake.device)
        return bool(self.awake.hand_in(Handed(call.conv, None, flag, is_sum=True)) > 0)
