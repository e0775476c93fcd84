"""SGC (Wu et al., ICML 2019) and SIGN (Frasca et al., 2020): features are propagated once, then nodes are just rows.

Where a model propagates nothing but the raw features, A X, ..., A^K X are constants of the graph (SGC, Section 2.2;
SIGN, Eq. 4). They are computed before training; a batch is their rows for some training nodes, without any edge or
neighbour, and its outputs and gradients are those of the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from topoff.forward.intercept import ConvCall
from topoff.forward.structure import Spot, Structure
from topoff.forward.subgraph import Subgraph, Supplement
from topoff.graph.operators import to_sparse
from topoff.methods.base import MiniBatches, rows_of


class Precomputed(MiniBatches):
    """Train on rows of the propagated features; an epoch visits every training node once, `ratio` of them per batch.

    It holds for every model whose propagations are linear and all act on the raw features: `SGC`, `SIGN`, or a single
    SGConv, SSGConv, TAGConv or GCNConv. Dropout of the features before they are propagated is refused, because the
    propagated features would no longer be constant; `SIGN` drops them afterwards. SGC's authors train on all nodes at
    once, here that is `ratio=1`.

    >>> from torch_geometric.nn import SGConv
    >>> from topoff.data.load import load
    >>> ring = torch.stack([torch.arange(20), torch.arange(20).roll(1)])
    >>> data = load(Data(x=torch.rand(20, 3), edge_index=ring, y=torch.arange(20) % 2))
    >>> sgc = Sgc(SGConv(3, 2, K=2), data, ratio=0.5)
    >>> sgc.prepare()
    >>> [(batch.num_nodes, batch.num_edges) for batch in sgc.batches()]  # 12 training nodes
    [(6, 0), (6, 0)]
    """

    by_targets = True
    own_model: ClassVar[str]  # the model that the method is known by

    def begin(self) -> None:
        """Propagate the features.

        Raises:
            ValueError: for a model that propagates embeddings, or whose messages are not linear.
        """
        plan = self.plan
        others = plan.depth - sum(sum(calls) for calls in plan.known_hops.values())
        if plan.flows or others:
            nonlinear, deep = "with messages that are not linear", f"where {others} of {plan.depth} read embeddings"
            raise ValueError(
                f"Expected a model whose propagations are linear and all act on the raw features, such as SGC and SIGN "
                f"(got {type(self.model).__name__}, {nonlinear if plan.flows else deep}); use model 'sgc' or 'sign', "
                f"or another method."
            )
        for done, chain in enumerate(plan.chains):
            self._tell("propagating features", done, len(plan.chains))
            self.graph.propagated(chain)
        nothing = to_sparse(sp.csr_array((0, 0)), self.data.x.dtype, transpose=False)
        spot = Spot(nothing, torch.empty(0, dtype=torch.int64), nothing)
        self._spots = dict.fromkeys(plan.operators, spot)

    def stand_in(self) -> Subgraph:
        """Return what serves every propagation from the constants."""
        return _Known(self.plan.convs)

    def batch(self, epoch: int, number: int) -> Data:
        """Return the rows of some training nodes."""
        return self._rows(torch.from_numpy(self.targets(epoch, number)))

    def cover(self) -> Iterator[Data]:
        """Yield the rows of all nodes, in pieces."""
        return (self._rows(piece) for piece in torch.arange(self.graph.num_nodes).tensor_split(len(self)))

    def _rows(self, nodes: Tensor) -> Data:
        """Return some nodes as a batch without edges; every propagation of theirs is at hand."""
        batch = rows_of(self.graph, nodes, self.data.edge_index[:, :0], nodes[:0])
        constants = {chain: self.graph.propagated(chain)[nodes] for chain in self.plan.chains}
        batch.supplement = Supplement(self.plan, Structure(nodes, self._spots, {}, constants))
        return batch


class Sgc(Precomputed):
    """Train a logistic regression on A^K X: Simplifying Graph Convolutional Networks (Wu et al., ICML 2019)."""

    own_model = "sgc"


class Sign(Precomputed):
    """Train on [X, A X, ..., A^K X]: Scalable Inception Graph Neural Networks (Frasca et al., 2020)."""

    own_model = "sign"


class _Known(Subgraph):
    """Serve propagations of the raw features; refuse anything else, for which a batch has no neighbours."""

    def convolve(self, call: ConvCall) -> Any:
        """Run a conv on the propagated features."""
        if call.x is not self.batch.x:
            raise ValueError(
                f"Expected {call.conv} to read the raw features in training, too (got a changed copy): features that "
                f"are dropped out before their propagation cannot be precomputed; set input_dropout=0 or use model "
                f"'sign', which drops them afterwards."
            )
        return super().convolve(call)
