"""Draw many new inputs for the property-based tests, and keep how often they were right or refused.

    python scripts/inputs.py 200                # examples per property: a quarter of an hour

An outcome that is neither fails the test, which then prints the smallest input that shows it; no figures are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from reliability import ROOT, record


def main() -> None:
    """Run the tests, then write the figures and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="?", type=int, default=200, help="examples per property")
    examples = parser.parse_args().examples
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        new = {"TOPOFF_EXAMPLES": str(examples), "TOPOFF_OUTCOMES": str(counts), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "tests/properties"]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, **new}, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        kinds = json.loads(counts.read_text())
    record("inputs", {"kinds": {kind: {"right": 0, "refused": 0, **row} for kind, row in kinds.items()}})


if __name__ == "__main__":
    main()
