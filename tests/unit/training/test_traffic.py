"""What other methods would send between processes."""

import torch

from graphs import communities
from topoff.training.traffic import Cut, rivals_bytes

STAR = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 1]])  # all send to node 0, which sends to node 1


def test_rows_of_the_halo_are_counted_once_per_batch() -> None:
    sets = [torch.tensor([0]), torch.tensor([1]), torch.tensor([2, 3])]
    cut = Cut(STAR, sets, torch.tensor([0, 1, 0, 0]), processes=2)
    assert cut.halo_rows() == 2  # node 1 for the first batch, node 0 for the second; 2 and 3 are at home
    assert Cut(STAR, sets, torch.zeros(4, dtype=torch.long), processes=1).halo_rows() == 0


def test_all_neighbours_are_sampled_where_they_are_few() -> None:
    sets, everyone = [torch.tensor([0, 2]), torch.tensor([1, 3])], torch.ones(4, dtype=torch.bool)
    cut = Cut(STAR, sets, torch.tensor([0, 1, 0, 1]), processes=2)
    assert cut.sampled_rows(everyone, hops=0) == 0
    assert cut.sampled_rows(everyone, hops=1) == 2 + 1  # 1 and 3 for the first batch, 0 for the second
    assert cut.sampled_rows(torch.tensor([False, True, False, True]), hops=1) == 1


def test_bytes_grow_with_layers_and_features() -> None:
    data = communities(60)
    cut = Cut(data.edge_index, list(torch.arange(60).tensor_split(4)), torch.arange(60) // 15 % 2, processes=2)
    two, three = (
        rivals_bytes(cut, train_mask=data.train_mask, layers=layers, hidden=8, features=5, size=4) for layers in (2, 3)
    )
    assert three["gas"] == 2 * two["gas"] > 0
    assert three["ns"] > two["ns"] > 0
