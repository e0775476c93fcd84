"""Patterns of pairs: each once, sorted, without self-loops, and found again."""

import numpy as np

from graphs import corners
from topoff.batching.pattern import Pattern, pattern_of, pointers, undirected


def heard() -> Pattern:
    """Return who hears from whom: rows are receivers."""
    source, target = corners().edge_index.numpy()
    return pattern_of(target, source, num_nodes=14)


def test_a_pattern_has_every_pair_once_and_no_self_loops() -> None:
    source, target = corners().edge_index.tolist()
    wanted = sorted({(t, s) for s, t in zip(source, target, strict=True) if s != t})
    pattern = heard()
    assert list(zip(pattern.rows.tolist(), pattern.ids.tolist(), strict=True)) == wanted
    assert len(pattern.offsets) == 15


def test_undirected_pairs_are_there_once() -> None:
    source, target = corners().edge_index.tolist()
    wanted = sorted({(min(s, t), max(s, t)) for s, t in zip(source, target, strict=True) if s != t})
    pattern = undirected(*corners().edge_index.numpy(), num_nodes=14)
    assert list(zip(pattern.rows.tolist(), pattern.ids.tolist(), strict=True)) == wanted


def test_pairs_are_found_again() -> None:
    pattern = heard()
    order = np.random.default_rng(0).permutation(len(pattern.ids))
    assert (pattern.positions(pattern.rows[order], pattern.ids[order]) == order).all()


def test_a_pattern_without_pairs_and_one_without_nodes() -> None:
    loops = pattern_of(np.array([1]), np.array([1]), num_nodes=3)
    assert loops.offsets.tolist() == [0, 0, 0, 0]
    assert len(loops.ids) == 0
    none = np.zeros(0, dtype=np.int64)
    assert pattern_of(none, none, num_nodes=0).offsets.tolist() == [0]


def test_pointers_are_the_starts_of_rows_and_the_end() -> None:
    assert pointers(np.array([2, 0, 3])).tolist() == [0, 2, 2, 5]
    assert pointers(np.zeros(0, dtype=np.int64)).tolist() == [0]
