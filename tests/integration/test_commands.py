"""`topoff measure`, the example and the README's code: each once in a process of its own, errors by the same `main`."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from commands import ROOT, Command, Done, finish, start
from topoff.cli.app import app
from topoff.models.by_name import MODELS


def run(*arguments: str, code: int = 0) -> Done:
    """Run Python in a process of its own and check the exit code."""
    done = finish(start(*arguments, folder=ROOT))
    assert done.code == code, done.err
    return done


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a small graph of two communities as npz."""
    rng = np.random.default_rng(0)
    y = np.arange(200) % 3
    edges = rng.integers(0, 200, (2, 3000))
    keep = (y[edges[0]] == y[edges[1]]) | (rng.random(3000) < 0.2)
    x = rng.normal(size=(200, 8)).astype(np.float32) + y[:, None]
    path = tmp_path_factory.mktemp("graph") / "graph.npz"
    np.savez(path, edge_index=edges[:, keep], x=x, y=y)
    return str(path)


MEASURE = ["--hidden", "16", "--epochs", "12", "--ratio", "0.25", "--rank", "8", "--json", "--quiet"]


def test_measure_ends_in_one_line_of_json(graph_file: str) -> None:
    done = run("-m", "topoff", "measure", graph_file, *MEASURE, "--batches", "metis", "--parts", "8")
    result = json.loads(done.out.splitlines()[-1])
    assert list(result) == ["top", "cluster", "drop"]
    keys = {"relative_error", "accuracy_degradation", "mean_degradation", "gradient_error", "gradient_cosine"}
    assert set(result["top"]) == keys | {"certificate"}
    assert set(result["drop"]) == set(result["cluster"]) == keys
    assert result["top"]["relative_error"] < result["drop"]["relative_error"]


@pytest.mark.parametrize("estimator", ["paper", "released"])
def test_measure_with_the_papers_estimators_and_random_batches(
    command: Command, graph_file: str, estimator: str
) -> None:
    options = ("--estimator", estimator, "--batches", "random", "--methods", "top", "--inits", "3")
    done = command("measure", graph_file, *MEASURE, *options)
    assert 0 < json.loads(done.out)["top"]["relative_error"] < 1


def test_a_fresh_basis_is_better_than_a_random_one(command: Command, graph_file: str) -> None:
    errors = []
    for age in ("none", "2"):
        done = command("measure", graph_file, *MEASURE, "--refresh-age", age, "--methods", "top")
        errors.append(json.loads(done.out)["top"]["relative_error"])
    assert errors[1] < errors[0]


def test_measure_prints_a_table_without_json(command: Command, graph_file: str) -> None:
    done = command("measure", graph_file, "--hidden", "8", "--epochs", "2", "--rank", "4", "--ratio", "0.5")
    assert "cluster" in done.out
    assert "%" in done.out


def test_quiet_means_the_same_for_every_verb() -> None:
    sentence = "Print no progress; only the result, warnings and errors."
    for verb in (
        "info",
        "generate",
        "convert",
        "partition",
        "train",
        "evaluate",
        "predict",
        "report",
        "measure",
        "compare",
    ):
        words = " ".join(CliRunner().invoke(app, [verb, "--help"]).output.split())
        assert sentence in words, verb
        assert "Print the result as one line of JSON." in words, verb


def test_a_quiet_measure_still_prints_its_result(graph_file: str) -> None:
    options = ["--hidden", "8", "--epochs", "2", "--rank", "4", "--ratio", "0.5", "--methods", "drop", "--quiet"]
    done = CliRunner().invoke(app, ["measure", graph_file, *options])
    assert "relative" in done.stdout
    assert "drop" in done.stdout


@pytest.mark.filterwarnings("ignore:The compensation misses")
@pytest.mark.parametrize("model", [*MODELS, "torch_geometric.nn:GIN"])
def test_every_model_can_be_measured(graph_file: str, model: str) -> None:
    done = CliRunner().invoke(app, ["measure", graph_file, *MEASURE, "--model", model, "--methods", "top,drop,gas"])
    result = json.loads(done.stdout)
    assert list(result) == ["top", "drop", "gas"]
    assert all(0 <= row["relative_error"] < 5 for row in result.values())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.npz"], r"nowhere\.npz"),
        (["wordnett"], "wordnet"),
        (["GRAPH", "--model", "gatt"], "Expected model to be one of gcn, .* \\(got 'gatt'\\); did you mean 'gat'"),
        (["GRAPH", "--refresh-age", "old"], "Expected --refresh-age to be 'none' or a number .*\\(got 'old'\\)"),
        (["GRAPH", "--refresh-age", "99", "--epochs", "2"], "Expected refresh-age to be between 0 and epochs = 2"),
        (["GRAPH", "--methods", "lmc", "--epochs", "1"], "Expected methods to be among .* \\(got 'lmc'\\)"),
        (["GRAPH", "--estimator", "best", "--epochs", "1"], "Expected estimator to be one of .* \\(got 'best'\\)"),
        (["GRAPH", "--batches", "metsi", "--epochs", "1"], "metis"),
    ],
)
def test_a_user_error_is_one_line_and_exit_code_2(
    command: Command, graph_file: str, arguments: list[str], sentence: str
) -> None:
    filled = [graph_file if argument == "GRAPH" else argument for argument in arguments]
    done = command("measure", *filled, "--quiet", code=2)
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("topoff: ")
    assert re.search(sentence, done.err)


def test_debug_lets_the_error_through(command: Command) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz"):
        command("measure", "nowhere.npz", "--debug")


def test_help_ends_in_examples_and_version_is_printed() -> None:
    assert "topoff measure wordnet" in run("-m", "topoff", "measure", "--help").out
    assert run("-m", "topoff", "--version").out.startswith("topoff ")


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, topoff.cli.app; print('torch' in sys.modules)"
    assert run("-c", code).out.strip() == "False"


def test_the_quickstart_runs() -> None:
    done = run("examples/quickstart.py", "--epochs", "1")
    assert "exact test accuracy" in done.out
    assert "peak memory" in done.out


def test_the_code_in_the_readme_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert "range(50)" in code
    done = run("-c", code.replace("range(50)", "range(1)"))
    assert "'test'" in done.out
    assert "fidelity" in done.out
