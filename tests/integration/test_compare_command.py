"""`topoff compare`: real processes, few of them, since each takes seconds to start."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from commands import Command, Done, call
from topoff.cli.compare_progress import CompareProgress
from topoff.experiments.jobs import Job
from topoff.training.config import make_config

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TINY = ["--layers", "2", "--hidden", "8", "--epochs", "2", "--batches", "random", "--ratio", "0.25", "--rank", "4"]
PROMISED = {"test", "epoch_seconds", "preprocess_seconds", "peak_rss_mb", "train_peak_rss_mb", "relative_error"}
KILLER = """
import os, signal, torch_geometric.nn

class Killer(torch_geometric.nn.GCN):
    def __init__(self, *args, **options):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a graph of three classes and a model that kills its process."""
    folder = tmp_path_factory.mktemp("place")
    rng = np.random.default_rng(0)
    y, edges = rng.integers(0, 3, 300), rng.integers(0, 300, (2, 1200))
    edges = edges[:, (y[edges[0]] == y[edges[1]]) | (rng.random(1200) < 0.2)]
    x = (np.eye(3)[y] + rng.normal(size=(300, 3))).astype(np.float32)
    np.savez(folder / "graph.npz", x=x, y=y, edge_index=np.concatenate([edges, edges[::-1]], axis=1))
    (folder / "killer.py").write_text(KILLER)
    (folder / "trained").mkdir()
    (folder / "trained" / "config.toml").write_text('# topoff train x\ndataset = "x"\n')
    return folder


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], place: Path) -> Command:
    """Return a function that runs the verb in this process; what it trains has processes of its own."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments: object, code: int = 0) -> Done:
        return call("compare", *arguments, capture=capfd, code=code)

    return run


def strict(line: str) -> dict[str, dict[str, dict[str, object]]]:
    """Read JSON as strict readers take it."""
    return json.loads(line, parse_constant=pytest.fail)


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Return when the files of all runs were written."""
    files = [path for path in folder.glob("*/seed-*/**/*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in files}


def test_methods_are_compared_once(command: Command, place: Path) -> None:
    line = ["graph.npz", "--methods", "full,top,drop,ns", *TINY, "--seeds", "0", "--out", "runs/x"]
    first = command(*line, "--set", "drop.model=killer:Killer", "--set", "ns.model=nope", "--json")
    assert first.out.count("\n") == 1
    table = strict(first.out)
    rows = table["methods"]
    assert list(rows) == ["full", "top", "drop", "ns"]
    for name in ("full", "top"):
        assert rows[name].keys() >= PROMISED | {"train", "val", "best_epoch", "gradient_error", "gradient_cosine"}
        assert all(isinstance(rows[name][key], int | float) for key in PROMISED)
    assert rows["full"]["relative_error"] == 0
    assert rows["full"]["gradient_error"] < 1e-5 < rows["top"]["gradient_error"] < 1
    assert rows["drop"]["error"] == "killed (SIGKILL): most likely the machine ran out of memory"
    assert rows["ns"].keys() == {"error", "own_settings"}  # the others had been trained: it fails alone
    assert "'nope'" in str(rows["ns"]["error"])
    assert rows["ns"]["own_settings"] == {"model": "nope"}
    assert rows["full"]["train_peak_rss_mb"] <= rows["full"]["peak_rss_mb"]
    assert rows["top"]["chosen"].keys() >= {"refresh", "eval_every"}
    assert "Exception ignored" not in first.err
    assert (table["metric"], table["epochs"], table["seeds"]) == ("accuracy", 2, [0])
    assert table["target"] == pytest.approx(0.99 * max(rows["full"]["val"], rows["top"]["val"]))
    assert re.search(r"^top, seed 0: validation .* %, test .* % at epoch \d, .* per epoch$", first.err, re.MULTILINE)
    assert (place / "runs/x/top/seed-0/checkpoint/latest.safetensors").is_file()
    config = (place / "runs/x/top/seed-0/config.toml").read_text()
    assert config.startswith("# topoff compare graph.npz --methods full,top,drop,ns ")
    looked_after_it_again(command, place, rows, line[3:])


def looked_after_it_again(command: Command, place: Path, rows: dict[str, object], flags: list[str]) -> None:
    """Repeat the comparison: nothing runs again, and the people's table has the same numbers."""
    before = state(place / "runs" / "x")
    again = command("graph.npz", "--methods", "full,top", *flags, "--target", "0.9999")
    assert "2 runs had finished earlier and are not run again" in again.err
    assert state(place / "runs" / "x") == before
    assert re.search(r"│ top +│ +\d+\.\d\d %", again.out)
    assert "never" in again.out
    assert again.out.splitlines()[-1] == "runs: runs/x   page: runs/x/compare.html"
    quiet = command("graph.npz", "--methods", "full,top", *flags, "--quiet", "--json")
    assert quiet.err == ""
    assert strict(quiet.out)["methods"]["top"] == rows["top"]
    changed = command("graph.npz", "--methods", "full,top", *flags, "--lr", "0.5", code=2)
    assert "(got lr: 0.01 -> 0.5)" in changed.err
    assert state(place / "runs" / "x") == before
    if BROWSER:
        opens(place / "runs" / "x" / "compare.html")


