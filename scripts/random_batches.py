"""Train on uniform random 10 % batches of wordnet, with and without compensation; compare exact test accuracies.

    python scripts/random_batches.py                       30 epochs, seeds 0 to 2
    python scripts/random_batches.py --seeds 0 --epochs 3

The same 3 x 128 GCN, batches and optimiser for all; TOP refreshes every 5 epochs. Without compensation in two forms:
`drop` keeps the weights of the whole graph and leaves the halo out in every layer, the first included (rank 0), and
`cluster` is the bare model on the batch's own edges, re-normalised there. Finished runs are kept as in accuracy.py.
"""

import argparse
import dataclasses
import statistics
from pathlib import Path

from rich.console import Console
from torch_geometric.data import Data

from accuracy import RESULTS, Run, Setting, footer, make_model, mean_std, provenance, read_runs, train, write_runs
from topoff import TOP, load

SETTING = Setting(layers=3, hidden=128, dropout=0.2, epochs=30, rank=128)  # most messages come from outside
METHODS = {"top": "TOP, refreshed every 5 epochs", "drop": "halo left out", "cluster": "in-batch, re-normalised"}
POINTS = 4.0  # that TOP must be above both others


def run_method(method: str, data: Data, setting: Setting, *, seed: int) -> Run:
    """Train with one of the methods."""
    model = make_model(data, setting, seed=seed)
    rank = setting.rank if method == "top" else 0
    refresh = "every=5" if rank else "never"
    top = TOP(model, data, batches="random", ratio=setting.ratio, rank=rank, refresh=refresh, seed=seed)
    forward = top if method != "cluster" else lambda batch: model(batch.x, batch.edge_index)
    label = f"{method} seed {seed}"
    return train(top, setting, epoch=lambda: top, forward=forward, label=label)


def write_table(source: Path) -> bool:
    """Write the markdown table; return whether TOP is far enough above both others at the end of training."""
    runs = read_runs(source)
    finished = [{run["seed"] for run in runs if run["method"] == method} for method in METHODS]
    seeds = sorted(set.intersection(*finished))
    lines = [
        "# Uniform random batches: what compensation is worth",
        "",
        f"wordnet, 10 % random batches, GCN 3 x 128, {runs[0]['setting']['epochs']} epochs; exact test accuracy in per",
        f"cent, mean and unbiased standard deviation over seeds {', '.join(map(str, seeds))}.",
        f"TOP must be {POINTS:g} points above.",
        "",
        "| training | at the end | at best validation | TOP is above by, at the end | at best validation |",
        "|---|---|---|---|---|",
    ]
    scores = {(run["method"], run["seed"]): (run["last_test"], run["test"]) for run in runs}
    gaps = []
    for method, label in METHODS.items() if seeds else ():
        ends, bests = zip(*(scores[method, seed] for seed in seeds), strict=True)
        tops = zip(*(scores["top", seed] for seed in seeds), strict=True)
        above = [100 * (statistics.fmean(a) - statistics.fmean(b)) for a, b in zip(tops, (ends, bests), strict=True)]
        gaps += above if method != "top" else []
        cells = [label, mean_std(list(ends)), mean_std(list(bests))]
        cells += ["", ""] if method == "top" else [f"{gap:.2f}" for gap in above]
        lines.append("| " + " | ".join(cells) + " |")
    source.with_suffix(".md").write_text("\n".join(lines) + "\n" + footer(source))
    return bool(gaps) and min(gaps) >= POINTS


def main() -> None:
    """Run what is missing, one training after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=SETTING.epochs)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of random_batches.json and random_batches.md")
    args = parser.parse_args()
    console, target, data = Console(), args.out / "random_batches.json", load("wordnet")
    setting = dataclasses.replace(SETTING, epochs=args.epochs)
    for seed in args.seeds:
        for method in METHODS:
            key = {"seed": seed, "method": method, "setting": dataclasses.asdict(setting)}
            runs = [run for run in read_runs(target) if run["setting"] == key["setting"]]
            if any(run["seed"] == seed and run["method"] == method for run in runs):
                continue
            run = key | run_method(method, data, setting, seed=seed) | provenance()
            write_runs(target, [*runs, run])
            console.print(f"{method:8} seed {seed}: test {run['last_test']:.2%}, {run['seconds']} s")
    met = write_table(target)
    console.print("met" if met else f"[bold red]TOP is less than {POINTS:g} points above", target.with_suffix(".md"))


if __name__ == "__main__":
    main()
