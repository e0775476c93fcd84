"""Runs that two processes want, that a disk has damaged, or that somebody else has made: nothing lost, nothing run."""

import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import topoff.report.page
from commands import Command, call, finish, start, start_verb
from topoff.cli.progress import Display
from topoff.data.load import load
from topoff.training.checkpoints import CHECKPOINT, PREVIOUS
from topoff.training.records import Epoch

pytestmark = [
    pytest.mark.filterwarnings(f"default:{text}")  # warnings that users see, and some tests look for
    for text in ("Expected .*one before it", ".*metrics.jsonl is not as", ".*is not the graph that", "Cannot lock")
]
N = 60
SETTINGS = ["--hidden", "4", "--layers", "2", "--epochs", "4", "--checkpoint-seconds", "0", "--quiet"]
HOLD = """
import pathlib, sys, time
sys.argv = ["topoff", "train", "g.npz", "--out", "run"]
from topoff.machine.lock import locked
with locked(*map(pathlib.Path, {paths!r})):
    print("held", flush=True)
    time.sleep(600)
"""
EVIL = "import pathlib\npathlib.Path(__file__).with_name('RAN').touch()\n"
NET = """
from torch_geometric.nn import GCN


class Net(GCN):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__(in_channels, hidden_channels, 2, out_channels)
"""


