"""Compare every method on real graphs and write docs/results/methods.md.

    python scripts/methods.py scores --root DIR        topoff compare, GCN and SAGE on four graphs
    python scripts/methods.py published --root DIR     GAS and TOP with the published settings of Planetoid
    python scripts/methods.py depth                    peak memory against depth, one process per case
    python scripts/methods.py speed                    a few methods alone on the machine, two threads
    python scripts/methods.py write                    the page, from what there is

`DIR/<Name>/raw` holds the raw files of PyG's datasets. Runs are kept in --out (default runs/methods) and what is
finished is not run again; `write` takes its figures from there and keeps them in docs/results/methods.json.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from topoff.training.config import MethodName

METHODS = get_args(MethodName)
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
MODELS = ("gcn", "sage")
PLANETOID = "--row-normalize --epochs 200 --lr 0.01 --weight-decay 0.0005 --outer-decay 0"
PLANETOID += " --clip 1 --batches metis --norm none --no-residual --layers 2 --dropout 0.5 --input-dropout 0.5"
SCORES = {  # graph -> settings
    "Cora": f"{PLANETOID} --eval-every 2 --hidden 16 --ratio 0.25 --parts 40",
    "CiteSeer": f"{PLANETOID} --eval-every 5 --hidden 16 --ratio 0.3333 --parts 24",
    "PubMed": f"{PLANETOID} --eval-every 5 --hidden 16 --ratio 0.5 --parts 8",
    "wordnet": "--epochs 10 --eval-every 5 --lr 0.01 --schedule cosine --layers 3 --hidden 128 --ratio 0.1",
}
OWN = {  # on Planetoid: a logistic regression wants other settings; those of SGC's paper, but for its tuned decay
    "sgc": "--lr 0.2 --weight-decay 0.00005 --outer-decay 0.00005 --clip 0 --epochs 100 --ratio 1",
}
LARGE_SEEDS = "0"  # of wordnet, where all methods take twenty minutes per seed, and of GCNII
REPORTED = {  # method -> published test accuracy on these splits, with GCN: Cora, CiteSeer, PubMed
    "full": ("Kipf and Welling, 2017", (81.5, 70.3, 79.0)),
    "gas": ("Fey et al., 2021", (82.3, 71.2, 79.2)),
    "sgc": ("Wu et al., 2019", (81.0, 71.9, 78.9)),
}
PUBLISHED = {  # config of the package -> published test accuracy of GAS (GNNAutoScale, Table 2)
    "gcn-cora": 82.29,
    "gcn-citeseer": 71.18,
    "gcn-pubmed": 79.23,
    "gcnii-cora": 85.52,
    "gcnii-citeseer": 73.89,
    "gcnii-pubmed": 80.19,
}
CASES = [(config, "gas") for config in PUBLISHED]
CASES += [(config, "top") for config in PUBLISHED if config.startswith("gcn-")]  # GCNII takes half an hour and more
DEEP_SETTINGS = "--eval-every 2 --patience 100"  # of GCNII: 200 epochs without a better score end a run
DEPTHS = range(2, 8)
DEEP = ("full", "cluster", "gas", "ns", "labor", "top")
DEPTH = "--model sage --hidden 128 --epochs 1 --norm none --no-residual --ratio 0.02 --dropout 0"
FAST = "full,cluster,drop,gas,saint-walk,ns,labor,ladies,ibmb,top"


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a run with so many threads."""
    return os.environ | {"OMP_NUM_THREADS": str(threads)}


def topoff(command: str, *, log: Path, threads: int = 1) -> dict[str, Any] | None:
    """Run a command of topoff; return the JSON in its last line, or None where it failed, with the reason in `log`."""
    print(f"topoff {command}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "topoff", *command.split(), "--json", "--quiet"],
        capture_output=True, text=True, check=False, env=environment(threads),
    )  # fmt: skip
    log.write_text(done.stderr)
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else None


def keep(out: Path, name: str, found: Any, *, command: str) -> None:
    """Write what a command found, with the command, its date and the load."""
    if found is not None:
        record = {"command": f"topoff {command}", "date": str(datetime.date.today()), "load": os.getloadavg()[1]}
        (out / f"{name}.json").write_text(json.dumps(record | {"found": found}))


