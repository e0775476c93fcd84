"""Run the measurements behind docs/results/fidelity.md and docs/results/speed.md and write both.

    python scripts/tables.py fidelity --root DIR       topoff measure on three graphs (--only minesweeper: on one)
    python scripts/tables.py speed                     the benchmarks, on an idle machine

`DIR/<Name>/raw` holds the raw files of PyG's datasets. Every row is the JSON that the command printed.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
GRAPHS = {
    "minesweeper": "--hidden 256 --epochs 200 --ratio 0.5",
    "Computers": "--hidden 128 --epochs 100 --ratio 0.1",
    "wordnet": "--hidden 128 --epochs 100 --ratio 0.1",
}
VARIANTS = (
    "--batches metis --methods top,cluster,drop --refresh-age none",
    "--batches metis --methods top --refresh-age 20",
    "--batches metis --methods top --estimator paper",
    "--batches metis --methods top --estimator released",
    "--batches random --methods top,cluster,drop --refresh-age none",
    "--batches random --methods top --refresh-age 20",
)
BENCHMARKS = (
    "benchmarks/operator.py --repeats 8",
    "benchmarks/epoch.py --repeats 2",
    "benchmarks/epoch.py --dataset wordnet --repeats 2",
)
COLUMNS = ("relative_error", "accuracy_degradation", "gradient_error", "gradient_cosine", "certificate")


def run(command: list[str]) -> dict[str, Any]:
    """Run a command and return the JSON object in its last line."""
    print(" ".join(command), flush=True)
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def header(title: str) -> str:
    """Return the title, date, machine and versions."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("topoff", "torch", "torch_geometric"))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end"
    return f"# {title}\n\nWritten by `scripts/tables.py` on {datetime.date.today()}; {machine}; {packages}.\n"


def fidelity(root: str, only: str) -> None:
    """Measure message invariance on the graphs whose name holds `only`, and write the table; other rows stay."""
    path = RESULTS / "fidelity.json"
    records: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    known = {record["command"]: record["result"] for record in records}
    rows, records = [], []
    for graph, options in GRAPHS.items():
        for variant in VARIANTS[:2] if graph == "wordnet" else VARIANTS:
            arguments = [graph, *options.split(), "--parts", "200", *variant.split(), "--json", "--quiet"]
            command = "topoff measure " + " ".join(arguments)
            result = known.get(command) if only not in graph else None
            result = result or run([sys.executable, "-m", "topoff", "measure", *arguments, "--root", root])
            records.append({"command": command, "result": result})
            for method, scores in result.items():
                cells = " | ".join(cell(name, scores.get(name)) for name in COLUMNS)
                rows.append(f"| {graph} | {label(method, variant)} | {cells} |")
    text = header("Fidelity of batches") + (
        "\nA 3-layer GCN trained full-batch, then its batches against the exact forward and gradient; `--rank 64 "
        "--inits 2 --seed 0`, half-graph batches on minesweeper, 10 % elsewhere. Commands in fidelity.json.\n\n"
        f"| graph | method | {' | '.join(name.replace('_', ' ') for name in COLUMNS)} |\n" + "|---" * 7 + "|\n"
    )
    path.write_text(json.dumps(records, indent=1) + "\n")
    (RESULTS / "fidelity.md").write_text(text + "\n".join(rows) + "\n")


def label(method: str, variant: str) -> str:
    """Say in words what a row is."""
    options = dict(zip(variant.split()[::2], variant.split()[1::2], strict=True))
    if method != "top":
        return f"{method}, {options['--batches']}"
    age = options.get("--refresh-age", "none")
    basis = "random basis" if age == "none" else f"basis {age} epochs old"
    return f"TOP ({options.get('--estimator', 'ridge')}), {basis}, {options['--batches']}"


def cell(name: str, value: float | None) -> str:
    """Write a number for people."""
    if value is None:
        return ""
    return f"{value:.3f}" if name == "gradient_cosine" else f"{value:.2%}"


def speed(only: str) -> None:
    """Run the benchmarks whose command holds `only`, and write what they print; the sections of others stay."""
    path = RESULTS / "speed.md"
    before = path.read_text().split("\n## ")[1:] if path.is_file() and only else []
    sections = dict(enumerate(before))
    for number, command in enumerate(BENCHMARKS):
        if only not in command:
            continue
        print(command, flush=True)
        done = subprocess.run([sys.executable, *command.split()], capture_output=True, text=True, check=True, cwd=ROOT)
        *shown, last = done.stdout.rstrip().splitlines()
        text = "\n".join(shown).strip()
        sections[number] = f"`python {command}`, {datetime.date.today()}\n\n```\n{text}\n```\n\n`{last}`\n"
    path.write_text("\n## ".join([header("Speed"), *(sections[number] for number in sorted(sections))]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["fidelity", "speed"])
    parser.add_argument("--root", default=".", help="folder of the raw files")
    parser.add_argument("--only", default="", help="the graphs or benchmarks whose name or command holds this")
    chosen = parser.parse_args()
    if chosen.table == "speed":
        speed(chosen.only)
    else:
        fidelity(chosen.root, chosen.only)
