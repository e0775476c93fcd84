"""The folder of a run: what is written is read back, and whatever breaks in between leaves the old file whole."""

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from topoff.training.checkpoints import CHECKPOINT, Checkpoint, trained_weights
from topoff.training.config import make_config
from topoff.training.new_run import new_run
from topoff.training.records import Epoch
from topoff.training.run_folder import Metrics, RunFolder, Settings


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run").create()


def held(folder: RunFolder) -> dict[str, bytes]:
    """Return all files of a folder and their content, hidden ones included."""
    return {str(path.relative_to(folder.path)): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def checkpoint(value: float) -> Checkpoint:
    return Checkpoint({"epoch": value}, {"model": {"weight": torch.tensor([value])}})


# the folder


def test_a_folder_is_made_with_those_around_it(tmp_path: Path) -> None:
    assert RunFolder(tmp_path / "a" / "b").create().path.is_dir()
    assert RunFolder(tmp_path / "a" / "b").create().path.is_dir()  # an empty one is as good as none


def test_a_run_is_not_overwritten(folder: RunFolder) -> None:
    folder.write("config.toml", "")
    expected = r"--out to be a new folder \(got .*run, which holds a run\); resume it with --resume .*, start anew with"
    with pytest.raises(FileExistsError, match=expected):
        folder.create()
    assert held(folder) == {"config.toml": b""}


def test_other_files_are_never_overwritten(folder: RunFolder) -> None:
    folder.write("thesis.tex", "years of work")
    with pytest.raises(FileExistsError, match=r"which holds other files\); choose another --out\.$"):
        folder.create()
    assert held(folder) == {"thesis.tex": b"years of work"}


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(FileExistsError, match=r"--out to be a folder \(got the file .*run\); choose another place"):
        RunFolder(tmp_path / "run").create()


def test_a_run_must_have_settings(folder: RunFolder) -> None:
    with pytest.raises(FileNotFoundError, match=r"to be the folder of a run \(got no config.toml there\); give the"):
        folder.must_exist()
    folder.write("config.toml", "")
    assert folder.must_exist() is folder


# text


def test_texts_and_records_are_read_back(folder: RunFolder) -> None:
    folder.write("config.toml", "# ünïcode\n")
    folder.write("result.json", {"test": 0.1, "nested": [{"a": None}], "nothing": math.nan, "much": [math.inf]})
    assert (folder.path / "config.toml").read_text() == "# ünïcode\n"
    assert folder.read_json("result.json") == {"test": 0.1, "nested": [{"a": None}], "nothing": None, "much": [None]}
    assert "NaN" not in (folder.path / "result.json").read_text()


def test_a_run_is_finished_when_there_is_a_result(folder: RunFolder) -> None:
    assert not folder.finished
    folder.write("result.json", {})
    assert folder.finished


def test_a_missing_record_says_how_to_go_on(folder: RunFolder) -> None:
    with pytest.raises(FileNotFoundError, match=r"result.json \(got no such file\): .* topoff train --resume .*run\.$"):
        folder.read_json("result.json")


def test_a_damaged_record_is_one_sentence(folder: RunFolder) -> None:
    folder.write("result.json", '{"test": ')
    with pytest.raises(
        ValueError, match=r"result.json to hold a JSON object \(got Expecting value in line 1\); repair it"
    ):
        folder.read_json("result.json")


def test_settings_are_read_with_their_reasons(folder: RunFolder) -> None:
    text = '# topoff train x\ndataset = "a  # chosen: no"\nrank = 64  # chosen: 8 or more # nodes\nrefresh = "never"\n'
    folder.write("config.toml", text + 'batches = "random"  # chosen: no edges\n')
    keys = {"dataset": "a  # chosen: no", "rank": 64, "refresh": "never", "batches": "random"}
    reasons = {"rank": "8 or more # nodes", "batches": "no edges"}
    assert folder.settings() == Settings(keys, "topoff train x", reasons, str(folder.path / "config.toml"))
    assert folder.settings().config.rank == 64


@pytest.mark.parametrize("content", [b"dataset = \n", b'dataset = "\xff"\n'])
def test_damaged_settings_are_one_sentence(folder: RunFolder, content: bytes) -> None:
    (folder.path / "config.toml").write_bytes(content)
    with pytest.raises(ValueError, match=r"config.toml to be TOML.* \(got .*line 1.*\); "):
        folder.settings()


# metrics


def test_metrics_are_lines(folder: RunFolder) -> None:
    assert folder.metrics() == []
    for epoch in (1, 2, 3):
        folder.append(Epoch(epoch, loss=0.1 * epoch, val=math.nan, evaluated=True))
    assert [record.epoch for record in folder.metrics()] == [1, 2, 3]
    assert folder.metrics()[2] == Epoch(3, loss=0.1 * 3, val=None, evaluated=True)
    assert "NaN" not in (folder.path / "metrics.jsonl").read_text()


def test_an_unfinished_line_is_dropped(folder: RunFolder) -> None:
    folder.append(Epoch(1))
    assert folder.read_metrics() == Metrics([Epoch(1)])
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "lo')
    assert folder.read_metrics() == Metrics([Epoch(1)], cut=True)


def test_a_damaged_line_is_one_sentence(folder: RunFolder) -> None:
    folder.write("metrics.jsonl", '{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    with pytest.raises(
        ValueError, match=r"metrics.jsonl to hold a JSON object \(got Unterminated.* in line 2\); repair it or run"
    ):
        folder.metrics()


def test_metrics_after_an_epoch_are_dropped(folder: RunFolder) -> None:
    for epoch in (1, 2, 3):
        folder.append(Epoch(epoch))
    folder.keep_metrics(2)
    assert [record.epoch for record in folder.metrics()] == [1, 2]
    folder.keep_metrics(0)
    assert (folder.path / "metrics.jsonl").read_text() == ""


# tensors


def test_a_model_is_saved_as_its_own_state_dict(folder: RunFolder) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model[0].weight.data = model[0].weight.data.t().contiguous().t()  # not contiguous
    folder.save_model(model.state_dict())
    loaded = trained_weights(folder.path)[0]
    assert list(loaded) == sorted(model.state_dict())
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    assert set(load_file(folder.path / "model.safetensors")) == set(model.state_dict())  # any other reader's too


def test_tied_weights_are_saved_twice(folder: RunFolder) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    folder.save_model(model.state_dict())
    loaded = trained_weights(folder.path)[0]
    assert torch.equal(loaded["0.weight"], model[0].weight)
    assert torch.equal(loaded["1.weight"], model[0].weight)
    model.load_state_dict(loaded)
    assert model[1].weight is model[0].weight


def test_the_model_of_an_unfinished_run_is_the_best_of_its_checkpoint(folder: RunFolder) -> None:
    last, best = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
    folder.save(Checkpoint({}, {"model": last}))
    assert trained_weights(folder.path)[0]["w"] == 0
    folder.save(Checkpoint({}, {"model": last, "best": best}))
    assert trained_weights(folder.path)[0]["w"] == 1
    folder.save_model({"w": torch.full((1,), 2.0)})
    assert trained_weights(folder.path)[0]["w"] == 2


def test_nothing_trained_says_how_to_go_on(folder: RunFolder) -> None:
    expected = r"a trained model in .* \(got no model.safetensors and no checkpoint\); resume it with topoff train"
    with pytest.raises(FileNotFoundError, match=expected):
        trained_weights(folder.path)[0]


def test_a_checkpoint_is_read_back_to_the_bit(folder: RunFolder) -> None:
    assert folder.load() is None
    state = {"epoch": 3, "loss": 0.1 + 0.2, "best": {"val": math.nan}, "groups": [{"betas": [0.9, 0.999]}]}
    tensors = {
        "model": {"convs.0.weight": torch.randn(3, 2), "a/b": torch.arange(3)},
        "optimizer": {"0/step": torch.tensor(7.0), "0/exp_avg": torch.randn(3, 2, dtype=torch.float64)},
        "generator": {"cpu": torch.get_rng_state()},
        "best": {},
    }
    folder.save(Checkpoint(state, tensors))
    found = folder.load()
    assert found is not None
    assert math.isnan(found.state["best"].pop("val"))
    state["best"] = {}
    assert found.state == state
    assert set(found.tensors) == {"model", "optimizer", "generator"}  # an empty group leaves nothing
    for group, items in found.tensors.items():
        assert list(items) == sorted(tensors[group])
        assert all(torch.equal(value, tensors[group][key]) for key, value in items.items())
        assert all(value.dtype == tensors[group][key].dtype for key, value in items.items())


@pytest.mark.parametrize("content", [b"", b"\x08", b"garbage" * 20, None], ids=["empty", "byte", "garbage", "cut"])
def test_a_damaged_checkpoint_is_one_sentence(folder: RunFolder, content: bytes | None) -> None:
    folder.save(checkpoint(1.0))
    path = folder.path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:-2] if content is None else content)
    for read in (folder.load, lambda: trained_weights(folder.path)):
        expected = r"latest.safetensors to be a whole checkpoint \(got .*\), and there is none before it; restore it"
        with pytest.raises(ValueError, match=expected):
            read()


