"""`topoff info`, `partition` and `convert`: once each in a process of its own, else through the same entry point."""

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import topoff
from commands import Command, Done, finish, start_verb
from graphs import communities, corners
from topoff.cli.partition import summarize
from topoff.data.describe import describe
from topoff.data.layout import SPLITS


def processes(*lines: list[object], folder: Path, code: int = 0) -> list[Done]:
    """Run verbs at the same time, in processes of their own."""
    done = [finish(process) for process in [start_verb(*line, folder=folder) for line in lines]]
    assert [one.code for one in done] == [code] * len(lines), done
    return done


def save(data: Data, path: Path, *, split: bool = True) -> Path:
    """Write a graph with numpy alone."""
    arrays = {name: data[name].numpy() for name in ("x", "edge_index", "y", "edge_weight", "edge_attr") if name in data}
    if split:
        arrays |= {f"{name}_mask": data[f"{name}_mask"].numpy() for name in SPLITS}
    np.savez(path, **arrays)
    return path


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Write a weighted, undirected graph of 60 nodes."""
    return save(communities(weighted=True), tmp_path / "graph.npz")


@pytest.fixture
def crooked(tmp_path: Path) -> Path:
    """Write the graph with all corners, without edge features."""
    data = corners()
    del data.edge_attr
    return save(data, tmp_path / "crooked.npz")


def assert_equal(first: Data, second: Data) -> None:
    """Compare graphs bit by bit, dtypes included."""
    keys = {key for key in first.keys() if key != "names"}  # noqa: SIM118
    assert keys == {key for key in second.keys() if key != "names"}  # noqa: SIM118
    for key in keys:
        assert first[key].dtype == second[key].dtype, key
        assert torch.equal(first[key].nan_to_num(nan=-7.5), second[key].nan_to_num(nan=-7.5)), key


# ---- each verb in a process of its own


def test_each_verb_in_a_process_of_its_own(graph: Path) -> None:
    lines = [[verb, "graph.npz", "--json"] for verb in ("info", "convert", "partition")]
    lines[1].append("again.npz")
    lines[2] += ["--parts", 4]
    info, convert, partition = processes(*lines, folder=graph.parent)
    assert info.err == ""
    assert info.json["nodes"] == convert.json["nodes"] == 60
    assert_equal(topoff.load(graph.parent / "again.npz"), topoff.load(graph))
    assert set(partition.json) == {"parts", "edge_cut", "min", "mean", "max", "seconds", "out"}
    assert np.load(graph.parent / "parts.npz")["parts"].shape == (60,)


def test_a_bad_place_is_said_at_once_in_one_line(tmp_path: Path) -> None:
    lines = [["convert", "wordnet", "nowhere/out.npz"], ["partition", "wordnet", "--out", "nowhere/out.npz"]]
    for done in processes(*lines, folder=tmp_path, code=2):
        assert done.err == (
            f"topoff: Expected the folder of OUT to exist (got no folder {tmp_path.resolve()}/nowhere); create it "
            "first.\n"
        )


# ---- info


def test_info_shows_tables_bars_and_warnings(command: Command, crooked: Path) -> None:
    out = command("info", crooked).out
    for what in ("14, 1 of them isolated", "32, directed, weighted", "3, 4", "3 classes", "train 7 (50.0%)", "━━━"):
        assert what in out, what
    assert out.index("Warnings:") < out.index("- Isolated nodes get no messages (1 of 14 nodes)")
    assert "Notes" not in out


def test_info_in_json_is_the_description(command: Command, crooked: Path) -> None:
    from dataclasses import asdict

    expected = {"dataset": str(crooked), "stand_in": None, **asdict(describe(topoff.load(crooked))), "notes": []}
    found = command("info", crooked, "--json").json
    assert len(found["warnings"]) == len(expected["warnings"])  # those with a command name the graph
    assert found | {"warnings": expected["warnings"]} == json.loads(json.dumps(expected))


def test_quiet_leaves_the_result_alone(command: Command, crooked: Path, tmp_path: Path) -> None:
    assert command("info", crooked, "--quiet") == command("info", crooked)
    assert "Graph:" in command("info", crooked, "--quiet").out
    assert "nodes" in command("convert", crooked, tmp_path / "out.npz", "--quiet").out


def test_info_of_regression_and_of_many_labels(command: Command, tmp_path: Path) -> None:
    data = communities()
    data.y = torch.linspace(0, 1, 60)
    out = command("info", save(data, tmp_path / "quantity.npz")).out
    assert "regression" in out
    assert "mean 0.5" in out
    data.y = (torch.rand(60, 25) < 0.3).float()
    out = command("info", save(data, tmp_path / "labels.npz")).out
    assert "25 labels, any of them" in out
    assert "and 5 more" in out


def test_info_takes_the_split_that_is_asked_for(command: Command, tmp_path: Path) -> None:
    data = communities()
    for name in SPLITS:
        data[f"{name}_mask"] = torch.stack([data[f"{name}_mask"]] * 2, dim=1)
    data.train_mask[:25, 1] = False
    path = save(data, tmp_path / "several.npz")
    sizes = [command("info", path, "--split", split, "--json").json["splits"]["train"] for split in (0, 1)]
    assert sizes[0] == 30
    assert sizes[1] < 30
    one = save(data, tmp_path / "none.npz", split=False)
    counts = [command("info", one, "--seed", seed, "--json").json["classes"] for seed in (0, 0, 1)]
    assert counts[0] == counts[1] != counts[2]


def test_names_are_printed_as_they_are(monkeypatch: pytest.MonkeyPatch, command: Command, graph: Path) -> None:
    data = topoff.load(graph)
    data.names = SimpleNamespace(
        node_ids=None, class_names=["[bold]", ":smile:", "x" * 200, "ok"], notes=("age: [3] filled",)
    )
    monkeypatch.setattr("topoff.data.load.load", lambda *_, **__: data)
    out = command("info", graph).out
    assert "[bold]" in out
    assert ":smile:" in out
    assert "Notes on the tables:\n- age: [3] filled\n" in out
    assert command("info", graph, "--json").json["notes"] == ["age: [3] filled"]


def test_info_in_plain_ascii(monkeypatch: pytest.MonkeyPatch, command: Command, graph: Path) -> None:
    plain = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", plain)
    command("info", graph)
    plain.flush()
    assert b"----" in plain.buffer.getvalue()


# ---- partition


@pytest.mark.parametrize("method", ["kaminpar", "metis", "random"])
def test_partition_writes_what_it_counts(command: Command, graph: Path, method: str) -> None:
    out = graph.parent / "cut.npz"
    found = command("partition", graph, "--parts", 4, "--method", method, "--out", out, "--json", "--quiet").json
    data, parts = topoff.load(graph), np.load(out)["parts"]
    weighted = topoff.partition(data.edge_index, 60, parts=4, method=method, edge_weight=data.edge_weight)
    assert parts.dtype == np.int64
    assert parts.tolist() == weighted.tolist()
    sizes = np.bincount(parts, minlength=4)
    assert (found["parts"], found["min"], found["mean"], found["max"]) == (4, sizes.min(), 15.0, sizes.max())
    source, target = data.edge_index.numpy()
    assert found["edge_cut"] == pytest.approx((parts[source] != parts[target]).mean())
    assert found["out"] == str(out)
    assert found["seconds"] >= 0


def test_partition_leaves_self_loops_out_of_the_cut(command: Command, crooked: Path) -> None:
    found = command("partition", crooked, "--parts", 14, "--out", crooked.parent / "c.npz", "--json").json
    assert found["edge_cut"] == 1.0


def test_empty_parts_count() -> None:
    found = summarize(torch.tensor([0, 0, 1]), torch.tensor([[0, 1, 2], [1, 2, 2]]), parts=4)
    assert found == {"parts": 4, "edge_cut": 0.5, "min": 0, "mean": 0.75, "max": 2}
    assert summarize(torch.tensor([0]), torch.empty(2, 0, dtype=torch.long), parts=1)["edge_cut"] == 0.0


def test_partition_prints_a_table_and_writes_csv(command: Command, graph: Path) -> None:
    out = graph.parent / "parts.csv"
    done = command("partition", graph, "--parts", 3, "--out", out)
    assert "edges cut" in done.out
    assert "written to" in done.out
    rows = list(csv.reader(out.read_text().splitlines()))
    assert rows[0] == ["node", "part"]
    assert [int(node) for node, _ in rows[1:]] == list(range(60))
    assert {part for _, part in rows[1:]} == {"0", "1", "2"}
    assert "edges cut" in command("partition", graph, "--parts", 3, "--out", out, "--overwrite", "--quiet").out


def test_the_seed_of_a_partition_matters_and_repeats(command: Command, graph: Path) -> None:
    found = []
    for number, seed in enumerate((0, 0, 1)):
        out = graph.parent / f"{number}.npz"
        command("partition", graph, "--parts", 5, "--method", "random", "--seed", seed, "--out", out)
        found.append(np.load(out)["parts"].tolist())
    assert found[0] == found[1] != found[2]


def test_partition_carries_the_users_ids(monkeypatch: pytest.MonkeyPatch, command: Command, graph: Path) -> None:
    data = topoff.load(graph)
    data.names = SimpleNamespace(node_ids=[f"n,{number}" for number in range(60)], class_names=None, notes=())
    monkeypatch.setattr("topoff.data.load.load", lambda *_, **__: data)
    for ending in ("npz", "csv"):
        command("partition", graph, "--parts", 2, "--out", graph.parent / f"named.{ending}")
    assert np.load(graph.parent / "named.npz", allow_pickle=False)["node_ids"].tolist() == data.names.node_ids
    rows = list(csv.DictReader((graph.parent / "named.csv").read_text().splitlines()))
    assert [row["node"] for row in rows] == data.names.node_ids


# ---- convert: what is read back


def sparse(data: Data) -> None:
    data.x = torch.where(torch.rand_like(data.x) < 0.95, 0.0, data.x)


def quantity(data: Data) -> None:
    data.y = data.x[:, 0].clone()
    data.y[data.test_mask] = float("nan")
    data.test_mask = torch.zeros(60, dtype=torch.bool)


def several(data: Data) -> None:
    data.y = (torch.rand(60, 3) < 0.5).float()


def unlabelled(data: Data) -> None:
    data.y = torch.where(data.test_mask, -1, data.y)
    data.test_mask = torch.zeros(60, dtype=torch.bool)


def single(data: Data) -> None:
    data.x = data.x.float()
    data.edge_attr = torch.randn(data.edge_index.size(1), 2)


def nothing(data: Data) -> None:
    """Change nothing."""


CHANGES = [nothing, sparse, quantity, several, unlabelled, single]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_npz_comes_back_bit_by_bit(command: Command, tmp_path: Path, change: Callable[[Data], None]) -> None:
    data = communities(weighted=True, directed=True)
    change(data)
    source = save(data, tmp_path / "source.npz")
    done = command("convert", source, tmp_path / "out.npz")
    assert "60 nodes" in done.out
    assert_equal(topoff.load(source), topoff.load(tmp_path / "out.npz"))
    keys = np.load(tmp_path / "out.npz", allow_pickle=False).files
    assert ("x_indptr" in keys) == (change is sparse)
    assert "split" in keys


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("change", CHANGES[:-1], ids=lambda change: change.__name__)
def test_tables_come_back(command: Command, tmp_path: Path, change: Callable[[Data], None], ending: str) -> None:
    data = communities(weighted=True, directed=True)
    change(data)
    source, folder = save(data, tmp_path / "source.npz"), tmp_path / "tables"
    found = command("convert", source, folder, "--format", ending, "--json").json
    assert (found["format"], found["features"]) == (ending, 5)
    assert sorted(file.name for file in folder.iterdir()) == [f"edges.{ending}", f"nodes.{ending}"]
    before, after = topoff.load(source), topoff.load(folder)
    assert torch.equal(before.edge_index, after.edge_index)
    for name in SPLITS:
        assert torch.equal(before[f"{name}_mask"], after[f"{name}_mask"])
    assert torch.allclose(before.y.double(), after.y.double(), rtol=0, atol=1e-6, equal_nan=True)
    assert before.y.shape == after.y.shape
    assert torch.allclose(before.edge_weight.float(), after.edge_weight.float(), rtol=1e-6)
    standard = (before.x - before.x.mean(dim=0)) / before.x.std(dim=0, correction=0)
    assert torch.allclose(standard.float(), after.x, atol=1e-5)


def test_convert_writes_the_split_that_is_asked_for(command: Command, tmp_path: Path) -> None:
    data = communities()
    for name in SPLITS:
        data[f"{name}_mask"] = torch.stack([data[f"{name}_mask"], data[f"{name}_mask"].roll(1)], dim=1)
    path = save(data, tmp_path / "several.npz")
    for split in (0, 1):
        command("convert", path, tmp_path / f"{split}.npz", "--split", split, "--quiet")
        written = topoff.load(tmp_path / f"{split}.npz")
        assert torch.equal(written.train_mask, data.train_mask[:, split])
    path = save(data, tmp_path / "none.npz", split=False)
    command("convert", path, tmp_path / "drawn.npz", "--seed", 3)
    assert_equal(topoff.load(path, seed=3), topoff.load(tmp_path / "drawn.npz"))


# ---- convert: the edges


def test_undirected_adds_reverses_and_merges(command: Command, crooked: Path) -> None:
    done = command("convert", crooked, crooked.parent / "out.npz", "--undirected", "--json").json
    before, after = topoff.load(crooked), topoff.load(crooked.parent / "out.npz")
    pairs = {tuple(sorted(pair)) for pair in before.edge_index.t().tolist()}
    expected = sorted({pair for first, second in pairs for pair in ((first, second), (second, first))})
    assert after.edge_index.t().tolist() == [list(pair) for pair in expected]
    assert (done["edges"], done["edges_before"]) == (len(expected), 32)
    found = describe(after)
    assert (found.undirected, found.duplicates, found.self_loops) == (True, 0, 3)
    weights = {
        tuple(pair): weight for pair, weight in zip(after.edge_index.t().tolist(), after.edge_weight, strict=True)
    }
    given = zip(before.edge_index.t().tolist(), before.edge_weight.tolist(), strict=True)
    copies = [weight for pair, weight in given if sorted(pair) == [3, 7]]
    assert len(copies) == 3
    assert float(weights[3, 7]) == float(weights[7, 3]) == pytest.approx(sum(copies))
    assert "before: 32" in command("convert", crooked, crooked.parent / "o.npz", "--undirected").out


def test_undirected_leaves_an_undirected_graph_alone(command: Command, graph: Path) -> None:
    command("convert", graph, graph.parent / "out.npz", "--undirected", "--remove-self-loops", "--remove-duplicates")
    assert_equal(topoff.load(graph), topoff.load(graph.parent / "out.npz"))


def test_duplicates_and_self_loops_go_when_asked(command: Command, crooked: Path) -> None:
    def counts(*options: str) -> tuple[int, int, int, bool]:
        command("convert", crooked, crooked.parent / "out.npz", "--overwrite", *options)
        found = describe(topoff.load(crooked.parent / "out.npz"))
        return found.edges, found.duplicates, found.self_loops, found.undirected

    assert counts() == (32, 4, 3, False)
    assert counts("--remove-duplicates") == (28, 0, 3, False)
    assert counts("--remove-self-loops") == (29, 4, 0, False)
    assert counts("--remove-self-loops", "--remove-duplicates") == (25, 0, 0, False)


def test_edge_features_are_neither_merged_nor_dropped_silently(command: Command, tmp_path: Path) -> None:
    path = save(corners(), tmp_path / "graph.npz")
    for options in (["out.npz", "--undirected"], ["out.npz", "--remove-duplicates"]):
        done = command("convert", path, tmp_path / options[0], options[1], code=2)
        assert re.search("Expected a graph without edge_attr to merge edges", done.err)
    done = command("convert", path, tmp_path / "out", code=2)
    assert re.search("Expected a graph without edge_attr for a folder of tables .*write an .npz file", done.err)
    assert [file.name for file in tmp_path.iterdir()] == ["graph.npz"]


# ---- the place


@pytest.mark.parametrize("out", ["out.npz", "out"])
def test_what_exists_is_replaced_only_when_asked(command: Command, graph: Path, crooked: Path, out: str) -> None:
    place = graph.parent / out
    command("convert", graph, place)
    before = topoff.load(place).num_nodes
    done = command("convert", crooked, place, code=2)
    assert re.search("Expected OUT to be new .*which exists.*--overwrite", done.err)
    assert topoff.load(place).num_nodes == before == 60
    command("convert", crooked, place, "--overwrite")
    assert topoff.load(place).num_nodes == 14
    assert sorted(file.name for file in graph.parent.iterdir()) == sorted(["crooked.npz", "graph.npz", out])


def test_other_tables_of_a_folder_do_not_stay(command: Command, graph: Path) -> None:
    folder = graph.parent / "tables"
    command("convert", graph, folder, "--format", "csv")
    command("convert", graph, folder, "--format", "parquet", "--overwrite")
    assert sorted(file.name for file in folder.iterdir()) == ["edges.parquet", "nodes.parquet"]


def test_nobodys_files_are_removed(command: Command, graph: Path) -> None:
    folder = graph.parent / "home"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    done = command("convert", graph, folder, "--overwrite", code=2)
    assert re.search(r"to be a folder of tables only to overwrite it \(got a folder with thesis.tex\)", done.err)
    assert (folder / "thesis.tex").read_text() == "years of work"
    (graph.parent / "x.npz").mkdir()
    done = command("convert", graph, graph.parent / "x.npz", "--overwrite", code=2)
    assert re.search(r"to be a file to overwrite it \(got a folder\)", done.err)
    (graph.parent / "plain").write_text("text")
    done = command("convert", graph, graph.parent / "plain", "--overwrite", code=2)
    assert re.search(r"to be a folder of tables only to overwrite it \(got a file\)", done.err)


def test_files_have_the_usual_permissions(command: Command, graph: Path) -> None:
    command("convert", graph, graph.parent / "out.npz")
    command("convert", graph, graph.parent / "out")
    (graph.parent / "plain").touch()
    usual = (graph.parent / "plain").stat().st_mode
    assert (graph.parent / "out.npz").stat().st_mode == usual
    assert (graph.parent / "out" / "nodes.parquet").stat().st_mode == usual


# ---- what is refused


def spoiled(kind: str, folder: Path) -> str:
    """Return a dataset argument that cannot be read."""
    path = folder / "bad.npz"
    if kind == "truncated":
        whole = save(communities(), path).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "malformed":
        data = communities()
        data.edge_index[0, 0] = 99
        save(data, path)
    elif kind == "unknown":
        return "wordnett"
    return str(path)


BAD_GRAPHS = {
    "unknown": "did you mean 'wordnet'",
    "missing": r"Expected a graph in .*bad\.npz \(got no such file\)",
    "truncated": r"Expected .*bad\.npz to be a whole \.npz file",
    "malformed": r"Expected 'edge_index' to hold node ids from 0 to 59 \(got 0 to 99\)",
}


@pytest.mark.parametrize("kind", BAD_GRAPHS)
@pytest.mark.parametrize("verb", ["info", "partition", "convert"])
def test_a_bad_graph_is_one_line_and_exit_code_2(command: Command, tmp_path: Path, verb: str, kind: str) -> None:
    out = tmp_path / "out.npz"
    rest = {"info": [], "partition": ["--out", out], "convert": [out]}[verb]
    done = command(verb, spoiled(kind, tmp_path), *rest, code=2)
    assert re.fullmatch(rf"topoff: .*{BAD_GRAPHS[kind]}.*\n", done.err)
    assert done.out == ""
    assert not out.exists()


BAD_OPTIONS = {
    "method": ("partition GRAPH --method metsi --out NEW.npz", "Expected 'method' .*did you mean 'metis'"),
    "parts": ("partition GRAPH --parts 61 --out NEW.npz", "Expected 'parts' to be between 1 and .* 60 .*got 61"),
    "ending": ("partition GRAPH --out parts.txt", r"Expected --out to end in \.npz or \.csv \(got 'parts\.txt'\)"),
    "existing": ("partition wordnet --out GRAPH", "Expected OUT to be new .*--overwrite"),
    "unwritable": ("partition GRAPH --parts 2 --out GRAPH/parts.npz", "Expected the folder of OUT to exist"),
    "format": ("convert GRAPH NEW --format xml", r"Expected --format to be csv, parquet or store \(got 'xml'\)"),
    "format of npz": ("convert GRAPH NEW.npz --format csv", r"Expected no --format with an \.npz file \(got 'csv'\)"),
    "other file": ("convert GRAPH NEW.csv", r"Expected OUT to end in \.npz or to be a folder \(got '.*\.csv'\)"),
    "unwritable npz": ("convert wordnet GRAPH/out.npz", "Expected the folder of OUT to exist"),
    "split": ("convert GRAPH NEW.npz --split 1", "In .*: Expected 'split' to be from 0 to 0"),
    "split of info": ("info GRAPH --split 1", "In .*: Expected 'split' to be from 0 to 0"),
}


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option_is_one_line_and_exit_code_2(command: Command, graph: Path, name: str) -> None:
    line, sentence = BAD_OPTIONS[name]
    words = [word.replace("GRAPH", str(graph)).replace("NEW", str(graph.parent / "new")) for word in line.split()]
    done = command(*words, code=2)
    assert re.fullmatch(rf"topoff: {sentence}.*\n", done.err)
    assert [file.name for file in graph.parent.iterdir()] == ["graph.npz"]


@pytest.mark.parametrize(
    "line",
    ["info", "info GRAPH --split -1", "partition GRAPH --parts 0", "partition GRAPH --parts ten", "convert GRAPH"],
)
def test_what_typer_refuses_is_exit_code_2(command: Command, graph: Path, line: str) -> None:
    done = command(*line.replace("GRAPH", str(graph)).split(), code=2)
    assert re.fullmatch(r"topoff: .*; see topoff .*--help\.\n", done.err)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, where not even root can write")
@pytest.mark.parametrize("verb", ["partition", "convert"])
def test_a_place_that_cannot_be_written(command: Command, graph: Path, verb: str) -> None:
    place = ["/proc/out.npz"] if verb == "convert" else ["--parts", 2, "--out", "/proc/out.npz"]
    done = command(verb, graph, *place, code=2)
    assert re.fullmatch(r"topoff: Cannot write /proc/out\.npz: .*\. Choose another path\.\n", done.err)


def test_a_folder_without_permission(command: Command, graph: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    closed = graph.parent / "closed"
    closed.mkdir(mode=0o500)
    assert re.fullmatch(
        r"topoff: .*closed/out\.npz.*ermission denied.*\n", command("convert", graph, closed / "out.npz", code=2).err
    )


@pytest.mark.parametrize("verb", ["info", "partition", "convert"])
def test_help_ends_in_examples(command: Command, verb: str) -> None:
    out = command(verb, "--help").out
    assert out.count(f"topoff {verb} ") >= 3  # the usage and two examples


def test_help_says_what_becomes_of_weights(command: Command) -> None:
    out = " ".join(command("convert", "--help").out.split())
    assert "Merged edges of equal weight keep it, others get the sum of their weights" in out