def write_graph(path: Path, *, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    y, edges = np.arange(N) % 3, rng.integers(0, N, (2, 200))
    x = (np.eye(3)[y] + rng.normal(size=(N, 3))).astype(np.float32)
    np.savez(path, x=x, y=y, edge_index=np.concatenate([edges, edges[::-1]], axis=1))


def content(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, hidden ones included, and their content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def empty_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training write an empty page: drawing a whole one takes longer than these trainings."""
    monkeypatch.setattr(topoff.report.page, "build_report", lambda run: "")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a graph, the model of a user's own, and a finished run of each kind."""
    folder = tmp_path_factory.mktemp("made")
    write_graph(folder / "g.npz")
    (folder / "own_net_of_faults.py").write_text(NET)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Return a folder with a graph and a finished run, to be changed at will, and go there."""
    if not (made / "run").exists():
        monkeypatch.chdir(made)
        call("train", "g.npz", *SETTINGS, "--out", "run", capture=request.getfixturevalue("capsys"))
    shutil.copytree(made, tmp_path / "place")
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@contextmanager
def holding(*paths: str) -> Iterator[subprocess.Popen[str]]:
    """Hold folders from another process."""
    process = start("-c", HOLD.format(paths=list(paths)), folder=Path.cwd())
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


# ---- two processes


@pytest.mark.parametrize(
    ("held", "line"),
    [
        ("run", ["train", "--resume", "run"]),
        ("run", ["train", "g.npz", *SETTINGS, "--out", "run", "--overwrite"]),
        ("seeds/seed-1", ["train", "--resume", "seeds"]),
        ("seeds/seed-1", ["train", "g.npz", *SETTINGS, "--out", "seeds", "--overwrite"]),
        ("empty", ["train", "g.npz", *SETTINGS, "--out", "empty"]),
        ("seeds/seed-0", ["train", "--resume", "seeds/seed-0"]),
        ("comparison", ["compare", "g.npz", "--methods", "full", "--epochs", "1", "--out", "comparison"]),
    ],
)
def test_the_second_process_is_told_who_is_there(command: Command, place: Path, held: str, line: list[str]) -> None:
    for seed in (0, 1):
        shutil.copytree("run", f"seeds/seed-{seed}")
    shutil.copy("run/config.toml", "seeds/config.toml")
    Path("empty").mkdir()
    Path("comparison").mkdir()
    Path("comparison/compare.toml").write_text('dataset = "g.npz"\n')
    with holding(held) as process:
        before = content(place)
        done = command(*line, code=2)
        assert content(place) == before
    told = (
        rf"Expected (/.*/)?{held} to be free \(got a run that is under way there: process {process.pid} on \S+, since "
    )
    told += r"\d{4}-\S+ \S+: topoff train g.npz --out run\); wait for its end, or stop it with kill \d+, or choose .*\."
    assert re.fullmatch(f"topoff: {told}\n", done.err)


def test_others_may_read_a_live_run_and_a_killed_process_blocks_nobody(command: Command, place: Path) -> None:
    with holding("run"):
        assert command("evaluate", "run", "--json").json["data_changed"] is False
        command("predict", "run", "--out", "p.csv")
        command("report", "run", "--out", "page.html")
    assert Path("run/.lock").is_file()  # it was killed
    command("train", "--resume", "run", "--quiet")
    assert not Path("run/.lock").exists()
    assert not Path("run/.holder.json").exists()


def test_a_folder_without_locks_is_used_with_a_warning(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    err = command("train", "--resume", "run", "--quiet").err
    assert re.fullmatch(r"topoff: warning: Cannot lock run: read-only file system; see to it that .*\n", err)


def test_a_run_that_a_killed_process_was_about_to_replace_comes_back(command: Command, place: Path) -> None:
    before = content(place / "run")
    Path("run").rename(".run.old")
    assert "g.npz" in command("train", "--resume", "run", "--json", "--quiet").json["dataset"]
    assert content(place / "run").keys() == before.keys()
    assert not Path(".run.old").exists()
    Path("run").rename(".run.old")
    Path("run").mkdir()
    Path("run/config.toml").write_text('dataset = "g.npz"\n')
    assert "which holds a run" in command("train", "g.npz", *SETTINGS, "--out", "run", code=2).err
    assert content(place / "run")["model.safetensors"] == before["model.safetensors"]


@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_a_folder_of_the_users_is_no_beginning_of_a_run(command: Command, place: Path, more: list[str]) -> None:
    Path("run").rename(".mine.old")
    Path("mine/chapter").mkdir(parents=True)
    Path("mine/chapter/one.txt").write_text("years of work")
    before = content(place)
    assert "which holds other files" in command("train", "g.npz", *SETTINGS, "--out", "mine", *more, code=2).err
    assert content(place) == before


def test_what_lies_where_a_run_would_be_kept_is_not_removed(command: Command, place: Path) -> None:
    Path(".run.old").mkdir()
    Path(".run.old/one.txt").write_text("years of work")
    before = content(place)
    done = command("train", "g.npz", *SETTINGS, "--out", "run", "--overwrite", code=2)
    assert re.search(r"Expected \S+/\.run\.old to be free .*\(got other files there\); move them\.", done.err)
    assert content(place) == before


def test_a_refused_comparison_writes_no_settings(command: Command, place: Path) -> None:
    Path("all").mkdir()
    Path("all/compare.toml").write_text('dataset = "g.npz"\n')
    shutil.copytree("run", "all/full/seed-0")
    before = content(place)
    words = ["--methods", "gas,full", "--epochs", "1", "--out", "all", "--quiet"]
    assert (
        "Expected the settings that all/full/seed-0 was begun with" in command("compare", "g.npz", *words, code=2).err
    )
    assert content(place) == before


@pytest.mark.parametrize("line", [["train", "g.npz"], ["compare", "g.npz", "--methods", "full"]])
@pytest.mark.parametrize("out", ["empty", "link"])
def test_a_refused_command_leaves_an_empty_folder_and_a_link_as_they_were(
    command: Command, place: Path, line: list[str], out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("empty").mkdir()
    Path("link").symlink_to("empty")
    monkeypatch.setattr("topoff.experiments.processes.train_all", fail)
    command(*line, "--device", "moon", "--epochs", "1", "--out", out, "--quiet", code=2)
    assert Path(out).resolve().is_dir()
    assert list(Path("empty").iterdir()) == []


def fail(*_: object, **__: object) -> None:
    raise ValueError("Expected it to fail (got this); try again.")


def test_a_refused_run_leaves_no_folder(command: Command, place: Path) -> None:
    command("train", "g.npz", *SETTINGS, "--device", "moon", "--out", "new/er/run", code=2)
    assert not Path("new").exists()


# ---- damage


def stop_after(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ctrl-C come after some epochs."""
    heard = Display.evaluated

    def evaluated(self: Display, epoch: Epoch) -> None:
        heard(self, epoch)
        if epoch.epoch == epochs:
            raise KeyboardInterrupt

    monkeypatch.setattr(Display, "evaluated", evaluated)


def interrupt(command: Command, monkeypatch: pytest.MonkeyPatch, *more: str) -> str:
    """Train, and be interrupted after the third epoch; return what was said."""
    with monkeypatch.context() as patch:
        stop_after(3, patch)
        return command("train", "g.npz", *SETTINGS, *more, "--out", "broken", code=1).err


def flip(path: Path, *, at: float) -> None:
    """Flip a bit at a share of a file."""
    found = bytearray(path.read_bytes())
    found[min(int(at * len(found)), len(found) - 1)] ^= 4
    path.write_bytes(found)


@pytest.mark.parametrize("at", [0.0, 0.02, 0.3, 0.6, 0.9, 1.0])
def test_a_flipped_bit_is_noticed_and_the_checkpoint_before_ends_in_the_same_bits(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch, at: float
) -> None:
    interrupt(command, monkeypatch)
    flip(Path("broken") / CHECKPOINT, at=at)
    told = command("train", "--resume", "broken", "--quiet").err
    assert re.fullmatch(
        r"topoff: warning: Expected broken/\S+latest.safetensors to be a whole .*before it is used\.\n", told
    )
    assert Path("broken/model.safetensors").read_bytes() == Path("run/model.safetensors").read_bytes()
    lines = [Path(run, "metrics.jsonl").read_text().splitlines() for run in ("run", "broken")]
    losses = [[json.loads(line)["loss"] for line in found] for found in lines]
    assert losses[0] == losses[1]


def test_two_damaged_checkpoints_are_one_sentence(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(command, monkeypatch)
    for name in (CHECKPOINT, PREVIOUS):
        flip(Path("broken") / name, at=0.9)
    before = content(place)
    expected = (
        r"latest.safetensors to be a whole checkpoint \(got .*\), and none before it that is whole; .*--overwrite"
    )
    assert re.search(expected, command("train", "--resume", "broken", code=2).err)
    assert re.search(expected, command("evaluate", "broken", code=2).err)
    assert content(place) == before
    shutil.copy("run/model.safetensors", "broken/model.safetensors")
    assert command("train", "--resume", "broken", code=2).err.endswith("model.safetensors can still predict.\n")


@pytest.mark.parametrize("at", [0.0, 0.01, 0.2, 0.5, 1.0])
def test_a_flipped_bit_in_the_model_is_refused(command: Command, place: Path, at: float) -> None:
    flip(Path("run/model.safetensors"), at=at)
    for line in (["evaluate", "run"], ["predict", "run", "--out", "p.csv"]):
        assert (
            "topoff: Expected run/model.safetensors to be a whole safetensors file (got" in command(*line, code=2).err
        )
    assert not Path("p.csv").exists()


def test_what_predictions_depend_on_besides_the_weights_is_noticed(command: Command, place: Path) -> None:
    path = Path("run/result.json")
    written = path.read_text()
    path.write_text(written.replace('"0"', '"zero"'))
    assert (
        "Expected run/result.json as the training left it (got another content than"
        in command("evaluate", "run", code=2).err
    )
    path.write_text(written)
    Path("run/encoding.json").write_text("{}")
    assert (
        "Expected run/encoding.json to be that of an earlier read (got an empty one)"
        in command("evaluate", "run", code=2).err
    )


def test_runs_of_older_versions_without_checksums_open(command: Command, place: Path) -> None:
    from safetensors.torch import load_file, save_file

    scores = command("evaluate", "run", "--json").json
    save_file(load_file("run/model.safetensors"), "run/model.safetensors")
    path = Path("run/result.json")
    path.write_text(
        json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != "data_hash"})
    )
    assert command("evaluate", "run", "--json").json | {"peak_rss_mb": 0} == scores | {
        "peak_rss_mb": 0,
        "data_changed": None,
    }


def test_settings_and_metrics_that_changed_since_the_checkpoint_are_told(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(command, monkeypatch)
    shutil.copytree("broken", "edited")
    config = Path("edited/config.toml")
    config.write_text(config.read_text().replace("lr = 0.01", "lr = 0.11"))
    expected = "Expected config.toml as the checkpoint knows it (got lr: 0.01 -> 0.11); restore it"
    assert expected in command("train", "--resume", "edited", code=2).err
    metrics = Path("broken/metrics.jsonl")
    metrics.write_text(metrics.read_text().replace('"lr": 0.01', '"lr": 0.05'))
    assert "metrics.jsonl is not as the checkpoint left it" in command("train", "--resume", "broken", "--quiet").err


# ---- changed data


def test_changed_data_at_the_same_path_are_told(command: Command, place: Path) -> None:
    assert command("evaluate", "run", "--json").err == ""
    write_graph(Path("g.npz"), seed=1)
    for line in (["evaluate", "run"], ["predict", "run", "--out", "p.csv"]):
        done = command(*line, "--json")
        assert done.json["data_changed"] is True
        assert re.fullmatch(r"topoff: warning: g.npz is not the graph that run was trained on \(content .*\n", done.err)
        other = command(*line, "--json", "--data", "g.npz", *(["--overwrite"] if line[0] == "predict" else []))
        assert (other.json["data_changed"], other.err) == (None, "")


# ---- other people's files


def foreign(place: Path, *, named: str = "evil_module:Net") -> Path:
    """Make a foreign run folder whose settings name a module that lies in it."""
    run = Path(shutil.copytree(place / "run", place / "foreign"))
    (run / "evil_module.py").write_text(EVIL)
    (run / "g.npz").write_bytes((place / "g.npz").read_bytes())
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub("(?m)^model = .*$", f'model = "{named}"', text))
    return run


@pytest.mark.parametrize(
    "line",
    [
        ["evaluate", "."],
        ["evaluate", ".", "--data", "g.npz"],
        ["predict", ".", "--out", "p.csv"],
        ["train", "--resume", "."],
        ["train", "--resume", ".", "--dry-run"],
        ["train", "--config", "config.toml", "--out", "new"],
        ["train", "g.npz", "--config", "config.toml", "--dry-run"],
        ["compare", "--config", "config.toml", "--methods", "full", "--out", "new"],
    ],
)
def test_a_file_alone_makes_nothing_be_imported(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    run = foreign(place)
    monkeypatch.chdir(run)
    before = content(run)
    (run / "result.json").unlink() if "--resume" in line else None
    done = command(*line, code=2)
    assert f"if you trust it, type: topoff {' '.join(line)} --model evil_module:Net" in done.err
    assert not (run / "RAN").exists()
    assert content(run).keys() | {"result.json"} == before.keys() | {"result.json"}


def test_what_a_result_says_was_chosen_is_no_model_and_no_graph(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = foreign(place, named="gcn")
    monkeypatch.chdir(run)
    result = json.loads(Path("result.json").read_text())
    more = {"model": "evil_module:Net", "dataset": "elsewhere.npz", "root": "/"}
    result["chosen"] += [{"what": what, "value": value, "why": ""} for what, value in more.items()]
    Path("result.json").write_text(json.dumps(result))
    assert command("evaluate", ".", "--json").json["data_changed"] is False
    assert not Path("RAN").exists()


def test_nothing_in_the_current_folder_stands_in_for_a_library(place: Path) -> None:
    run = foreign(place, named="gcn")
    for name in ("numpy", "typer", "rich", "pydantic", "filelock"):
        (run / f"{name}.py").write_text(EVIL)
    assert finish(start_verb("report", ".", "--out", "x.html", folder=run)).code == 0
    assert not (run / "RAN").exists()


def test_a_model_that_is_named_again_is_imported(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = interrupt(command, monkeypatch, "--model", "own_net_of_faults:Net")
    again = "topoff train --resume broken --model own_net_of_faults:Net"
    assert told == f"topoff: Stopped; resume with: {again}\n"
    command(*again.split()[1:], "--quiet")
    command("evaluate", "broken", "--model", "own_net_of_faults:Net", "--json")
    assert "to fit the model 'gcn'" in command("evaluate", "broken", "--model", "gcn", code=2).err
    if "trust" in inspect.signature(load).parameters:
        command("evaluate", "broken", "--trust", "--json")


def change(path: str, key: str, value: Any) -> Callable[[], None]:
    """Return a function that changes a key of a JSON file."""

    def write() -> None:
        lines = Path(path).read_text().splitlines() if path.endswith("jsonl") else [Path(path).read_text()]
        Path(path).write_text("\n".join(json.dumps(json.loads(line) | {key: value}) for line in lines))

    return write


def put(path: str, text: str | bytes) -> Callable[[], None]:
    """Return a function that writes a file."""
    return lambda: Path(path).write_bytes(text.encode() if isinstance(text, str) else text) and None


def folder_instead(path: str) -> Callable[[], None]:
    """Return a function that puts a folder in the place of a file."""

    def replace() -> None:
        Path(path).unlink()
        Path(path).mkdir()

    return replace


DEEP = "[" * 100_000
HEADER = (2**40).to_bytes(8, "little") + b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
CLAIM = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
BAD = {
    "result type": (change("run/result.json", "outputs", "many"), "'outputs' in run/result.json"),
    "result bool": (change("run/result.json", "outputs", True), "'outputs' in run/result.json"),
    "result task": (change("run/result.json", "task", "evil"), "'task' to be .* in run/result.json"),
    "result metric": (change("run/result.json", "metric", "r2"), "'metric' to be .* in run/result.json"),
    "result NaN": (change("run/result.json", "scale", float("nan")), "'scale' to be finite in run/result.json"),
    "result huge": (change("run/result.json", "outputs", 10**12), "'classes' to name 1000000000000 classes in run/res"),
    "result features": (change("run/result.json", "features", -1), "-1 features"),
    "result classes": (change("run/result.json", "classes", [1, 2, 3]), "'classes.0' in run/result.json"),
    "result chosen": (change("run/result.json", "chosen", [{"what": ["rank"]}]), "'chosen' in run/result.json"),
    "result choice": (change("run/result.json", "chosen", "x"), "'chosen' in run/result.json"),
    "result deep": (put("run/result.json", '{"a":' + DEEP), "run/result.json to hold a JSON .*nested too deeply"),
    "result digits": (put("run/result.json", '{"a":' + "9" * 5000 + "}"), "run/result.json to .*thousands of digits"),
    "result list": (put("run/result.json", "[]"), "run/result.json to hold a JSON object .*a list"),
    "result bytes": (put("run/result.json", b"\xff\xfe{"), "run/result.json to hold .*not UTF-8"),
    "config bytes": (put("run/config.toml", b"\xff\xfe"), "run/config.toml to be TOML"),
    "config deep": (put("run/config.toml", "a = " + "[" * 5000), "run/config.toml to be TOML"),
    "config newer": (put("run/config.toml", 'dataset = "g.npz"\nnew_idea = 1\n'), "run/config.toml.*'new_idea'.*newer"),
    "config type": (
        put("run/config.toml", 'dataset = "g.npz"\nhidden = "x"\n'),
        "Expected 'hidden' in run/config.toml",
    ),
    "config huge": (
        put("run/config.toml", f'dataset = "g.npz"\nhidden = {10**9}\nlayers = 2\n'),
        "run to fit the model",
    ),
    "model header": (put("run/model.safetensors", HEADER), "run/model.safetensors to be a whole safetensors file"),
    "model claim": (put("run/model.safetensors", len(CLAIM).to_bytes(8, "little") + CLAIM), "to be a whole safetens"),
    "model folder": (folder_instead("run/config.toml"), r"run to be the folder of a run \(got no config.toml"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_files_of_a_run_say_is_checked(command: Command, place: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    save_file(load_file("run/model.safetensors"), "run/model.safetensors", metadata={"format": "pt"})  # without a seal
    damage, expected = BAD[name]
    damage()
    for line in (["evaluate", "run"], ["predict", "run", "--out", "p.csv"]):
        done = command(*line, code=2)
        assert re.search(expected, done.err), done.err
        assert done.err.count("\n") == 1
        assert "unexpected" not in done.err
    assert not Path("p.csv").exists()


def test_a_result_that_is_none_is_refused_and_written_again(command: Command, place: Path) -> None:
    path = Path("run/result.json")
    whole = json.loads(path.read_text())
    path.write_text("{}")
    said = command("train", "--resume", "run", "--quiet", code=2).err
    assert said.startswith("topoff: Expected run/result.json to hold the result of a run (got no 'metric'); remove it")
    path.unlink()
    command("train", "--resume", "run", "--quiet")
    assert json.loads(path.read_text())["test"] == whole["test"]
