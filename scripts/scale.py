"""Train on stand-ins of products from 0.15M to 2.45M nodes and write docs/results/scale.md, scale.json and scale.svg.

    python scripts/scale.py run [--scales 0.0625,0.125,0.25,0.5,1] [--out runs/scale] [--gas 0.25] [--deep 1]
    python scripts/scale.py write

Every run is `topoff train` in a process of its own, with an empty cache and default settings, one after the other: run
it alone on the machine. What is finished in --out is not run again. The page also shows what `topoff bench --out DIR`
measured, where its bench.json is copied to docs/results/bench.json, and the run out of core of `scripts/cgroup.py`.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from topoff.experiments.bench import Trained
from topoff.machine.memory import readable
from topoff.training.run_folder import RunFolder

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "docs" / "results"
FULL = 2_449_029  # nodes of ogbn-products
SAGE = "--model sage --hidden 256 --train-only --epochs 5 --eval-every 5"
DEEP = "--model gcnii-jk --layers 5 --hidden 128 --train-only --epochs 5 --eval-every 5"
Row = dict[str, Any]


def topoff(command: str) -> Row:
    """Run a command of topoff with a cache of its own; return the JSON in its last line."""
    print(f"topoff {command}", flush=True)
    words = [sys.executable, "-m", "topoff", *shlex.split(command), "--json", "--quiet"]
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"TOPOFF_CACHE": cache}
        )
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def train(name: str, scale: float, flags: str, *, out: Path) -> Row:
    """Generate the stand-in and train on it, where that is not done yet; return a row of the table."""
    graph, run = out / f"products-{scale:g}", out / f"{name}-{scale:g}"
    if not graph.is_dir():
        made = topoff(f"generate products --scale {scale} --seed 1 --out {graph}")
        (out / f"products-{scale:g}.json").write_text(json.dumps(made))
    if not (run / "result.json").is_file():
        topoff(f"train {graph} {flags} --out {run} --overwrite")
    made = json.loads((out / f"products-{scale:g}.json").read_text())
    result, trained = json.loads((run / "result.json").read_text()), Trained.of(RunFolder(run))
    found = {"name": name, "scale": scale, "command": f"topoff train DIR {flags}", "generate": made["seconds"]}
    keys = ("nodes", "edges", "test", "epoch_seconds", "preprocess_seconds", "peak_rss_mb", "fidelity", "seconds")
    found |= {key: result[key] for key in keys}
    return found | {"epoch": trained.bare, "evaluation": trained.evaluation, "bytes": made["bytes"]}


def run(args: argparse.Namespace) -> None:
    """Run everything and keep the rows."""
    out, scales = Path(args.out), [float(each) for each in args.scales.split(",")]
    out.mkdir(parents=True, exist_ok=True)
    load = round(os.getloadavg()[0], 2)
    rows = [train("top", scale, SAGE, out=out) for scale in scales]
    rows += [train("top-deep", scale, DEEP, out=out) for scale in scales if scale == args.deep]
    gas = SAGE.replace("--train-only --epochs 5 --eval-every 5", "--method gas --epochs 1 --eval-every 1")
    rows += [train("gas", scale, gas, out=out) for scale in scales if scale <= args.gas]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {version('torch')}, {datetime.date.today()}"
    about = {"machine": machine, "load_before": load, "rows": rows}
    (RESULTS / "scale.json").write_text(json.dumps(about, indent=1) + "\n")


def draw(rows: list[Row]) -> None:
    """Draw time and memory against nodes."""
    figure, (times, memory) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    nodes = [row["nodes"] / 1e6 for row in rows]
    for key, label in (
        ("preprocess_seconds", "preparation"),
        ("evaluation", "exact pass"),
        ("epoch", "epoch (train_only)"),
    ):
        times.plot(nodes, [row[key] for row in rows], "o-", label=label)
    memory.plot(nodes, [row["peak_rss_mb"] / 1024 for row in rows], "o-", label="peak resident")
    memory.plot(nodes, [row["bytes"] / 2**30 for row in rows], "o--", label="the graph on disk")
    times.set(xlabel="million nodes", ylabel="seconds", ylim=(0, None), xlim=(0, None))
    memory.set(xlabel="million nodes", ylabel="GiB", ylim=(0, None), xlim=(0, None))
    for axes in (times, memory):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "scale.svg", metadata={"Date": None})


def table(rows: list[Row]) -> list[str]:
    """Write the rows as Markdown."""
    names = {"top": "TOP, SAGE 3 x 256", "top-deep": "TOP, GCNII + JK 5 x 128", "gas": "GAS, SAGE 3 x 256"}
    times = ("generated", "preparation", "exact pass", "epoch", "with refreshes")
    columns = ["", "nodes", "edges", *(f"{name}, s" for name in times), "fidelity", "test", "peak"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        numbers = (row["generate"], row["preprocess_seconds"], row["evaluation"], row["epoch"], row["epoch_seconds"])
        peak = readable(row["peak_rss_mb"] * 2**20)
        cells = [names[row["name"]], f"{row['nodes']:,}", f"{row['edges']:,}", *(f"{each:.2f}" for each in numbers)]
        cells += [f"{row['fidelity']:.2%}", f"{row['test']:.2%}", peak]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def out_of_core(runs: list[Row]) -> list[str]:
    """Write what `scripts/cgroup.py` measured as Markdown."""
    columns = ["command", "nodes", "edges", "limit", "peak", "of it without files", "seconds", "epochs", "test"]
    lines = [
        "`topoff train` in a memory control group, which counts pages of files, too, and takes them back at its limit "
        "(generated stand-ins, 1 % training nodes).",
        "",
        f"| {' | '.join(columns)} | fidelity | machine |",
        "|---" * (len(columns) + 2) + "|",
    ]
    for run in runs:
        sizes = (readable(run[key] * 2**30) for key in ("limit_gib", "peak_gib", "peak_without_files_gib"))
        words, result, machine = run["command"].split(), run["result"], run["machine"]
        cells = [f"`{' '.join(words)}`", f"{run['nodes']:,}", f"{run['edges']:,}", *sizes, f"{run['seconds']:,.0f}"]
        cells += [str(result["epochs"]), f"{result['test']:.2%}", f"{result['fidelity']:.2%}"]
        lines.append(f"| {' | '.join(cells)} | {machine['cpu']}, {machine['threads']} threads, {run['date']} |")
    return lines


def write() -> None:
    """Write the page from what was measured."""
    about = json.loads((RESULTS / "scale.json").read_text())
    rows = about["rows"]
    draw([row for row in rows if row["name"] == "top"])
    lines = [
        "# A large graph on a small machine",
        "",
        "Written by `scripts/scale.py`. Stand-ins of ogbn-products (generated communities; no score here says anything "
        "about the published graph), 8 % training nodes, batched alone (`train_only`), five epochs, exact evaluation "
        "at the end, default settings; GAS: one epoch on all nodes, so its scores and fidelity are not those of five. "
        f"{about['machine']}, load before {about['load_before']}.",
        "",
        "![Seconds and memory against nodes](scale.svg)",
        "",
        *table(rows),
        "",
    ]
    outside = sorted((RESULTS / "scale.d").glob("cgroup-*.json"))
    if outside:
        lines += ["## Out of core", "", *out_of_core([json.loads(path.read_text()) for path in outside]), ""]
    bench = RESULTS / "bench.json"
    if bench.is_file():
        lines += ["## bench", "", *_facts(json.loads(bench.read_text())), ""]
    (RESULTS / "scale.md").write_text("\n".join(lines))


def _facts(found: Row) -> list[str]:
    """Write promises as a table, all else as a list."""
    lines = [f"- {key}: {value}" for key, value in found.items() if key != "promises"]
    if "promises" in found:
        lines += ["", "| ratio | measured | promised | within 10 % (errors: exactly) |", "|---|---|---|---|"]
    for each in found.get("promises", []):
        bound = f"<= {each['at_most']:.3g}" if each["at_most"] is not None else ""
        bound = f">= {each['at_least']:.3g}" if each["at_least"] is not None else bound
        verdict = {True: "met", False: "missed", None: ""}[each["met"]]
        lines.append(f"| {each['name']} | {each['measured']:.3g} | {bound} | {verdict} |")
    return lines


def main() -> None:
    """Run, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("--scales", default="0.0625,0.125,0.25,0.5,1", help="sizes relative to products")
    parser.add_argument("--gas", type=float, default=0.25, help="the largest scale at which GAS trains, too")
    parser.add_argument("--deep", type=float, default=1.0, help="the scale at which the deep model trains")
    parser.add_argument("--out", default="runs/scale")
    args = parser.parse_args()
    if args.what == "run":
        run(args)
    write()


if __name__ == "__main__":
    main()
