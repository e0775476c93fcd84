"""AS-GCN (Huang, Zhang, Rong, Huang, NeurIPS 2018): a layer-wise sampler that learns to lower the variance.

Section 4: given the receivers v_1 ... v_r of a propagation, s of their neighbours are drawn with replacement by
q(u) proportional to sum_i p(u | v_i) g(x(u)), where p(u | v) = |A[v, u]| / sum_w |A[v, w]| and g reads the features of
u alone. Messages are multiplied with m(u) / (s q(u)), where m(u) says how often u was drawn. The loss of a batch is
L + weight * Var: the variance of what the last propagation aggregates teaches g, jointly with the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.forward.call import LossOf
from topoff.forward.neighbours import Chosen, Floats, Ints, Neighbors
from topoff.graph.operators import Movable, Operator
from topoff.methods.base import check_linear
from topoff.methods.fastgcn import messages_of, times_drawn, weights_of
from topoff.methods.sampled_layers import KnownFeatures, SampledLayers


@dataclass(frozen=True)
class Drawn:
    """Hold the messages of a step and the nodes that may send them."""

    messages: Chosen
    senders: Ints  # (c,) the receivers' neighbours, ascending
    shares: Floats  # (c,) sum over the receivers of p(u | v)
    weights: Floats  # (c,) m(u) / (s q(u)); empty where all were taken


@dataclass(frozen=True, repr=False)
class LastDraws(Movable):
    """Say how the nodes of a batch's last propagation were drawn: what its variance is estimated from."""

    features: Tensor  # (c, f) of the receivers' neighbours
    shares: Tensor  # (c,) sum over the receivers of p(u | v)
    drawn: Tensor  # (k,) which of the c were drawn, each once
    places: Tensor  # (k,) their rows in the batch
    weights: Tensor  # (k,) m(u) / (s q(u)), constants
    squares: dict[Operator, Tensor]  # (k, 1) sum over the receivers of A[v, u]^2
    own: dict[Operator, Tensor]  # (receivers, 1) A[v, v], which is not sampled


class TopRows(KnownFeatures):
    """Keep what the last propagation of a forward aggregates."""

    def aggregate(self, step: int, operator: Operator, h: Tensor) -> Tensor:
        """Return the sampled messages of a step; (sources, d) -> (targets, d)."""
        out = super().aggregate(step, operator, h)
        self.last = operator, h, out  # overwritten until the last one
        return out


