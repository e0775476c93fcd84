"""`topoff train`, `evaluate`, `predict` and `report`: once each in a process of its own, else by the same `main`."""

import errno
import json
import os
import pty
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file

import topoff.report.page
import topoff.training.loop
from commands import ROOT, Command, Done, finish, start, start_verb

TABLES = ROOT / "examples" / "tables"
N = 400
SPLITS = ("train", "val", "test")
CONTRACT = "--method top --model gcn --layers 3 --hidden 128 --epochs 10 --lr 0.01 --batches random --ratio 0.1"
CONTRACT += " --rank 64 --refresh every=5 --seed 0 --out runs/x --json"
TINY = ["--layers", "2", "--hidden", "8", "--epochs", "2", "--batches", "random", "--ratio", "0.25", "--rank", "4"]
FILES = {"config.toml", "metrics.jsonl", "result.json", "details.json", "model.safetensors", "checkpoint"}
FILES |= {"report.html"}
PROMISED = {"train", "val", "test", "metric", "epochs", "seconds", "preprocess_seconds", "epoch_seconds", "peak_rss_mb"}
PROMISED |= {"fidelity", "parameters"}
RECORDED = {"task", "best_epoch", "steps", "certificate", "dataset", "nodes", "edges", "features", "model", "method"}
RECORDED |= {"seed", "command", "date", "versions", "machine", "chosen"}


@dataclass(frozen=True)
class Trained:
    """Hold a run, and what its process wrote."""

    run: Path
    done: Done

    def read(self, name: str) -> dict[str, object]:
        """Read a JSON file of the run."""
        return json.loads((self.run / name).read_text())


# ---- graphs and runs that many tests share


