"""`topoff predict` by the user's own ids: of any type, safe for spreadsheets where asked for, never over a source."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from commands import Command
from table_files import write
from topoff.training.predictions import write_predictions

N = 12
IDS = [2**63 + 3 * number + 1 for number in range(N)]
CLASSES = ["=1+1", "-b"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a graph whose ids are uint64, and one whose ids begin like formulas."""
    folder = tmp_path_factory.mktemp("place")
    ids = {"g": pa.array(IDS, pa.uint64()), "formulas": pa.array([f"@{number}" for number in range(N)])}
    rest = {"f": [float(number) for number in range(N)], "label": [CLASSES[number % 2] for number in range(N)]}
    for name, column in ids.items():
        edges = pa.table({"source": column, "target": column.take(pa.array([*range(1, N), 0]))})
        write(folder / name, pa.table({"id": column, **rest}), edges)
    return folder


@pytest.fixture
def run(place: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a run on the first graph, in the current folder."""
    monkeypatch.chdir(place)
    if not Path("run").exists():
        command("train", "g", "--epochs", 1, "--metric", "accuracy", "--out", "run", "--quiet")
    return "run"


def test_ids_of_a_table_are_in_its_predictions(command: Command, run: str, tmp_path: Path) -> None:
    for ending in ("parquet", "csv", "npz"):
        command("predict", run, "--out", tmp_path / f"p.{ending}", "--quiet")
    nodes = pyarrow.parquet.read_table(tmp_path / "p.parquet")["node"]
    assert (nodes.type, nodes.to_pylist()) == (pa.uint64(), IDS)
    assert np.load(tmp_path / "p.npz")["node"].tolist() == IDS
    with (tmp_path / "p.csv").open(newline="") as file:
        assert [int(row["node"]) for row in csv.DictReader(file)] == IDS


def test_formulas_are_made_text_only_when_asked(command: Command, run: str, tmp_path: Path) -> None:
    line = ("predict", run, "--data", "formulas", "--quiet", "--out")
    command(*line, tmp_path / "plain.csv")
    command(*line, tmp_path / "safe.csv", "--spreadsheet-safe")
    with (tmp_path / "plain.csv").open(newline="") as one, (tmp_path / "safe.csv").open(newline="") as other:
        plain, safe = list(csv.DictReader(one)), list(csv.DictReader(other))
    assert [row["node"] for row in plain] == [f"@{number}" for number in range(N)]
    assert {row["prediction"] for row in plain} <= {*CLASSES}
    for key in ("node", "prediction"):
        assert [row[key] for row in safe] == [f"'{row[key]}" for row in plain]
    assert list(safe[0]) == list(plain[0]) == ["node", "prediction", "p_-b", "p_=1+1"]
    refused = command(*line, tmp_path / "p.parquet", "--spreadsheet-safe", code=2).err
    assert "to end in .csv with --spreadsheet-safe (got " in refused
    with pytest.raises(ValueError, match=r"to end in \.csv for spreadsheet-safe text \(got '.*p\.npz'\); leave it out"):
        write_predictions({"node": [0], "prediction": [1.0]}, tmp_path / "p.npz", safe=True)


def test_parts_are_safe_when_asked(command: Command, run: str, tmp_path: Path) -> None:
    line = ("partition", "formulas", "--parts", 1, "--out")
    command(*line, tmp_path / "parts.csv", "--spreadsheet-safe")
    assert (tmp_path / "parts.csv").read_text().splitlines()[1] == "'@0,0"
    assert "--spreadsheet-safe" in command(*line, tmp_path / "parts.npz", "--spreadsheet-safe", code=2).err
    command("partition", "g", "--parts", 1, "--out", tmp_path / "g.npz")
    assert np.load(tmp_path / "g.npz")["node_ids"].tolist() == IDS


@pytest.mark.parametrize("out", ["g/nodes.parquet", "./run/../g/edges.parquet", "link/nodes.parquet", "g/nodes.csv"])
def test_a_source_is_never_overwritten(command: Command, run: str, out: str) -> None:
    if not Path("link").is_symlink():
        Path("link").symlink_to("g")
    before = {path.name: path.read_bytes() for path in Path("g").iterdir()}
    for more in ([], ["--overwrite"], ["--overwrite", "--data", "formulas"]):
        assert "lie apart from the graph that is read" in command("predict", run, "--out", out, *more, code=2).err
    assert {path.name: path.read_bytes() for path in Path("g").iterdir()} == before
    other = command("predict", run, "--data", "formulas", "--out", "formulas/nodes.parquet", "--overwrite", code=2)
    assert "lie apart" in other.err


def test_a_refused_prediction_leaves_no_folder(command: Command, run: str) -> None:
    command("predict", run, "--data", "nowhere", "--out", "deep/er/p.csv", code=2)
    assert not Path("deep").exists()
    command("predict", run, "--out", "g/predictions.csv", "--quiet")  # beside the tables, under a name that is not read
    Path("g/predictions.csv").unlink()