def scores(out: Path, root: str, *, workers: int, seeds: str, only: str | None) -> None:
    """Compare all methods on every graph with every model; on small graphs, all seeds of a method in one process."""
    wanted = [(graph, model) for model in MODELS for graph in SCORES if only in (None, f"{graph}-{model}")]

    def compared(graph: str, model: str) -> None:
        name = f"scores-{graph}-{model}"
        command = f"compare {graph} --root {root} --methods all --model {model} {SCORES[graph]}"
        command += f" --seeds {LARGE_SEEDS} --out {out / name}"
        keep(out, name, topoff(command, log=out / f"{name}.log"), command=command)

    def trained(graph: str, model: str, method: str) -> None:
        name = f"score-{graph}-{model}-{method}"
        command = f"train {graph} --root {root} --method {method} --model {model} {SCORES[graph]}"
        command += f" {OWN.get(method, '')} --seeds {seeds}"
        command += f" --out {out / name} --overwrite"
        if not (out / f"{name}.json").is_file():
            found, log = topoff(command, log=out / f"{name}.log"), out / f"{name}.log"
            reason = {"error": (log.read_text().splitlines() or ["no reason"])[-1]}
            keep(out, name, reason if found is None else found, command=command)

    with ThreadPoolExecutor(workers) as pool:
        waiting = []
        for graph, model in wanted:
            if graph == "wordnet":
                waiting += [pool.submit(compared, graph, model)]
            else:
                waiting += [pool.submit(trained, graph, model, method) for method in METHODS]
        for future in waiting:
            future.result()


def published(out: Path, root: str, *, workers: int, seeds: str, only: str | None) -> None:
    """Train GAS with the published settings (GCNII: with patience), and TOP beside it with GCN."""

    def one(case: tuple[str, str]) -> None:
        config, method = case
        name = f"published-{config}-{method}"
        rest = f"{DEEP_SETTINGS} --seeds {LARGE_SEEDS}" if "gcnii" in config else f"--seeds {seeds}"
        command = f"train --config {config} --root {root} --method {method} {rest} --out {out / name} --overwrite"
        if not (out / f"{name}.json").is_file():
            keep(out, name, topoff(command, log=out / f"{name}.log"), command=command)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, [case for case in CASES if only in (None, "-".join(case))]))


def depth(out: Path, *, workers: int) -> None:
    """Measure the peak memory of one epoch, one process per method and depth."""

    def one(case: tuple[str, int]) -> None:
        method, layers = case
        name = f"depth-{method}-{layers}"
        command = f"train wordnet --method {method} --layers {layers} {DEPTH} --out {out / name} --overwrite"
        if not (out / f"{name}.json").is_file():
            keep(out, name, topoff(command, log=out / f"{name}.log"), command=command)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, [(method, layers) for method in DEEP for layers in DEPTHS]))


def speed(out: Path) -> None:
    """Compare a few methods, alone and on all cores."""
    command = f"compare wordnet --methods {FAST} --model gcn --epochs 30 --eval-every 5 --schedule cosine"
    command += " --layers 3 --hidden 128 --ratio 0.1"
    command += f" --out {out / 'speed'}"
    keep(out, "speed", topoff(command, log=out / "speed.log", threads=os.cpu_count() or 1), command=command)


# ---- the page


def read(out: Path) -> dict[str, Any]:
    """Return all records by name: those of the run folder over those that were kept."""
    kept = RESULTS / "methods.json"
    records: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    for path in sorted(out.glob("*.json")):
        record = json.loads(path.read_text())
        for row in record["found"].get("methods", {}).values():
            row.pop("curve", None)
        for name in ("out", "command"):  # the record has them, without the folders of this machine
            record["found"].pop(name, None)
        if path.stem.startswith(("published", "depth", "score-")):
            names = ("test", "val", "epoch_seconds", "peak_rss_mb", "train_peak_rss_mb", "epochs", "seeds", "error")
            record["found"] = {name: record["found"].get(name) for name in names}
        record["command"] = _without_paths(record["command"])
        records[path.stem] = record
    kept.write_text(json.dumps(records, indent=1) + "\n")
    return records