def arrays(**changes: object) -> dict[str, object]:
    """Return a random graph of three classes, most edges inside them, with some arrays replaced; None takes one out."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, N)
    edges = rng.integers(0, N, (2, 1600))
    edges = edges[:, (y[edges[0]] == y[edges[1]]) | (rng.random(1600) < 0.2)]
    x = (np.eye(3)[y] + rng.normal(size=(N, 3))).astype(np.float32)
    found: dict[str, object] = {"x": x, "y": y, "edge_index": np.concatenate([edges, edges[::-1]], axis=1)}
    return {name: array for name, array in (found | changes).items() if array is not None}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with graphs of every kind, good and bad, and keep the cache there."""
    folder = tmp_path_factory.mktemp("place")
    x, y, number = arrays()["x"], arrays()["y"], np.arange(N)
    masks = {"train_mask": number < 200, "val_mask": number >= 200, "test_mask": number < 0}
    graphs = {
        "graph": {},
        "multilabel": {"y": np.stack([y == 0, y > 0, number % 4 == 0], axis=1).astype(np.float32)},
        "binary": {"y": (y > 0).astype(np.int64)},
        "regression": {"y": (10.0 * y + 100 + x[:, 0]).astype(np.float32)},
        "untested": masks,
        "nan": {"x": np.where(number[:, None] == 5, np.nan, x)},
        "overlap": masks | {"val_mask": number >= 150},
        "negative": masks | {"y": y - 1},
        "beyond": {"y": y + 4},
        "wide": {"x": np.concatenate([x, x], axis=1)},
        "unlabelled": {"y": None},
    }
    for name, changes in graphs.items():
        np.savez(folder / f"{name}.npz", **arrays(**changes))
    whole = (folder / "graph.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "unknown.toml").write_text('dataset = "graph.npz"\nhiddn = 3\n')
    (folder / "broken.toml").write_text("dataset = \n")
    (folder / "nested.toml").write_text('dataset = "graph.npz"\n[model]\nname = "gcn"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOPOFF_CACHE", str(folder / "cache"))
        yield folder


def read_terminal(side: int) -> str:
    """Read all that is written to a terminal, to the end of those who write."""
    parts = []
    while True:
        try:
            part = os.read(side, 65536)
        except OSError:  # Linux's way to say: nobody is at the other end any more
            part = b""
        if not part:
            os.close(side)
            return b"".join(parts).decode()
        parts.append(part)


@pytest.fixture(scope="module")
def runs(place: Path) -> dict[str, Trained]:
    """Train at the same time: the contract on a file, and a folder of tables before a real terminal."""
    (place / "work").mkdir()
    first = start_verb("train", "graph.npz", "--root", place, *CONTRACT.split(), folder=place / "work")
    mine, theirs = pty.openpty()
    line = ["train", TABLES, "--epochs", 6, "--hidden", 8, "--out", "runs/tables", "--json"]
    second = start_verb(*line, folder=place / "work", stderr=theirs)
    os.close(theirs)
    seen = read_terminal(mine)
    made = {"contract": finish(first), "tables": finish(second)}
    assert [done.code for done in made.values()] == [0, 0], [made["contract"].err, seen]
    made["tables"] = Done(0, made["tables"].out, seen)
    return {name: Trained(place / "work" / "runs" / {"contract": "x"}.get(name, name), made[name]) for name in made}


@pytest.fixture
def contract(runs: dict[str, Trained]) -> Trained:
    """Return the run of the contract; to be left as it is."""
    return runs["contract"]


@pytest.fixture
def tables(runs: dict[str, Trained]) -> Trained:
    """Return the run of examples/tables; to be left as it is."""
    return runs["tables"]


@pytest.fixture
def copied(contract: Trained, tmp_path: Path) -> Path:
    """Return a copy of the contract's run, to be changed at will."""
    return Path(shutil.copytree(contract.run, tmp_path / "copied"))


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path) -> None:
    """Run every verb in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def empty_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let training write an empty page: a whole one takes longer than these trainings, and others look at it."""

    def write(run: Path, *, out: Path | None = None) -> Path:
        (Path(run) / "report.html").touch()
        return Path(run) / "report.html"

    monkeypatch.setattr(topoff.report.page, "write_report", write)


def scores(result: dict[str, object]) -> list[object]:
    """Return the scores of the three splits."""
    return [result[name] for name in SPLITS]


def weights(run: Path) -> bytes:
    """Return the bits of a run's weights."""
    return (run / "model.safetensors").read_bytes()


# ---- the contract, in processes of their own


def test_training_ends_in_one_line_of_json(contract: Trained) -> None:
    result = contract.done.json
    assert contract.done.out.count("\n") == 1
    assert result.keys() >= PROMISED | RECORDED
    assert result == contract.read("result.json")
    assert (result["epochs"], result["steps"], result["metric"], result["task"]) == (10, 100, "accuracy", "classes")
    assert all(0.4 < score <= 1 for score in scores(result))
    assert 0 < result["fidelity"] <= 1
    assert 0 < result["epoch_seconds"] < result["seconds"]
    assert result["parameters"] == sum(
        tensor.numel() for tensor in load_file(contract.run / "model.safetensors").values()
    )


def test_progress_without_a_terminal_is_plain_lines(contract: Trained) -> None:
    lines = contract.done.err.splitlines()
    assert "\x1b" not in contract.done.err
    assert "partitioning ..." in lines
    assert not any("calling" in line for line in lines)  # nor choices: --json
    epochs = [
        line for line in lines if re.fullmatch(r"epoch \d+/10: loss .*, validation .* %, fidelity .* %, .*", line)
    ]
    assert len(epochs) == 10


def test_a_rank_above_the_batch_is_a_warning_in_one_line(contract: Trained) -> None:
    told = [line for line in contract.done.err.splitlines() if "exceeds" in line]
    assert len(told) == 1
    assert re.fullmatch(
        r"topoff: warning: rank \d+ exceeds a batch of 40 nodes, .*: raise ratio or lower rank\.", told[0]
    )
    assert "UserWarning" not in contract.done.err


def test_progress_on_a_terminal_is_a_live_bar(tables: Trained) -> None:
    seen = tables.done.err
    assert "\x1b[" in seen
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in seen
    last = seen.split("\r")[-2:]
    assert re.search(r"epoch 6/6, loss .*validation .* %, fidelity .* %", "".join(last))
    assert "100 %" in "".join(last)
    assert "epoch 6/6: " not in seen  # no plain line beside the bar


def test_a_run_leaves_its_files(contract: Trained, tables: Trained) -> None:
    assert {path.name for path in contract.run.iterdir()} == FILES
    assert {path.name for path in tables.run.iterdir()} == FILES | {"encoding.json"}
    assert [path.name for path in contract.run.parent.iterdir() if path.name.startswith(".")] == []
    words = shlex.join(["topoff", "train", "graph.npz", "--root", str(contract.run.parents[2]), *CONTRACT.split()])
    assert (contract.run / "config.toml").read_text().splitlines()[0] == f"# {words}"
    assert contract.read("result.json")["command"] == words


def test_the_metrics_of_a_run(contract: Trained) -> None:
    rows = [json.loads(line) for line in (contract.run / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(1, 11))
    keys = {"epoch", "seconds", "train_seconds", "loss", "lr", "refreshed", *SPLITS, "fidelity", "certificate"}
    assert all(row.keys() == keys for row in rows)
    assert [row["epoch"] for row in rows if row["refreshed"]] == [5]  # not at the end: no epoch would use it
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)
    best = max(rows, key=lambda row: row["val"])
    assert (best["epoch"], scores(best)) == (contract.done.json["best_epoch"], scores(contract.done.json))


def test_the_details_of_a_run(tables: Trained) -> None:
    details = tables.read("details.json")
    names = ["Engineering", "Finance", "Research & Development", "Sales", "Support"]
    assert details["classes"] == names
    counts = np.array(details["confusion"])
    assert [row["class"] for row in details["per_class"]] == names
    assert [row["count"] for row in details["per_class"]] == counts.sum(axis=1).tolist()
    assert np.trace(counts) / counts.sum() == pytest.approx(tables.done.json["test"])
    assert sum(details["degrees"]["counts"]) == tables.done.json["nodes"] == 300
    assert [batch["nodes"] for batch in details["batches"]] == [300]


def test_each_verb_in_a_process_of_its_own(contract: Trained, tables: Trained, tmp_path: Path) -> None:
    lines = [
        ["evaluate", contract.run, "--json"],
        ["predict", tables.run, "--out", "new/p.csv"],
        ["report", contract.run],
    ]
    evaluated, predicted, reported = map(finish, [start_verb(*line, folder=tmp_path) for line in lines])
    assert [done.code for done in (evaluated, predicted, reported)] == [0, 0, 0]
    assert [done.err for done in (evaluated, predicted, reported)] == ["", "", ""]
    assert scores(evaluated.json) == scores(contract.done.json)
    assert predicted.out == "300 predictions (node, prediction, p_Engineering, p_Finance, ...) -> new/p.csv\n"
    assert reported.out == f"report: {contract.run / 'report.html'}\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "p.csv"]


VERBS = ("info", "generate", "convert", "partition", "train", "evaluate", "predict", "report", "measure", "compare")
VERBS = (*VERBS, "reproduce", "bench")


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_quick_and_ends_in_examples(verb: str, place: Path) -> None:
    # what is imported tells; seconds would be those of the machine
    done = finish(start("-X", "importtime", "-m", "topoff", verb, "--help", folder=place))
    imported = {line.rpartition("|")[2].strip() for line in done.err.splitlines()}
    assert done.code == 0
    assert all(line.startswith("import time:") for line in done.err.splitlines())
    assert "topoff.cli.app" in imported
    assert not {"torch", "torch_geometric", "scipy", "pyarrow", "matplotlib"} & imported
    examples = done.out.partition("Examples:")[2].split("\n\n")
    told = [text.strip() for text in examples if text.strip()]
    assert len(told) >= 2
    assert all(text.startswith(f"topoff {verb} ") for text in told)


def test_the_verbs_of_the_help_are_these(command: Command) -> None:
    listed = command("--help").out.partition("Commands:")[2].splitlines()
    assert [line.split()[0] for line in listed if line.strip()] == list(VERBS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash, whose completion is tried")
def test_the_shell_completes(place: Path) -> None:
    line = f"{shlex.quote(sys.executable)} -m topoff --show-completion bash; exit $?"  # the shell is the parent's name
    shown = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=place, check=True)
    assert "complete -o default -F _topoff_completion topoff" in shown.stdout
    asked = {"_TOPOFF_COMPLETE": "complete_bash", "COMP_WORDS": "topoff tra", "COMP_CWORD": "1"}
    line = [sys.executable, "-m", "topoff"]
    found = subprocess.run(line, capture_output=True, text=True, cwd=place, env=os.environ | asked, check=True)
    assert found.stdout.split() == ["train"]


def test_debug_shows_the_traceback(place: Path) -> None:
    line = ["train", "--config", "nowhere.toml"]
    plain, full = map(finish, [start_verb(*line, *flag, folder=place) for flag in ([], ["--debug"])])
    assert (plain.code, full.code) == (2, 1)
    assert re.fullmatch(r"topoff: Expected a TOML file .*\(got 'nowhere\.toml'\).*\n", plain.err)
    assert "Traceback" in full.err
    assert "read_config" in full.err


# ---- train


@pytest.mark.usefixtures("empty_page")
@pytest.mark.filterwarnings("ignore:rank .* exceeds")
def test_the_config_of_a_run_gives_the_same_bits(command: Command, contract: Trained, tmp_path: Path) -> None:
    done = command("train", "--config", contract.run / "config.toml", "--out", "again", "--quiet")
    assert done.err == ""  # no progress
    assert "exact test accuracy" in done.out  # but the result
    assert weights(tmp_path / "again") == weights(contract.run)
    texts = [(run / "config.toml").read_text() for run in (contract.run, tmp_path / "again")]
    lines = [text.splitlines() for text in texts]
    assert tomllib.loads(texts[0]) == tomllib.loads(texts[1])
    assert "eval_every = 1  # chosen: cheap up to 20,000 nodes" in lines[0]
    assert "eval_every = 1" in lines[1]  # this time it was given
    assert lines[1][0] == f"# topoff train --config {contract.run / 'config.toml'} --out again --quiet"


@pytest.mark.usefixtures("empty_page")
def test_flags_win_over_the_file_and_set_wins_over_flags(command: Command, place: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        f'dataset = "{place / "graph.npz"}"\nlr = 0.5\nepochs = 9\nhidden = 4\nlayers = 2'
    )
    flags = ["--epochs", 7, "--hidden", 6, "--set", "epochs=1", "--set", "model=sage"]
    command("train", "--config", "mine.toml", *flags, "--out", "run", "--quiet")
    config = (tmp_path / "run" / "config.toml").read_text().splitlines()
    assert {"lr = 0.5", "epochs = 1", "hidden = 6", 'model = "sage"'} <= set(config)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    assert load_file(tmp_path / "run" / "model.safetensors")["convs.0.lin_l.weight"].shape == (6, 3)


@pytest.mark.usefixtures("empty_page")
@pytest.mark.filterwarnings("always:The weights differ")
def test_a_run_by_seconds_is_repeated_to_the_bit(command: Command, place: Path, tmp_path: Path) -> None:
    line = ["train", place / "graph.npz", *TINY[:4], *TINY[6:], "--seconds", 1.5, "--schedule", "cosine"]
    first = command(*line, "--seeds", "0-1", "--out", "one", "--json").json
    assert [run["steps"] >= 1 for run in first["runs"]] == [True, True]  # more, unless the machine is very busy
    config = (tmp_path / "one" / "seed-1" / "config.toml").read_text()
    assert "seconds = 1.5" in config
    assert "epochs" not in config.partition("\n")[2]
    again = command("train", "--repeat", "one", "--out", "two", "--json", "--quiet")
    assert (again.err, again.json["runs"][1]["steps"]) == ("", first["runs"][1]["steps"])
    for seed in ("seed-0", "seed-1"):
        assert weights(tmp_path / "two" / seed) == weights(tmp_path / "one" / seed)
    (tmp_path / "one" / "seed-0" / "model.safetensors").write_bytes(b"others")
    assert "The weights differ from those of one" in command("train", "--repeat", "one", "--out", "three").err
    assert "Expected --repeat without --seeds" in command("train", "--repeat", "one", "--seeds", "3", code=2).err
    changed = command("train", "--repeat", "one", "--lr", 0.5, "--out", "four", code=2).err
    assert "Expected --repeat to keep the settings of one (got lr: 0.01 -> 0.5)" in changed
    both = command(*line, "--epochs", 3, code=2).err
    assert "Expected epochs or seconds, not both (got 3 epochs and 1.5 seconds); leave one out." in both
    plan = command(*line, "--dry-run").out
    assert re.search(r"1\.5 s of training, about \S+ epochs", plan)
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "three"}


