"""Race the methods for the same training seconds and write docs/results/time.md, time.json and docs/time.svg.

    python scripts/race.py run --root DIR [--only wordnet,Computers] [--seconds 20] [--seeds 0-1] [--model gcn-3]
    python scripts/race.py write

`DIR/<Name>/raw` holds the raw files of PyG's datasets, `DIR/<name>/graph.npz` other graphs; stand-ins are generated.
For every graph the full batch first trains for REFERENCE epochs: its best validation score is the reference of the
targets, fixed before the race. Then `topoff compare --seconds` trains every method, two threads, one after the other,
each with an empty cache: run it alone on the machine. Runs are kept in --out (default runs/race), what is finished is
not run again; `write` makes the page from docs/results/time.json.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "docs" / "results"
METHODS = "top,cluster,gas,ns,labor,full"
COLOURS = dict(zip(METHODS.split(","), ("#c0392b", "C0", "C1", "C2", "C4", "C5"), strict=True))
REFERENCE = 300  # epochs of the full batch that make the reference
MODELS = {  # name: flags
    "gcn-3": "--model gcn --layers 3 --hidden 128",
    "sage-3": "--model sage --layers 3 --hidden 128",
    "gat-3": "--model gat --layers 3 --hidden 128",
    "gcnii-8": "--model gcnii --layers 8 --hidden 128",
}
OLDER = {model: f"{flags} --schedule cosine --no-average" for model, flags in MODELS.items()}  # of before averages
GRAPHS = {  # name: seconds of a race
    "wordnet": 20,
    "Computers": 10,
    "CS": 10,
    "PubMed": 6,
    "facebook_pagepage": 10,
    "tolokers": 10,
    "minesweeper": 6,
    "arxiv-like": 20,
    "dense": 12,
}
COLUMNS = ("95", "98", "99")
HALF = 0.5  # of the best other method's seconds: what TOP is to need at most
BOUNDS = {"a quarter at most": 0.25, "half at most": HALF, "less than all": 1 - 1e-9}
Cell = dict[str, Any]


@dataclass(frozen=True)
class StandIn:
    """Describe a generated graph of communities."""

    nodes: int
    edges: int  # directed
    between: float  # share of the edges between communities
    communities: int = 300
    features: int = 128
    classes: int = 40
    signal: float = 0.1  # of the class in the features, relative to the noise
    wrong: float = 0.2  # share of the labels that are drawn at random


STAND_INS = {
    "arxiv-like": StandIn(169_000, 2_200_000, 0.25),
    "dense": StandIn(40_000, 2_400_000, 0.5, communities=80),
}


def write_stand_in(path: Path, kind: StandIn) -> None:
    """Generate a graph as an .npz file for `topoff.load`."""
    spec = importlib.util.spec_from_file_location("epoch_benchmark", HERE / "benchmarks" / "epoch.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    sizes = {"communities": kind.communities, "between": kind.between}
    edge_index, community = benchmark.community_graph(kind.nodes, kind.edges, **sizes)
    rng = np.random.default_rng(1)
    y = community % kind.classes
    x = rng.standard_normal((kind.nodes, kind.features), dtype=np.float32)
    x += kind.signal * rng.standard_normal((kind.classes, kind.features), dtype=np.float32)[y]
    y = np.where(rng.random(kind.nodes) < kind.wrong, rng.integers(kind.classes, size=kind.nodes), y)
    split = rng.choice(3, size=kind.nodes, p=(0.5, 0.25, 0.25))
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, edge_index=edge_index, x=x, y=y, split=split)


def topoff(command: str) -> Cell:
    """Run a command of topoff and return the JSON in its last line."""
    print(f"topoff {command}", flush=True)
    words = [sys.executable, "-m", "topoff", *shlex.split(command), "--json", "--quiet"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: Cell = json.loads(done.stdout.splitlines()[-1])
    return found


def source(graph: str, args: argparse.Namespace) -> str:
    """Return how topoff is told of a graph."""
    if graph in STAND_INS:
        path = Path(args.out) / f"{graph}.npz"
        if not path.is_file():
            write_stand_in(path, STAND_INS[graph])
        return str(path)
    if graph == "wordnet" or Path(graph).suffix:
        return graph
    own = Path(args.root) / graph / "graph.npz"
    return str(own) if own.is_file() else f"{graph} --root {args.root}"


def reference(folder: Path, common: str, kept: Cell | None) -> tuple[float, int]:
    """Return the full batch's best validation score, with a rate that falls to zero, and its steps.

    That of an earlier race is kept: a score does not depend on the machine.
    """
    if kept is not None:
        return kept["reference"]["score"], kept["reference_steps"]
    if not (folder / "result.json").is_file():
        settings = f"--method full --epochs {REFERENCE} --schedule cosine --no-average --seed 1000 --eval-every 10"
        topoff(f"train {common} {settings} --out {folder}")
    found = json.loads((folder / "result.json").read_text())
    return found["val"], found["steps"]


def race(graph: str, args: argparse.Namespace, *, kept: Cell | None) -> Cell:
    """Race every method against the reference; return the table of the comparison and its curves."""
    seconds, name = args.seconds or GRAPHS[graph], Path(graph).stem
    out, common = Path(args.out) / args.model / name, f"{source(graph, args)} {MODELS[args.model]}"
    score, steps = reference(out / "reference", common, kept)
    table = topoff(
        f"compare {common} --methods {args.methods} --seconds {seconds} --seeds {args.seeds} --no-gradients "
        f"--reference {score} --out {out / 'race'}"
    )
    table["reference_steps"], table["settings"] = steps, MODELS[args.model]
    table["curves"] = {method: curve(out / "race" / method) for method in table["methods"]}
    cores, torch = os.cpu_count(), version("torch")
    table["machine"] = f"{platform.machine()}, {cores} cores, torch {torch}, {datetime.date.today()}"
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


def ratio(table: Cell, target: str) -> float | None:
    """Return TOP's seconds to a target relative to the best other method; None where TOP does not reach it.

    Where no other method reaches it, relative to the seconds of the race: others need more than those.
    """
    top, other = table["methods"]["top"], best_of_others(table, target)
    if top["reached"][target] < len(table["seeds"]):
        return None
    return float(top["seconds_to"][target] / (other[1] if other else table["seconds"]))


def best_test(table: Cell) -> tuple[str, float]:
    """Return the method with the best test score, and the difference of TOP's to it in standard errors."""
    rows = {method: row for method, row in table["methods"].items() if "test" in row}
    best = max(rows, key=lambda method: rows[method]["test"])
    spread = max(rows[best].get("test_std") or 0.0, rows["top"].get("test_std") or 0.0)
    error = spread / len(table["seeds"]) ** 0.5
    gap = rows["top"]["test"] - rows[best]["test"]
    return best, gap / error if error else (0.0 if gap == 0 else float("-inf"))


