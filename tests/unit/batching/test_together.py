"""Node sets that several processes share."""

import pytest

from processes import together
from shared_work import partitioned
from topoff.batching.together import check_processes
from topoff.machine.ranks import Ranks


def test_all_take_the_parts_of_the_first() -> None:
    first, second = together(partitioned)
    assert first == second
    assert len(set(first)) == 6


def test_what_cannot_be_shared_out_is_refused() -> None:
    check_processes(Ranks(0, 2), accumulate=4, batches=2)
    with pytest.raises(ValueError, match="Expected accumulate to be at least 1 \\(got 0\\)"):
        check_processes(Ranks(), accumulate=0, batches=2)
    with pytest.raises(ValueError, match="Expected at most 2 processes, one per batch \\(got 3\\)"):
        check_processes(Ranks(0, 3), accumulate=3, batches=2)
    with pytest.raises(ValueError, match="Expected as many processes as divide the 3 batches of a step \\(got 2\\)"):
        check_processes(Ranks(0, 2), accumulate=3, batches=9)
