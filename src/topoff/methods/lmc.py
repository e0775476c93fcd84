"""LMC (Shi, Liang and Wang, ICLR 2023): histories of embeddings and of gradients stand in for what a batch misses.

B is the batch, C its halo (senders and receivers), N[B] both. With A the whole graph's operator, h what a propagation
reads, Z = A h, and G = dL/dZ, a step of LMC takes, with one table of h and one of G per propagation,

    h^_C = (1 - beta) hist(h)_C + beta h_C      Z_B     = A[B, N[B]] [h_B; h^_C]         (Eq. 9 to 11)
    G^_C = (1 - beta) hist(G)_C + beta G_C      dL/dh_B = A[N[B], B]^T [G_B; G^_C]       (Eq. 12 to 14)

and the gradient of the parameters counts the rows of B only (Eq. 7), so that the batches of an epoch add up to the
whole. h_C and G_C are up to date but incomplete: the halo's rows of the same model on A[N[B], N[B]].

A step with mix > 0 runs the model on the rows of B and, in step, a copy without gradients of its weights on those of C
(`exchange`): both hand in what a propagation reads and get what it comes to. In rows times weight matrices that is
3 b + 2 c, as in the authors' code, which splits every layer by hand. With mix = 0 the copy is not run: 3 b, as GAS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import LossOf
from topoff.forward.recompute import bind_in_backward
from topoff.forward.subgraph import cut_inside
from topoff.graph.graph import Graph
from topoff.graph.operators import Operator, Sparse
from topoff.methods.base import check_linear
from topoff.methods.beside import Beside
from topoff.methods.exchange import Inside, Partner, Patch, Vicinity
from topoff.methods.gas import Gas
from topoff.models.dropout import fast_dropout

SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": torch.ones_like,
    "linear": lambda x: x,
    "convex": lambda x: x * x,
    "concave": lambda x: x * (2 - x),
}


class LMC(Gas):
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
    hold what convs read, before dropout, where theirs hold what comes before the activation; pulled rows are dropped
    out like the batch's own. (3) A conv that reads raw features uses the exact A X, for C's rows too. (4) A conv's own
    path past the propagation (SAGE's root, GIN's) reads h_C in C's rows, not h^_C. (5) Halo nodes whose neighbours are
    all in N[B] are mixed like the others, where theirs are up to date. (6) Batch norm takes its statistics of B's rows
    for B and of C's for C, as their `SharedBN`; running statistics come from B alone.

    As in the authors' code, the histories of embeddings are filled before the first epoch and by every exact
    evaluation, whose time then counts as training; those of gradients begin at zero; batches are merged once.

    Args (and those of `Gas`, without train_only):
        mix: how much up-to-date, incomplete values count in the halo; 0: histories alone.
        score: "constant", "linear", "convex" or "concave".
    """

    settings: ClassVar[tuple[str, ...]] = ("batches", "ratio", "parts", "regroup", "mix")
    skips = False  # rows without training nodes belong to the gradient and to the histories
    handler: Inside

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        mix: float = 0.8,
        score: str = "concave",
        **settings: Any,
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
        self.partner = Partner(self.plan.convs, self.model)
        return Inside(self.plan.convs, self.model, partner=self.partner, histories=self.histories)

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
        near, patches = torch.cat([nodes, halo]), {}
        for operator in self.plan.operators:
            patches[operator] = self._patch(operator, self.graph.aggregation(operator).within(near), halo)
        rows = self._weighed(halo) if self.mix > 0 and len(halo) else None
        batch = self._weighed(nodes)
        batch.vicinity = Vicinity(nodes, halo, patches, rows)
        return batch

    def _weighed(self, nodes: Tensor) -> Data:
        """Return the rows of some nodes with the weights of their losses."""
        batch = cut_inside(self.graph, self.plan, nodes)
        weight = len(self) / max(1, int(self.data.train_mask.sum()))
        batch.loss_weight = torch.full((len(nodes),), weight, dtype=self.data.x.dtype)
        return batch

    def _patch(self, operator: Operator, around: Sparse, halo: Tensor) -> Patch:
        """Return an operator around a batch, with the halo's mixes."""
        size, (received, sent) = around.shape[0] - len(halo), self._counts[operator]
        inside, inside_back = around.offsets.diff()[size:], around.offsets_t.diff()[size:]
        fresh = self._share(inside, received[halo]), self._share(inside_back, sent[halo])
        return Patch(around, size, *fresh)

    def _share(self, inside: Tensor, everywhere: Tensor) -> Tensor:
        """Return mix * score(inside / everywhere), (c, 1); a node without messages misses none."""
        x = torch.where(everywhere > 0, inside / everywhere.clamp(min=1), 1.0).to(self.data.x.dtype)
        return self.mix * SCORES[self.score](x).view(-1, 1)

    # ---- steps

    def forward(self, batch: Data) -> Any:
        """Return the outputs of B; nothing is pushed. A gradient of it uses the histories of G alone: see `learn`."""
        with self._beside(batch):
            return super().forward(batch)

    def learn(self, batch: Data, loss_of: LossOf) -> Tensor:
        """Put the compensated gradient of the batch's loss into the parameters, push, and return the loss."""
        self.handler.keeps, self.handler.answers = not self.frozen, True
        try:
            with self._beside(batch) as runner:
                loss = together = _loss(super().forward(batch), batch, loss_of)
                if runner is not None:
                    together = loss + _loss(self._outputs(runner, batch.vicinity.rows), batch.vicinity.rows, loss_of)
            together.backward()  # type: ignore[no-untyped-call]
        finally:
            self.handler.keeps = self.handler.answers = False
        return loss.detach()

    @contextmanager
    def _beside(self, batch: Data) -> Iterator[Beside | None]:
        """Let the partner run the rows of C beside those of B, inside `with`, where they are wanted."""
        rows = batch.vicinity.rows
        if rows is None:
            yield None
            return
        with self.partner.running(rows, self._run_halo, model=self.model) as runner:
            yield runner

    def _run_halo(self, model: nn.Module, rows: Data) -> Tensor:
        """Run the partner's copy of the model."""
        with fast_dropout(model) if self.fast_dropout else nullcontext():
            out: Tensor = self._run(model, rows)
        return out

    def _outputs(self, runner: Beside, rows: Data) -> Tensor:
        """Return the outputs of C, whose rows have passed all propagations."""
        out: Tensor = runner.step()
        assert runner.done, "a model passes the same convs whatever its rows"
        if self.partner.recomputes:  # refused as soon as it happens
            bind_in_backward(self.partner.model, self.partner, rows, out=out)
        return out


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