def _without_paths(command: str) -> str:
    """Replace the folders of this machine in a command by their meaning."""
    words = command.split()
    for flag, name in (("--root", "DIR"), ("--out", "OUT")):
        if flag in words:
            words[words.index(flag) + 1] = name
    return " ".join(words)


def percent(row: dict[str, Any] | None, name: str = "test") -> str:
    """Write a score with its deviation; the reason where there is none."""
    if row is None or row.get(name) is None:
        return "failed" if row and row.get("error") else ""
    value, std = row[name], row.get(f"{name}_std")
    if isinstance(value, dict):
        value, std = value["mean"], value["std"]
    return f"{100 * value:.2f}" + (f" ± {100 * std:.2f}" if std else "")


def page(records: dict[str, Any]) -> str:
    """Return the markdown page."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("topoff", "torch", "torch_geometric"))
    lines = [
        "# Every method under one protocol",
        "",
        f"Written by `scripts/methods.py` on {datetime.date.today()}; {platform.machine()}, {os.cpu_count()} cores; "
        f"{packages}. Scores are exact test scores in per cent at the best validation score. Every row is what a "
        "command printed: `methods.json`.",
        "",
        *_missing(records),
        *_scores_section(records),
        *_reported_section(records),
        *_beside_section(records),
        *_published_section(records),
        *_depth_section(records),
        *_speed_section(records),
        *_commands_section(records),
    ]
    return "\n".join(lines) + "\n"


def _missing(records: dict[str, Any]) -> list[str]:
    """Say which parts were not run yet."""
    small = [g for g in SCORES if g != "wordnet"]
    wanted = [f"score-{g}-{model}-{m}" for g in small for model in MODELS for m in METHODS]
    wanted += [f"scores-wordnet-{model}" for model in MODELS] + [f"depth-{m}-{d}" for m in DEEP for d in DEPTHS]
    wanted += [f"published-{config}-{method}" for config, method in CASES] + ["speed"]
    missing = [name for name in wanted if name not in records]
    if not missing:
        return []
    kinds = sorted(
        {"-".join(name.split("-")[:3] if name.startswith("score") else name.split("-")[:1]) for name in missing}
    )
    return [f"**Not complete: {len(missing)} of {len(wanted)} runs are missing** ({', '.join(kinds)}).", ""]


def _tables(records: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of all methods by graph and model."""
    tables: dict[tuple[str, str], dict[str, Any]] = {}
    for graph, model in [(graph, model) for model in MODELS for graph in SCORES]:
        found = records.get(f"scores-{graph}-{model}", {}).get("found", {}).get("methods", {})
        for method in METHODS:
            if f"score-{graph}-{model}-{method}" in records:
                found[method] = records[f"score-{graph}-{model}-{method}"]["found"]
        if found:
            tables[graph, model] = found
    return tables


def _scores_section(records: dict[str, Any]) -> list[str]:
    tables = _tables(records)
    columns = list(tables)
    if not columns:
        return []
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    runs = {column: max(len(row.get("seeds") or [0]) for row in tables[column].values()) for column in columns}
    lines = ["## Scores", "", "With the number of seeds; failed runs are named below.", ""]
    lines += ["| method | " + " | ".join(f"{graph}, {model} ({runs[graph, model]})" for graph, model in columns) + " |"]
    lines += ["|---" * (len(columns) + 1) + "|"]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(percent(tables[column].get(name)) for column in columns) + " |")
    lines += [
        "",
        "sgc and sign have their own model in both columns, and sgc its own settings (commands below), its "
        "decay the better of two that were tried.",
        "",
    ]
    lines += ["Failed, with the reason:", ""]
    told = {(name, row["error"]) for table in tables.values() for name, row in table.items() if row.get("error")}
    lines += [f"- {name}: {reason}" for name, reason in sorted(told)] or ["- none"]
    return [*lines, "", *_errors(records)]


def _mean(row: dict[str, Any], name: str) -> float | None:
    """Return a figure of a row, its mean over the seeds."""
    value = row.get(name)
    found: float | None = value["mean"] if isinstance(value, dict) else value
    return found


