"""Compare the exact test accuracy of TOP at 10 % batches with full-batch training by as many optimiser steps.

    python scripts/accuracy.py --root DIR                               all graphs, seeds 0 to 4
    python scripts/accuracy.py --root DIR --datasets Cora --seeds 0 --epochs 3

`DIR/<Name>/raw` holds the raw files of PyG's datasets; wordnet ships with the package. Both methods train the same
model with the same seed, split, learning rate, dropout and weight decay, and report the exact test accuracy where the
exact validation accuracy was best; it is looked at after every epoch of TOP, and as often in steps of the full batch.
Planetoid's and wordnet's splits are the official ones, the others are drawn from the seed (60/20/20 %).

Every finished run goes to docs/results/accuracy.json at once; what is there with the same setting is not run again.
docs/results/accuracy.md is made from it.
"""

# ruff: noqa: E402
from topoff.machine.memory import keep_freed_memory

keep_freed_memory()

import argparse
import dataclasses
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from topoff import TOP
from topoff.forward.subgraph import whole_graph
from topoff.machine.memory import machine
from topoff.training.build import learning_rate, make_optimizer, model_for
from topoff.training.config import Config, make_config
from topoff.training.records import Spread
from topoff.training.trained import graph_of

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
PACKAGES = ("topoff", "torch", "torch_geometric", "numpy", "scipy", "kaminpar")
POINTS = 0.5  # percentage points that TOP may always lose

Run = dict[str, Any]  # one finished training: what it was, and its scores


@dataclasses.dataclass(frozen=True)
class Setting:
    """Hold how a graph is trained on, the same for both methods."""

    layers: int = 2
    hidden: int = 64
    dropout: float = 0.5
    norm: bool = True  # LayerNorm per node
    residual: bool = True
    lr: float = 0.01
    schedule: str = "constant"  # or "cosine", to zero over the epochs
    weight_decay: float = 0.0
    epochs: int = 50  # of TOP; the full batch makes as many steps
    unit_rows: bool = False  # features divided by their sum, as usual on Planetoid
    ratio: float = 0.1
    rank: int = 64


PLANETOID = Setting(norm=False, residual=False, weight_decay=5e-4, schedule="cosine", epochs=40, unit_rows=True)
SETTINGS = {
    "wordnet": Setting(
        layers=3, hidden=128, dropout=0.0, norm=False, residual=False, lr=0.02, schedule="cosine", epochs=60
    ),
    "Cora": PLANETOID,
    "PubMed": PLANETOID,
    "Computers": Setting(hidden=128, lr=0.003, schedule="cosine", epochs=100),
    "CS": Setting(weight_decay=5e-4, schedule="cosine", epochs=15),
}


# ---- training


def config_of(setting: Setting, **place: Any) -> Config:
    """Return a setting as the library's own settings; `place` names the graph: dataset, root, seed."""
    names = ("layers", "hidden", "dropout", "residual", "lr", "schedule", "weight_decay", "epochs")
    keys = {name: value for name, value in dataclasses.asdict(setting).items() if name in names}
    norm = "layer" if setting.norm else "none"
    return make_config({"dataset": "wordnet", "norm": norm, "row_normalize": setting.unit_rows}, keys, place)


def make_model(data: Data, setting: Setting, *, seed: int) -> nn.Module:
    """Return a fresh model."""
    torch.manual_seed(seed)
    return model_for(config_of(setting), data, outputs=int(data.y.max()) + 1)


def train(
    top: TOP,
    setting: Setting,
    *,
    epoch: Callable[[], Iterable[Data]],
    forward: Callable[[Data], Tensor],
    label: str,
) -> Run:
    """Train on the batches of one `epoch()` after the other; return exact scores at best validation and at the end."""
    config = config_of(setting)
    optimizer = make_optimizer(config, top.model, list(top.model.parameters()))
    best: dict[str, float] = {"val": -1.0}
    last, steps, start = best, 0, time.perf_counter()
    for number in track(range(1, setting.epochs + 1), description=label, transient=True):
        top.model.train()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, number - 1)
        for batch in epoch():
            loss = F.cross_entropy(forward(batch)[batch.train_mask], batch.y[batch.train_mask])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            steps += 1
        last = top.evaluate()
        if last["val"] > best["val"]:
            best = {**last, "epoch": number}
    seconds = round(time.perf_counter() - start, 1)
    at_best = {"val": best["val"], "test": best["test"], "best_epoch": best["epoch"]}
    size = sum(parameter.numel() for parameter in top.model.parameters())
    return {**at_best, "last_test": last["test"], "steps": steps, "seconds": seconds, "parameters": size}


def train_top(data: Data, setting: Setting, *, seed: int, label: str) -> Run:
    """Train with compensated batches, refreshed every 5 epochs."""
    top = TOP(make_model(data, setting, seed=seed), data, ratio=setting.ratio, rank=setting.rank, seed=seed)
    return train(top, setting, epoch=lambda: top, forward=top, label=label)


def train_full(data: Data, setting: Setting, *, seed: int, label: str) -> Run:
    """Train on the whole graph at once, on the fast operator: per epoch as many steps as TOP has batches."""
    model = make_model(data, setting, seed=seed)
    top = TOP(model, data, ratio=setting.ratio, rank=0, seed=seed, refresh="never")  # rank 0: for exact evaluation only
    steps = sum(bool(batch.train_mask.any()) for batch in top.prepare().batches())
    whole = whole_graph(top.graph, top.plan)
    return train(top, setting, epoch=lambda: [whole] * steps, forward=top, label=label)


