"""Peak memory of exact inference: one batch's work and the matrices that are live, whatever the depth of the model.

Each case is measured in a process of its own that is forked from one which has all the imports done: resident memory at
its highest minus resident memory before. Where glibc maps every large block separately, a freed block leaves at once,
and the difference is what was live. By its own choice it keeps freed blocks, the more the deeper the model: 12 layers
then take two to three times what is live.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn.models import basic_gnn

import topoff
from topoff.models.networks import GCN

NODES, EDGES, FEATURES, HIDDEN, CLASSES = 12_000, 60_000, 16, 256, 8
MATRIX = NODES * HIDDEN * 4  # bytes of one n x d matrix
MAPPED = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}  # set, so that glibc does not raise it by itself

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="reads /proc and sets glibc's allocator")


def random_graph(nodes: int, edges: int) -> Data:
    """Make a graph of random edges and features."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    return Data(x=torch.rand(nodes, FEATURES, generator=generator), edge_index=edge_index)


def resident(which: str) -> int:
    """Read this process's resident memory in bytes: "VmRSS" now, "VmHWM" at its highest.

    Not ru_maxrss: a new process starts with that of its parent, here pytest with all it has loaded.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(which))


def make_model(how: str, layers: int) -> nn.Module:
    """Make a GCN; for "jump", one that keeps all its layers up to the end."""
    if how == "jump":
        kept: nn.Module = basic_gnn.GCN(FEATURES, HIDDEN, num_layers=layers, out_channels=CLASSES, jk="cat")
        return kept.eval()
    return GCN(FEATURES, HIDDEN, out_channels=CLASSES, num_layers=layers).eval()


def run(how: str, model: nn.Module, graph: Data) -> Tensor:
    """Run a model on the whole graph: "plain" at once, "predict" and "jump" by exact inference in 20 batches."""
    if how == "plain":
        with torch.no_grad():
            out: Tensor = model(graph.x, graph.edge_index)
        return out
    return topoff.predict(model, graph, ratio=0.05, batches="random")


def print_growth(cases: list[str]) -> None:
    """Print one line of JSON per case: its name and by how many bytes memory grew; this runs as the main program."""
    torch.set_num_threads(1)
    warm, graph = random_graph(200, 1000), random_graph(NODES, EDGES)
    run("predict", make_model("predict", 2), warm)  # import what is imported late
    for case in cases:
        if os.fork() == 0:
            how, layers = case.split("-")
            model = make_model(how, int(layers))
            run(how, model, warm)  # touch the code: a fork does not count the files that its parent has mapped
            before = resident("VmRSS")
            assert run(how, model, graph).shape == (NODES, CLASSES)
            print(json.dumps([case, resident("VmHWM") - before]), flush=True)
            os._exit(0)
        assert os.wait()[1] == 0, case


def growth(*cases: str, **environment: str) -> dict[str, float]:
    """Measure cases such as "predict-12" (12 layers); in n x d matrices."""
    command = [sys.executable, __file__, *cases]
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_", "THP_"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env | environment)
    assert done.returncode == 0, done.stderr
    return {case: size / MATRIX for case, size in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def live() -> dict[str, float]:
    """Measure what is live, in n x d matrices."""
    return growth("predict-2", "predict-3", "predict-12", "plain-3", "jump-2", "jump-12", **MAPPED)


def test_memory_does_not_depend_on_the_depth(live: dict[str, float]) -> None:
    assert live["predict-12"] < 1.1 * live["predict-3"]
    # 2 layers are a little below: none of them has hidden rows on both sides, so that less is live at once
    assert live["predict-12"] < live["predict-2"] + 2


def test_memory_is_a_few_matrices(live: dict[str, float]) -> None:
    assert 2 < live["predict-12"] < 7  # the 11 hidden layers alone would be 11


def test_memory_is_below_that_of_the_whole_graph_at_once(live: dict[str, float]) -> None:
    assert live["predict-12"] < 0.5 * live["plain-3"]


def test_a_model_that_keeps_its_layers_takes_memory_for_them(live: dict[str, float]) -> None:
    assert 8 < live["jump-12"] - live["jump-2"] < 13  # 10 layers more
    assert live["jump-12"] > 2 * live["predict-12"]


def test_memory_is_below_that_of_the_whole_graph_by_the_allocators_own_choice_too() -> None:
    taken = growth("predict-3", "plain-3")
    assert taken["predict-3"] < 0.8 * taken["plain-3"]


if __name__ == "__main__":
    print_growth(sys.argv[1:])