def test_a_run_by_epochs_is_repeated_by_its_config(command: Command, contract: Trained) -> None:
    done = command("train", "--repeat", contract.run, code=2)
    assert "Expected --repeat to name a run that --seconds ended (got " in done.err
    assert (
        f"without pace.safetensors); one by epochs is repeated with --config {contract.run / 'config.toml'}" in done.err
    )


@pytest.mark.usefixtures("empty_page")
def test_a_run_without_out_gets_a_name_and_a_table(command: Command, place: Path, tmp_path: Path) -> None:
    done = command("train", place / "graph.npz", *TINY, "--refresh", "never")
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"graph-gcn-top-\d{8}-\d{6}", run.name)
    assert done.out.splitlines()[-1] == f"run: runs/{run.name}   report: runs/{run.name}/report.html"
    assert "exact test accuracy" in done.out
    assert "chosen: eval_every = 1 (cheap up to 20,000 nodes)" in done.err
    assert "chosen: rank" not in done.err
    assert done.err.splitlines().count("calling model(x=data.x, edge_index=data.edge_index)") == 1


@pytest.mark.usefixtures("empty_page")
def test_names_are_printed_as_they_are(command: Command, place: Path) -> None:
    done = command("train", place / "graph.npz", *TINY[:6], "--method", "full", "--out", "runs/[bold]:warning:")
    assert "run: runs/[bold]:warning:   report: runs/[bold]:warning:/report.html" in done.out
    assert "runs/[bold]:warning:" in command("evaluate", "runs/[bold]:warning:").out


@pytest.mark.filterwarnings("default:rank has no effect")
def test_settings_that_nothing_reads_warn(command: Command, place: Path) -> None:
    line = ["train", place / "graph.npz", *TINY[:6], "--method", "full", "--rank", "4", "--dry-run"]
    assert "topoff: warning: rank has no effect on method full; leave it out." in command(*line).err


