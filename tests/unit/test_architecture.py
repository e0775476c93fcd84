"""The plan of the house: packages with one contract each, imports that go downward only, and one place that prints."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import topoff

ROOT = Path(topoff.__file__).parent
# From the roof to the cellar: a package may import those below it. `topoff` itself is the door, outside the list.
FLOORS = ["cli", "experiments", "report", "training", "methods", "compensation", "forward"]
LEAVES = ["graph", "batching", "models", "tasks", "data"]  # side by side: none imports another
CELLAR = "machine"  # under all of them
PACKAGES = [*FLOORS, *LEAVES, CELLAR]
CONTRACTS = {
    "cli": "The verbs; the only place that prints or defines a flag.",
    "experiments": "Several runs or methods against each other: compare, measure.",
    "report": "Pages and plots, from run files only.",
    "training": "From settings to a finished run folder, and its use: resume, evaluate, predict.",
    "methods": "TOP and every rival, under one protocol.",
    "compensation": "The paper: embeddings, basis, estimate, compensated batches, `TOP`.",
    "forward": "Run an unmodified PyG model on a part of a graph: trace, intercept, subgraph, blocks, exact.",
    "graph": "Operators and cuts of the whole graph; knows no model.",
    "batching": "Which nodes go together: partitions, node sets, samplers; arrays only.",
    "models": "Plain PyG modules.",
    "tasks": "Loss and score from labels.",
    "data": "Files to a checked `Data`.",
    "machine": "Disk, memory, processes and log; knows no graph.",
}
# Inside two packages the rooms have floors, too: what all share below, what gathers all above; those not named lie
# between, and a method may build on another one, a verb on none.
INSIDE = {
    "methods": {"above": ["registry"], "below": ["sampled_layers", "base", "histories", "protocol"]},
    "cli": {
        "above": ["app"],
        "below": ["compare_progress", "progress", "summaries", "flags", "stopping", "usage", "format"],
    },
}
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT]
UNIT = Path(__file__).parent


def name_of(path: Path) -> str:
    """Return the name of a module inside topoff, such as "forward.plan"."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imported(path: Path) -> set[str]:
    """Return the modules of topoff that a file imports, wherever in the file; "" for names of the door."""
    package = ["topoff", *path.relative_to(ROOT).parent.parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = above + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        found |= {".".join(target[1:3]) for target in targets if target[0] == "topoff"}
    return {name if name.split(".")[0] in PACKAGES else "" for name in found}


def below(package: str) -> set[str]:
    """Return the packages that a package may import."""
    if package in FLOORS:
        return set(PACKAGES[PACKAGES.index(package) + 1 :])
    return {CELLAR} if package in LEAVES else set()


def test_the_packages_are_those_of_the_plan() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(PACKAGES) == set(CONTRACTS)
    assert {path.name for path in ROOT.iterdir() if path.is_file()} == {"__init__.py", "__main__.py", "py.typed"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_its_contract_and_several_rooms(package: str) -> None:
    assert (ROOT / package / "__init__.py").read_text() == f'"""{CONTRACTS[package]}"""\n'
    rooms = [path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
    assert len(rooms) > 1
    assert all(path.parent == ROOT / package for path in rooms), "nothing lies deeper than package/module"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_downward_only(path: Path) -> None:
    package = name_of(path).split(".")[0]
    allowed = {package} | below(package) | ({""} if package == "cli" else set())
    assert {name.split(".")[0] for name in imported(path)} <= allowed


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name in INSIDE], ids=name_of)
def test_inside_a_package_imports_go_downward_too(path: Path) -> None:
    package, room = path.parent.name, path.stem
    above, shared = INSIDE[package]["above"], INSIDE[package]["below"]
    rooms = {name.split(".")[1] for name in imported(path) if name.startswith(f"{package}.")}
    if room in shared:
        assert rooms <= set(shared[shared.index(room) + 1 :])
    elif room not in above:
        assert not rooms & set(above)
        assert package == "methods" or rooms <= set(shared), "a verb does not import another one"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_rooms_need_each_other(package: str) -> None:
    left = {name_of(path): imported(path) for path in FILES if path.parent.name == package}
    while left:
        free = [name for name, needed in left.items() if not needed & left.keys()]
        assert free, f"a circle among {sorted(left)}"
        left = {name: needed for name, needed in left.items() if name not in free}


def test_the_check_sees_imports() -> None:
    assert {"graph.operators", "forward.subgraph", "compensation.factors"} <= imported(
        ROOT / "compensation" / "compensated.py"
    )
    assert "data.tables" in imported(ROOT / "data" / "load.py"), "late imports count"
    assert imported(ROOT / "machine" / "memory.py") == set()


def test_the_tests_mirror_the_packages() -> None:
    for path in UNIT.rglob("test_*.py"):
        if path.parent != UNIT:
            room = ROOT / path.parent.relative_to(UNIT) / f"{path.stem.removeprefix('test_')}.py"
            assert room.is_file(), f"{path.relative_to(UNIT)} tests no room"


def test_every_package_has_tests_and_the_page_tells_its_contract() -> None:
    assert {path.name for path in UNIT.iterdir() if path.is_dir() and path.name != "__pycache__"} == set(PACKAGES)
    page = (UNIT.parents[1] / "ARCHITECTURE.md").read_text().lower()
    for package, contract in CONTRACTS.items():
        assert f"[{package}](src/topoff/{package}) | {contract.lower().rstrip('.')} |" in page


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_room_is_no_larger_than_the_house_allows(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 300
    for kind in [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]:
        methods = {node.name for node in kind.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"}
        assert len(methods) <= 15, f"{kind.name} has {len(methods)} public methods"


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        if path.parent.name != "cli":
            calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            assert "print" not in [call.id for call in calls if isinstance(call, ast.Name)], path.name


def test_public_names_are_there() -> None:
    for name in topoff.__all__:
        assert getattr(topoff, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'topoff' has no attribute 'Topf'"):
        _ = topoff.Topf


def test_neither_the_package_nor_the_verbs_import_torch() -> None:
    code = "import sys, topoff, topoff.cli.app; sys.exit('torch' in sys.modules or 'torch_geometric' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_room_can_be_the_first_that_is_imported() -> None:
    assert all(import_module(f"topoff.{name_of(path).removesuffix('.__init__')}") for path in FILES)
