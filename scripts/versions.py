"""Run the tests with the versions of the environment that this runs in, and note which those are.

    .venv-oldest/bin/python scripts/versions.py oldest          a choice of the tests, some minutes
    .venv-oldest/bin/python scripts/versions.py oldest --all    all of them

`make oldest`, `make newest` and `make pythons` make the environments and call this. It writes
docs/results/versions.json, where every environment has its own entry.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any

from reliability import ROOT, read, record

CHOICE = (
    *(f"tests/unit/{name}" for name in ("cli", "data", "machine", "models", "report", "tasks", "training")),
    *(f"tests/integration/test_{name}.py" for name in ("disks", "graph_commands", "kills", "own_models")),
    *(f"tests/laws/test_law_{name}.py" for name in ("exact_inference", "whole_graph", "no_trace", "torch_compile")),
)
ELSEWHERE = "test_documents.py"  # says whether the documents are right, which other versions cannot change

QUIET = ("-W", "ignore::DeprecationWarning", "-W", "ignore:Guards may run slower")  # what they say of each other


def packages() -> dict[str, str]:
    """Return the versions of what topoff depends on."""
    named = [re.split(r"[<>=!~;\[ ]", line)[0] for line in requires("topoff") or () if "extra ==" not in line]
    return {name: version(name) for name in named}


def run_tests(paths: tuple[str, ...]) -> dict[str, int]:
    """Run pytest; return how many tests passed, were skipped and failed."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "tests.xml"
        ignored = [f"--ignore=tests/unit/{ELSEWHERE}"]
        command = [sys.executable, "-m", "pytest", "-n", "2", *QUIET, f"--junit-xml={file}", *ignored, *paths]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOPOFF_CACHE": str(Path(place) / "cache")}
        subprocess.run(command, cwd=ROOT, check=False, env=environment)
        suite = ET.parse(file).getroot()[0].attrib
    failed, skipped = int(suite["failures"]) + int(suite["errors"]), int(suite["skipped"])
    return {"passed": int(suite["tests"]) - failed - skipped, "skipped": skipped, "failed": failed}


def main() -> None:
    """Run the tests; write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the environment")
    parser.add_argument("--all", action="store_true", help="all tests")
    given = parser.parse_args()
    found: dict[str, Any] = {"python": platform.python_version(), "packages": packages()}
    found |= run_tests(("tests",) if given.all else CHOICE)
    found |= {"tests": "all" if given.all else "a choice", "date": str(datetime.date.today())}
    before = (read("versions") or {}).get("environments", {})
    record("versions", {"environments": dict(sorted((before | {given.name: found}).items()))})
    if found["failed"]:
        raise SystemExit(f"{found['failed']} tests failed.")


if __name__ == "__main__":
    main()
