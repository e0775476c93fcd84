"""What is compensated, and by how many directions, where the user leaves it open."""

import pytest
import torch

from graphs import communities
from topoff.batching.node_sets import NodeSets
from topoff.compensation.usual import has_offset, rank_for, usual_rank


@pytest.mark.parametrize(
    ("nodes", "batch", "offset", "rank"),
    [(50_001, 1_024, True, 128), (50_000, 1_024, True, 64), (50_001, 1_023, True, 64), (50_001, 1_024, False, 64)],
)
def test_large_batches_of_few_of_the_nodes_have_most(*, nodes: int, batch: int, offset: bool, rank: int) -> None:
    assert usual_rank("kaminpar", offset=offset, labels=10_000, nodes=nodes, batch=batch) == rank


def test_a_graph_and_its_batches_say_how_many() -> None:
    data = communities(120)
    every, alone = (NodeSets(method="metis", ratio=0.5, train_only=only) for only in (False, True))
    assert [rank_for(sets, data, offset=True) for sets in (every, alone)] == [16, 64]
    data.num_nodes, data.train_mask = 40_000, torch.arange(40_000) < 3_000
    assert rank_for(alone, data, offset=True) == 128


@pytest.mark.parametrize(
    ("asked", "estimator", "refresh", "found"),
    [(None, "ridge", "auto", True), (None, "paper", "auto", False), (None, "ridge", "never", False),
     (False, "ridge", "auto", False), (True, "paper", "auto", True)],
)  # fmt: skip
def test_an_offset_belongs_to_our_estimator_and_a_refresh(
    *, asked: bool | None, estimator: str, refresh: str, found: bool
) -> None:
    assert has_offset(offset=asked, estimator=estimator, refresh=refresh) is found
