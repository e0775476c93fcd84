"""What a model's forward needs of the graph: the record that a trial run makes (`trial`) and every batch is cut by.

>>> Plan([], (), flows=("source_to_target",)).in_batch_only().exact_features
False
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from topoff.forward.convs import Conv
from topoff.forward.norms import Moments
from topoff.graph.graph import APART, AROUND, Chain
from topoff.graph.operators import Operator


@dataclass(frozen=True)
class Plan:
    """Say what batches of a graph must carry for one model."""

    convs: list[Conv]
    operators: tuple[Operator, ...]  # of the linear path
    flows: tuple[str, ...]  # neighbourhoods of the general path: flows, or `AROUND`; empty where no conv needs one
    known_hops: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by conv, per call: see `is_constant`
    chains: tuple[Chain, ...] = ()  # the operators applied to the raw features there
    exact_features: bool = True  # the halo's raw features are used; False: the batch sees nothing outside itself
    depth: int = 0  # propagations of one forward
    degrees: frozenset[str] = frozenset()  # general convs that compute with the edges: they get all that are `AROUND`
    deep: dict[str, frozenset[int]] = field(default_factory=dict)  # by conv: propagations that read another's result
    apart: bool = False  # edges are sorted or made unique: nodes beyond the halo must not be one
    rewired: frozenset[str] = frozenset()  # linear convs that are given other edges than the graph's own
    wide: bool = False  # the model itself reads edges: it is called with all rows and edges that are `AROUND`
    num_nodes: int = 0  # of the whole graph
    moments: dict[str, Moments] = field(default_factory=dict)  # by place: what norms over all nodes last saw
    mixes: bool = False  # in training mode rows read other rows of the batch, as a batch norm does
    coarse: bool = False  # the model cannot run in float64: it was tried in its own type

    def check_local(self) -> None:
        """Refuse a model for methods that give a conv the rows of its neighbours and nothing else.

        Raises:
            ValueError: where the model or one of its convs reads more than the rows of its neighbours.
        """
        more = self.degrees | self.deep.keys()
        readers = [str(conv) for conv in self.convs if conv.path == "norm" or conv.name in more]
        if self.wide or readers:
            raise ValueError(
                f"Expected a model that reads a node's neighbours alone, one propagation at a time (got "
                f"{readers[0] if readers else 'one that computes with the edges in its own forward'}): this method "
                f"cannot serve it; use top, full, cluster or shadow."
            )

    def remarks(self) -> list[str]:
        """Say what a user should know of how the model is run."""
        found = []
        if self.wide:
            found.append("the model computes with the edges itself: it is run on the neighbours of a batch, too")
        elif self.degrees:
            found.append(f"{', '.join(sorted(self.degrees))} read their neighbours' edges, too: all of them are given")
        norms = [conv.name for conv in self.convs if conv.path == "norm"]
        if norms:
            found.append(
                f"{', '.join(norms)} normalise over all nodes: exactly in evaluation; in training, nodes outside the "
                f"batch keep what they had at the last refresh (without a refresh, the batch stands for all)"
            )
        if self.mixes:
            found.append("in training mode, rows read other rows of their batch: there a batch is not the whole graph")
        if self.coarse:
            found.append("the model does not run in float64: it was compared with its plain forward up to 1e-3 only")
        return found

    def in_batch_only(self) -> Plan:
        """Return the plan under which nothing outside the batch is seen: rank 0."""
        return replace(self, known_hops={}, chains=(), exact_features=False)

    @property
    def normalizes(self) -> bool:
        """Whether the model has a norm over all nodes."""
        return any(conv.path == "norm" for conv in self.convs)

    def flow_of(self, conv: Conv) -> str:
        """Return the neighbourhood that a general conv gets."""
        return self.around if self.wide or conv.name in self.degrees else str(conv.module.flow)

    @property
    def around(self) -> str:
        """The neighbourhood of a model or conv that computes with the edges."""
        return APART if self.apart else AROUND

    def is_constant(self, conv: Conv, hop: int) -> bool:
        """Return whether a propagation sees only the raw features in all calls of its conv, so that its halo is known.

        A conv that is called on features and on embeddings counts as reading embeddings.
        """
        return hop < min(self.known_hops.get(conv.name) or (0,))