def test_methods_are_compared_by_seconds(command: Command, place: Path) -> None:
    line = ["graph.npz", "--methods", "cluster,full", *TINY[:4], *TINY[6:10], "--seconds", "0.6", "--seeds", "0-1"]
    line += ["--schedule", "cosine", "--no-gradients", "--out", "runs/timed"]
    done = command(*line, "--json")
    table = strict(done.out)
    assert (table["epochs"], table["seconds"]) == (None, 0.6)
    assert table["targets"].keys() == {"95", "98", "99"}
    assert table["target"] == table["targets"]["98"]
    assert table["reference"]["of"] == "full"
    for row in table["methods"].values():
        assert row["steps"] >= 1
        assert row["reached"].keys() == row["seconds_to"].keys() == {"95", "98", "99"}
        assert row["seconds_to_target"] == row["seconds_to"]["98"]
    assert table["methods"]["full"]["paired"]["seeds"] == [0, 1]
    people = command(*line)
    assert "full minus cluster, test: " in people.out
    assert re.search(r"full: time to 95 %: \d", people.out)
    assert "gcn, 0.6 seconds, accuracy" in people.out


def opens(page: Path) -> None:
    """Open the page in a browser, offline; it has its plots and complains of nothing."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    options += [f"--user-data-dir={page.parent / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom"]
    done = subprocess.run(
        [str(BROWSER), *options, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<svg") == 3


def test_where_nothing_ran_the_code_is_one(command: Command, place: Path) -> None:
    line = [
        "graph.npz",
        "--methods",
        "cluster",
        *TINY[:-2],  # the rank is for top
        "--batches",
        "metis",
        "--set",
        "cluster.parts=2",
        "--seeds",
        "0-2",
    ]
    done = command(*line, "--out", "runs/refused", code=1)  # refused once: the other seeds are not tried
    assert "cluster, seed 0: Expected 'parts' to be between the number of batches" in done.err
    assert "seed 1 (" not in done.err
    assert "cluster, seeds 1, 2: not tried, for the same reason" in done.err
    found = json.loads((place / "runs" / "refused" / "compare.json").read_text())
    assert found["methods"]["cluster"].keys() == {"error", "own_settings"}
    assert "did not run: Expected" in (place / "runs" / "refused" / "compare.html").read_text()


def test_what_no_method_can_use_is_a_mistake_of_the_whole(command: Command, place: Path) -> None:
    done = command("graph.npz", "--methods", "full,top", *TINY, "--model", "nope", "--out", "runs/nope", code=2)
    assert re.fullmatch(r"full, seed 0 \(1/2\) \.\.\.\ntopoff: Expected .*'nope'.*\n", done.err)
    assert not (place / "runs" / "nope").exists()


def test_one_run_that_was_kept_is_one(capfd: pytest.CaptureFixture[str]) -> None:
    job = Job(make_config({"dataset": "x"}), Path("x"), "")
    with CompareProgress(quiet=False) as progress:
        progress.kept(job, 1, 1)
    assert capfd.readouterr().err == "1 run had finished earlier and is not run again\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--methods", "tpo"], r"Expected --methods to be .* \(got 'tpo'\); did you mean 'top'\?"),
        (["--method", "top"], r"Expected the methods as --methods \(got --method top\)"),
        (["--reference", "0.7"], r"Expected --reference with --seconds \(got it without\); by epochs, give --target"),
        (["--target", "nan"], r"Expected --target to be a score, such as 0\.75 \(got nan\)"),
        (["--methods", "top", "--set", "gas.ratio=1"], r"Expected --set to be key=value .*\(got 'gas\.ratio'\)"),
        (["--methods", "top", "--set", "top.rnk=1"], r"Expected a known setting \(got 'rnk'\)"),
        (["--methods", "top", "--set", "top.epochs=9"], r"Expected --set .* all methods share \(got 'top\.epochs'\)"),
        (
            ["--out", "trained"],
            r"Expected --out .* \(got trained, which holds a run of topoff train\); choose another ",
        ),
        (["--out", "."], r"Expected --out to be a new folder \(got \., which holds other files\)"),
    ],
)
def test_a_mistake_is_one_sentence(command: Command, flags: list[str], message: str) -> None:
    done = command("graph.npz", *flags, code=2)
    assert re.fullmatch(rf"topoff: {message}.*\n", done.err)


def test_a_stop_ends_all_and_names_the_way_on(place: Path) -> None:
    line = ["compare", "graph.npz", "--methods", "full", *TINY[:4], "--epochs", "100000", "--seeds", "0-1"]
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ} | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "topoff", *line, "--out", "runs/stopped", "--set", "checkpoint_seconds=9999"],
        cwd=place, env=environment, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored under `nohup make test &`
    )  # fmt: skip
    metrics = place / "runs" / "stopped" / "full" / "seed-0" / "metrics.jsonl"
    for _ in range(2400):  # a busy machine
        if metrics.is_file() and metrics.stat().st_size:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    last = err.splitlines()[-1]
    assert last.startswith("topoff: Stopped; resume with: topoff compare graph.npz --methods full ")
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    size = metrics.stat().st_size
    time.sleep(0.5)
    assert metrics.stat().st_size == size  # the process that trained is gone, too
    assert (metrics.parent / "checkpoint" / "latest.safetensors").is_file()  # saved when it was stopped
    assert not list(metrics.parent.glob("**/.*.part"))
