"""Histories: tables of the last known embeddings."""

import torch

from topoff.methods.histories import Histories


def test_what_was_never_pushed_is_zero_and_makes_no_table() -> None:
    histories = Histories(4)
    rows = histories.pull("a", torch.tensor([1, 3]), like=torch.ones(1, 2, dtype=torch.float64))
    assert torch.equal(rows, torch.zeros(2, 2, dtype=torch.float64))
    assert histories.tables == {}


def test_pushed_rows_have_no_gradient_and_pulled_ones_are_copies() -> None:
    histories, nodes = Histories(4), torch.tensor([3, 0])
    rows = torch.rand(2, 2, requires_grad=True)
    histories.push("a", nodes, rows)
    pulled = histories.pull("a", nodes, like=rows)
    assert torch.equal(pulled, rows)
    assert not pulled.requires_grad
    pulled.zero_()
    assert torch.equal(histories.pull("a", nodes, like=rows), rows)
    assert torch.equal(histories.table("a", like=rows)[[1, 2]], torch.zeros(2, 2))
