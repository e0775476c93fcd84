"""`topoff generate`, and stores in every verb: from the command line to labelled results."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import topoff
from commands import Command, finish, start_verb
from faults import Fault, Here
from graphs import communities
from topoff.data.load import load
from topoff.data.store import open_store, stored
from topoff.data.write import write_npz

TINY = ("--nodes", 400, "--edges", 4000, "--features", 6, "--classes", 3, "--communities", 6, "--seed", 1)
SHORT = ("--layers", 2, "--hidden", 8, "--epochs", 2, "--batches", "random", "--ratio", 0.5)


@pytest.fixture
def made(command: Command, tmp_path: Path) -> Path:
    command("generate", *TINY, "--out", tmp_path / "g.store")
    return tmp_path / "g.store"


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    write_npz(load(communities(dtype=torch.float32)), tmp_path / "graph.npz")
    return tmp_path / "graph.npz"


def test_generate_train_and_predict_in_processes_of_their_own(tmp_path: Path) -> None:
    done = finish(start_verb("generate", "arxiv", "--scale", 0.003, "--out", "a.store", "--json", folder=tmp_path))
    assert (done.code, done.json["nodes"], done.json["path"]) == (0, 508, str(tmp_path.resolve() / "a.store"))
    assert {"edges", "features", "classes", "dtype", "seconds", "bytes"} <= done.json.keys()
    assert done.json["bytes"] == sum(path.stat().st_size for path in (tmp_path / "a.store").glob("*.npy"))
    assert done.err.splitlines()[0] == "collecting edges ..."
    train = finish(start_verb("train", "a.store", *SHORT, "--out", "run", "--json", folder=tmp_path))
    assert (train.code, train.json["stand_in"]) == (0, "stand-in of arxiv, scale 0.003, seed 0")


@pytest.mark.filterwarnings("always:The graph is a stand-in")
def test_a_stand_in_is_labelled_wherever_it_is_named(command: Command, made: Path, tmp_path: Path) -> None:
    label = "stand-in, seed 1"
    assert f"({label})" in " ".join(command("info", made).out.split())
    assert command("info", made, "--json").json["stand_in"] == label
    out = command("train", made, *SHORT, "--out", tmp_path / "run", "--seeds", "0,1").out
    assert label in " ".join(out.split())
    assert json.loads((tmp_path / "run" / "result.json").read_text())["stand_in"] == label
    assert f"({label})</h1>" in (tmp_path / "run" / "report.html").read_text()
    assert label in " ".join(command("train", made, *SHORT, "--dry-run").out.split())
    lines = ("compare", made, *SHORT, "--methods", "full,drop", "--out", tmp_path / "cmp")
    assert label in " ".join(command(*lines).out.split())
    assert json.loads((tmp_path / "cmp" / "compare.json").read_text())["stand_in"] == label
    assert f"({label})</h1>" in (tmp_path / "cmp" / "compare.html").read_text()
    assert label in " ".join(command("partition", made, "--parts", 3, "--out", tmp_path / "p.npz").out.split())
    assert f"warning: The graph is a {label}" in command("convert", made, tmp_path / "g.npz").err


def test_what_generate_refuses(command: Command, made: Path) -> None:
    out = ("--out", made.parent / "new")
    for words, sentence in {
        ("arXiv",): "Expected the name of a preset (got 'arXiv'); did you mean arxiv?",
        ("cora",): "Expected the name of a preset (got 'cora'); the presets are arxiv, reddit, yelp, products, papers",
        (): "Expected a preset or --nodes (got neither); name one of arxiv, ",
        ("arxiv", "--split", "a,b"): "Expected --split to be three shares such as 0.6,0.2,0.2 (got 'a,b'); give those",
        ("arxiv", "--scale", "0"): "Expected 'scale' to be above 0 (got 0.0)",
        ("arxiv", "--dtype", "int8"): "Expected the type of the features to be float32, float16, float64 (got 'int8')",
        ("arxiv", "--between", "2"): "Expected 'between' to be a share from 0 to 1 (got 2.0)",
    }.items():
        done = command("generate", *words, *out, code=2)
        assert done.err.startswith(f"topoff: {sentence}"), done.err
        assert done.err.count("\n") == 1
    done = command("generate", *TINY, "--out", made, code=2)
    assert "Expected OUT to be new" in done.err
    command("generate", *TINY, "--out", made, "--overwrite", "--directed", "--exponent", 0)
    assert not open_store(made).header.statistics["undirected"]
    (made / "thesis.tex").write_text("mine")
    assert "a folder with thesis.tex" in command("generate", *TINY, "--out", made, "--overwrite", code=2).err


def test_every_flag_of_generate_changes_the_graph(command: Command, made: Path, tmp_path: Path) -> None:
    first = open_store(made).header.arrays
    changes = "--between 0.5|--homophily 0.8|--exponent 3.5|--largest 40|--label-noise 0.3|--feature-noise 0.9|"
    changes += (
        "--split 0.2,0.2,0.2|--task multilabel|--communities 9|--classes 4|--features 7|--edges 3000|--nodes 300|"
    )
    changes += "--seed 2|--dtype float16|--scale 0.5|--directed"
    for number, change in enumerate(changes.split("|")):
        words = (*TINY, *change.split(), "--out", tmp_path / str(number), "--quiet")
        command("generate", *words)
        assert open_store(tmp_path / str(number)).header.arrays != first, change


def test_convert_to_a_store_and_back(command: Command, graph: Path, tmp_path: Path) -> None:
    done = command("convert", graph, tmp_path / "g.store", "--json").json
    assert (done["format"], done["nodes"], done["edges"], done["edges_before"]) == ("store", 60, 300, 300)
    command("convert", graph, tmp_path / "h", "--format", "store", "--dtype", "float16", "--remove-self-loops")
    assert str(topoff.load(tmp_path / "h", in_memory=False).x.dtype) == "torch.float16"
    command("convert", tmp_path / "g.store", tmp_path / "again.npz")
    again, first = topoff.load(tmp_path / "again.npz"), topoff.load(graph)
    assert torch.equal(again.x, first.x)
    assert torch.equal(again.y, first.y)
    order = np.lexsort(first.edge_index.numpy())
    assert torch.equal(again.edge_index, first.edge_index[:, order])


def test_edges_are_tidied_on_the_way_to_a_store(command: Command, tmp_path: Path) -> None:
    data = communities(directed=True, dtype=torch.float32)
    data.edge_index = torch.cat([data.edge_index, data.edge_index[:, :5], torch.tensor([[1], [1]])], dim=1)
    write_npz(load(data), tmp_path / "g.npz")
    for name, flags in {"a": ["--undirected"], "b": ["--remove-duplicates", "--remove-self-loops"]}.items():
        store = command("convert", tmp_path / "g.npz", tmp_path / f"{name}.store", *flags, "--json").json
        plain = command("convert", tmp_path / "g.npz", tmp_path / f"{name}.npz", *flags, "--json").json
        assert [store[key] for key in ("edges", "edges_before")] == [plain[key] for key in ("edges", "edges_before")]


def test_what_convert_and_info_refuse(command: Command, graph: Path, made: Path) -> None:
    place = graph.parent
    done = command("convert", graph, place / "x.npz", "--dtype", "float16", code=2)
    assert "Expected no --dtype without a store (got 'float16'); leave it out, or add --format store." in done.err
    assert "Expected a store for --verify (got " in command("info", graph, "--verify", code=2).err
    done = command("convert", made, made, "--format", "store", "--overwrite", code=2)
    assert "a source is never overwritten" in done.err
    command("info", made, "--verify")
    content = bytearray((made / "y.npy").read_bytes())
    content[-1] ^= 1
    (made / "y.npy").write_bytes(content)
    assert "y.npy to have the checksum" in command("info", made, "--verify", code=2).err
    (made / "y.npy").write_bytes(content[:-1])
    done = command("train", made, code=2)
    assert "y.npy to have " in done.err
    assert done.err.count("\n") == 1


def test_a_mapped_store_is_described_in_the_same_words(
    command: Command, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = command("info", made, "--json").json
    monkeypatch.setattr("topoff.data.store_load.IN_MEMORY", 0)
    assert stored(topoff.load(made)) is not None
    mapped = command("info", made, "--json", "--verify").json
    assert [key for key in read if read[key] != mapped[key] and key not in ("features", "memory")] == []


def test_a_disk_that_fills_up_during_a_conversion(graph: Path, tmp_path: Path) -> None:
    machine = Here(tmp_path / "machine")
    before = machine.run("convert", graph, machine.disk / "g.store", count=True)
    assert before.code == 0
    for file in ("edge_index.npy", "x.npy", "ranges/0", "store.json"):
        at = next(
            number for number, change in enumerate(before.changes, 1) if change.startswith("write ") and file in change
        )
        fault = Fault(at, error=errno.ENOSPC, phase="disk", lasting=True)
        ended = machine.run("convert", graph, machine.disk / "new.store", fault=fault)
        assert ended.code == 1
        assert "no space left" in ended.err
        assert len(ended.sentences) - ended.err.count(" ...\n") == 1
        assert os.listdir(machine.disk) == ["g.store"], file


def test_a_store_by_part_is_trained_on_its_parts_and_predicts_by_the_old_ids(
    command: Command, made: Path, tmp_path: Path
) -> None:
    done = command("convert", made, tmp_path / "p.store", "--by-part", "--json")
    assert done.json["edges"] == open_store(made).header.edges
    trained = command("train", tmp_path / "p.store", *SHORT[:6], "--ratio", 0.5, "--out", tmp_path / "run")
    assert trained.code == 0
    assert "chosen: batches = stored (the nodes of the store lie by part)" in trained.err
    command("predict", tmp_path / "run", "--out", tmp_path / "p.csv")
    ids = [int(line.partition(",")[0]) for line in (tmp_path / "p.csv").read_text().splitlines()[1:]]
    assert ids == open_store(tmp_path / "p.store").array("node_ids").tolist()
    assert sorted(ids) == list(range(400))
    command("predict", tmp_path / "run", "--data", made, "--out", tmp_path / "o.csv")  # which brings no parts along
    command("evaluate", tmp_path / "run", "--data", made)
    refused = command("convert", made, tmp_path / "tables", "--format", "csv", "--by-part", code=2)
    assert "no --by-part without a store" in refused.err


def test_a_damaged_store_is_not_converted(command: Command, made: Path, tmp_path: Path) -> None:
    content = bytearray((made / "x.npy").read_bytes())
    content[-3] ^= 1
    (made / "x.npy").write_bytes(content)
    done = command("convert", made, tmp_path / "again.store", code=2)
    assert "to have the checksum" in done.err
    assert not (tmp_path / "again.store").exists()