@pytest.mark.parametrize(
    ("metadata", "got"), [(None, "KeyError: 'state'"), ({"state": "{"}, "JSONDecodeError: Expecting property")]
)
def test_a_checkpoint_without_state_is_one_sentence(
    folder: RunFolder, metadata: dict[str, str] | None, got: str
) -> None:
    folder.save(checkpoint(1.0))
    save_file({"model/w": torch.zeros(1)}, folder.path / CHECKPOINT, metadata=metadata)
    with pytest.raises(ValueError, match=rf"latest.safetensors to be a whole checkpoint \(got {got}.*\), and"):
        folder.load()


def test_a_damaged_model_is_one_sentence(folder: RunFolder) -> None:
    (folder.path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"model.safetensors to be a whole safetensors file \(got .*\); train again"):
        trained_weights(folder.path)[0]


# what breaks in between


class Full:
    """A file on a disk that is full: half of what is written arrives."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, content: Any) -> None:
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        raise OSError(errno.ENOSPC, "No space left on device")


def fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode="r": Full(opened(path, mode)))


def kill_at_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)


def kill_at_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_: Path, __: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)


@pytest.mark.parametrize("breaking", [fill_the_disk, kill_at_the_write, kill_at_the_move])
@pytest.mark.parametrize("what", ["checkpoint", "model", "result", "metrics"])
def test_what_breaks_leaves_the_old_files_whole(
    folder: RunFolder, breaking: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save(checkpoint(1.0))
    folder.save_model({"w": torch.zeros(1)})
    folder.write("result.json", {"test": 1.0})
    folder.append(Epoch(1))
    before = held(folder)
    writes = {
        "checkpoint": lambda: folder.save(checkpoint(2.0)),
        "model": lambda: folder.save_model({"w": torch.ones(1)}),
        "result": lambda: folder.write("result.json", {"test": 2.0}),
        "metrics": lambda: folder.keep_metrics(0),
    }
    breaking(monkeypatch)
    if what == "metrics":
        monkeypatch.setattr(folder, "metrics", lambda: [Epoch(0)])  # it is reading that a full disk allows
    with pytest.raises((OSError, KeyboardInterrupt)):
        writes[what]()
    monkeypatch.undo()
    assert held(folder) == before  # and no .part file
    found = folder.load()
    assert found is not None
    assert found.state == {"epoch": 1.0}
    writes[what]()
    assert held(folder) != before


def test_the_first_checkpoint_that_breaks_leaves_none(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_the_disk(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        folder.save(checkpoint(1.0))
    monkeypatch.undo()
    assert held(folder) == {}
    assert folder.load() is None


def test_a_line_that_a_full_disk_cut_is_dropped(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.append(Epoch(1))
    fill_the_disk(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        folder.append(Epoch(2))
    monkeypatch.undo()
    assert folder.metrics() == [Epoch(1)]
    folder.keep_metrics(1)
    folder.append(Epoch(2))
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def test_what_is_left_of_a_beginning_is_no_run(folder: RunFolder) -> None:
    """A process that is killed as it begins leaves drafts, locks and settings of some seeds."""
    (folder.path / ".config.toml.ab12cd_x.part").mkdir()
    (folder.path / "seed-1").mkdir()
    (folder.path / "seed-1" / "config.toml").write_text("seed = 1")
    assert folder.create() is folder
    (folder.path / "seed-1" / "metrics.jsonl").write_text("{}")
    with pytest.raises(FileExistsError, match="holds other files"):
        folder.create()


def test_a_run_begins_where_another_one_had_only_begun(tmp_path: Path) -> None:
    config = make_config({"dataset": "wordnet"})
    (tmp_path / "run" / "seed-7").mkdir(parents=True)
    (tmp_path / "run" / "seed-7" / "config.toml").write_text("seed = 7")
    with new_run(tmp_path / "run", {Path("seed-0"): config, Path("seed-1"): config}, command="topoff train"):
        found = sorted(path.name for path in (tmp_path / "run").glob("*"))
    assert [name for name in found if not name.startswith(".")] == ["config.toml", "seed-0", "seed-1"]
