"""What a command trains: a run that is repeated keeps what its version did."""

import dataclasses
from pathlib import Path

import pytest

from topoff.training.config import make_config
from topoff.training.run_folder import PACE, RunFolder
from topoff.training.work import repeated_work


@pytest.mark.parametrize(("before", "now"), [(None, False), (False, False), (True, True)])
def test_a_run_of_before_weights_were_averaged_is_repeated_without(
    tmp_path: Path,
    before: bool | None,  # noqa: FBT001
    now: bool,  # noqa: FBT001
) -> None:
    folder = RunFolder(tmp_path / "old").create()
    (folder.path / PACE).write_bytes(b"steps")
    config = dataclasses.replace(make_config({"dataset": "x", "seconds": 1.0}), average=before)
    work = repeated_work([(folder, config)], repeat=folder.path, top=tmp_path / "new")
    assert [config.average for _, config in work.folders] == [now]
    assert work.records == {Path(PACE): b"steps"}
