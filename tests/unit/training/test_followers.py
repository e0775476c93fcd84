"""Processes that follow the first one of a run."""

import copy

import pytest

from processes import together
from shared_work import told_versions
from topoff.machine.ranks import Ranks
from topoff.training.checkpoints import Checkpoint
from topoff.training.config import make_config
from topoff.training.followers import Unwritten, check_same_origin, check_shareable
from topoff.training.records import Epoch


def test_a_folder_that_is_not_written_leaves_nothing() -> None:
    folder = Unwritten()
    folder.write("a", "b")
    folder.append(Epoch(1))
    folder.keep_metrics(0)
    folder.save_model({})
    folder.save(Checkpoint({}))
    assert not folder.path.exists()
    assert not folder.finished
    assert folder.result().metric == ""


def test_only_what_several_processes_can_share_is_allowed() -> None:
    base = {"dataset": "x"}
    check_shareable(make_config(base, {"method": "gas"}), processes=1)
    check_shareable(make_config(base), processes=2)
    with pytest.raises(ValueError, match=r"Expected method top, drop or drop-ax with several processes \(got 'ns'"):
        check_shareable(make_config(base, {"method": "ns"}), processes=2)
    with pytest.raises(ValueError, match=r"Expected epochs with several processes \(got seconds = 7\)"):
        check_shareable(make_config(base, {"seconds": 7}), processes=2)


def test_graphs_and_versions_must_be_the_same() -> None:
    check_same_origin({}, Ranks())
    for found in together(told_versions, "data"):
        with pytest.raises(ValueError, match=r"Expected the same graph .* \(got content 1 in rank 1 and 0 in rank 0\)"):
            raise copy.copy(found)
    for found in together(told_versions, "versions"):
        with pytest.raises(ValueError, match=r"Expected the same versions .* \(got torch 1 in rank 1 and torch 0"):
            raise copy.copy(found)
