"""GraphFM (Yu et al., ICML 2022): feature momentum, for sampled messages and for the halo of clusters.

GraphFM-IB samples neighbours as GraphSAGE does, and averages what arrives over time. At each propagation, for the nodes
v that it is computed for, with S(v) the neighbours drawn for this batch and A the operator of the whole graph,

    m_v  <-  (1 - mix) m_v + mix (A[v,v] h_v + deg(v) / |S(v)| sum of A[v,u] h_u over u in S(v)),

which the layer then uses, and keeps (n, d) per propagation. The gradient flows through the fresh share only. Nothing is
sampled nor averaged where linear convs read the raw features: A X is known.

GraphFM-OB takes GAS's batches and histories, and refreshes the halo's rows before they are used. At each conv, with
H_B what the batch's nodes had at the conv before it,

    h~_C   =  update(A[C,B] H_B)                      messages of the batch alone, through the model's own layers
    Hbar_C <- (1 - mix) Hbar_C + mix h~_C,            Hbar_B <- H_B,
    Z_B    =  A[B,B] H_B + A[B,C] Hbar_C.

With mix = 0 it is GAS; with mix = 1 the halo is what the batch alone makes of it. Nothing is mixed, nor remembered,
where a conv reads the features, raw or after layers of its own: those are known.

Both follow the authors' code (divelab/DIG: GraphFMOB, and the GraphFMIB example), whose text was at hand; the paper's
own equation numbers were not. Linear convs only, whose messages are rows times fixed weights: elsewhere the parts of a
message cannot be told apart. Differences: A[C,B] is the operator's own, where the authors take A[B,C] transposed, the
same for GCN; a residual connection around a conv adds the halo's fresh row, where theirs adds nothing. IB's averages
start at zero, as theirs do but for the first propagation, which they start at X and which is exact here. OB's
histories are filled before the first epoch and by evaluations, as GAS's are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from topoff.forward.call import evaluating
from topoff.forward.convs import Conv
from topoff.forward.intercept import ConvCall, map_tensors
from topoff.forward.plan import Plan
from topoff.forward.structure import Structure, structure_of
from topoff.forward.subgraph import Supplement
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator, Sparse, to_sparse
from topoff.methods.base import check_linear
from topoff.methods.gas import Gas, Halo, Remembering, halo_of
from topoff.methods.histories import Histories
from topoff.methods.neighbour_sampling import NeighborSampling
from topoff.methods.sampled_layers import KnownFeatures
from topoff.models.dropout import DropoutNotes


def check_mix(mix: float) -> float:
    """Return the share of fresh values, which is to be in [0, 1].

    >>> check_mix(2.0)
    Traceback (most recent call last):
    ValueError: Expected mix to be between 0 and 1 (got 2.0); it is the share of the fresh value.
    """
    if not 0 <= mix <= 1:
        raise ValueError(f"Expected mix to be between 0 and 1 (got {mix}); it is the share of the fresh value.")
    return mix


# ---- in-batch


class AveragedMessages(KnownFeatures):
    """Average the sampled messages over time; a `Handler` for a model's convs."""

    def __init__(self, plan: Plan, graph: Graph, *, model: nn.Module, mix: float, histories: Histories) -> None:
        super().__init__(plan, graph)
        self.model, self.mix, self.histories = model, mix, histories

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return the average of the sampled messages, and keep it in training; (sources, d) -> (targets, d)."""
        fresh = super().aggregate(step, operator, h)
        if step in self.known:
            return fresh
        place, nodes = f"step {step}", self.batch.n_id[: len(fresh)]
        out = self.histories.pull(place, nodes, like=fresh).lerp(fresh, self.mix)
        if self.model.training:
            self.histories.push(place, nodes, out)
        return out


class GraphFMIB(NeighborSampling):
    """Train on sampled neighbours with averaged messages (GraphFM-IB); `mix` is the share of the fresh ones."""

    settings: ClassVar[tuple[str, ...]] = ("ratio", "fanout", "mix")

    def __init__(self, model: nn.Module, data: Data, *, fanout: int = 2, mix: float = 0.9, **shared: Any) -> None:
        super().__init__(model, data, fanout=fanout, **shared)
        self.mix = check_mix(mix)

    def stand_in(self) -> AveragedMessages:
        """Return what stands in for the model's message passing."""
        check_linear(self.plan, method="GraphFM-IB", instead="gas")
        return AveragedMessages(self.sampled_plan, self.graph, model=self.model, mix=self.mix, histories=self.histories)


# ---- out-of-batch


@dataclass(frozen=True, repr=False)
class BothWays(Halo):
    """Hold a batch's halo, and the messages between it and the batch."""

    outward: dict[Operator, Sparse]  # A[C, B], both sides numbered by position


def both_ways(graph: Graph, structure: Structure) -> BothWays:
    """Cut the messages between a batch and its halo; those inward can be differentiated."""
    near, nodes = halo_of(structure), structure.nodes.numpy()
    inward, outward = {}, {}
    for operator, matrix in near.inward.items():
        entries = (matrix.values.numpy(), matrix.ids.numpy(), matrix.offsets.numpy())
        inward[operator] = to_sparse(sp.csr_array(entries, shape=matrix.shape), matrix.values.dtype)
        whole = graph.aggregation(operator)
        outward[operator] = to_sparse(whole.matrix[near.nodes.numpy()][:, nodes], whole.dtype, transpose=False)
    return BothWays(near.nodes, inward, outward)


