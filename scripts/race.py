"""Race the methods for the same training seconds and write docs/results/time.md, time.json and docs/time.svg.

    python scripts/race.py run --root DIR [--only wordnet,Computers] [--seconds 20] [--seeds 0-1]
    python scripts/race.py write

`DIR/<Name>/raw` holds the raw files of PyG's datasets. For every graph the full batch first trains three times as long
as everybody else: its best validation score is the reference of the targets, fixed before the race. Then `topoff
compare --seconds` trains every method, two threads, one after the other: run it alone on the machine. Runs are kept in
--out (default runs/race), what is finished is not run again; `write` makes the page from docs/results/time.json.
"""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
METHODS = "top,cluster,gas,ns,labor,full"
LONGER = 3  # times the seconds of a race that the reference trains
GRAPHS = {  # name: seconds of a race
    "wordnet": 24,
    "Computers": 10,
    "CS": 10,
    "PubMed": 6,
    "facebook_pagepage": 10,
    "tolokers": 10,
    "minesweeper": 6,
}
MODEL = "--model gcn --layers 3 --hidden 128 --schedule cosine"
COLUMNS = ("95", "98", "99")
Cell = dict[str, Any]


def topoff(command: str) -> Cell:
    """Run a command of topoff and return the JSON in its last line."""
    print(f"topoff {command}", flush=True)
    words = [sys.executable, "-m", "topoff", *shlex.split(command), "--json", "--quiet"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: Cell = json.loads(done.stdout.splitlines()[-1])
    return found


def race(graph: str, args: argparse.Namespace) -> Cell:
    """Train the reference, then race every method; return the table of the comparison and its curves."""
    seconds = args.seconds or GRAPHS[graph]
    place = "" if graph == "wordnet" or graph.endswith(".npz") else f" --root {args.root}"
    name, out = Path(graph).stem, Path(args.out)
    common = f"{graph}{place} {MODEL}"
    folder = out / name / "reference"
    if not (folder / "result.json").is_file():
        topoff(f"train {common} --method full --seconds {LONGER * seconds} --seed 1000 --out {folder} --overwrite")
    reference = json.loads((folder / "result.json").read_text())
    table = topoff(
        f"compare {common} --methods {METHODS} --seconds {seconds} --seeds {args.seeds} --no-gradients "
        f"--reference {reference['val']} --out {out / name / 'race'}"
    )
    table["reference_steps"] = reference["steps"]
    table["curves"] = {method: curve(out / name / "race" / method) for method in table["methods"]}
    return table


def curve(folder: Path) -> list[tuple[float, float]]:
    """Return (seconds, validation score) of the first seed of a method."""
    found = []
    for run in sorted(folder.glob("seed-*"))[:1]:
        if not (run / "result.json").is_file():
            continue
        before = json.loads((run / "result.json").read_text())["preprocess_seconds"]
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found = [(round(before + row["train_seconds"], 2), row["val"]) for row in rows if row.get("val") is not None]
    return found


def best_of_others(table: Cell, target: str) -> tuple[str, float] | None:
    """Return the fastest other method that reached a target with every seed, and its seconds."""
    seeds = len(table["seeds"])
    reached = {
        method: row["seconds_to"][target]
        for method, row in table["methods"].items()
        if method != "top" and row.get("reached", {}).get(target) == seeds
    }
    return min(reached.items(), key=lambda pair: pair[1]) if reached else None


def page(tables: dict[str, Cell]) -> str:
    """Return the page."""
    lines = [
        "# Score against seconds",
        "",
        f"Written by `scripts/race.py` on {datetime.date.today()}; every method trains the same model for the same "
        "training seconds (preparation and refreshes included, exact evaluation off the clock), one process at a time, "
        "default settings, none of them tuned. Targets are shares of the best validation score of a full batch that "
        f"trained {LONGER} times as long. Mean seconds over the seeds that reach a target; (n) where not all do, "
        "- where none does.",
        "",
    ]
    for graph, table in tables.items():
        lines += section(graph, table)
    return "\n".join(lines) + "\n"


def section(graph: str, table: Cell) -> list[str]:
    """Return the lines of one graph."""
    seeds, rival = len(table["seeds"]), best_of_others(table, "98")
    own = table["methods"]["top"].get("seconds_to", {}).get("98")
    if own is None:
        verdict = "TOP does not reach 98 % with every seed in this time."
    elif rival is None:
        verdict = "No other method reaches 98 % with every seed in this time."
    else:
        verdict = f"TOP's seconds to 98 % are {own / rival[1]:.2f} times those of the best other method, {rival[0]}."
    score = table["reference"]["score"]
    lines = [
        f"## {graph}",
        "",
        f"{table['nodes']:,} nodes, {table['edges']:,} edges; GCN 3 x 128, {table['seconds']:g} s, seeds "
        f"{table['seeds']}; reference {score:.4f} ({table['metric']}, validation; {table['reference_steps']} steps). "
        f"{verdict}",
        "",
        "| method | test | minus TOP, 95 % | steps | s to 95 % | s to 98 % | s to 99 % | peak, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, row in table["methods"].items():
        if "test" not in row:
            lines.append(f"| {method} | {row.get('error', 'not run')} | | | | | | |")
            continue
        pair = row.get("paired")
        difference = f"{pair['mean']:+.4f} [{pair['low']:+.4f}, {pair['high']:+.4f}]" if pair else ""
        times = [time_of(row, target, seeds=seeds) for target in COLUMNS]
        spread = f" ± {row['test_std']:.4f}" if row.get("test_std") is not None else ""
        cells = [method, f"{row['test']:.4f}{spread}", difference, f"{row['steps']:.0f}", *times]
        lines.append(f"| {' | '.join(cells)} | {row['peak_rss_mb']:.0f} |")
    notes = [note for row in table["methods"].values() for note in row.get("notes", [])]
    return [*lines, "", *[f"- {note}" for note in dict.fromkeys(notes)], ""]


def time_of(row: Cell, target: str, *, seeds: int) -> str:
    """Return the seconds to a target as a cell."""
    seconds, reached = row["seconds_to"][target], row["reached"][target]
    if seconds is None:
        return "-"
    return f"{seconds:.1f}" if reached == seeds else f"{seconds:.1f} ({reached})"


def draw(tables: dict[str, Cell], path: Path) -> None:
    """Draw validation scores against seconds, a panel per graph."""
    count = len(tables)
    figure, axes = plt.subplots(1, count, figsize=(3.2 * count, 3.0), squeeze=False, layout="constrained")
    for axis, (graph, table) in zip(axes[0], tables.items(), strict=True):
        for method, points in table["curves"].items():
            style = {"color": "#c0392b", "linewidth": 2.2, "zorder": 3} if method == "top" else {"linewidth": 1.2}
            axis.plot([point[0] for point in points], [point[1] for point in points], label=method, **style)
        score = table["reference"]["score"]
        axis.axhline(0.98 * score, color="#888888", linewidth=0.8, linestyle=":")
        axis.set(title=graph, xlabel="training seconds", ylim=(0.85 * score, 1.02 * score))
    axes[0][0].set_ylabel("validation score (dotted: 98 % of full batch)")
    axes[0][-1].legend(fontsize=7)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """Run or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("--root", default="data", help="folder of PyG's raw files")
    parser.add_argument("--only", help="graphs, comma-separated; names, or .npz files")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seeds", default="0-1")
    parser.add_argument("--out", default="runs/race")
    args = parser.parse_args()
    kept = RESULTS / "time.json"
    tables: dict[str, Cell] = json.loads(kept.read_text()) if kept.is_file() else {}
    if args.what == "run":
        print(f"load {os.getloadavg()[0]:.2f}")
        for graph in args.only.split(",") if args.only else GRAPHS:
            tables[Path(graph).stem] = race(graph, args)
            kept.write_text(json.dumps(tables, indent=1) + "\n")
    (RESULTS / "time.md").write_text(page(tables))
    draw(tables, RESULTS.parent / "time.svg")


if __name__ == "__main__":
    main()
