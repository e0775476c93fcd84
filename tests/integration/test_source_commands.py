"""Names that are paths, and files of other people's, through the command line: both spellings, and nothing is run."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from commands import Command


class Evil:
    """Make a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


@pytest.mark.parametrize("verb", [["info"], ["partition"], ["measure"], ["convert"]], ids=lambda verb: verb[0])
def test_a_pickle_is_run_with_trust_alone(command: Command, tmp_path: Path, verb: list[str]) -> None:
    raw, mark = tmp_path / "root" / "Cora" / "raw", tmp_path / "mark"
    raw.mkdir(parents=True)
    for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"):
        (raw / f"ind.cora.{part}").write_bytes(pickle.dumps(Evil(mark)))
    out = [tmp_path / "out.npz"] if verb == ["convert"] else []
    done = command(*verb, "Cora", *out, "--root", tmp_path / "root", code=2)
    assert "unpickling runs whatever code a file holds" in done.err
    assert done.err.count("\n") == 1
    assert not mark.exists()
    command(*verb, "Cora", *out, "--root", tmp_path / "root", "--trust", code=2)
    assert mark.exists()


def test_a_folder_that_is_called_like_a_graph_of_ours(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "wordnet"
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,label,f\n" + "".join(f"n{i},{'ab'[i % 2]},{i}\n" for i in range(10)))
    (folder / "edges.csv").write_text("source,target\nn0,n1\nn1,n2\nn2,n0\n")
    refused = command("info", "wordnet", code=2)
    assert "write ./wordnet for the folder, or name:wordnet for the other" in refused.err
    assert refused.err.count("\n") == 1
    assert command("info", "./wordnet", "--json").json["nodes"] == 10
