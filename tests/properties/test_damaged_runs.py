"""Damaged run folders and cache files: the same bits as without the damage, or one sentence."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from damage import damaged, retyped
from hypothesis import given
from hypothesis import strategies as st
from outcomes import COUNTS, new_folder, outcome_of, run_verb

from graph_files import ring
from topoff.data.write import write_npz
from topoff.machine.cache import cached


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a small model to the end, beside its graph."""
    folder = tmp_path_factory.mktemp("run")
    write_npz(ring(), folder / "graph.npz")
    flags = ("--epochs", "3", "--hidden", "4", "--checkpoint-seconds", "0", "--quiet")
    assert run_verb("train", folder / "graph.npz", "--out", folder / "run", *flags).right
    assert outcome_of("predict", folder / "run", "--out", folder / "whole.csv", kind="whole runs", beside=folder).right
    return folder


def _files(run: Path) -> list[str]:
    found = [path.relative_to(run).as_posix() for path in (run / "run").rglob("*") if path.is_file()]
    return sorted(name for name in found if not name.endswith((".html", ".lock")))


@given(st.data())
def test_a_damaged_run_predicts_the_same_or_not_at_all(run: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(_files(run)))
    content = data.draw(_any_damage((run / name).read_bytes()))
    with new_folder() as folder:
        shutil.copytree(run / "run", folder / "run")
        (folder / name).write_bytes(content)
        shutil.copy(run / "whole.csv", folder / "p.csv")  # which stays, where the damage is refused
        done = outcome_of("predict", "run", "--out", "p.csv", "--overwrite", kind="damaged runs", beside=folder)
        same = (folder / "p.csv").read_bytes() == (run / "whole.csv").read_bytes()
        assert same or (done.right and name.endswith("config.toml")), done.err  # which people change


@given(st.data())
def test_a_damaged_run_is_reported_or_refused(run: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(_files(run)))
    content = data.draw(_any_damage((run / name).read_bytes()))
    with new_folder() as folder:
        shutil.copytree(run / "run", folder / "run")
        (folder / name).write_bytes(content)
        outcome_of("report", "run", kind="damaged runs", beside=folder)


@given(st.data())
def test_a_damaged_checkpoint_is_resumed_to_the_same_bits_or_not_at_all(run: Path, data: st.DataObject) -> None:
    kept = [name for name in _files(run) if "checkpoint" in name or "metrics" in name or "model" in name]
    name = data.draw(st.sampled_from(kept))
    content = data.draw(damaged((run / name).read_bytes()))
    with new_folder() as folder:
        shutil.copytree(run / "run", folder / "run")
        (folder / "run" / "result.json").unlink()  # as if killed before its end
        whole = (folder / "run" / "model.safetensors").read_bytes()
        (folder / name).write_bytes(content)
        done = outcome_of("train", "--resume", "run", "--quiet", kind="damaged checkpoints", beside=folder)
        if done.right:
            assert (folder / "run" / "model.safetensors").read_bytes() == whole, (name, done.err)


@given(st.data())
def test_a_damaged_cache_is_built_again(data: st.DataObject) -> None:
    wanted = {"a": np.arange(7), "b": np.linspace(0, 1, 5)}
    with new_folder() as folder:
        cached("key", lambda: wanted, folder=folder)
        path = folder / "key.npz"
        content = data.draw(damaged(path.read_bytes()))
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is built again
            found = cached("key", lambda: wanted, folder=folder)
        assert {name: value.tolist() for name, value in found.items()} == {k: v.tolist() for k, v in wanted.items()}
        COUNTS["damaged cache files"].update(("tried", "right"))


def _any_damage(content: bytes) -> st.SearchStrategy[bytes]:
    """Return bytes that were damaged, or a text of which some words are others."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return damaged(content)
    spaced = text.replace(",", " , ").replace(":", " : ").replace("=", " = ")
    return st.one_of(damaged(content), retyped(spaced).map(lambda changed: changed.encode("utf-8", "surrogatepass")))
