"""Colours of the 1-WL test, against those that can be seen by eye."""

import torch

from topoff.experiments.theory_colors import first_colors, refine
from topoff.experiments.theory_graphs import lift, path, ring, six_nodes


def test_colors_of_the_six_nodes_are_its_two_sets():
    data = six_nodes()
    for colors in refine(data, first_colors(data, "features"), rounds=3):
        assert colors.tolist() == [0, 0, 1, 1, 0, 0]


def test_a_pair_with_equal_closed_neighbourhoods_gets_one_color():
    """Eq. 14 does not mark the node itself, and neither does GCN."""
    data = path(torch.tensor([[1.0], [2.0]], dtype=torch.float64))
    first = first_colors(data, "features")
    assert first.tolist() == [0, 1]
    assert refine(data, first, rounds=1)[0].tolist() == [0, 0]


def test_degrees_are_part_of_the_first_colors_on_request():
    data = path(torch.ones(4, 1, dtype=torch.float64))
    assert first_colors(data, "features").tolist() == [0, 0, 0, 0]
    assert first_colors(data, "degrees").tolist() == [0, 1, 1, 0]


def test_a_lift_has_the_colors_of_its_base():
    base = ring(6, seed=2)
    data = lift(base, copies=5, seed=0)
    pairs = zip(*(refine(each, first_colors(each, "degrees"), rounds=3) for each in (base, data)), strict=True)
    for small, large in pairs:
        assert large.equal(small[data.kind])