METHODS: dict[str, Callable[..., Run]] = {"top": train_top, "full": train_full}


# ---- the record


def provenance() -> Run:
    """Say by which command, where, when and with what a result was made; no path and no host name."""
    words, hidden = ["python", f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]], ("--root", "--out")
    command = ["DIR" if before in hidden else word for before, word in zip(["", *words], words, strict=False)]
    found = machine()
    return {
        "command": " ".join(command),
        "machine": f"{found['cores']} x {found['cpu']}, {found['threads']} threads, {found['system']}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def read_runs(path: Path) -> list[Run]:
    """Return the runs that a results file holds; none where there is no file."""
    return json.loads(path.read_text())["runs"] if path.exists() else []


def write_runs(path: Path, runs: list[Run]) -> None:
    """Write a results file in one piece, so that a killed run leaves the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".json.part")
    draft.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    draft.replace(path)


def footer(path: Path) -> str:
    """Return the lines below a table: where its numbers come from, once for all runs that share it."""
    lines = []
    for run in read_runs(path):
        versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
        lines.append(f"- `{run['command']}`, {run['date']}, {run['machine']}; {versions}")
    return "\n".join(["", f"Run file: `{path.name}`, made by", "", *dict.fromkeys(lines)]) + "\n"


def mean_std(values: list[float | None]) -> str:
    """Write the mean and the unbiased standard deviation in per cent.

    >>> mean_std([0.5, 0.7])
    '60.00 ± 14.14'
    """
    found = Spread.over(values)
    return f"{100 * (found.mean or 0.0):.2f}" + (f" ± {100 * (found.std or 0.0):.2f}" if len(values) > 1 else "")


# ---- the table


def compare(runs: list[Run]) -> tuple[str, bool] | None:
    """Return a dataset's row and whether TOP is good enough; None without a seed that both methods have finished."""
    scores = {method: {run["seed"]: run["test"] for run in runs if run["method"] == method} for method in METHODS}
    seeds = sorted(scores["top"].keys() & scores["full"].keys())
    if not seeds:
        return None
    top, full = ([scores[method][seed] for seed in seeds] for method in METHODS)
    differences = [100 * (a - b) for a, b in zip(top, full, strict=True)]
    error = statistics.stdev(differences) / len(seeds) ** 0.5 if len(seeds) > 1 else 0.0
    allowance, difference = max(POINTS, 2 * error), statistics.fmean(differences)
    setting, steps = runs[0]["setting"], next(run["steps"] for run in runs if run["method"] == "full")
    model = f"{setting['layers']} x {setting['hidden']}"
    good = difference >= -allowance
    cells = (runs[0]["dataset"], model, f"{setting['epochs']} ({steps})", len(seeds), mean_std(top), mean_std(full),
             f"{difference:+.2f}", f"{allowance:.2f}", "met" if good else "**missed**")  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |", good


def write_table(source: Path) -> bool:
    """Write the markdown table beside the results file; return whether every row is good enough."""
    runs = read_runs(source)
    by_name = [[run for run in runs if run["dataset"] == name] for name in SETTINGS]
    rows = [row for group in by_name if group and (row := compare(group))]
    lines = [
        "# Accuracy: TOP at 10 % batches against the full batch",
        "",
        "Exact test accuracy in per cent at the best validation, mean and unbiased standard deviation over the seeds;",
        "the same GCN, as many optimiser steps. Difference: TOP minus full batch, in points. Allowance: 0.5 points or",
        "two standard errors of the difference (paired by seed), whichever is larger.",
        "",
        "| graph | GCN | epochs (steps) | seeds | TOP | full batch | difference | allowance | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
        *(row for row, _ in rows),
    ]
    source.with_suffix(".md").write_text("\n".join(lines) + "\n" + footer(source))
    return all(good for _, good in rows)


def same_run(one: Run, other: Run) -> bool:
    """Whether two runs are the same training."""
    return all(one[key] == other[key] for key in ("dataset", "seed", "method"))


def main() -> None:
    """Run what is missing, one training after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder of the raw files of PyG's datasets")
    parser.add_argument("--datasets", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, help="of every graph, instead of its own number")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of accuracy.json and accuracy.md")
    args = parser.parse_args()
    console, target = Console(), args.out / "accuracy.json"
    for name in args.datasets:
        setting = dataclasses.replace(SETTINGS[name], **({"epochs": args.epochs} if args.epochs else {}))
        for seed in args.seeds:
            for method, run_method in METHODS.items():
                key = {"dataset": name, "seed": seed, "method": method, "setting": dataclasses.asdict(setting)}
                runs = read_runs(target)
                if any(same_run(run, key) and run["setting"] == key["setting"] for run in runs):
                    continue
                data = graph_of(config_of(setting, dataset=name, root=args.root, seed=seed))
                run = key | run_method(data, setting, seed=seed, label=f"{name} {method} seed {seed}") | provenance()
                write_runs(target, [*(old for old in runs if not same_run(old, key)), run])
                write_table(target)
                console.print(f"{name:10} {method:5} seed {seed}: test {run['test']:.2%}, {run['seconds']} s")
    console.print("all met" if write_table(target) else "[bold red]missed somewhere", f"-> {target.with_suffix('.md')}")


if __name__ == "__main__":
    main()
