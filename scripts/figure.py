"""Draw docs/figure.png: how far mini-batch outputs are from the whole graph's, against the size of the batches.

    python scripts/figure.py                                   train on wordnet, measure, draw
    python scripts/figure.py --draw-only                       draw docs/results/figure.json again
    python scripts/figure.py --epochs 25 --hidden 16 --ratios 0.1 0.5 --out DIR

A 3-layer GCN is trained full-batch (one step per epoch); then the relative error of its outputs in mini-batches is
measured (Section 5.2 of the paper) for batches of 10 to 50 % of the nodes, clustered and uniform random: in-batch
re-normalised (Cluster-GCN), halo left out (rank 0), TOP with a basis of two random initialisations, and TOP
with a basis from the weights of 20 epochs earlier, four times as old as the default refresh lets it become.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator
from rich.console import Console
from rich.progress import Progress
from torch_geometric.data import Data

from accuracy import RESULTS, Run, Setting, make_model, provenance
from topoff import NodeSets, load
from topoff.experiments.measure import FullBatchModel, measure, train_full_batch

AGE = 20  # epochs between the weights of the refreshed basis and those that are measured
CURVES = {  # name: label, colour, marker
    "cluster": ("in-batch, re-normalised (Cluster-GCN)", "#9a9a9a", "s"),
    "drop": ("halo left out", "#4d4d4d", "D"),
    "random": ("TOP, basis of random weights", "#6aa5cf", "^"),
    "refreshed": (f"TOP, basis refreshed {AGE} epochs ago", "#c0392b", "o"),
}
PANELS = {"kaminpar": "clustered batches (KaMinPar)", "random": "uniform random batches"}
SETTING = Setting(layers=3, hidden=128, dropout=0.2, epochs=100)


def errors_of(trained: FullBatchModel, data: Data, *, sets: NodeSets, rank: int) -> dict[str, float]:
    """Return the relative output error of every curve on the same batches."""
    random = measure(
        dataclasses.replace(trained, earlier=None), data, sets=sets, methods=("cluster", "drop", "top"), rank=rank
    )
    refreshed = measure(trained, data, sets=sets, methods=("top",), rank=rank)
    found = {
        "cluster": random["cluster"],
        "drop": random["drop"],
        "random": random["top"],
        "refreshed": refreshed["top"],
    }
    return {name: float(row["relative_error"]) for name, row in found.items()}


def measure_all(setting: Setting, *, ratios: list[float], console: Console) -> Run:
    """Train, then measure every panel and ratio; return the run file."""
    data = load("wordnet")
    with Progress(transient=True) as bar:
        task = bar.add_task("training full-batch", total=setting.epochs)
        model = make_model(data, setting, seed=0)
        tell = lambda epoch, loss: bar.update(task, completed=epoch)  # noqa: E731
        trained = train_full_batch(model, data, epochs=setting.epochs, lr=setting.lr, age=AGE, tell=tell)
    points = []
    for method in PANELS:
        for ratio in ratios:
            sets = NodeSets(method=method, ratio=ratio).fit(data)
            errors = errors_of(trained, data, sets=sets, rank=setting.rank)
            points.append({"batches": method, "ratio": 1 / len(sets), **errors})  # batches are whole in number
            shown = ", ".join(f"{name} {error:.2%}" for name, error in errors.items())
            console.print(f"{method} batches of {1 / len(sets):.0%}: {shown}", soft_wrap=True)
    return {"dataset": "wordnet", "setting": dataclasses.asdict(setting), "points": points, **provenance()}


def draw(run: Run, path: Path) -> None:
    """Draw one panel per kind of batches, error against ratio."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    for (method, title), axes in zip(PANELS.items(), panels, strict=True):
        points = [point for point in run["points"] if point["batches"] == method]
        for name, (label, color, marker) in CURVES.items():
            ratios, errors = [point["ratio"] for point in points], [100 * point[name] for point in points]
            axes.plot(ratios, errors, color=color, marker=marker, markersize=5, linewidth=1.8, label=label)
        axes.set(title=title, xlabel="nodes per batch", yscale="log", xticks=[point["ratio"] for point in points])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.minorticks_off()
        axes.grid(visible=True, color="#e4e4e4")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("output error against the whole graph")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    setting = run["setting"]
    figure.suptitle(f"WordNet, GCN {setting['layers']} x {setting['hidden']}, rank {setting['rank']}: lower is better")
    figure.savefig(path, dpi=160)
    plt.close(figure)


def main() -> None:
    """Measure, unless told to draw only, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=SETTING.epochs, help="full-batch steps")
    parser.add_argument("--hidden", type=int, default=SETTING.hidden)
    parser.add_argument("--rank", type=int, default=SETTING.rank)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.1, 0.2, 0.25, 1 / 3, 0.5])
    parser.add_argument("--out", type=Path, default=RESULTS.parent, help="folder of figure.png and results/figure.json")
    parser.add_argument("--draw-only", action="store_true")
    args = parser.parse_args()
    source = args.out / "results" / "figure.json"
    if not args.draw_only:
        setting = dataclasses.replace(SETTING, epochs=args.epochs, hidden=args.hidden, rank=args.rank)
        run = measure_all(setting, ratios=args.ratios, console=Console())
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(json.dumps(run, indent=1) + "\n")
    plt.switch_backend("agg")
    draw(json.loads(source.read_text()), args.out / "figure.png")


if __name__ == "__main__":
    main()