class HaloApart(DropoutNotes):
    """Note dropout, and let batch norms learn from a batch's first rows alone; the rest is normalised as in eval."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take batch norms in training apart; call any other function as it is."""
        if func is not F.batch_norm or not kwargs["training"]:
            return super().__torch_function__(func, types, args, kwargs)
        x, mean, variance = args
        assert mean is not None, "a norm without running statistics cannot be batched"
        inside = func(x[: self.size], mean, variance, **kwargs)
        return torch.cat([inside, func(x[self.size :], mean, variance, **{**kwargs, "training": False})])


class FreshHalo(Remembering):
    """Carry the halo's rows through the model beside the batch's, and mix them into the histories before use.

    Every tensor of the forward has b + c rows, those of the batch first.
    """

    def __init__(self, convs: list[Conv], model: nn.Module, *, mix: float, histories: Histories) -> None:
        super().__init__(convs, model, histories=histories)
        self.mix = mix
        self.known: set[str] = set()  # places before any propagation: the halo's own rows are right there
        self.tracing = False  # all messages are NaN, to find the places that they do not reach
        self._given: Tensor | None = None  # what the running conv reads, mixed

    def listener(self, batch: Data) -> DropoutNotes:
        """Return what listens to the forward of one batch in training."""
        return HaloApart(batch.batch_size)

    @property
    def batch_size(self) -> int:
        """Count the rows that are the batch's own."""
        return int(self.batch.batch_size)

    def convolve(self, call: ConvCall) -> Any:
        """Run a conv on the batch's rows and the halo's, mixed."""
        x, mixed = call.x, self.mixed(f"{call.conv.name}/{call.number}", call.x)
        call.args, call.kwargs = map_tensors((call.args, call.kwargs), lambda value: mixed if value is x else value)
        call.x = self._given = mixed
        return super().convolve(call)

    def aggregate(self, place: str, operator: Operator, h: Tensor) -> Tensor:
        """Return A[B,B] H_B + A[B,C] Hbar_C, and below it A[C,B] H_B without a gradient; (b + c, d)."""
        h = h if h is self._given else self.mixed(place, h)
        if self.tracing:
            return torch.full_like(h, float("nan"))
        own, halo = h[: self.batch_size], h[self.batch_size :]
        spot, near = self.batch.supplement.structure.spots[operator], self.batch.halo
        inside: Tensor = spot.within @ own
        inside = inside.index_add_(0, spot.boundary, near.inward[operator] @ halo)
        return torch.cat([inside, near.outward[operator] @ own.detach()])

    def mixed(self, place: str, h: Tensor) -> Tensor:
        """Push the batch's rows and the halo's mixed ones; return h with the halo's rows mixed; (b + c, d)."""
        if self.tracing and not bool(h.isnan().any()):
            self.known.add(place)
        if self.tracing or place in self.known:
            return h
        note = self.notes.of(h)
        source = (h if note is None else note.source).detach()
        own, fresh, halo = source[: self.batch_size], source[self.batch_size :], self.batch.halo.nodes
        share = 0.0 if self.filling else self.mix
        rows = self.histories.pull(place, halo, like=fresh).lerp(fresh, share)
        if self.pushes:
            self.histories.push(place, self.batch.supplement.structure.nodes, own)
            self.histories.push(place, halo, rows)
        return torch.cat([h[: self.batch_size], rows if note is None else note.again(rows)])


class GraphFMOB(Gas):
    """Train on clusters whose halo is remembered and refreshed by every batch that it touches (GraphFM-OB).

    A batch's rows are those of its clusters, `batch_size` of them, then those of its halo: a step costs about
    (b + c) / b times one of GAS. `mix` is the share of the halo's fresh rows.
    """

    settings: ClassVar[tuple[str, ...]] = (*Gas.settings, "mix")
    handler: FreshHalo

    def __init__(self, model: nn.Module, data: Data, *, mix: float = 0.3, **settings: Any) -> None:
        super().__init__(model, data, **settings)
        self.mix = check_mix(mix)

    def stand_in(self) -> FreshHalo:
        """Return what stands in for the model's message passing."""
        check_linear(self.plan, method="GraphFM-OB", instead="gas")
        return FreshHalo(self.plan.convs, self.model, mix=self.mix, histories=self.histories)

    def begin(self) -> None:
        """Partition the graph, and find out where the halo's rows are known."""
        super().begin()
        self.handler.tracing = True
        with evaluating(self.model):
            self.forward(self.placed(self.batch(0, 0)))
        self.handler.tracing = False

    def cut(self, nodes: Tensor) -> Data:
        """Cut a batch and its halo out of the graph."""
        plan = self.plan.in_batch_only()
        structure = structure_of(self.graph, plan, nodes)
        near = both_ways(self.graph, structure)
        batch = self.graph.induced(torch.cat([nodes, near.nodes]))
        batch.batch_size = nodes.numel()
        batch.supplement, batch.halo = Supplement(plan, structure), near
        return batch