def _reported_section(records: dict[str, Any]) -> list[str]:
    """Return what papers report on the same splits beside what was measured."""
    tables, graphs = _tables(records), ("Cora", "CiteSeer", "PubMed")
    lines = ["| method | reported by | " + " | ".join(f"{graph}: reported, here" for graph in graphs) + " |"]
    lines += ["|---" * (len(graphs) + 2) + "|"]
    for method, (source, scores) in REPORTED.items():
        here = [percent(tables.get((graph, "gcn"), {}).get(method)) for graph in graphs]
        cells = [f"{score}, {found}" for score, found in zip(scores, here, strict=True)]
        lines.append(f"| {method} | {source} | " + " | ".join(cells) + " |")
    head = "Scores that papers report on the same graphs and splits, with GCN (sgc: its own model):"
    return [head, "", *lines, ""]


def _beside_section(records: dict[str, Any]) -> list[str]:
    """Return TOP beside the best and the fastest of the others, graph by graph."""
    tables = _tables(records)
    rows = []
    for (graph, model), table in tables.items():
        scored = {name: score for name, row in table.items() if (score := _mean(row, "test")) is not None}
        timed = {name: took for name, row in table.items() if (took := _mean(row, "epoch_seconds")) is not None}
        top, seconds = scored.pop("top", None), timed.pop("top", None)
        batched = {name: took for name, took in timed.items() if name not in ("full", "sgc", "sign")}
        if top is None or seconds is None or not scored or not batched:
            continue
        best, quick = max(scored, key=scored.__getitem__), min(batched, key=batched.__getitem__)
        rank = 1 + sum(score > top for score in scored.values())
        rows.append(
            f"| {graph}, {model} | {100 * top:.2f} | {rank} of {len(scored) + 1} | {best} {100 * scored[best]:.2f} | "
            f"{100 * (top - scored[best]):+.2f} | {seconds / timed[best]:.2f} | {quick} {seconds / timed[quick]:.2f} |"
        )
    if not rows:
        return []
    head = "| graph, model | top | rank | best other | difference | epoch: top / best other | epoch: top / fastest |"
    notes = [
        "Points of test accuracy; times of an epoch, refresh included, as ratios: above 1 TOP is slower. The fastest "
        "is that of the methods that train the model in batches (not full, sgc, sign). Runs ran side by side. "
        "With one or two seeds, differences below a point mean nothing."
    ]
    return ["## TOP beside the best of the others", "", head, "|---" * 7 + "|", *rows, "", *notes, ""]


def _errors(records: dict[str, Any]) -> list[str]:
    """Return the table of errors, times and memory on wordnet."""
    record = records.get("scores-wordnet-gcn")
    if record is None:
        return []
    names = [
        "relative_error",
        "gradient_error",
        "gradient_cosine",
        "epoch_seconds",
        "preprocess_seconds",
        "peak_rss_mb",
    ]
    lines = ["## wordnet, GCN: errors, seconds, memory", "", *_table(record["found"]["methods"], names)]
    note = "One thread each, two runs side by side: the seconds are for comparison among these rows only."
    return [*lines, "", note, ""]


def _published_section(records: dict[str, Any]) -> list[str]:
    rows = []
    for config, score in PUBLISHED.items():
        found = {m: records.get(f"published-{config}-{m}", {}).get("found") for m in ("gas", "top")}
        if any(found.values()):
            rows.append(f"| {config} | {score} | " + " | ".join(percent(found[m]) for m in found) + " |")
    if not rows:
        return []
    head = [
        "## GAS with its published settings",
        "",
        "| config | published, GAS | gas | top |",
        "|---" * 4 + "|",
    ]
    note = "GCN: three seeds, GCNII: one, with patience (commands below; docs/decisions.md on less of it)."
    return [*head, *rows, "", note, ""]


