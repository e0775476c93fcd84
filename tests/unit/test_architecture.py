"""The plan of the house: imports go downward only, names are imported late, and only the command line prints."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import topoff

ROOT = Path(topoff.__file__).parent
# From the roof to the cellar: a room may import rooms below it only. `topoff` itself is the door, outside the list.
ORDER = [
    "__main__",
    "cli",
    "comparison",
    "report",
    "plots",
    "recorded",
    "comparing",
    "jobs",
    "gradients",
    "results",
    "predicting",
    "training",
    "assembling",
    "choosing",
    "runs",
    "config",
    "measuring",
    "methods",
    "top",
    "refreshing",
    "invariance",
    "loader",
    "layered",
    "histories",
    "compensated",
    "estimator",
    "embeddings",
    "plan",
    "layerwise",
    "calling",
    "convs",
    "describing",
    "warning_signs",
    "graph",
    "aggregation",
    "tasks",
    "metrics",
    "sampled_sets",
    "influence",
    "sampling",
    "batching",
    "partitioning",
    "building",
    "decoupled",
    "models",
    "dropout",
    "data",
    "tables",
    "labels",
    "features",
    "columns",
    "sources",
    "cache",
    "memory",
]
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def room_of(path: Path) -> str:
    """Return the module or subpackage of topoff that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    """Return the rooms that a file imports, wherever in the file; "" where it imports names from topoff itself."""
    package = ["topoff", *path.relative_to(ROOT).parent.parts]
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = above + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for target in targets:
            if target[0] == "topoff":
                rooms.add(target[1] if len(target) > 1 and target[1] in ORDER else "")
    return rooms


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward_only(path: Path) -> None:
    room = room_of(path)
    assert room in ORDER, f"{room} is new: give it its place in ORDER"
    own = {room} if path.parent != ROOT else set()  # files of a subpackage may import each other
    allowed = own | set(ORDER[ORDER.index(room) + 1 :]) | ({""} if room in ("__main__", "cli") else set())
    assert imported_rooms(path) <= allowed


def test_the_check_sees_imports() -> None:
    assert {"aggregation", "convs", "estimator", "plan"} <= imported_rooms(ROOT / "compensated.py")
    assert imported_rooms(ROOT / "memory.py") == set()


def test_only_the_command_line_prints() -> None:
    for path in FILES:
        if room_of(path) not in ("cli", "__main__"):
            calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            assert "print" not in [call.id for call in calls if isinstance(call, ast.Name)], path.name


def test_public_names_are_there() -> None:
    for name in topoff.__all__:
        assert getattr(topoff, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'topoff' has no attribute 'Topf'"):
        _ = topoff.Topf


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, topoff; sys.exit('torch' in sys.modules or 'torch_geometric' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
