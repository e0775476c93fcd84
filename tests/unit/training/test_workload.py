"""What an epoch of each method computes, counted against the method's own batches, and said in words."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from topoff.methods.registry import METHODS
from topoff.training.build import make_method, make_plan
from topoff.training.config import Config, make_config
from topoff.training.defaults import choose
from topoff.training.workload import in_words, workload

NODES, TRAINING = 2_000, 600


@pytest.fixture(scope="module")
def data() -> Data:
    """Make a graph with a ring of close nodes, some far edges, and a third of training nodes."""
    rng = np.random.default_rng(0)
    near = np.arange(NODES).repeat(3)
    edges = np.stack([near, (near + rng.integers(1, 6, len(near))) % NODES])
    edges = torch.from_numpy(np.unique(np.concatenate([edges, edges[::-1]], axis=1), axis=1))
    graph = Data(x=torch.randn(NODES, 6), edge_index=edges, y=torch.from_numpy(rng.integers(0, 3, NODES)))
    graph.train_mask = torch.from_numpy(rng.permutation(NODES) < TRAINING)
    graph.val_mask, graph.test_mask = ~graph.train_mask, torch.zeros(NODES, dtype=torch.bool)
    return graph


def chosen(data: Data, method: str, **settings: object) -> Config:
    keys = {"dataset": "graph", "method": method, "layers": 2, "hidden": 8, "ratio": 0.1, "rank": 4}
    return choose(make_config(keys, settings), data)[0]


@pytest.mark.parametrize("method", METHODS)
def test_batches_and_rows_are_about_those_of_the_method(data: Data, method: str) -> None:
    config = chosen(data, method)
    work, made = workload(config, data), make_method(make_plan(config, data))
    made.prepare()
    batches = list(made.batches())
    assert work.batches == len(made)
    assert len(work.rows) == len(work.messages) == config.layers
    if method == "lmc":  # its batches do not count their halo, and it runs twice
        assert work.rows[0] == 2 * workload(chosen(data, "graphfm-ob"), data).rows[0]
        return
    assert work.rows[0] / work.batches == pytest.approx(np.mean([batch.num_nodes for batch in batches]), rel=0.6)


@pytest.mark.parametrize("method", ["top", "drop", "cluster", "gas"])
def test_with_train_only_the_training_nodes_alone_are_counted(data: Data, method: str) -> None:
    work = workload(chosen(data, method, train_only=True), data)
    assert work.rows == [TRAINING, TRAINING]
    assert work.targets == TRAINING / 10


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("full", "full: the whole graph at once"),
        ("top", "top: 10 kaminpar batches of about 200 nodes, messages from outside compensated at rank 4, refresh ev"),
        ("cluster", "cluster: 10 kaminpar batches of about 200 nodes, messages from outside left out, the rest"),
        ("ns", "ns: 10 batches of about 60 training nodes, 10 sampled neighbours per node and layer"),
        ("shadow", "shadow: 10 batches of about 60 training nodes, each in its own sampled 2-hop subgraph"),
        ("saint-walk", "saint-walk: 10 batches of about 200 nodes, subgraphs of random walks of 2 steps"),
        ("sgc", "sgc: 10 batches of about 60 training nodes, features propagated once, beforehand"),
    ],
)
def test_in_words(data: Data, method: str, words: str) -> None:
    config = chosen(data, method)
    work = workload(config, data)
    assert in_words(config, batches=work.batches, batch_nodes=work.targets).startswith(words)


def test_every_method_has_words_of_its_own(data: Data) -> None:
    sentences = {in_words(chosen(data, method), batches=1, batch_nodes=1) for method in METHODS}
    assert len({sentence.partition(": ")[2] for sentence in sentences}) >= len(METHODS) - 1  # sgc and sign share theirs
    assert not any("None" in sentence or "{" in sentence for sentence in sentences)