class Adapt(SampledLayers):
    """Draw ratio * n nodes per propagation among the neighbours of its receivers, by probabilities that are learnt.

    Models of linear convs only; A X is known (`exact_first`, the authors' "mix"), so that a model of one propagation
    learns no sampler. Where the receivers have no more than s neighbours, all are taken and nothing is
    learnt about g. A batch depends on (seed, epoch, number) and on the sampler's present weights.

    What follows the authors' code rather than the paper: g(x) = ReLU(W_g x) + 1 instead of |W_g x|, so that no
    neighbour has probability zero; one W_g for all propagations; weight 0.5. Differences from that code: a node's own
    row is always there (the blocks are nested), hence A is taken without its diagonal; no attention between nodes, no
    skip connections to two layers below; p is the paper's, not the root of summed squares; the variance is the mean of
    those of all targets, as in the paper, not that of their mean.

    Args (and those of `SampledLayers`):
        weight: of the variance in the loss (the paper's lambda). Where an operator has rows that are not averages
            (GIN's sum), Var can outweigh the loss: lower it.
    """

    handler: TopRows

    def __init__(self, model: nn.Module, data: Data, *, weight: float = 0.5, **shared: Any) -> None:
        super().__init__(model, data, **shared)
        if weight < 0:
            raise ValueError(f"Expected weight to be at least 0 (got {weight}); 0 leaves the sampler as it is.")
        self.weight = weight
        bound = (6 / (data.num_features + 1)) ** 0.5  # Glorot and Bengio's, for one output
        first = self.rng(5).uniform(-bound, bound, size=data.num_features)
        self.sampler = nn.Parameter(torch.from_numpy(first).to(data.x.dtype))  # (f,) W_g, on the CPU where draws are

    def begin(self) -> None:
        """Compute what the probabilities of all batches are made of."""
        check_linear(self.plan, method="AS-GCN", instead="ladies")
        super().begin()
        self._shares = row_shares(self.neighbors)

    def stand_in(self) -> TopRows:
        """Return what stands in for the model's message passing."""
        return TopRows(self.sampled_plan, self.graph)

    # ---- drawing

    def choose(self, nodes: Ints, step: int, rng: np.random.Generator) -> Chosen:
        """Choose the messages of nodes drawn among the receivers' neighbours, or all where they are few."""
        return self._draw(nodes, rng).messages

    def _draw(self, nodes: Ints, rng: np.random.Generator) -> Drawn:
        messages = self.neighbors.all_of(nodes)
        senders, which = np.unique(self.neighbors.ids[messages.positions], return_inverse=True)
        shares = np.bincount(which, weights=self._shares[messages.positions]).astype(np.float64)
        if len(senders) <= self.nodes_per_step:
            return Drawn(messages, senders, shares, np.empty(0))
        with torch.no_grad():
            features = self.data.x[torch.from_numpy(senders)]
            chances = probabilities(features, torch.from_numpy(shares), self.sampler).numpy()
        weights = weights_of(times_drawn(chances, self.nodes_per_step, rng), chances)
        by_node = np.zeros(self.graph.num_nodes)
        by_node[senders] = weights
        return Drawn(messages_of(self.neighbors, messages, by_node), senders, shares, weights)

    def _sampled(self, targets: Ints, rng: np.random.Generator) -> Data:
        """Return the blocks of some targets, and how their last propagation was drawn."""
        steps: list[Drawn] = []

        def choose(nodes: Ints, step: int) -> Chosen:
            """Draw where the features are not known, and keep how."""
            if step in self.handler.known:
                return self.drawn(nodes, step, rng)
            steps.append(self._draw(nodes, rng))
            return steps[-1].messages

        batch = self.neighbors.batch(targets, depth=self.plan.depth, choose=choose)
        if steps and len(steps[0].weights):
            batch.last_draws = self._described(steps[0], batch)
        return batch

    def _described(self, last: Drawn, batch: Data) -> LastDraws:
        """Return what the variance of a batch's last propagation is estimated from."""
        neighbors, positions = self.neighbors, last.messages.positions
        drawn = np.flatnonzero(last.weights)
        ids = last.senders[drawn]
        which = np.searchsorted(ids, neighbors.ids[positions])
        sources = batch.n_id[: batch.blocks.steps[-1].sources].numpy()
        order = np.argsort(sources)
        dtype, targets = self.data.x.dtype, sources[: batch.batch_size]
        squares, own = {}, {}
        for operator, weights in neighbors.weights.items():
            sums = np.bincount(which, weights=weights[positions] ** 2, minlength=len(ids))
            squares[operator] = torch.from_numpy(sums).to(dtype).view(-1, 1)
            own[operator] = torch.from_numpy(neighbors.own[operator][targets]).to(dtype).view(-1, 1)
        return LastDraws(
            features=self.data.x[torch.from_numpy(last.senders)],
            shares=torch.from_numpy(last.shares),
            drawn=torch.from_numpy(drawn),
            places=torch.from_numpy(order[np.searchsorted(sources[order], ids)]),
            weights=torch.from_numpy(last.weights[drawn]).to(dtype),
            squares=squares,
            own=own,
        )

    # ---- learning

    def learn(self, batch: Data, loss_of: LossOf) -> Tensor:
        """Put the gradients of the loss and of the weighted variance into the parameters; return the loss alone."""
        loss = loss_of(self.forward(batch), batch)
        (loss + self.weight * self.variance(batch)).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def variance(self, batch: Data) -> Tensor:
        """Estimate the variance of what the last propagation of the last forward aggregated, the mean over its entries.

        For receiver v it is (sum_u A[v, u]^2 h[u]^2 / q(u) - mu[v]^2) / s. Both sums are estimated from the drawn
        nodes, weighed by the constant m(u) / (s q(u)), so that the gradient in W_g, through the q that divides, is
        unbiased; the value is (s - 1) / s of the variance on average, as mu is an estimate too.
        """
        operator, h, out = self.handler.last
        if "last_draws" not in batch:  # all messages were taken
            return h.new_zeros(())
        last: LastDraws = batch.last_draws
        chances = probabilities(last.features, last.shares, self.sampler.to(h.device))[last.drawn].to(h.dtype)
        weights = (last.weights / chances).view(-1, 1) * last.squares[operator]
        sampled = out - last.own[operator] * h[: len(out)]
        seconds = (weights * h[last.places] ** 2).sum()
        return (seconds - (sampled**2).sum()) / (self.nodes_per_step * out.numel())

    def parameters(self) -> list[nn.Parameter]:
        """Return the model's parameters and the sampler's."""
        return [*super().parameters(), self.sampler]

    def weights(self) -> dict[str, Tensor]:
        """Return the sampler's weights."""
        return {"sampler": self.sampler.detach().clone()}

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on from a position with the sampler of that time."""
        super().restore(state, {})
        with torch.no_grad():
            self.sampler.copy_(weights["sampler"])


def row_shares(neighbors: Neighbors) -> Floats:
    """Return p(u | v) = |A[v, u]| / sum_w |A[v, w]| beside `neighbors.ids`, added over the operators; (m,)."""
    receiver = np.repeat(np.arange(neighbors.num_nodes), neighbors.degree)
    found = np.zeros(len(neighbors.ids))
    for weights in neighbors.weights.values():
        sums = np.bincount(receiver, weights=np.abs(weights), minlength=neighbors.num_nodes)[receiver]
        found += np.divide(np.abs(weights), sums, out=np.zeros(len(sums)), where=sums > 0)
    return found


def probabilities(features: Tensor, shares: Tensor, sampler: Tensor) -> Tensor:
    """Return q(u), proportional to shares(u) (ReLU(W_g x(u)) + 1), in float64; (c, f), (c,), (f,) -> (c,).

    >>> probabilities(torch.eye(2), torch.tensor([1.0, 2.0]), torch.tensor([3.0, -5.0])).tolist()
    [0.6666666666666666, 0.3333333333333333]
    """
    importance = shares.double() * (torch.relu(features @ sampler).double() + 1)
    return importance / importance.sum().clamp(min=torch.finfo(torch.float64).tiny)
