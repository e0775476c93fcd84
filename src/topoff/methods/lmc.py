"""LMC (Shi, Liang and Wang, ICLR 2023): histories of embeddings and of gradients stand in for what a batch misses.

B is the batch, C its halo (senders and receivers), N[B] both. With A the whole graph's operator, h what a propagation
reads, Z = A h, and G = dL/dZ, a step of LMC takes, with one table of h and one of G per propagation,

    h^_C = (1 - beta) hist(h)_C + beta h_C      Z_B     = A[B, N[B]] [h_B; h^_C]         (Eq. 9 to 11)
    G^_C = (1 - beta) hist(G)_C + beta G_C      dL/dh_B = A[N[B], B]^T [G_B; G^_C]       (Eq. 12 to 14)

and the gradient of the parameters counts the rows of B only (Eq. 7), so that the batches of an epoch add up to the
whole. h_C and G_C are up to date but incomplete: the halo's rows of the same model on A[N[B], N[B]].

A step with mix > 0 runs the model twice. First on the rows of N[B], backwards to the propagations only, not to the
parameters: this gives h^_C and G^_C. Then on the rows of B alone with both of them given, backwards to the parameters.
In rows times weight matrices that is 5 b + 2 c, where splitting every layer by hand (the authors) takes 3 b + 2 c and
a second backward pass over N[B] 4 b + 4 c. With mix = 0 the first run is not needed: the cost is that of GAS, 3 b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import LossOf, plain
from topoff.forward.recompute import bind_in_backward
from topoff.forward.structure import Structure, inner_structure
from topoff.forward.subgraph import Supplement
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator, Sparse
from topoff.methods.base import check_linear
from topoff.methods.cluster import Cluster
from topoff.methods.exchange import Around, Inside, Patch, Vicinity
from topoff.models.dropout import fast_dropout

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": torch.ones_like,
    "linear": lambda x: x,
    "convex": lambda x: x * x,
    "concave": lambda x: x * (2 - x),
}


class LMC(Cluster):
    """Train with compensated forward and backward passes; models whose convs are linear (GCN, GCNII, SAGE, GIN ...).

    beta_i = mix * score(x_i), where x_i is the share of node i's messages that come from inside N[B] (going back: of
    the messages that it sends), self-loops that the layer adds included (the appendix, where `mix` is alpha). The paper
    searches both per data set; the authors' released settings have mix between 0.2 and 1 and the scores "constant",
    "linear" and "concave", 2 x - x^2, which is the default here.

    The loss of a batch is the sum over its training nodes times batches / training nodes: the batches of an epoch add
    up to the mean training loss times their number. Batches without training nodes are trained on too, for their rows
    are part of the gradient and of the histories; this is also why there is no `train_only`.

    What differs from the authors' code: (1) G is kept where messages arrive, not where they leave, so that no weight,
    norm or activation of C is needed to use it; it also takes the place of their history of C's outputs. (2) Histories
    hold what convs read, after dropout, where theirs are taken before; the two runs of a step draw their own masks.
    (3) A conv that reads raw features uses the exact A X, for C's rows too. (4) A conv's own path past the propagation
    (SAGE's root, GIN's) reads h_C in C's rows, not h^_C. (5) Halo nodes whose neighbours are all in N[B] are mixed
    like the others, where theirs are up to date. (6) Batch norm takes its statistics of B's rows for B, and of N[B]'s
    in the run that estimates C; running statistics come from B alone. (7) Histories begin at zero and are not
    refreshed by evaluation.

    Args (and those of `Cluster`, without train_only):
        mix: how much up-to-date, incomplete values count in the halo; 0: histories alone.
        score: "constant", "linear", "convex" or "concave".
    """

    settings: ClassVar[tuple[str, ...]] = ("batches", "ratio", "parts", "regroup", "mix")
    any_model: ClassVar[bool] = False
    skips = False  # rows without training nodes belong to the gradient and to the histories
    handler: Inside

    def __init__(
        self, model: nn.Module, data: Data, *, mix: float = 0.8, score: str = "concave", **settings: Any
    ) -> None:
        super().__init__(model, data, **settings)
        if self.sets.train_only:
            raise ValueError("Expected LMC without train_only (got True): rows of all nodes belong to its gradient.")
        if not 0 <= mix <= 1:
            raise ValueError(f"Expected 'mix' to be in [0, 1] (got {mix}); 0 uses histories alone.")
        if score not in SCORES:
            raise ValueError(f"Expected 'score' to be one of {', '.join(SCORES)} (got {score!r}); choose one of them.")
        self.mix, self.score = mix, score

    # ---- batches

    def stand_in(self) -> Inside:
        """Return what stands in for the model's message passing on B."""
        check_linear(self.plan, method="LMC", instead="gas or top")
        self._around = Around(self.plan.convs, self.histories)
        return Inside(self.plan.convs, self.histories)

    def begin(self) -> None:
        """Partition the graph, and count the messages that each node receives and sends."""
        self._counts: dict[Operator, tuple[Tensor, Tensor]] = {}  # (n,) both
        for operator in self.plan.operators:
            matrix = self.graph.aggregation(operator).matrix
            sent = np.bincount(matrix.indices, minlength=matrix.shape[1])
            self._counts[operator] = torch.from_numpy(np.diff(matrix.indptr)), torch.from_numpy(sent)
        super().begin()

    def cut(self, nodes: Tensor) -> Data:
        """Cut a batch and its vicinity out of the graph."""
        halo = nodes_around(self.graph, nodes)
        near = torch.cat([nodes, halo])
        structure = inner_structure(self.graph, self.plan, near)
        patches = {operator: self._patch(operator, spot.within, halo) for operator, spot in structure.spots.items()}
        rows = self._weighed(near, structure) if self.mix > 0 else None
        batch = self._weighed(nodes, inner_structure(self.graph, self.plan, nodes))
        batch.vicinity = Vicinity(nodes, halo, patches, rows)
        return batch

    def _weighed(self, nodes: Tensor, structure: Structure) -> Data:
        """Return the rows of some nodes with the weights of their losses."""
        batch = self.graph.induced(nodes)
        weight = len(self) / max(1, int(self.data.train_mask.sum()))
        batch.loss_weight = torch.full((len(nodes),), weight, dtype=self.data.x.dtype)
        batch.supplement = Supplement(self.plan, structure)
        return batch

    def _patch(self, operator: Operator, around: Sparse, halo: Tensor) -> Patch:
        """Return an operator around a batch, with the halo's mixes."""
        size, (received, sent) = around.shape[0] - len(halo), self._counts[operator]
        inside, inside_back = around.offsets.diff()[size:], around.offsets_t.diff()[size:]
        fresh = self._share(inside, received[halo]), self._share(inside_back, sent[halo])
        return Patch(around, size, int(around.offsets[size]), int(around.offsets_t[size]), *fresh)

    def _share(self, inside: Tensor, everywhere: Tensor) -> Tensor:
        """Return mix * score(inside / everywhere), (c, 1); a node without messages misses none."""
        x = torch.where(everywhere > 0, inside / everywhere.clamp(min=1), 1.0).to(self.data.x.dtype)
        return self.mix * SCORES[self.score](x).view(-1, 1)

    # ---- steps

    def forward(self, batch: Data) -> Any:
        """Return the outputs of B; nothing is pushed. A gradient of it uses the histories of G alone: see `learn`."""
        self._estimate(batch, None)
        return super().forward(batch)

    def learn(self, batch: Data, loss_of: LossOf) -> Tensor:
        """Put the compensated gradient of the batch's loss into the parameters, push, and return the loss."""
        self._estimate(batch, loss_of)
        self.handler.keeps = not self.frozen
        try:
            loss = _loss(super().forward(batch), batch, loss_of)
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            self.handler.keeps = False
        return loss.detach()

    def _estimate(self, batch: Data, loss_of: LossOf | None) -> None:
        """Run the model on N[B] for the rows of C: forward, and where the loss is given back to every propagation."""
        around, inside = self._around, self.handler
        around.vicinity = inside.vicinity = batch.vicinity
        around.halo_rows, around.probes, inside.probes = ({}, {}), [], []
        rows = batch.vicinity.rows
        if rows is not None:
            with _same_buffers(self.model), torch.set_grad_enabled(loss_of is not None):
                with around.on(rows), fast_dropout(self.model) if self.fast_dropout else nullcontext():
                    out: Tensor = self._run(self.model, rows)
                if around.recomputes:  # refused as soon as it happens
                    bind_in_backward(plain(self.model), around, rows, out=out)
                if loss_of is not None and around.probes:
                    torch.autograd.grad(_loss(out, rows, loss_of), around.probes, allow_unused=True)
        inside.halo_rows = around.halo_rows


def nodes_around(graph: Graph, nodes: Tensor) -> Tensor:
    """Return the neighbours outside a batch, those that send to it and those that hear from it; (c,) ascending.

    >>> path = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    >>> nodes_around(Graph(path), torch.tensor([1]))
    tensor([0, 2])
    """
    edges = graph.data.edge_index
    senders = edges[0, graph.edges_into(nodes)]
    receivers = edges[1, graph.edges_into(nodes, flow="target_to_source")]
    near = torch.zeros(graph.num_nodes, dtype=torch.bool)
    near[senders], near[receivers] = True, True
    near[nodes] = False
    return near.nonzero().view(-1)


def _loss(out: Tensor, batch: Data, loss_of: LossOf) -> Tensor:
    """Return the loss of some outputs; zero where there are no training nodes."""
    return loss_of(out, batch) if bool(batch.train_mask.any()) else out.sum() * 0


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """Leave the buffers (running statistics) as they were."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
