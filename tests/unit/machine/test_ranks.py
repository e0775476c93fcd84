"""Processes that meet, send each other numbers, rows and texts, count them, and lose each other."""

import os
from typing import Any

import pytest
import torch

from processes import together
from shared_work import at_work, ended_early
from topoff.machine.ranks import LostError, Ranks, joined


def test_a_process_alone_sends_nothing() -> None:
    ranks, rows = Ranks(), torch.rand(3, 2)
    routes = ranks.routes([torch.arange(3)])
    assert ranks.exchange(rows, routes) is rows
    assert ranks.gather(rows, counts=[3])[0] is rows
    assert (ranks.tell(b"x"), ranks.texts("y"), ranks.sent) == (b"x", ["y"], 0)


def test_without_the_variables_of_torchrun_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables in ({}, {"WORLD_SIZE": "2"}, {"RANK": "0", "WORLD_SIZE": "1"}):
        for name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with joined() as ranks:
            assert (ranks.rank, ranks.size) == (0, 1)


def test_processes_that_cannot_meet_say_how_to_start_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ValueError, match=r"Expected all 2 processes to meet at None:None \(got .*; start them with"):
        joined().__enter__()


def test_sums_rows_and_texts_arrive_and_are_counted() -> None:
    found: list[dict[str, Any]] = together(at_work, size=3)
    for rank, each in enumerate(found):
        assert each["sum"] == [6.0, 3.0]
        assert each["rows"] == [[10.0 * other + rank] for other in range(3) if other != rank]
        assert each["gathered"] == [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]
        assert each["told"] == b"the first"
        assert each["texts"] == ["rank 0", "rank 1, \u00e4", "rank 2"]
        assert each["sent"] == {
            "sum": [2 * 2 * 8, 1],  # 2 (W - 1) times two float32 numbers
            "rows": [6 * 4, 1],  # a float32 number from each to each
            "gathered": [2 * 6 * 4, 1],
            "told": [2 * (8 + len(b"the first")), 1],
        }


def test_a_process_that_ends_is_missed_at_once() -> None:
    first, second = together(ended_early)
    assert isinstance(first, LostError)
    assert isinstance(second, OSError)
    with pytest.raises(LostError, match=r"Expected all processes of the run to go on \(got one that has ended, or"):
        raise first
    assert "RANK" not in os.environ
