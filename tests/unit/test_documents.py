"""The documents tell the truth: what they name exists, and the walks that they describe are the code's own."""

import json
import re
import runpy
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch_geometric.nn import GCN

import topoff
from graphs import communities
from topoff.training.build import make_setup
from topoff.training.config import make_config
from topoff.training.loop import Training
from topoff.training.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
SOURCE = Path(topoff.__file__).parent
MOST_FUNCTIONS, MOST_ROOMS = 16, 7  # of a training step
NAMED = re.findall(r"`([a-z_]+\.[a-z_]+\.\w[\w.]*)`", (ROOT / "docs" / "method.md").read_text())


@pytest.mark.parametrize("name", sorted(set(NAMED)))
def test_a_function_of_the_method_exists(name: str) -> None:
    package, module, *path = name.split(".")
    found: Any = import_module(f"topoff.{package}.{module}")
    for part in path:
        found = getattr(found, part)
    assert callable(found)


def test_every_equation_of_the_paper_is_there() -> None:
    text = (ROOT / "docs" / "method.md").read_text()
    assert len(NAMED) > 30
    assert {int(number) for number in re.findall(r"\((\d+)\)", text)} >= set(range(1, 15))


@pytest.mark.parametrize(
    "name",
    [
        *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
        *("docs/decisions.md", "docs/method.md", "docs/distributed.md", "docs/theory.md"),
    ],
)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_figures_of_reliability_are_those_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "reliability.py"))
    page = ROOT / "docs" / "reliability.md"
    assert page.read_text() == script["page"](), f"{page.name} is stale: run python scripts/reliability.py"
    for kind in ("kills", "caches", "disks", "soak", "versions"):
        assert f"## {script['SECTIONS'][kind][0]}\n" in page.read_text(), f"{kind} was not measured"


def test_the_figures_of_the_theory_are_those_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")  # where it finds its tables
    script = runpy.run_path(str(ROOT / "scripts" / "theory.py"))
    page, checks = ROOT / "docs" / "theory.md", json.loads((ROOT / "docs" / "results" / "theory.json").read_text())
    assert page.read_text() == script["page"](page.read_text(), checks), "stale: run python scripts/theory.py"
    assert checks.keys() == script["THEORY"].keys()
    for name, check in script["THEORY"].items():
        assert f"`experiments.{check.check.__module__.rpartition('.')[2]}.{check.check.__name__}`" in page.read_text()
        assert f"<!-- {name}, written by scripts/theory.py -->\n| claim of |" in page.read_text()


def test_the_oldest_versions_that_are_promised_are_those_that_are_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [*project["dependencies"], *project["optional-dependencies"]["tensorboard"]]
    tested = dict(re.findall(r"^([\w-]+)==([\w.]+)$", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    bounds = dict(line.split(">=") for line in promised)
    assert tested.keys() == bounds.keys()
    for name, bound in bounds.items():  # the first version that has the bound's numbers
        assert tested[name].split(".")[: len(bound.split("."))] == bound.split("."), name


def test_three_clicks_from_the_readme_to_the_equation() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "](src/topoff/compensation/compensated.py)" in readme
    assert "spread @ (read @" in (SOURCE / "compensation" / "compensated.py").read_text()


class Walk:
    """Note the functions of topoff that are called; comprehensions belong to the functions that they stand in."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], None] = {}

    def note(self, frame: FrameType, event: str, _: object) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and path.is_relative_to(SOURCE) and not name.endswith("comp>"):
            room = str(path.relative_to(SOURCE).with_suffix(""))
            if room.split("/")[0] != "models":  # the user's model is not part of the way
                self.functions[room, name] = None

    def of(self, step: Any) -> None:
        sys.setprofile(self.note)
        try:
            step()
        finally:
            sys.setprofile(None)

    def rooms(self) -> list[str]:
        return list(dict.fromkeys(room for room, _ in self.functions))


def test_a_training_step_of_the_readme_is_a_short_walk() -> None:
    data = communities(80, dtype=torch.float32)
    model = GCN(data.num_features, 16, num_layers=3, out_channels=int(data.y.max()) + 1)
    top, walk = topoff.TOP(model, data, ratio=0.25, rank=8, tolerance=10.0), Walk()
    optimizer, batches = torch.optim.Adam(model.parameters()), iter(top)
    next(batches)

    def step() -> None:
        batch = next(batches)
        loss = F.cross_entropy(top(batch)[batch.train_mask], batch.y[batch.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    walk.of(step)
    assert len(walk.functions) <= MOST_FUNCTIONS, list(walk.functions)
    assert len(walk.rooms()) <= MOST_ROOMS, walk.rooms()
    assert all(room in (ROOT / "ARCHITECTURE.md").read_text() for room in walk.rooms())


def test_a_training_step_of_the_command_line_is_a_short_walk(tmp_path: Path) -> None:
    data = communities(80, dtype=torch.float32)
    plan = make_setup(make_config({"dataset": "communities", "ratio": 0.25, "rank": 8, "late": False}), data)
    training, walk = Training(plan, folder=RunFolder(tmp_path / "run").create()), Walk()
    training.method.prepare()
    batch = next(iter(training.method.batches()))
    walk.of(lambda: training.step(batch))
    assert len(walk.functions) <= MOST_FUNCTIONS, list(walk.functions)
    assert len(walk.rooms()) <= MOST_ROOMS, walk.rooms()
    assert all(room in (ROOT / "ARCHITECTURE.md").read_text() for room in walk.rooms())
