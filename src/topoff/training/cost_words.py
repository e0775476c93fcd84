"""What a method does in an epoch, in words: which nodes are batched, and what becomes of messages from outside.

>>> from topoff.training.config import make_config
>>> in_words(make_config({"dataset": "ring", "method": "ns", "fanout": 5}), batches=10, batch_nodes=100)
'ns: 10 batches of about 100 training nodes, 5 sampled neighbours per node and layer'
"""

from __future__ import annotations

from topoff.methods.registry import METHODS
from topoff.training.config import Config

TARGETS = {  # methods whose epochs visit every training node once -> what they do around their targets
    "ns": "{fanout} sampled neighbours per node and layer",
    "labor": "about {fanout} neighbours per node and layer, drawn jointly",
    "labor-star": "about {fanout} neighbours per node and layer, as few distinct ones as possible",
    "graphfm-ib": "{fanout} sampled neighbours per node and layer, averaged over time",
    "vrgcn": "{fanout} sampled neighbours per node and layer, the others from histories",
    "fastgcn": "nodes sampled layer by layer, from the whole graph",
    "ladies": "nodes sampled layer by layer among the neighbours, by their weights in the batch",
    "adapt": "nodes sampled layer by layer, with learnt probabilities",
    "shadow": "each in its own sampled {hops}-hop subgraph",
    "shadow-ppr": "each in the subgraph of the {fanout} nodes of largest PageRank around it",
    "ibmb": "with the {fanout} most influential nodes of each",
    "ibmb-batch": "with the nodes that influence them most",
    "sgc": "features propagated once, beforehand",
    "sign": "features propagated once, beforehand",
}
BATCHES = {  # methods whose batches are parts of the graph -> what becomes of the messages from outside
    "top": "messages from outside compensated at rank {rank}, refresh {refresh}",
    "drop": "messages from outside left out",
    "drop-ax": "embeddings from outside left out, features seen",
    "cluster": "messages from outside left out, the rest normalised anew",
    "gas": "messages from outside taken from histories",
    "lmc": "messages and gradients from outside compensated by histories",
    "graphfm-ob": "messages from outside taken from histories that every batch renews around itself",
    "saint-node": "subgraphs of nodes drawn by their degree",
    "saint-edge": "subgraphs of the ends of drawn edges",
    "saint-walk": "subgraphs of random walks of {walk_length} steps",
}


def in_words(config: Config, *, batches: int, batch_nodes: int) -> str:
    """Say what a method does in an epoch."""
    if config.method == "full":
        return "full: the whole graph at once"
    kind = "training nodes" if on_training(config) else "nodes"
    how = f"{config.batches} " if config.method in BATCHES and config.batches else ""
    size = f"{batches} {how}batch{'es' if batches > 1 else ''} of about {batch_nodes:,} {kind}"
    return f"{config.method}: {size}, " + (TARGETS | BATCHES)[config.method].format(**vars(config))


def on_training(config: Config) -> bool:
    """Whether the training nodes alone are batched."""
    return config.method in TARGETS or bool(config.train_only and "train_only" in METHODS[config.method].settings)
