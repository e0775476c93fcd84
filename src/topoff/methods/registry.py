"""Ways to train a model on a graph, under one protocol: every method prepares, hands out batches and runs the model.

A method is one file. Scores never come from its batches: `exact` is the whole graph, batch by batch, for all of them.
"""

from __future__ import annotations

from topoff.methods.asgcn import Adapt
from topoff.methods.cluster import Cluster
from topoff.methods.drop import Drop, DropEmbeddings
from topoff.methods.fastgcn import FastGcn
from topoff.methods.full import Full
from topoff.methods.gas import Gas
from topoff.methods.graphfm import GraphFMIB, GraphFMOB
from topoff.methods.ibmb import Ibmb, IbmbBatch
from topoff.methods.labor import Labor, LaborStar
from topoff.methods.ladies import Ladies
from topoff.methods.lmc import LMC
from topoff.methods.neighbour_sampling import NeighborSampling
from topoff.methods.precomputed import Sgc, Sign
from topoff.methods.protocol import Kind
from topoff.methods.saint import SaintEdge, SaintNode, SaintWalk
from topoff.methods.shadow import Shadow, ShadowPpr
from topoff.methods.top import Top
from topoff.methods.vrgcn import VarianceReduced

METHODS: dict[str, Kind] = {
    "top": Top,
    "full": Full,
    "cluster": Cluster,
    "drop": Drop,
    "drop-ax": DropEmbeddings,
    "saint-node": SaintNode,
    "saint-edge": SaintEdge,
    "saint-walk": SaintWalk,
    "gas": Gas,
    "ns": NeighborSampling,
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