def page(models: dict[str, dict[str, Cell]]) -> str:
    """Return the page."""
    lines = [
        "# Score against seconds",
        "",
        "Written by `scripts/race.py`; every method trains the same model for the same training seconds (preparation "
        "and refreshes included, exact evaluation off the clock), one process at a time, with an empty cache and "
        "default settings, none of them tuned. A running average of the weights is scored, of all methods alike, "
        "unless the settings of a race say `--no-average`. Targets are shares of the best validation score of a full "
        f"batch that trained {REFERENCE} epochs. Mean seconds over the seeds that reach a target; (n) where not all "
        "do, - where none does; where no other arrives with every seed, TOP is compared with the length of the race. A "
        "race has some thirty evaluations: differences below a thirtieth of its length say nothing, and spreads of few "
        "seeds say little. Curves are those of the first seed.",
        "",
        "![Validation score against seconds](../time.svg)",
        "",
        *summary(models),
    ]
    for model, tables in models.items():
        for graph, table in tables.items():
            lines += section(graph, model, table)
    return "\n".join(lines).rstrip() + "\n"


def summary(models: dict[str, dict[str, Cell]]) -> list[str]:
    """Return the table over all graphs: TOP against the best other method."""
    lines = [
        "| graph | model | s to 98 %, TOP | best other | times | test, TOP | best test | where TOP is behind |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for model, tables in models.items():
        for graph, table in tables.items():
            top, other, times = table["methods"]["top"], best_of_others(table, "98"), ratio(table, "98")
            best, errors = best_test(table)
            held = "TOP" if best == "top" else f"{best} {table['methods'][best]['test']:.4f} ({errors:+.1f} s.e.)"
            rival = f"{other[0]} {other[1]:.1f}" if other else f"none in {table['seconds']:g} s"
            shown = "-" if times is None else f"{'' if other else '< '}{times:.2f}"
            why = reason(table, other[0]) if other and (times is None or times > HALF) else ""
            lines.append(
                f"| {graph} | {model} | {time_of(top, '98', seeds=len(table['seeds']))} | {rival} | "
                f"{shown} | {top['test']:.4f} | {held} | {why} |"
            )
    return [*lines, "", *(verdict(model, list(tables.values())) for model, tables in models.items()), ""]


def verdict(model: str, tables: list[Cell]) -> str:
    """Say on how many graphs TOP keeps its promises with a model."""
    ratios = [times for table in tables if (times := ratio(table, "98")) is not None]
    alone = sum(ratio(table, "98") is not None and best_of_others(table, "98") is None for table in tables)
    tests = [best_test(table) for table in tables]
    first, near = sum(best == "top" for best, _ in tests), sum(best != "top" and gap >= -1 for best, gap in tests)
    within = ", ".join(f"{words} on {sum(times <= most for times in ratios)}" for words, most in BOUNDS.items())
    count = f"{len(tables)} graph{'s' if len(tables) > 1 else ''}"
    return (
        f"- {model}, {count}: of the seconds of the best other method to 98 % TOP needs {within}; on "
        f"{alone} of these no other arrived. Its test score at the end is the best on {first}, and within one standard "
        f"error of the best on {near} more."
    )


def reason(table: Cell, other: str) -> str:
    """Say what the other method has ahead of TOP: an earlier start, or more steps a second."""
    words = []
    for method in ("top", other):
        row = table["methods"][method]
        start = row["preprocess_seconds"]
        words.append(f"{method}: {start:.1f} s of preparation, {row['steps'] / (table['seconds'] - start):.0f} steps/s")
    return "; ".join(words)


def section(graph: str, model: str, table: Cell) -> list[str]:
    """Return the lines of one graph."""
    seeds, score = len(table["seeds"]), table["reference"]["score"]
    kind = ", a stand-in" if graph in STAND_INS else ""
    settings = table.get("settings", OLDER[model])
    lines = [
        f"## {graph}, {model}",
        "",
        f"{table['nodes']:,} nodes, {table['edges']:,} edges{kind}; `{settings}`, {table['seconds']:g} s, seeds "
        f"{table['seeds']}; reference {score:.4f} ({table['metric']}, validation; {table['reference_steps']} steps); "
        f"{table.get('machine', '')}.",
        "",
        "| method | test | minus TOP, 95 % | steps | s to 95 % | s to 98 % | s to 99 % | peak, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, row in ({name: {} for name in METHODS.split(",")} | table["methods"]).items():
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


def draw(models: dict[str, dict[str, Cell]], path: Path) -> None:
    """Draw validation scores against seconds, a panel per graph and model."""
    tables = {f"{graph}, {model}": table for model, found in models.items() for graph, table in found.items()}
    columns = min(4, len(tables))
    rows = -(-len(tables) // columns)
    size = (3.0 * columns, 2.6 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[len(tables) :]:
        axis.axis("off")
    for axis, (graph, table) in zip(axes.flat, tables.items(), strict=False):
        for method, points in table["curves"].items():
            style = {"color": COLOURS.get(method), "linewidth": 1.2}
            if method == "top":
                style |= {"linewidth": 2.2, "zorder": 3}
            axis.plot([point[0] for point in points], [point[1] for point in points], label=method, **style)
        score = table["reference"]["score"]
        axis.axhline(0.98 * score, color="#888888", linewidth=0.8, linestyle=":")
        axis.set_title(graph, fontsize=9)
        best = max(value for points in table["curves"].values() for _, value in points)
        axis.set_ylim(0.85 * score, 1.01 * max(score, best))
        axis.tick_params(labelsize=7)
    figure.supxlabel("training seconds", fontsize=9)
    figure.supylabel("validation score (dotted: 98 % of the full batch)", fontsize=9)
    found = [axis.get_legend_handles_labels() for axis in axes.flat]
    handles, labels = max(found, key=lambda pair: len(pair[1]))  # not all were raced everywhere
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=9)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Run or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "write"))
    parser.add_argument("--root", default="data", help="folder of PyG's raw files")
    parser.add_argument("--only", help="graphs, comma-separated; names, or .npz files")
    parser.add_argument("--model", default="gcn-3", choices=MODELS)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seeds", default="0-1")
    parser.add_argument("--out", default="runs/race")
    args = parser.parse_args()
    kept = RESULTS / "time.json"
    models: dict[str, dict[str, Cell]] = json.loads(kept.read_text()) if kept.is_file() else {}
    if args.what == "run":
        print(f"load {os.getloadavg()[0]:.2f}")
        for graph in args.only.split(",") if args.only else GRAPHS:
            tables, name = models.setdefault(args.model, {}), Path(graph).stem
            tables[name] = race(graph, args, kept=tables.get(name))
            kept.write_text(json.dumps(models, indent=1) + "\n")
    (RESULTS / "time.md").write_text(page(models))
    draw(models, RESULTS.parent / "time.svg")


if __name__ == "__main__":
    main()