def _depth_section(records: dict[str, Any]) -> list[str]:
    cells = {(m, d): records.get(f"depth-{m}-{d}", {}).get("found") for m in DEEP for d in DEPTHS}
    if not any(cells.values()):
        return []
    lines = ["## Peak memory of training against depth (Figure 5), wordnet, SAGE, 2 % batches, MiB of the process", ""]
    lines += ["| method | " + " | ".join(f"{d} layers" for d in DEPTHS) + " |", "|---" * (len(DEPTHS) + 1) + "|"]
    for method in DEEP:
        row = [cells[method, d] for d in DEPTHS]
        lines.append(f"| {method} | " + " | ".join(f"{r['train_peak_rss_mb']:.0f}" if r else "" for r in row) + " |")
    lines += ["", "The same with exact evaluation, which runs on the whole graph:", ""]
    lines += ["| method | " + " | ".join(f"{d} layers" for d in DEPTHS) + " |", "|---" * (len(DEPTHS) + 1) + "|"]
    for method in DEEP:
        row = [cells[method, d] for d in DEPTHS]
        lines.append(f"| {method} | " + " | ".join(f"{r['peak_rss_mb']:.0f}" if r else "" for r in row) + " |")
    lines += ["", "TOP's peak is that of its preparation, an exact forward: docs/decisions.md."]
    draw_depth({(m, d): found["train_peak_rss_mb"] for (m, d), found in cells.items() if found})
    return [*lines, "", "![Memory against depth](depth.svg)", ""]


def draw_depth(memory: dict[tuple[str, int], float]) -> None:
    """Draw the memory of every method and depth, in MiB, into docs/results/depth.svg."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "depth"  # the same file for the same figures
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for method in DEEP:
        depths = [d for d in DEPTHS if (method, d) in memory]
        axes.plot(depths, [memory[method, d] for d in depths], marker="o", markersize=3, label=method)
    axes.set(xlabel="layers", ylabel="peak memory of training, MiB", ylim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "depth.svg", metadata={"Date": None})


def _speed_section(records: dict[str, Any]) -> list[str]:
    record = records.get("speed")
    if record is None:
        return []
    names = ["test", "seconds_to_target", "epoch_seconds", "preprocess_seconds", "train_peak_rss_mb", "peak_rss_mb"]
    names += ["relative_error", "gradient_cosine"]
    about, found = f"alone, all cores (load {record['load']:.1f} at the end)", record["found"]
    lines = [f"## Speed: wordnet, GCN 3 x 128, 30 epochs, {about}", "", *_table(found["methods"], names), ""]
    return [*lines, f"The target is a validation score of {found['target']:.4f}.", ""]


def _table(rows: dict[str, Any], names: list[str]) -> list[str]:
    """Return the figures of every method as a table."""
    lines = ["| method | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for method, row in rows.items():
        cells = ["" if row.get(name) is None else f"{row[name]:.4g}" for name in names]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return lines


def _commands_section(records: dict[str, Any]) -> list[str]:
    """Return the commands, those that differ by method or depth alone once."""
    dates: dict[str, set[str]] = {}
    for record in records.values():
        command = re.sub(r"--method \S+", "--method METHOD", _without_paths(record["command"]))
        command = re.sub(r"(train wordnet .*--layers) \d+", r"\1 DEPTH", command)
        dates.setdefault(command, set()).add(record["date"])
    return ["## Commands", "", *[f"- {', '.join(sorted(when))}: `{command}`" for command, when in dates.items()]]


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["scores", "published", "depth", "speed", "write"])
    parser.add_argument("--root", default="data", help="folder of the raw files")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"), help="folder of the runs")
    parser.add_argument("--workers", type=int, default=2, help="runs side by side, one thread each")
    parser.add_argument("--seeds", default="0-1", help="of scores and published settings")
    parser.add_argument(
        "--only", metavar="NAME", help="of scores, such as Cora-gcn; of published, such as gcn-cora-gas"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part == "scores":
        scores(args.out, args.root, workers=args.workers, seeds=args.seeds, only=args.only)
    elif args.part == "published":
        published(args.out, args.root, workers=args.workers, seeds=args.seeds, only=args.only)
    elif args.part == "depth":
        depth(args.out, workers=args.workers)
    elif args.part == "speed":
        speed(args.out)
    (RESULTS / "methods.md").write_text(page(read(args.out)))


if __name__ == "__main__":
    main()
