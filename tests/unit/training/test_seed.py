"""One seed in its folder: what is left open is chosen once, a run says how to use it, and its memory is its own."""

import ctypes
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import topoff.training.seed
import topoff.training.trained
from graphs import communities
from topoff.machine.memory import forget_peak, peak_memory
from topoff.training.build import Setup
from topoff.training.config import Config, make_config, write_toml
from topoff.training.listener import Listener
from topoff.training.loop import Training
from topoff.training.records import Epoch
from topoff.training.run_folder import RunFolder
from topoff.training.seed import begin, train_seed
from topoff.training.trained import graph_for, open_run, outputs

pytestmark = pytest.mark.filterwarnings("ignore:The compensation misses")
TABLES = Path(__file__).parents[3] / "examples" / "tables"
SETTINGS: dict[str, Any] = {"dataset": "graph", "layers": 2, "hidden": 8, "epochs": 3, "ratio": 0.5}
# what method top leaves open with these settings
OPEN = ["batches", "regroup", "train_only", "rank", "refresh", "late", "average", "eval_every"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOFF_CACHE", str(tmp_path / "cache"))


def settings(**changes: Any) -> Config:
    return make_config(SETTINGS, changes)


def graph() -> Data:
    return communities(60, groups=3, dtype=torch.float32)


def stored(place: Path) -> str:
    np.savez(place / "graph.npz", **{name: value.numpy() for name, value in graph().to_dict().items()})
    return str(place / "graph.npz")


class Stopping(Listener):
    """Stop after some epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def trains(self, training: Training) -> None:
        self.training = training

    def evaluated(self, epoch: Epoch) -> None:
        self.training.stop = epoch.epoch == self.epoch


def interrupted(config: Config, folder: RunFolder, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_seed(config, folder, listener=Stopping(1), **options)


# settings


def test_what_was_left_open_is_written_with_its_reason(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    training = train_seed(settings(), folder, data=graph(), command="topoff train graph")
    found, result = folder.settings(), folder.result()
    assert found.config == training.config
    assert None not in [found.keys.get(name) for name in OPEN]
    assert list(found.reasons) == [choice["what"] for choice in result.chosen] == OPEN
    assert (found.command, result.command) == ("topoff train graph", "topoff train graph")


def test_a_run_that_is_resumed_keeps_its_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train_seed(settings(), whole, data=graph())
    interrupted(settings(), broken, data=graph())
    text = (broken.path / "config.toml").read_text()
    monkeypatch.setattr("topoff.compensation.usual.LITTLE", 1)  # what would be chosen today is another matter
    train_seed(settings(), broken, data=graph())
    assert (broken.path / "config.toml").read_text() == text == (whole.path / "config.toml").read_text()
    assert broken.result().chosen == whole.result().chosen
    assert (broken.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_a_run_begun_before_choices_were_written_is_resumed(tmp_path: Path) -> None:
    whole, old = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "old")
    train_seed(settings(average=False), whole, data=graph())
    interrupted(settings(average=False), old, data=graph())
    old.write("config.toml", write_toml(settings(average=False), command="topoff train graph"))  # the others are open
    train_seed(old.settings().config, old, data=graph())
    assert old.result().chosen == whole.result().chosen
    assert old.settings().reasons == whole.settings().reasons
    assert (old.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_a_run_begun_before_weights_were_averaged_goes_on_without(tmp_path: Path) -> None:
    whole, old = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "old")
    train_seed(settings(average=False), whole, data=graph())
    interrupted(settings(average=False), old, data=graph())
    text = (old.path / "config.toml").read_text()
    old.write("config.toml", "".join(line for line in text.splitlines(keepends=True) if "average" not in line))
    checkpoint = old.load()
    assert checkpoint is not None
    del checkpoint.state["config"]["average"]
    old.save(checkpoint)
    for given in (old.settings().config, settings(), settings(average=False)):  # again, and as a config says it now
        train_seed(given, old, data=graph())
    assert old.settings().config.average is False
    with pytest.raises(ValueError, match="average: False -> True"):
        begin(settings(average=True), old, command="another")
    assert (old.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()


def test_other_settings_than_those_of_the_run_are_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    begin(settings(rank=6), folder, command="topoff compare graph")
    train_seed(settings(rank=6), folder, data=graph())
    before = (folder.path / "config.toml").read_bytes()
    begin(settings(rank=6), folder, command="another")  # open settings may be left open again
    begin(settings(rank=6, refresh="auto"), folder, command="another")  # or be given as they were chosen
    for changes, message in [
        ({"rank": 6, "lr": 0.5}, r"lr: 0\.01 -> 0\.5"),
        ({"rank": 6, "refresh": "never"}, "refresh: auto -> never"),
        ({}, "rank: 6 -> None"),  # it was given, not chosen
    ]:
        with pytest.raises(ValueError, match=rf"run was begun with \(got {message}\); use those, or choose another"):
            begin(settings(**changes), folder, command="another")
    assert (folder.path / "config.toml").read_bytes() == before


def test_a_run_of_before_the_batched_nodes_were_chosen_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    old = settings(rank=6, train_only=False)
    folder.write("config.toml", write_toml(old, command="topoff compare graph"))  # without a reason: nobody chose it
    begin(settings(rank=6), folder, command="another")
    with pytest.raises(ValueError, match="train_only: False -> True"):
        begin(settings(rank=6, train_only=True), folder, command="another")
    folder.write("config.toml", write_toml(settings(rank=6, train_only=True), command="topoff compare graph"))
    with pytest.raises(ValueError, match="train_only: True -> None"):
        begin(settings(rank=6), folder, command="another")


def test_a_finished_run_is_only_opened(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    first = train_seed(settings(), folder, data=graph())
    names = ("config.toml", "metrics.jsonl", "result.json", "model.safetensors")
    before = {name: (folder.path / name).read_bytes() for name in names}
    again = train_seed(settings(), folder, data=graph())
    assert {name: (folder.path / name).read_bytes() for name in names} == before
    assert dataclasses.asdict(again.progress)["steps"] == first.progress.steps


def test_the_listener_hears_of_the_setup_and_of_the_training(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Noting(Listener):
        def set_up(self, setup: Setup) -> None:
            heard.append(setup)

        def trains(self, training: Training) -> None:
            heard.append(training)

    training = train_seed(settings(dataset=stored(tmp_path)), RunFolder(tmp_path / "run"), listener=Noting())
    assert heard == [training.setup, training]
    assert (training.setup.task.metric, training.setup.classes) == ("accuracy", ["0", "1", "2"])


# from a table to predictions


def test_a_run_of_the_library_can_encode_another_table(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    training = train_seed(settings(dataset=str(TABLES)), folder)
    assert folder.read_json("encoding.json") == training.data.names.encoding
    (tmp_path / "half").mkdir()
    lines = (TABLES / "nodes.csv").read_text().splitlines()
    (tmp_path / "half" / "nodes.csv").write_text("\n".join(lines[:151]) + "\n")  # other means, other categories
    (tmp_path / "half" / "edges.csv").write_text("source,target\n")
    half = graph_for(open_run(folder.path), str(tmp_path / "half"), root=None, labels=False)
    assert torch.equal(half.x, training.data.x[:150])


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_is_used_without_choosing_or_loading_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, finished: bool
) -> None:
    config, folder, calls = settings(dataset=stored(tmp_path)), RunFolder(tmp_path / "run"), list[str]()
    if finished:
        train_seed(config, folder)
    else:
        interrupted(config, folder)
    for name in ("load", "task_of"):
        real = getattr(topoff.training.trained, name)

        def counted(*args: Any, name: str = name, real: Any = real, **options: Any) -> Any:
            calls.append(name)
            return real(*args, **options)

        monkeypatch.setattr(topoff.training.trained, name, counted)
    run = open_run(folder.path)
    out = outputs(run, graph_for(run, None, root=None, labels=True))
    assert calls == (["load"] if finished else ["load", "task_of"])
    assert run.config == folder.settings().config
    assert None not in [vars(run.config)[name] for name in OPEN]
    assert out.shape == (60, 3)


def test_a_finished_run_of_an_older_version_says_in_its_result_what_was_chosen(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    training = train_seed(settings(dataset=stored(tmp_path)), folder)
    folder.write("config.toml", write_toml(settings(dataset=str(tmp_path / "graph.npz")), command=""))
    assert open_run(folder.path).config == training.config


def test_a_much_larger_graph_is_not_run_in_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_seed(settings(dataset=stored(tmp_path), method="full"), RunFolder(tmp_path / "run"))
    run, asked = open_run(tmp_path / "run"), list[float]()

    def predict(model: Any, data: Data, *, ratio: float, **_: Any) -> torch.Tensor:
        asked.append(ratio)
        return torch.zeros(int(data.num_nodes or 0), 3)

    monkeypatch.setattr(topoff.training.trained, "predict", predict)
    monkeypatch.setattr(topoff.training.trained, "LARGE", 100)
    for n in (30, 60, 400):
        outputs(run, communities(n, groups=3, dtype=torch.float32))
    assert asked == [0.5, 0.5, 0.25]


# memory


def raise_the_peak() -> int:
    """Take and give back memory that no training here needs; return the peak of the process."""
    block = torch.zeros(400 * 2**20, dtype=torch.uint8)
    block += 1
    del block
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # a verb that ran in this process may have told malloc to keep what is freed
    return peak_memory()


@pytest.mark.skipif(not forget_peak(), reason="this system does not forget a peak")
@pytest.mark.parametrize("stopped", [False, True])
def test_the_memory_of_a_seed_is_its_own(tmp_path: Path, *, stopped: bool) -> None:
    before = raise_the_peak()  # as the evaluation of an earlier seed does, in the same process
    folder = RunFolder(tmp_path / "run")
    if stopped:
        interrupted(settings(), folder, data=graph())
    train_seed(settings(), folder, data=graph())
    result = folder.result()
    assert result.train_peak_rss_mb is not None
    assert result.peak_rss_mb is not None
    assert 0 < result.train_peak_rss_mb <= result.peak_rss_mb < before / 2**20 - 300


def test_a_peak_that_cannot_be_told_from_an_earlier_one_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topoff.training.seed, "forget_peak", lambda: False)
    raise_the_peak()
    folder = RunFolder(tmp_path / "run")
    train_seed(settings(), folder, data=graph())
    assert folder.result().train_peak_rss_mb is None
    assert (folder.result().peak_rss_mb or 0) > 400
