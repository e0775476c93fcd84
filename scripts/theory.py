"""Check the paper's theory, and write what was found into docs/theory.md, docs/results/theory.json and its plots.

    python scripts/theory.py                            all of it, under two minutes on one idle core
    python scripts/theory.py --only theory-linear       one statement; the others stay as they are
    python scripts/theory.py --quick --out DIR          fewer draws, elsewhere
    python scripts/theory.py --write-only               page and plots, from the figures at hand

The checks are `topoff.experiments.theory_*`; they are seeded, in float64 and on one thread.
"""

import argparse
import datetime
import json
import platform
import re
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib
import torch

from reliability import origin_of, table
from topoff.experiments.theory_all import THEORY
from topoff.experiments.theory_record import Check
from topoff.machine.memory import machine

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKS = re.compile(r"(<!-- ([\w-]+), written by scripts/theory\.py -->\n).*?(<!-- to here -->)", re.DOTALL)
STYLE = {"svg.hashsalt": "topoff", "svg.fonttype": "none", "font.size": 9, "text.parse_math": False}
Figures = dict[str, Any]


def measure(names: list[str], *, quick: bool) -> Figures:
    """Run the checks; return them by name, with the seconds of the processor that each took and where it ran."""
    found: Figures = {}
    for name in names:
        before = time.process_time()
        check = THEORY[name].run(quick=quick)
        found[name] = {"seconds": round(time.process_time() - before, 1), **origin(sys.argv[1:]), **check.to_json()}
        held = sum(finding.holds for finding in check.findings)
        print(f"{name}: {held} of {len(check.findings)} findings hold, {found[name]['seconds']} s")
    return found


def origin(words: list[str]) -> Figures:
    """Say by which command, when, where and with what figures were made."""
    names = ("topoff", "torch", "torch_geometric", "numpy")
    shown = ["DIR" if before == "--out" else word for before, word in zip(["", *words], words, strict=False)]
    versions = {"python": platform.python_version(), **{name: version(name) for name in names}}
    command = " ".join(["python", "scripts/theory.py", *shown])
    return {"command": command, "date": str(datetime.date.today()), "machine": machine(), "versions": versions}


def section(found: Figures) -> str:
    """Write the findings of one check as a table with its plot."""
    rows: list[list[object]] = []
    for finding in found["findings"]:
        relation, claim = "at most" if finding["at_most"] else "at least", finding["claim"].replace("|", "&#124;")
        measured, limit = (f"{finding[name]:.3g}" for name in ("measured", "limit"))
        held = "holds" if finding["holds"] else "**does not hold**"
        rows.append(["ours" if finding["ours"] else "paper", claim, measured, f"{relation} {limit}", held])
    head = ["claim of", "what was measured", "measured", "should be", ""]
    made = f"{found['seconds']} s: {origin_of(found)}"
    return f"{table(head, rows)}\n![{found['name']}](results/{found['name']}.svg)\n\n{made.strip()}\n"


def page(text: str, checks: Figures) -> str:
    """Fill the marked places of the page, each with the check of its name; what was not measured stays as it is."""
    return MARKS.sub(
        lambda found: found[1] + section(checks[found[2]]) + found[3] if found[2] in checks else found[0], text
    )


def draw(checks: Figures, folder: Path) -> None:
    """Draw every check from its figures."""
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]  # names that torch's stubs of matplotlib do not list
        for name, found in checks.items():
            figure = THEORY[name].draw(Check.from_json(found))
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    """Measure, unless told to write only, then draw and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(THEORY), default=list(THEORY), metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write-only", action="store_true")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of theory.md and results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = args.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    source = results / "theory.json"
    checks: Figures = json.loads(source.read_text()) if source.is_file() else {}
    if not args.write_only:
        checks |= measure(args.only, quick=args.quick)
        source.write_text(json.dumps({name: checks[name] for name in THEORY if name in checks}, indent=1) + "\n")
    draw(checks, results)
    target = args.out / "theory.md"
    if not target.exists():
        shutil.copy(DOCS / "theory.md", target)
    target.write_text(page(target.read_text(), checks))


if __name__ == "__main__":
    main()