@pytest.mark.filterwarnings("ignore:The compensation misses")
@pytest.mark.usefixtures("empty_page")
@pytest.mark.filterwarnings("default:.* is not the graph that")
def test_own_tables_are_encoded_as_in_training(command: Command, tmp_path: Path) -> None:
    shutil.copytree(TABLES, tmp_path / "tables")
    done = command("train", "tables", *TINY, "--out", "run")
    assert "tables: " in done.err
    command("predict", "run", "--out", "before.csv", "--quiet")
    nodes = tmp_path / "tables" / "nodes.csv"
    lines = nodes.read_text().splitlines()
    nodes.write_text("\n".join(lines[: len(lines) // 2 + 1]) + "\n")  # the mean of half the rows is another one
    kept = {line.partition(",")[0] for line in nodes.read_text().splitlines()}
    edges = tmp_path / "tables" / "edges.csv"
    head, *rest = edges.read_text().splitlines()
    edges.write_text("\n".join([head, *(row for row in rest if set(row.split(",")[:2]) <= kept)]) + "\n")
    shutil.copytree(tmp_path / "tables", tmp_path / "elsewhere")
    assert "tables is not the graph that run was trained on" in command("predict", "run", "--out", "own.csv").err
    command("predict", "run", "--data", "elsewhere", "--out", "other.csv", "--quiet")
    own, other = ((tmp_path / name).read_text() for name in ("own.csv", "other.csv"))
    assert own == other != (tmp_path / "before.csv").read_text()


def test_several_seeds_give_mean_and_spread(command: Command, place: Path, tmp_path: Path) -> None:
    line = ["train", place / "graph.npz", *TINY, "--seeds", "0-1", "--out", "run"]
    result, run = command(*line, "--json", "--quiet").json, tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {"config.toml", "report.html", "result.json", "seed-0", "seed-1"}
    assert {path.name for path in (run / "seed-1").iterdir()} == FILES - {"report.html"}
    assert result == json.loads((run / "result.json").read_text())
    assert (result["seeds"], [single["seed"] for single in result["runs"]]) == ([0, 1], [0, 1])
    for name in (*SPLITS, "epoch_seconds", "preprocess_seconds", "seconds", "peak_rss_mb", "fidelity", "epochs"):
        values = [single[name] for single in result["runs"]]
        assert result[name] == {"mean": statistics.fmean(values), "std": statistics.stdev(values)}
    assert weights(run / "seed-0") != weights(run / "seed-1")
    before = weights(run / "seed-1")
    for name in ("result.json", "model.safetensors", "checkpoint/latest.safetensors"):
        (run / "seed-1" / name).unlink()
    again = command("train", "--resume", "run", "--json", "--quiet").json
    assert weights(run / "seed-1") == before
    assert [scores(single) for single in again["runs"]] == [scores(single) for single in result["runs"]]
    printed = command("train", "--resume", "run").out
    assert " ± " in printed
    assert "0, 1" in printed
    for verb in (["evaluate"], ["predict"]):
        refused = command(*verb, "run", code=2).err
        assert refused == "topoff: Expected the run of one seed (got run, which has 2); give run/seed-0.\n"
    assert scores(command("evaluate", "run/seed-1", "--json").json) == scores(again["runs"][1])
    assert command("report", "run", "--out", "both.html").out == "report: both.html\n"


def test_one_of_several_seeds_is_a_plain_run(command: Command, place: Path, tmp_path: Path) -> None:
    line = ["train", place / "graph.npz", *TINY, "--out", "run", "--seeds", "3", "--dry-run", "--json"]
    assert command(*line).json["config"]["seed"] == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("empty_page")
def test_a_finished_run_is_left_as_it_is(command: Command, copied: Path, contract: Trained) -> None:
    kept = ("config.toml", "metrics.jsonl", "result.json", "details.json", "model.safetensors")
    before = {name: ((copied / name).read_bytes(), (copied / name).stat().st_mtime_ns) for name in kept}
    done = command("train", "--resume", copied, "--json")
    assert (done.json, done.err) == (contract.done.json, "")
    assert {name: ((copied / name).read_bytes(), (copied / name).stat().st_mtime_ns) for name in kept} == before
    assert command("train", "--resume", copied, "--lr", 0.01, "--hidden", 128, "--json").json == contract.done.json


@pytest.mark.filterwarnings("ignore:rank .* exceeds")
def test_an_interrupted_run_can_be_used_and_goes_on(command: Command, copied: Path, contract: Trained) -> None:
    (copied / "result.json").unlink()
    (copied / "model.safetensors").unlink()
    assert scores(command("evaluate", copied, "--json").json) == scores(contract.done.json)
    command("report", copied, "--quiet")
    assert "interrupted after epoch 10" in (copied / "report.html").read_text()
    assert scores(command("train", "--resume", copied, "--json", "--quiet").json) == scores(contract.done.json)
    assert weights(copied) == weights(contract.run)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--lr", "0.5", "--hidden", "64"],
            r"Expected --resume .*\(got hidden: 128 -> 64; lr: 0\.01 -> 0\.5\); leave .*",
        ),
        (["--set", "seed=4"], r"Expected --resume .*\(got seed: 0 -> 4\).*"),
        (["--out", "other"], r"Expected --resume without --out \(got other\).*"),
        (["--seeds", "0-1"], r"Expected --resume without --seeds \(got 0-1\).*"),
        (["--overwrite"], r"Expected --resume without --overwrite .*"),
    ],
)
def test_a_run_goes_on_only_as_it_began(command: Command, contract: Trained, flags: list[str], sentence: str) -> None:
    assert re.fullmatch(f"topoff: {sentence}\n", command("train", "--resume", contract.run, *flags, code=2).err)
    assert set(FILES) == {path.name for path in contract.run.iterdir()}


@pytest.mark.usefixtures("empty_page")
def test_what_exists_is_replaced_only_when_asked(command: Command, copied: Path, place: Path) -> None:
    line = ["train", place / "graph.npz", *TINY, "--out", copied, "--quiet"]
    before = weights(copied)
    assert re.search(r"which holds a run\); resume it with --resume .*--overwrite", command(*line, code=2).err)
    assert weights(copied) == before
    (copied / "mine.txt").touch()
    command(*line, "--overwrite")
    assert weights(copied) != before
    assert {path.name for path in copied.iterdir()} == FILES
    assert [path.name for path in copied.parent.iterdir()] == [copied.name]


