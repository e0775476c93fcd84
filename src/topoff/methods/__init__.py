"""Ways to train a model on a graph, under one protocol: every method prepares, hands out batches and runs the model.

A method is one file. Scores never come from its batches: `exact` is the whole graph, batch by batch, for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn
from torch_geometric.data import Data

from topoff.loader import BatchReport
from topoff.methods.adapt import Adapt
from topoff.methods.cluster import Cluster
from topoff.methods.drop import Drop
from topoff.methods.fastgcn import FastGcn
from topoff.methods.full import Full
from topoff.methods.gas import Gas
from topoff.methods.graphfm import GraphFMIB, GraphFMOB
from topoff.methods.ibmb import Ibmb, IbmbBatch
from topoff.methods.labor import Labor, LaborStar
from topoff.methods.ladies import Ladies
from topoff.methods.lmc import LMC
from topoff.methods.minibatch import LossOf
from topoff.methods.ns import NeighbourSampling
from topoff.methods.precomputed import Sgc, Sign
from topoff.methods.saint import SaintEdge, SaintNode, SaintWalk
from topoff.methods.shadow import Shadow, ShadowPpr
from topoff.methods.top import Compensate
from topoff.methods.vrgcn import VarianceReduced


class Method(Protocol):
    """Train a model in some kind of batches."""

    model: nn.Module

    def __len__(self) -> int:
        """Count the batches of an epoch, those without training nodes included."""

    def prepare(self) -> None:
        """Do once what training needs: partition, embeddings, compensation."""

    def batches(self) -> Iterator[Data]:
        """Yield what is left of the current epoch, then go on to the next one."""

    def forward(self, batch: Data) -> Tensor:
        """Return the outputs of the first `batch_size` nodes of a batch, with gradients; (batch_size, out)."""

    def learn(self, batch: Data, loss_of: LossOf) -> Tensor:
        """Put the gradient of the batch's loss into the parameters; return the loss."""

    def parameters(self) -> list[nn.Parameter]:
        """Return what is trained: the model's parameters, and the method's own where it has some."""

    def exact(self) -> tuple[Tensor, bool]:
        """Return the exact output of all nodes in eval mode, and whether the method took the occasion to refresh."""

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the nodes of one batch and the outputs that training sees for them, in eval mode."""

    def outputs(self) -> Tensor:
        """Return the outputs that training sees for all nodes, in eval mode; NaN for nodes in no batch."""

    def freeze(self) -> None:
        """Refresh nothing from now on: training has come to its end."""

    def refreshed_at(self) -> int | None:
        """Return the epoch (from 0) that the last refresh was made for, None before the first one."""

    def certificate(self) -> float | None:
        """Return the method's own measure of what its batches miss, where it has one."""

    def reports(self) -> list[BatchReport]:
        """Describe the batches, where there is something to say."""

    def state(self) -> dict[str, Any]:
        """Return where training stands, JSON-able; `weights` and this are all that `restore` needs."""

    def weights(self) -> dict[str, Tensor]:
        """Return the weights, besides the model's current ones, that the state depends on."""

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Go on from a state, instead of `prepare`."""


class Kind(Protocol):
    """Make a method: its class."""

    settings: tuple[str, ...]  # of a run's settings, those that the method reads

    def __call__(self, *args: Any, **settings: Any) -> Method:
        """Take the model, the graph and the settings; nothing is prepared before `prepare` or `restore`."""


METHODS: dict[str, Kind] = {
    "top": Compensate,
    "full": Full,
    "cluster": Cluster,
    "drop": Drop,
    "saint-node": SaintNode,
    "saint-edge": SaintEdge,
    "saint-walk": SaintWalk,
    "gas": Gas,
    "ns": NeighbourSampling,
    "labor": Labor,
    "labor-star": LaborStar,
    "shadow": Shadow,
    "shadow-ppr": ShadowPpr,
    "ibmb": Ibmb,
    "ibmb-batch": IbmbBatch,
    "sgc": Sgc,
    "sign": Sign,
    "lmc": LMC,
    "graphfm-ob": GraphFMOB,
    "graphfm-ib": GraphFMIB,
    "vrgcn": VarianceReduced,
    "fastgcn": FastGcn,
    "ladies": Ladies,
    "adapt": Adapt,
}


def model_of(method: str, model: str) -> str:
    """Return the name of the model that a method trains: the one that is asked for, unless it brings its own.

    >>> model_of("top", "gcn"), model_of("sgc", "gcn")
    ('gcn', 'sgc')
    """
    return getattr(METHODS[method], "own_model", None) or model