def test_other_files_are_never_replaced(command: Command, place: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").touch()
    refused = command("train", place / "graph.npz", *TINY, "--out", "out", "--overwrite", code=2).err
    assert (
        refused
        == "topoff: Expected --out to be a new folder (got out, which holds other files); choose another --out.\n"
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("mistake", [["--ratio", "0.001"], ["--lr", "1e30"], ["--device", "moon"]])
def test_a_failure_keeps_the_run_that_was_to_be_replaced(
    command: Command, copied: Path, place: Path, mistake: list[str]
) -> None:
    before = weights(copied)
    command("train", place / "graph.npz", *TINY, *mistake, "--out", copied, "--overwrite", "--quiet", code=2)
    assert weights(copied) == before
    assert {path.name for path in copied.iterdir()} == FILES
    assert [path.name for path in copied.parent.iterdir()] == [copied.name]


def test_nobody_replaces_the_folder_they_stand_in(
    command: Command, copied: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copied / "checkpoint")
    line = ["train", place / "graph.npz", *TINY, "--out", "..", "--overwrite", "--quiet"]
    assert "Expected --overwrite from outside the run" in command(*line, code=2).err
    assert {path.name for path in copied.iterdir()} == FILES


def test_a_dry_run_says_what_and_why_and_writes_nothing(command: Command, place: Path, tmp_path: Path) -> None:
    done = command("train", place / "graph.npz", "--dry-run", "--out", "run")
    words = " ".join(re.sub("[│┌┐└┘├┤─]", " ", done.out).split())
    assert f"{N} nodes" in words
    for word in (
        "classes, 3 outputs, scored by accuracy",
        "estimated time per epoch about",
        "estimated peak memory about",
    ):
        assert word in words
    assert re.search(r"chosen: ratio 1\.0 \(400 nodes fit in one batch\)", words)
    plan = command("train", place / "graph.npz", "--dry-run", "--out", "run", "--json", "--rank", 7).json
    assert (plan["task"], plan["metric"], plan["config"]["rank"]) == ("classes", "accuracy", 7)
    left_open = {"batches", "ratio", "train_only", "refresh", "late", "regroup", "average", "eval_every"}
    assert {choice["what"] for choice in plan["chosen"]} == left_open
    assert all(choice["why"] for choice in plan["chosen"])
    assert plan["estimate"]["epoch_seconds"] > 0
    assert plan["estimate"]["memory"] > 2**20
    quiet = command("train", place / "graph.npz", "--dry-run", "--quiet")
    assert "estimated time" in quiet.out
    assert quiet.err == ""
    full = command("train", place / "graph.npz", "--dry-run", "--method", "full").out
    assert "full: the whole graph at once" in full
    sampled = command("train", place / "graph.npz", "--dry-run", "--method", "ns", "--ratio", 0.5, "--json").json
    assert sampled["estimate"]["batches"] == 2
    assert sampled["estimate"]["batch_nodes"] < N / 2  # the training nodes are shared out
    line = ["train", place / "graph.npz", "--dry-run", "--method", "ns", "--ratio", 0.5]
    words = " ".join(re.sub("[│┌┐└┘├┤─]", " ", command(*line).out).split())
    assert re.search(r"ns: 2 batches of about \d+ training nodes, 10 sampled neighbours", words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("empty_page")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_can_read_the_curves(command: Command, place: Path, tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    command("train", place / "graph.npz", *TINY, "--out", "run", "--tensorboard", "--quiet")
    curves = reading.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert set(curves.Tags()["scalars"]) >= {"loss", "lr", "fidelity", *SPLITS}
    for name in ("loss", "val"):
        assert [(event.step, event.value) for event in curves.Scalars(name)] == [
            (row["epoch"], pytest.approx(row[name], rel=1e-6)) for row in rows
        ]


def test_tensorboard_that_is_not_there(
    command: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    refused = command("train", place / "graph.npz", *TINY, "--out", "run", "--tensorboard", "--quiet", code=2).err
    assert re.fullmatch(r"topoff: Expected the package tensorboard .*; pip install tensorboard\.\n", refused)
    assert list(tmp_path.iterdir()) == []


OWN = """
from torch import nn
from torch_geometric.nn import SAGEConv


class Mine(nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.first = SAGEConv(in_channels, hidden_channels)
        self.second = SAGEConv(hidden_channels, out_channels)

    def forward(self, x, edge_index):
        return self.second(self.first(x, edge_index).relu(), edge_index)
"""


@pytest.mark.usefixtures("empty_page")
def test_a_model_of_the_users_own(command: Command, place: Path, tmp_path: Path) -> None:
    (tmp_path / "own_model_of_a_test.py").write_text(OWN)
    settings = [*TINY, "--model", "own_model_of_a_test:Mine", "--out", "run"]
    result = command("train", place / "graph.npz", *settings, "--json", "--quiet").json
    assert result["model"] == "own_model_of_a_test:Mine"
    assert {name.split(".")[0] for name in load_file(tmp_path / "run" / "model.safetensors")} == {"first", "second"}
    again = ["evaluate", "run", "--model", "own_model_of_a_test:Mine"]
    assert scores(command(*again, "--json").json) == scores(result)
    again = ["evaluate", "run", "--model", "own_model_of_a_test:Yours"]
    refused = command(*again, "--data", place / "graph.npz", code=2).err
    assert "Expected 'Yours' in own_model_of_a_test to be a subclass of torch.nn.Module (got no such name)" in refused


KINDS = {
    "multilabel": ("micro_f1", {"per_class", "classes"}),
    "binary": ("roc_auc", {"per_class", "classes", "confusion"}),
    "regression": ("r2", {"scatter"}),
}


@pytest.mark.usefixtures("empty_page")
@pytest.mark.parametrize("kind", KINDS)
def test_other_tasks(command: Command, place: Path, tmp_path: Path, kind: str) -> None:
    metric, extras = KINDS[kind]
    done = command("train", place / f"{kind}.npz", *TINY, "--epochs", 12, "--out", "run", "--json", "--quiet")
    assert (done.json["task"], done.json["metric"], done.err) == (kind, metric, "")
    assert done.json["train"] > 0.1  # r2 of the mean is 0
    details = json.loads((tmp_path / "run" / "details.json").read_text())
    assert details.keys() - {"layers"} == {"batches", "degrees", "split"} | extras
    assert scores(command("evaluate", "run", "--json").json) == pytest.approx(scores(done.json))
    assert f"exact {metric}" in command("evaluate", "run").out
    command("predict", "run", "--out", "p.npz")
    with np.load(tmp_path / "p.npz") as found:
        columns = dict(found)
    assert columns["node"].tolist() == list(range(N))
    y = arrays()["y"]
    if kind == "regression":
        assert columns.keys() == {"node", "prediction"}
        assert 100 < columns["prediction"].mean() < 120  # in the units of the targets
        return
    assert columns["class_names"].tolist() == ["0", "1", "2"][: columns["probability"].shape[1]]
    if kind == "binary":
        assert columns["probability"].sum(axis=1) == pytest.approx(np.ones(N), abs=1e-5)
        assert (columns["prediction"] == columns["probability"].argmax(axis=1).astype(str)).all()
        assert columns["probability"][y > 0, 1].mean() > columns["probability"][y == 0, 1].mean()
    else:
        sets = [";".join(str(number) for number in np.flatnonzero(row > 0.5)) for row in columns["probability"]]
        assert columns["prediction"].tolist() == sets


# ---- evaluate


@pytest.mark.usefixtures("empty_page")
def test_compensated_scores_stand_beside_exact_ones(command: Command, place: Path) -> None:
    command("train", place / "graph.npz", *TINY, "--out", "run", "--quiet")
    result = command("evaluate", "run", "--compensated", "--json").json
    assert (result["run"], result["exact"], result["nodes"]) == ("run", True, N)
    assert result["compensated"].keys() == {*SPLITS, "fidelity"}
    assert 0.5 < result["compensated"]["fidelity"] < 1
    shown = command("evaluate", "run", "--compensated").out
    assert f"{100 * result['compensated']['test']:.2f} %" in shown
    assert re.search("fidelity .* %", shown)
    assert command("evaluate", "run", "--compensated", "--quiet") == Done(0, shown, "")
    predicted = command("predict", "run", "--compensated", "--json", "--out", "p.npz").json
    assert (predicted["exact"], predicted["nodes"]) == (False, N)


@pytest.mark.usefixtures("empty_page")
def test_compensated_is_not_for_the_whole_graph(command: Command, place: Path) -> None:
    command("train", place / "graph.npz", *TINY[:6], "--method", "full", "--out", "run", "--quiet")
    refused = command("evaluate", "run", "--compensated", code=2).err
    assert re.fullmatch(
        r"topoff: Expected a run of method top for compensated .*\(got full\); leave it out\.\n", refused
    )


def test_an_empty_split_has_no_score(command: Command, contract: Trained, place: Path) -> None:
    result = command("evaluate", contract.run, "--data", place / "untested.npz", "--json").json
    assert result["test"] is None
    assert result["val"] > 0.4
    shown = command("evaluate", contract.run, "--data", place / "untested.npz").out
    assert re.search(r"│ test +│ - +│", shown)


# ---- predict


@pytest.mark.parametrize("ending", ["parquet", "csv", "npz"])
def test_predictions_carry_the_users_names(command: Command, tables: Trained, tmp_path: Path, ending: str) -> None:
    told = command("predict", tables.run, "--out", f"p.{ending}", "--json").json
    names, columns = tables.done.json["classes"], read_predictions(tmp_path / f"p.{ending}")
    assert told == {"out": f"p.{ending}", "nodes": 300, "columns": list(columns), "exact": True, "data_changed": False}
    assert list(columns) == ["node", "prediction", *(f"p_{name}" for name in names)]
    people = pyarrow.csv.read_csv(TABLES / "nodes.csv").to_pydict()
    assert columns["node"] == people["id"]
    probability = np.array([columns[f"p_{name}"] for name in names])
    assert [names[best] for best in probability.argmax(axis=0)] == columns["prediction"]
    asked = [split == "val" and label != "" for split, label in zip(people["split"], people["label"], strict=True)]
    pairs = zip(columns["prediction"], people["label"], asked, strict=True)
    hits = [guess == label for guess, label, yes in pairs if yes]
    assert np.mean(hits) == pytest.approx(tables.done.json["val"])


def read_predictions(path: Path) -> dict[str, list[object]]:
    """Read predictions as columns, from any of the three formats."""
    if path.suffix == ".npz":
        with np.load(path) as found:
            columns = {name: found[name].tolist() for name in ("node", "prediction")}
            return columns | {
                f"p_{name}": found["probability"][:, i].tolist() for i, name in enumerate(found["class_names"])
            }
    read = pyarrow.csv.read_csv if path.suffix == ".csv" else pyarrow.parquet.read_table
    return read(path).to_pydict()


@pytest.fixture
def newcomers(tmp_path: Path) -> Path:
    """Write the people of the example without labels, after some hermits who would shift every mean."""
    folder = tmp_path / "newcomers"
    folder.mkdir()
    people = pyarrow.csv.read_csv(TABLES / "nodes.csv").drop_columns(["label", "split"])
    rows = people.to_pylist()
    hermits = [rows[0] | {"id": f"hermit {number}", "age": 900, "office": "Mars"} for number in range(40)]
    pyarrow.csv.write_csv(pyarrow.Table.from_pylist(hermits + rows, schema=people.schema), folder / "nodes.csv")
    shutil.copy(TABLES / "edges.csv", folder)
    return folder


def test_another_table_is_read_like_the_first(
    command: Command, tables: Trained, newcomers: Path, tmp_path: Path
) -> None:
    command("predict", tables.run, "--out", "old.csv", "--quiet")
    assert command("predict", tables.run, "--data", newcomers, "--out", "new.csv").out.startswith("340 predictions")
    old, new = read_predictions(tmp_path / "old.csv"), read_predictions(tmp_path / "new.csv")
    assert new["node"][:2] == ["hermit 0", "hermit 1"]
    assert new["node"][40:] == old["node"]
    assert new["prediction"][40:] == old["prediction"]
    assert new["p_Sales"][40:] == pytest.approx(old["p_Sales"], abs=1e-5)
    refused = command("evaluate", tables.run, "--data", newcomers, code=2).err
    assert re.fullmatch(
        r"topoff: Expected .*newcomers to have labels .*\(got none\); use `topoff predict`\.\n", refused
    )


def test_a_prediction_is_replaced_only_when_asked(command: Command, tables: Trained, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("mine")
    refused = command("predict", tables.run, "--out", "p.csv", code=2).err
    assert re.fullmatch(r"topoff: Expected --out to be a new file \(got p\.csv, .*\); add --overwrite, .*\n", refused)
    assert (tmp_path / "p.csv").read_text() == "mine"
    command("predict", tables.run, "--out", "p.csv", "--overwrite", "--quiet")
    assert (tmp_path / "p.csv").read_text().startswith('"node"')


# ---- report


def test_a_report_goes_where_it_is_asked_to(command: Command, contract: Trained, tmp_path: Path) -> None:
    before = (contract.run / "report.html").stat().st_mtime_ns
    told = command("report", contract.run, "--out", "new/page.html", "--json").json
    page = tmp_path / "new" / "page.html"
    assert told == {"report": "new/page.html", "bytes": page.stat().st_size}
    assert f"{100 * contract.done.json['test']:.2f}" in page.read_text()
    assert "https://" not in page.read_text()
    assert (contract.run / "report.html").stat().st_mtime_ns == before


# ---- what is refused

BAD_TRAINING = {
    "name": ("wordnett", "did you mean 'wordnet'"),
    "file": ("nowhere.npz", r"Expected a graph in .*nowhere\.npz \(got no such file in .*\)"),
    "nothing": ("", r"Expected 'dataset' to be given \(got nothing\)"),
    "set": ("GRAPH --set hiden=3", r"Expected a known setting \(got 'hiden'\); did you mean 'hidden'"),
    "no pair": ("GRAPH --set lr", r"Expected --set to be key=value \(got 'lr'\)"),
    "key": (
        "--config PLACE/unknown.toml",
        r"Expected a known setting in .*unknown\.toml \(got 'hiddn'\); did you mean 'hidden'",
    ),
    "no toml": ("--config PLACE/broken.toml", "Expected .*broken.toml to be TOML"),
    "nested": ("--config PLACE/nested.toml", r"Expected .*nested.toml to be flat \(got a table or list 'model'\)"),
    "config": ("--config gcn-corra", r"Expected a TOML file or .*\(got 'gcn-corra'\); did you mean 'gcn-cora'"),
    "no config": ("--config nowhere.toml", r"Expected a TOML file or the name of a config \(got 'nowhere.toml'\)"),
    "number": ("GRAPH --set lr=fast", r"Expected 'lr' to be a valid number \(got 'fast'\)"),
    "range": ("GRAPH --epochs 0", r"Expected 'epochs' to be greater than or equal to 1 \(got 0\)"),
    "word": ("GRAPH --batches metsi", r"Expected 'batches' to be 'kaminpar', 'metis', .* \(got 'metsi'\)"),
    "refresh": ("GRAPH --refresh often", r"Expected refresh to be .*\(got 'often'\)"),
    "metric": ("GRAPH --metric acc", r"Expected metric to be .*\(got 'acc'\)"),
    "model": ("GRAPH --model gcnn", r"Expected model to be .*\(got 'gcnn'\); did you mean 'gcn'"),
    "module": ("GRAPH --model no_such_module:Net", "Expected model .* to name a module that can be imported"),
    "rank": ("GRAPH --rank -1", r"Expected 'rank' to be .*\(got '-1'\)"),
    "seeds": ("GRAPH --seeds 3-1", r"Expected --seeds to be numbers and ranges.*\(got '3-1'\)"),
    "split": ("GRAPH --split 3", "Expected 'split' to be from 0 to 0"),
    "truncated": ("PLACE/cut.npz", r"Expected .*cut\.npz to be a whole \.npz file"),
    "nan": ("PLACE/nan.npz", "Expected 'x' to be finite"),
    "overlap": ("PLACE/overlap.npz", "Expected 'train_mask' and 'val_mask' not to overlap"),
    "labels": ("PLACE/negative.npz", "Expected 'y' to hold classes from 0"),
    "no labels": ("PLACE/unlabelled.npz", "Expected .*unlabelled.npz to have the keys edge_index, y"),
    "batches": ("GRAPH --ratio 0.001", "Expected 'ratio' to give at most 400 batches"),
    "parts": ("GRAPH --batches metis --parts 401", "Expected 'parts' to be between"),
    "weights": ("PLACE/regression.npz --class-weight balanced", "Expected class_weight to be 'none'"),
    "divergence": ("GRAPH --lr 1e30", r"Expected the loss to stay finite \(got nan in epoch 1\); lower --lr"),
    "file as folder": ("GRAPH --out GRAPH", r"Expected --out to be a folder \(got the file .*\)"),
    "file as parent": (
        "GRAPH --out GRAPH/run",
        r"Cannot write .*run: a file is where a folder is needed\. Choose another path",
    ),
}


@pytest.mark.parametrize("name", BAD_TRAINING)
def test_a_mistake_in_training_is_one_line(command: Command, place: Path, tmp_path: Path, name: str) -> None:
    line, sentence = BAD_TRAINING[name]
    words = line.replace("PLACE", str(place)).replace("GRAPH", str(place / "graph.npz")).split()
    done = command("train", *TINY, "--out", "run", "--quiet", *words, code=2)
    assert re.fullmatch(rf"topoff: .*{sentence}.*\n", done.err)
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []  # nothing was trained: nothing is in the way of the next try


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a cuda device")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "gpu"])
def test_a_device_that_is_not_there(command: Command, place: Path, tmp_path: Path, device: str) -> None:
    done = command("train", place / "graph.npz", *TINY, "--device", device, "--out", "run", "--quiet", code=2)
    assert re.fullmatch(rf"topoff: Expected device to be auto, cpu or a cuda .*\(got '{device}'.*\n", done.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, where not even root can write")
@pytest.mark.parametrize(
    "line", ["train GRAPH --out /proc/run", "predict RUN --out /proc/p.csv", "report RUN --out /proc/p.html"]
)
def test_a_place_that_cannot_be_written(command: Command, contract: Trained, place: Path, line: str) -> None:
    words = line.replace("GRAPH", str(place / "graph.npz")).replace("RUN", str(contract.run)).split()
    refused = command(*words, code=2).err
    assert re.fullmatch(r"topoff: Cannot write .*proc.*: .*\. Choose another path\.\n", refused)


BAD_RUNS = {
    "missing": "Expected .*bad.*; give the folder that .topoff train.*wrote",
    "truncated": r"Expected .*model\.safetensors to be a whole safetensors file \(got .*\); train again",
    "no result": r"Expected .*result\.json to .*JSON.*\(got .*\); .*again",
    "no config": "Expected .*config.toml to .*TOML",
    "untrained": r"Expected a trained model in .*\(got no model\.safetensors and no checkpoint\); resume it with",
}


@pytest.mark.parametrize(
    ("verb", "kind"),
    [(verb, kind) for verb in ("evaluate", "predict") for kind in BAD_RUNS]
    + [("report", kind) for kind in ("missing", "no result", "no config")],
)
def test_a_bad_run_is_one_line(command: Command, contract: Trained, tmp_path: Path, verb: str, kind: str) -> None:
    bad = tmp_path / "bad"
    if kind != "missing":
        shutil.copytree(contract.run, bad)
    if kind == "truncated":
        (bad / "model.safetensors").write_bytes(weights(bad)[:-100])
    elif kind == "no result":
        (bad / "result.json").write_text('{"train": 0.5,')
    elif kind == "no config":
        (bad / "config.toml").write_text("dataset = \n")
    elif kind == "untrained":
        (bad / "model.safetensors").unlink()
        shutil.rmtree(bad / "checkpoint")
    rest = [] if verb == "evaluate" else ["--out", "new.csv" if verb == "predict" else "new.html"]
    done = command(verb, "bad", *rest, code=2)
    assert re.fullmatch(rf"topoff: {BAD_RUNS[kind]}.*\n", done.err)
    assert done.out == ""
    assert list(tmp_path.glob("new*")) == list(tmp_path.glob(".*")) == []


BAD_USES = {
    "features": ("evaluate RUN --data PLACE/wide.npz", r"Expected the graph to have 3 features.*\(got 6\)"),
    "classes": ("evaluate RUN --data PLACE/beyond.npz", "Expected 'y' to be integer class ids from 0 to 2"),
    "labels": ("evaluate RUN --data PLACE/multilabel.npz", "Expected 'y' to have shape"),
    "name": ("evaluate RUN --data wordnett", "did you mean 'wordnet'"),
    "truncated": ("predict RUN --data PLACE/cut.npz", "to be a whole .npz file"),
    "nan": ("predict RUN --data PLACE/nan.npz", "Expected 'x' to be finite"),
    "ending": ("predict RUN --out p.xlsx", r"Expected --out to end in \.parquet, \.csv or \.npz \(got 'p\.xlsx'\)"),
    "folder": ("predict RUN --out new.csv --overwrite", r"Expected --out to be a file \(got the folder new\.csv\)"),
    "parent": ("predict RUN --out PLACE/graph.npz/p.csv", "Cannot write .*: a file is where a folder is needed"),
    "page": ("report RUN --out new.csv", r"Expected out to be a file \(got the folder new\.csv\); add a name"),
    "parent of page": (
        "report RUN --out PLACE/graph.npz/p.html",
        "Cannot write .*: a file is where a folder is needed",
    ),
}


@pytest.mark.parametrize("name", BAD_USES)
def test_a_mistake_in_using_a_run_is_one_line(
    command: Command, contract: Trained, place: Path, tmp_path: Path, name: str
) -> None:
    line, sentence = BAD_USES[name]
    (tmp_path / "new.csv").mkdir()
    words = [word.replace("RUN", str(contract.run)).replace("PLACE", str(place)) for word in line.split()]
    done = command(*words, code=2)
    assert re.fullmatch(rf"topoff: .*{sentence}.*\n", done.err)
    assert done.out == ""
    assert list(tmp_path.rglob("*")) == [tmp_path / "new.csv"]


@pytest.mark.parametrize("line", ["train --hiden 3", "train --epochs two", "evaluate", "predict", "report", "trian"])
def test_what_typer_refuses_is_exit_code_2(command: Command, line: str, tmp_path: Path) -> None:
    done = command(*line.split(), code=2)
    assert re.fullmatch(r"topoff: .*(see topoff .*--help\.|did you mean .*\?)\n", done.err)
    assert list(tmp_path.iterdir()) == []


def test_a_stop_before_anything_is_trained_leaves_nothing(
    command: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(topoff.training.loop.Training, "run", stop)
    done = command("train", place / "graph.npz", *TINY, "--out", "run", "--quiet", code=1)
    assert done == Done(1, "", "topoff: Stopped.\n")
    assert list(tmp_path.iterdir()) == []


FAILURES = {
    "stopped": (KeyboardInterrupt(), 1, "Stopped."),
    "full disk": (
        OSError(errno.ENOSPC, "No space left on device"),
        1,
        r"The system refuses the output: no space left on device; nothing .* is lost: make room .*\.",
    ),
    "read-only": (
        OSError(errno.EROFS, "Read-only file system", "there"),
        2,
        r"Cannot write there: read-only file system\. Choose another path\.",
    ),
    "bug": (RuntimeError("two\nlines"), 1, r"RuntimeError: two lines \(unexpected; --debug shows where\)\."),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_goes_wrong_otherwise_is_one_line(
    command: Command, contract: Trained, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    error, code, sentence = FAILURES[name]

    monkeypatch.setattr(topoff.report.page, "write_report", Mock(side_effect=error))  # raises, but not in a user's line
    done = command("report", contract.run, code=code)
    assert re.fullmatch(f"topoff: {sentence}\n", done.err)
    if name == "bug":
        with pytest.raises(RuntimeError, match="two\nlines"):
            command("report", contract.run, "--debug")
